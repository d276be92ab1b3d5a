// Compilation of kernels by NVRTC and nvJitLink; see nvrtc.h.
#include "nvrtc.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "../api.h"
#include "haliax/error.h"
#include "library.h"

namespace haliax::cuda {
namespace {

// The used part of NVRTC's interface, which is unchanged since CUDA 11.
struct Nvrtc {
  using Program = void*;
  int (*create)(Program*, const char* text, const char* name, int, const char* const*,
                const char* const*) = nullptr;
  int (*compile)(Program, int options, const char* const*) = nullptr;
  int (*log_size)(Program, std::size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;
  int (*cubin_size)(Program, std::size_t*) = nullptr;
  int (*cubin)(Program, char*) = nullptr;
  int (*ptx_size)(Program, std::size_t*) = nullptr;
  int (*ptx)(Program, char*) = nullptr;
  int (*destroy)(Program*) = nullptr;
  int (*version)(int* major, int* minor) = nullptr;
  bool there = false;

  Nvrtc() {
    const Library library({"libnvrtc.so.13", "libnvrtc.so.12"});
    auto find = [&](auto& f, const char* name) { return library.find(f, name); };
    there = find(create, "nvrtcCreateProgram") && find(compile, "nvrtcCompileProgram") &&
            find(log_size, "nvrtcGetProgramLogSize") && find(log, "nvrtcGetProgramLog") &&
            find(cubin_size, "nvrtcGetCUBINSize") && find(cubin, "nvrtcGetCUBIN") &&
            find(ptx_size, "nvrtcGetPTXSize") && find(ptx, "nvrtcGetPTX") &&
            find(destroy, "nvrtcDestroyProgram") && find(version, "nvrtcVersion");
  }
};
const Nvrtc& nvrtc() {
  static const Nvrtc one;
  return one;
}

// The interface of nvJitLink. Its functions exist under versioned names, and under these plain
// names.
struct Linker {
  using Link = void*;
  int (*create)(Link*, std::uint32_t options, const char* const*) = nullptr;
  int (*add)(Link, int kind, const void*, std::size_t, const char* name) = nullptr;
  int (*add_file)(Link, int kind, const char*) = nullptr;
  int (*complete)(Link) = nullptr;
  int (*cubin_size)(Link, std::size_t*) = nullptr;
  int (*cubin)(Link, void*) = nullptr;
  int (*log_size)(Link, std::size_t*) = nullptr;
  int (*log)(Link, char*) = nullptr;
  int (*destroy)(Link*) = nullptr;
  std::string runtime;  // path of libcudadevrt.a, in the same folder; empty: not available
  static constexpr int kCubin = 1, kLibrary = 6;

  Linker() {
    const Library library({"libnvJitLink.so.13", "libnvJitLink.so.12"});
    auto find = [&](auto& f, const char* name) { return library.find(f, name); };
    if (!(find(create, "nvJitLinkCreate") && find(add, "nvJitLinkAddData") &&
          find(add_file, "nvJitLinkAddFile") && find(complete, "nvJitLinkComplete") &&
          find(cubin_size, "nvJitLinkGetLinkedCubinSize") &&
          find(cubin, "nvJitLinkGetLinkedCubin") && find(log_size, "nvJitLinkGetErrorLogSize") &&
          find(log, "nvJitLinkGetErrorLog") && find(destroy, "nvJitLinkDestroy")))
      return;
    Dl_info where{};
    if (!dladdr(reinterpret_cast<void*>(create), &where) || !where.dli_fname) return;
    const auto file = std::filesystem::path(where.dli_fname).parent_path() / "libcudadevrt.a";
    if (std::error_code failed; std::filesystem::exists(file, failed)) runtime = file.string();
  }
};
const Linker& linker() {
  static const Linker one;
  return one;
}
std::string linked(const std::string& cubin, int sm) {
  auto& api = linker();
  if (!can_link())
    throw Error(
        "[cuda] libnvJitLink.so.13 (or .12), with libcudadevrt.a next to it, "
        "is not found: they are parts of the CUDA toolkit; add them to the loader's path");
  const auto arch = fmt::format("-arch=sm_{}", sm);
  const char* options[] = {arch.c_str()};
  Linker::Link link = nullptr;
  int status = api.create(&link, 1, options);
  const std::unique_ptr<Linker::Link, int (*)(Linker::Link*)> destroyed(&link, api.destroy);
  if (status == 0) status = api.add(link, Linker::kCubin, cubin.data(), cubin.size(), "kernel");
  if (status == 0) status = api.add_file(link, Linker::kLibrary, api.runtime.c_str());
  if (status == 0) status = api.complete(link);
  std::size_t size = 0;
  if (status == 0) {
    api.cubin_size(link, &size);
    std::string out(size, '\0');
    api.cubin(link, out.data());
    return out;
  }
  api.log_size(link, &size);
  std::string log(size, '\0');
  api.log(link, log.data());
  throw Error("[cuda] nvJitLink failed to link a kernel:\n" + log);
}

}  // namespace

bool can_link() { return !linker().runtime.empty(); }
bool has_nvrtc() { return nvrtc().there; }

int nvrtc_version() {
  int major = 0, minor = 0;
  if (has_nvrtc()) nvrtc().version(&major, &minor);
  return 1000 * major + 10 * minor;
}
std::vector<std::string> nvrtc_options(int sm, bool exact) {
  std::vector<std::string> out{fmt::format("--gpu-architecture=sm_{}", sm), "--std=c++20",
                               "--device-as-default-execution-space", "--ptxas-options=-v",
                               "--diag-suppress=177"};
  if (exact) out.push_back("--fmad=false");
  return out;
}

Cubin compile_for_gpu(const std::string& source, int sm, bool exact) {
  auto& api = nvrtc();
  if (!api.there)
    throw Error(
        "[cuda] libnvrtc.so.13 (or .12) is not found: "
        "it is part of the CUDA toolkit; add it to the loader's path?");
  Nvrtc::Program program = nullptr;
  api.create(&program, source.c_str(), "kernels.cu", 0, nullptr, nullptr);
  const std::unique_ptr<Nvrtc::Program, int (*)(Nvrtc::Program*)> destroyed(&program, api.destroy);
  auto flags = nvrtc_options(sm, exact);
  const bool links = source.find(kSetCondition) != source.npos;
  if (links) flags.push_back("--relocatable-device-code=true");
  std::vector<const char*> options;
  for (auto& o : flags) options.push_back(o.c_str());
  const int status = api.compile(program, int(options.size()), options.data());
  auto text_of = [&](auto size_of, auto get) {
    std::size_t size = 0;
    size_of(program, &size);
    std::string out(size, '\0');
    get(program, out.data());
    return out;
  };
  auto log = text_of(api.log_size, api.log);
  if (status != 0) throw Error("[cuda] NVRTC failed to compile a kernel:\n" + log);
  auto bytes = text_of(api.cubin_size, api.cubin);
  return {links ? linked(bytes, sm) : std::move(bytes), std::move(log),
          text_of(api.ptx_size, api.ptx)};
}

}  // namespace haliax::cuda
