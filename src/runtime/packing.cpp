#include "runtime/packing.h"

#include <algorithm>
#include <cstring>

namespace haliax {

using program::Dims;

std::int64_t bytes_in(const Patches& all) {
  std::int64_t n = 0;
  for (auto& p : all) n += p.bytes();
  return n;
}

// f(where they lie, bytes) for its stretches that lie in one piece, in order.
template <class F> static void each_stretch(const Patch& p, F f) {
  std::int64_t width = bytes_of(p.dtype), run = 1;
  std::size_t outer = p.dims.size();
  for (; outer > 0 && (p.dims[outer - 1] == 1 || p.strides[outer - 1] == run); --outer) run *= p.dims[outer - 1];
  Dims at(outer);
  std::int64_t rest = p.from / run, skipped = p.from % run, offset = 0;
  for (auto d = outer; d-- > 0; rest /= p.dims[d]) at[d] = rest % p.dims[d], offset += at[d] * p.strides[d];
  for (auto left = p.count; left > 0;) {
    auto n = std::min(left, run - skipped);
    f(p.at + (offset + skipped) * width, n * width);
    left -= n, skipped = 0;
    for (auto d = outer; d-- > 0;) {
      offset += p.strides[d];
      if (++at[d] < p.dims[d]) break;
      offset -= at[d] * p.strides[d], at[d] = 0;
    }
  }
}
void pack(const Patches& all, std::byte* to) {
  for (auto& p : all) each_stretch(p, [&](std::byte* at, std::int64_t n) { std::memcpy(to, at, std::size_t(n)), to += n; });
}
void unpack(const std::byte* from, const Patches& all) {
  for (auto& p : all) each_stretch(p, [&](std::byte* at, std::int64_t n) { std::memcpy(at, from, std::size_t(n)), from += n; });
}
std::vector<Patches> pieces_of(const Patches& all, std::int64_t most) {
  std::vector<Patches> out;
  std::int64_t room = 0;
  for (auto p : all) {
    while (p.count > 0) {
      if (room < bytes_of(p.dtype)) out.emplace_back(), room = most;
      auto part = p;
      part.count = std::min(p.count, room / bytes_of(p.dtype));
      out.back().push_back(part);
      p.from += part.count, p.count -= part.count, room -= part.bytes();
    }
  }
  return out;
}

Patch whole_patch(void* at, const program::Operand& o) {
  return {static_cast<std::byte*>(at), o.dims, o.view.strides, o.view.dtype, 0, program::points(o.dims)};
}
Patch box_patch(void* at, const program::Operand& o, const Dims& start, const Dims& dims, const Dims* step) {
  auto p = whole_patch(at, o);
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    offset += start[d] * p.strides[d];
    if (step) p.strides[d] *= (*step)[d];
  }
  p.at += offset * bytes_of(p.dtype), p.dims = dims, p.count = program::points(dims);
  return p;
}
Patch slice_patch(void* at, const program::Operand& o, int dim, std::int64_t from, std::int64_t size) {
  Dims start(o.dims.size()), dims = o.dims;
  start[std::size_t(dim)] = from, dims[std::size_t(dim)] = size;
  return box_patch(at, o, start, dims, nullptr);
}

}  // namespace haliax
