// The file of the fastest algorithms; see tuned.h.
#include "tuned.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include "../cache.h"

namespace haliax::cuda {
namespace {

using Choices = std::map<std::string, CublasProduct::Algorithm>;
std::mutex lock;

std::filesystem::path file() {  // empty: HALIAX_CACHE is not set
  const auto folder = cache_folder();
  return folder.empty() ? folder : folder / "tuned";
}
Choices read() {  // skips incomplete lines
  Choices out;
  std::ifstream in(file());
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(": ");
    if (colon == line.npos) continue;
    std::istringstream words(line.substr(colon + 2));
    CublasProduct::Algorithm a{};
    std::size_t n = 0;
    while (n < a.size() && words >> std::hex >> a[n]) ++n;
    if (n == a.size()) out[line.substr(0, colon)] = a;
  }
  return out;
}

}  // namespace

std::optional<CublasProduct::Algorithm> tuned(const std::string& what) {
  std::lock_guard hold(lock);
  const auto all = read();
  auto found = all.find(what);
  if (found == all.end()) return {};
  return found->second;
}
void keep_tuned(const std::string& what, const CublasProduct::Algorithm& how) {
  if (file().empty()) return;
  std::lock_guard hold(lock);
  auto all = read();
  all[what] = how;
  const auto mine = fmt::format("{}-{}", file().string(), getpid());
  {
    std::ofstream out(mine);
    for (auto& [name, a] : all) {
      out << name << ":";
      for (auto word : a) out << fmt::format(" {:016x}", word);
      out << "\n";
    }
  }
  std::error_code failed;
  std::filesystem::rename(mine, file(), failed);
}

}  // namespace haliax::cuda
