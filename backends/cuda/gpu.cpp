// Checks of the machine, and the options of HALIAX_CUDA; see gpu.h.
#include "gpu.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "haliax/error.h"

namespace haliax::cuda {
namespace {

constexpr int kOldest = 80;  // compute capability

std::string version(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }
[[noreturn]] void refuse(const std::string& what) {
  throw Error("[cuda] " + what + "; plan() requires no GPU, and backend cpu runs everywhere");
}

struct KnownWord {
  const char* text;
  bool CudaOptions::*flag;
};
constexpr KnownWord known[] = {{"sync", &CudaOptions::sync}, {"eager", &CudaOptions::eager},
                               {"keep", &CudaOptions::keep}, {"exact", &CudaOptions::exact},
                               {"tf32", &CudaOptions::tf32}, {"tune", &CudaOptions::tune}};

}  // namespace

void require_gpus(const Gpus& c) {
  if (c.driver == 0) refuse("there is no NVIDIA driver (libcuda.so.1) on this machine");
  if (c.driver / 1000 < c.needed / 1000)  // versions with the same major number are compatible
    refuse(fmt::format("the driver is too old: it is for CUDA {}, but CUDA {} is required",
                       version(c.driver), version(c.needed)));
  if (!c.error.empty()) refuse("the GPUs cannot be queried: " + c.error);
  if (c.gpus.empty())
    refuse("no GPU is visible; CUDA_VISIBLE_DEVICES and the container may hide them");
  for (std::size_t k = 0; k < c.gpus.size(); ++k)
    if (auto& gpu = c.gpus[k]; gpu.sm < kOldest)
      refuse(
          fmt::format("GPU {} ({}) is of sm_{}, but sm_{} or newer is required; "
                      "CUDA_VISIBLE_DEVICES can hide it",
                      k, gpu.name, gpu.sm, kOldest));
}

CudaOptions cuda_options(const char* text) {
  CudaOptions out;
  const std::string all = text ? text : "";
  const char* between = ", ";
  for (auto from = all.find_first_not_of(between); from != all.npos;) {
    const auto end = std::min(all.find_first_of(between, from), all.size());
    const auto word = all.substr(from, end - from);
    auto found =
        std::find_if(std::begin(known), std::end(known), [&](auto& k) { return k.text == word; });
    if (found == std::end(known)) {
      std::vector<std::string> names;
      for (auto& k : known) names.push_back(k.text);
      throw Error(fmt::format("[cuda] HALIAX_CUDA has the word {}; expected {}", word,
                              fmt::join(names, ", ")));
    }
    out.*found->flag = true;
    from = all.find_first_not_of(between, end);
  }
  return out;
}

}  // namespace haliax::cuda
