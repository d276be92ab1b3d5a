// Reading a region of a stored tensor. Rows that are contiguous in both places are read directly.
// Otherwise, a piece of the file is read into scratch memory, converted, and copied with strides.
#include "io/read_region.h"

#include <algorithm>
#include <cstring>

#include "io/convert.h"

namespace haliax {
namespace {

constexpr std::int64_t kPiece = 1 << 20;     // bytes of the file that are in scratch memory
constexpr std::int64_t kShortRow = 4 << 10;  // bytes below which a read costs more than its data

using ElementStrides = std::vector<std::int64_t>;

// Copies two dims. The outer loop is over the dim with the larger stride of the result, so that
// writes are near each other.
template <class T>
void copy_plane(const std::byte* from, std::int64_t from_a, std::int64_t from_b, std::byte* to,
                std::int64_t to_a, std::int64_t to_b, std::int64_t a, std::int64_t b) {
  if (to_b > to_a) return copy_plane<T>(from, from_b, from_a, to, to_b, to_a, b, a);
  constexpr std::int64_t width = sizeof(T);
  for (std::int64_t i = 0; i < a; ++i) {
    auto* source = from + i * from_a * width;
    auto* result = to + i * to_a * width;
    if (from_b == 1 && to_b == 1) {
      std::memcpy(result, source, std::size_t(b * width));
      continue;
    }
    for (std::int64_t j = 0; j < b; ++j) {
      T x;
      std::memcpy(&x, source + j * from_b * width, sizeof x);
      std::memcpy(result + j * to_b * width, &x, sizeof x);
    }
  }
}

class RegionReader {
 public:
  RegionReader(const TensorSource& source, const StoredTensor& tensor,
               const std::vector<RegionDim>& dims, DType dtype, ReadScratch& scratch)
      : source_(source), tensor_(tensor), dims_(dims), dtype_(dtype), scratch_(scratch),
        pitch_(dims.size(), 1), in_memory_(source.data(tensor)) {
    if (dims_.empty()) {
      dims_.push_back({});
      pitch_.push_back(1);
    }
    for (auto d = dims_.size() - 1; d-- > 0;) pitch_[d] = pitch_[d + 1] * dims_[d + 1].full;
  }
  void read(std::byte* result) {
    std::int64_t first = 0;
    for (std::size_t d = 0; d < dims_.size(); ++d) {
      if (dims_[d].size == 0) return;
      first += dims_[d].start * pitch_[d];
    }
    read_dims(0, first, dims_[0].size, result);
  }

