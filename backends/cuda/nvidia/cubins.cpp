// The cache of compiled kernels; see nvrtc.h and cache.h.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/environment.h"
#include "../cache.h"
#include "../hash.h"
#include "nvrtc.h"

namespace haliax::cuda {
namespace {

std::atomic<std::int64_t> created{0};

// Returns the header line of a file, which describes its content.
std::string head_of(const std::string& key, const std::string& bytes) {
  return fmt::format("haliax cubin {} {} {:016x}\n", key, bytes.size(), hash_of(bytes));
}
// Returns an empty string if there is no intact file.
std::string read(const std::filesystem::path& file, const std::string& key) {
  std::ifstream in(file, std::ios::binary);
  std::string head, bytes;
  if (!std::getline(in, head)) return {};
  bytes.assign(std::istreambuf_iterator<char>(in), {});
  return head + "\n" == head_of(key, bytes) ? bytes : std::string();
}
void write(const std::filesystem::path& file, const std::string& all) {
  static std::atomic<int> number{0};
  const auto mine = fmt::format("{}-{}-{}", file.string(), getpid(), ++number);
  std::error_code failed;
  {
    std::ofstream out(mine, std::ios::binary);
    out << all;
    if (!out.flush()) failed = std::make_error_code(std::errc::io_error);
  }
  if (!failed) std::filesystem::rename(mine, file, failed);
  if (failed) std::filesystem::remove(mine, failed);  // the next run compiles it again
}

}  // namespace

std::filesystem::path cache_folder() {
  auto* folder = std::getenv("HALIAX_CACHE");
  if (!folder || !*folder) return {};
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed)
    fail_env("HALIAX_CACHE", folder,
             "a folder that exists or can be created (" + failed.message() + ")");
  return folder;
}
std::int64_t compiled_cubins() { return created; }

std::string compiler_of(const std::filesystem::path& folder, int version) {
  if (version > 0) return std::to_string(version);
  std::string other;
  std::ifstream(folder / "nvrtc") >> other;
  return other;
}
std::string cached_cubin(const std::string& source, int sm, bool exact) {
  const auto folder = cache_folder();
  auto compiled = [&] {
    ++created;
    return compile_for_gpu(source, sm, exact).bytes;
  };
  if (folder.empty()) return compiled();
  const auto all = fmt::format("{} {} {}\n{}", compiler_of(folder, nvrtc_version()), sm,
                               fmt::join(nvrtc_options(sm, exact), " "), source);
  const auto key = fmt::format("{:016x}{:016x}", hash_of(all), hash_of(all, 0x9e3779b97f4a7c15));
  const auto file = folder / ("cubin-" + key);
  if (auto known = read(file, key); !known.empty()) return known;
  auto bytes = compiled();
  write(file, head_of(key, bytes) + bytes);
  return bytes;
}

}  // namespace haliax::cuda
