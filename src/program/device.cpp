// Copies of strided boxes on the host, and the defaults of Device for backends without memory of
// their own.
#include <cstring>
#include <string>

#include "haliax/error.h"
#include "program/program.h"

namespace haliax::program {
namespace {

// The dims of a box, without those of size 1. Neighboring dims that are contiguous in both arrays
// are merged.
struct TraversedBox {
  Dims dims, to, from;
  explicit TraversedBox(const Box& b) {
    for (std::size_t d = 0; d < b.dims.size(); ++d) {
      if (b.dims[d] == 1) continue;
      bool follows = !dims.empty() && to.back() == b.dims[d] * b.to_strides[d] &&
                     from.back() == b.dims[d] * b.from_strides[d];
      if (follows) {
        dims.back() *= b.dims[d];
        to.back() = b.to_strides[d];
        from.back() = b.from_strides[d];
      } else {
        dims.push_back(b.dims[d]);
        to.push_back(b.to_strides[d]);
        from.push_back(b.from_strides[d]);
      }
    }
  }
};

void copy_from(const TraversedBox& w, std::size_t d, std::int64_t run, std::byte* to,
               const std::byte* from) {
  if (d == w.dims.size()) {
    std::memcpy(to, from, std::size_t(run));
    return;
  }
  for (std::int64_t k = 0; k < w.dims[d]; ++k)
    copy_from(w, d + 1, run, to + k * w.to[d], from + k * w.from[d]);
}

[[noreturn]] void no_memory_of_its_own(const Device& d) {
  throw Error("[backend] " + std::string(d.name()) + " has no memory but the host's");
}

}  // namespace

void copy_on_host(const Box& b) {
  if (points(b.dims) == 0) return;
  TraversedBox w(b);
  std::int64_t run = b.width;
  if (!w.dims.empty() && w.to.back() == 1 && w.from.back() == 1) {
    run *= w.dims.back();
    w.dims.pop_back();
    w.to.pop_back();
    w.from.pop_back();
  }
  for (auto* strides : {&w.to, &w.from})
    for (auto& s : *strides) s *= b.width;
  copy_from(w, 0, run, static_cast<std::byte*>(b.to), static_cast<const std::byte*>(b.from));
}

Memory Device::allocate(std::int64_t, int) { no_memory_of_its_own(*this); }
void Device::put(const Box&, int) { no_memory_of_its_own(*this); }
void Device::get(const Box&, int) { no_memory_of_its_own(*this); }
void Device::copy(const Box&, int) { no_memory_of_its_own(*this); }

}  // namespace haliax::program
