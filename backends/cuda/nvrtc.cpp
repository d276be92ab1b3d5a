#include "nvrtc.h"

#include <fmt/format.h>

#include <memory>
#include <vector>

#include "haliax/error.h"
#include "library.h"

namespace haliax::cuda {
namespace {

// The part of NVRTC's interface that is used here; it has not changed since CUDA 11.
struct Nvrtc {
  using Program = void*;
  int (*create)(Program*, const char* text, const char* name, int, const char* const*, const char* const*) = nullptr;
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
            find(ptx_size, "nvrtcGetPTXSize") && find(ptx, "nvrtcGetPTX") && find(destroy, "nvrtcDestroyProgram") &&
            find(version, "nvrtcVersion");
  }
};
const Nvrtc& nvrtc() {
  static const Nvrtc one;
  return one;
}

}  // namespace

bool has_nvrtc() { return nvrtc().there; }

int nvrtc_version() {
  int major = 0, minor = 0;
  if (has_nvrtc()) nvrtc().version(&major, &minor);
  return 1000 * major + 10 * minor;
}
std::vector<std::string> nvrtc_options(int sm, bool exact) {
  std::vector<std::string> out{fmt::format("--gpu-architecture=sm_{}", sm), "--std=c++20", "--device-as-default-execution-space",
                               "--ptxas-options=-v", "--diag-suppress=177"};
  if (exact) out.push_back("--fmad=false");
  return out;
}

Cubin compile_for_card(const std::string& text, int sm, bool exact) {
  auto& api = nvrtc();
  if (!api.there)
    throw Error("[cuda] libnvrtc.so.13 (or .12) is not found: it is part of the CUDA toolkit; is it in the loader's path?");
  Nvrtc::Program program = nullptr;
  api.create(&program, text.c_str(), "kernels.cu", 0, nullptr, nullptr);
  const std::unique_ptr<Nvrtc::Program, int (*)(Nvrtc::Program*)> destroyed(&program, api.destroy);
  const auto asked = nvrtc_options(sm, exact);
  std::vector<const char*> options;
  for (auto& o : asked) options.push_back(o.c_str());
  const int status = api.compile(program, int(options.size()), options.data());
  auto text_of = [&](auto size_of, auto get) {
    std::size_t size = 0;
    size_of(program, &size);
    std::string out(size, '\0');
    get(program, out.data());
    return out;
  };
  auto log = text_of(api.log_size, api.log);
  if (status != 0) throw Error("[cuda] NVRTC refuses a kernel:\n" + log);
  return {text_of(api.cubin_size, api.cubin), std::move(log), text_of(api.ptx_size, api.ptx)};
}

}  // namespace haliax::cuda