 private:
  std::int64_t width() const { return bytes_of(tensor_.dtype); }
  std::int64_t result_width() const { return bytes_of(dtype_); }
  // Elements of the file from the first to the last of `count` positions of dim d.
  std::int64_t span(std::size_t d, std::int64_t count) const {
    std::int64_t n = (count - 1) * pitch_[d] + 1;
    for (auto k = d + 1; k < dims_.size(); ++k) n += (dims_[k].size - 1) * pitch_[k];
    return n;
  }
  // Returns true if less than a quarter of the span is used, and rows are long enough to be read
  // one by one.
  bool is_sparse(std::size_t d, std::int64_t count) const {
    std::int64_t used = count;
    for (auto k = d + 1; k < dims_.size(); ++k) used *= dims_[k].size;
    return used * 4 < span(d, count) && dims_.back().size * width() >= kShortRow;
  }
  // Reads `count` positions of dim d and all of the dims after it: directly, if they are contiguous
  // in both places; as one piece of the file, if it has at most kPiece bytes and is not sparse;
  // else split along dim d into pieces, or into positions.
  void read_dims(std::size_t d, std::int64_t first, std::int64_t count, std::byte* result) {
    const bool last = d + 1 == dims_.size();
    const bool same = tensor_.dtype == dtype_ && dtype_ != DType::boolean;
    if (last && same && dims_[d].stride == 1)
      return source_.read(tensor_, first * width(), result, count * width());
    if (span(d, count) * width() <= kPiece && (last || in_memory_ || !is_sparse(d, count)))
      return read_piece(d, first, count, result);
    auto per_piece = std::int64_t(1);
    if (const auto inner = span(d, 1) * width(); inner <= kPiece)
      per_piece += (kPiece - inner) / (pitch_[d] * width());
    for (std::int64_t i = 0; i < count;) {
      const auto n = std::min(per_piece, count - i);
      auto* part = result + i * dims_[d].stride * result_width();
      const auto begin = first + i * pitch_[d];
      if (last || (span(d, n) * width() <= kPiece && (in_memory_ || !is_sparse(d, n)))) {
        read_piece(d, begin, n, part);
        i += n;
      } else {
        read_dims(d + 1, begin, dims_[d + 1].size, part);
        ++i;
      }
    }
  }
  void read_piece(std::size_t d, std::int64_t first, std::int64_t count, std::byte* result) {
    const auto n = span(d, count);
    const auto* raw = in_memory_ ? in_memory_ + first * width() : nullptr;
    if (!raw) {
      scratch_.raw.resize(std::size_t(std::max(n * width(), kPiece)));
      source_.read(tensor_, first * width(), scratch_.raw.data(), n * width());
      raw = scratch_.raw.data();
    }
    if (tensor_.dtype != dtype_ || dtype_ == DType::boolean) {
      if (d + 1 == dims_.size() && dims_[d].stride == 1)
        return convert_elements(tensor_.dtype, raw, dtype_, result, n);
      scratch_.converted.resize(std::size_t(n * result_width()));
      convert_elements(tensor_.dtype, raw, dtype_, scratch_.converted.data(), n);
      raw = scratch_.converted.data();
    }
    ElementStrides from, to, sizes;
    for (auto k = d; k < dims_.size(); ++k) {
      from.push_back(pitch_[k]);
      to.push_back(dims_[k].stride);
      sizes.push_back(k == d ? count : dims_[k].size);
    }
    copy_strided(raw, from, result, to, sizes, int(result_width()));
  }

  const TensorSource& source_;
  const StoredTensor& tensor_;
  std::vector<RegionDim> dims_;
  DType dtype_;
  ReadScratch& scratch_;
  ElementStrides pitch_;  // strides in the file
  const std::byte* in_memory_;
};

}  // namespace

void copy_strided(const std::byte* from, const ElementStrides& from_strides, std::byte* to,
                  const ElementStrides& to_strides, const ElementStrides& sizes, int width) {
  const auto dims = sizes.size();
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return;
  const auto plane = width == 8   ? &copy_plane<std::uint64_t>
                     : width == 4 ? &copy_plane<std::uint32_t>
                     : width == 2 ? &copy_plane<std::uint16_t>
                                  : &copy_plane<std::uint8_t>;
  if (dims == 0) return plane(from, 1, 1, to, 1, 1, 1, 1);
  if (dims == 1)  // the outer dim of size 1 has the larger stride
    return plane(from, 0, from_strides[0], to, INT64_MAX, to_strides[0], 1, sizes[0]);
  ElementStrides index(dims - 2, 0);
  while (true) {
    std::int64_t at = 0, result = 0;
    for (std::size_t d = 0; d < index.size(); ++d) {
      at += index[d] * from_strides[d];
      result += index[d] * to_strides[d];
    }
    plane(from + at * width, from_strides[dims - 2], from_strides[dims - 1], to + result * width,
          to_strides[dims - 2], to_strides[dims - 1], sizes[dims - 2], sizes[dims - 1]);
    auto d = index.size();
    while (d > 0 && ++index[d - 1] == sizes[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

std::vector<RegionDim> merged(std::vector<RegionDim> dims) {
  std::erase_if(dims, [](auto& d) { return d.full == 1; });
  std::vector<RegionDim> out;
  for (auto& d : dims) {
    const bool is_full = d.start == 0 && d.size == d.full;
    if (!out.empty() && is_full && out.back().stride == d.stride * d.size) {
      auto& o = out.back();
      o = {o.full * d.full, o.start * d.full, o.size * d.full, d.stride};
    } else {
      out.push_back(d);
    }
  }
  return out;
}

void read_region(const TensorSource& source, const StoredTensor& tensor,
                 const std::vector<RegionDim>& dims, DType dtype, std::byte* result,
                 ReadScratch& scratch) {
  RegionReader(source, tensor, dims, dtype, scratch).read(result);
}

}  // namespace haliax
