// Packing and copying of strided boxes.
#include "devices/packing.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <tuple>

namespace haliax {

using program::Dims;

std::int64_t bytes_in(const Patches& all) {
  std::int64_t n = 0;
  for (auto& p : all) n += p.bytes();
  return n;
}

namespace {

// Number of elements in a contiguous run, and number of outer dims over which runs repeat.
struct ContiguousRuns {
  std::int64_t size = 1;
  std::size_t outer;
  explicit ContiguousRuns(const Patch& p) : outer(p.dims.size()) {
    for (; outer > 0 && (p.dims[outer - 1] == 1 || p.strides[outer - 1] == size); --outer)
      size *= p.dims[outer - 1];
  }
};
// Calls f(address, bytes) for each contiguous run of a patch, in order.
template <class F> void each_run(const Patch& p, F f) {
  if (p.count == 0) return;
  auto [run, outer] = ContiguousRuns(p);
  std::int64_t width = bytes_of(p.dtype);
  Dims at(outer);
  std::int64_t rest = p.from / run, skipped = p.from % run, offset = 0;
  for (auto d = outer; d-- > 0; rest /= p.dims[d]) {
    at[d] = rest % p.dims[d];
    offset += at[d] * p.strides[d];
  }
  for (auto left = p.count; left > 0;) {
    auto n = std::min(left, run - skipped);
    f(p.at + (offset + skipped) * width, n * width);
    left -= n;
    skipped = 0;
    for (auto d = outer; d-- > 0;) {
      offset += p.strides[d];
      if (++at[d] < p.dims[d]) break;
      offset -= at[d] * p.strides[d];
      at[d] = 0;
    }
  }
}
// Copies a run. Runs of a single element are common and avoid the call of memcpy.
void copy_run(std::byte* to, const std::byte* from, std::int64_t bytes) {
  switch (bytes) {
    case 1:
      *to = *from;
      return;
    case 2:
      std::memcpy(to, from, 2);
      return;
    case 4:
      std::memcpy(to, from, 4);
      return;
    case 8:
      std::memcpy(to, from, 8);
      return;
    default:
      std::memcpy(to, from, std::size_t(bytes));
  }
}

}  // namespace

void pack(const Patches& all, std::byte* to) {
  for (auto& p : all)
    each_run(p, [&](std::byte* at, std::int64_t n) {
      copy_run(to, at, n);
      to += n;
    });
}
void unpack(const std::byte* from, const Patches& all) {
  for (auto& p : all)
    each_run(p, [&](std::byte* at, std::int64_t n) {
      copy_run(at, from, n);
      from += n;
    });
}
std::vector<Patches> split_patches(const Patches& all, std::int64_t most) {
  std::vector<Patches> out;
  std::int64_t room = 0;
  for (auto p : all) {
    while (p.count > 0) {
      if (room < bytes_of(p.dtype)) {
        out.emplace_back();
        room = most;
      }
      auto part = p;
      part.count = std::min(p.count, room / bytes_of(p.dtype));
      out.back().push_back(part);
      p.from += part.count;
      p.count -= part.count;
      room -= part.bytes();
    }
  }
  return out;
}

namespace {

// A patch that is accessed in blocks of elements.
class PatchBlocks {
 public:
  explicit PatchBlocks(const Patch& p) : patch_(p), run_(ContiguousRuns(p).size) {}
  bool in_long_pieces() const { return run_ >= kShort; }
  // Returns the number of contiguous elements from element `at` on.
  std::int64_t left(std::int64_t at) const { return run_ - (patch_.from + at) % run_; }
  // Returns the address of elements [at, at + n): in place if they are contiguous, else of a packed
  // copy. `filled` packs the current values.
  std::byte* place(std::int64_t at, std::int64_t n, bool filled) {
    block_ = patch_;
    block_.from += at;
    block_.count = n;
    is_packed_ = n > left(at);
    if (!is_packed_) {
      std::byte* address = nullptr;
      each_run(block_, [&](std::byte* where, std::int64_t) { address = where; });
      return address;
    }
    if (!packed_copy_)
      packed_copy_ =
          std::make_unique_for_overwrite<std::byte[]>(std::size_t(kBlock * bytes_of(patch_.dtype)));
    if (filled) pack({block_}, packed_copy_.get());
    return packed_copy_.get();
  }
  void put_back() const {
    if (is_packed_) unpack(packed_copy_.get(), {block_});
  }
  // in elements: the shortest run that is accessed in place, and the largest block that is packed
  static constexpr std::int64_t kShort = 128, kBlock = 2048;

 private:
  Patch patch_, block_;
  std::int64_t run_;
  bool is_packed_ = false;
  std::unique_ptr<std::byte[]> packed_copy_;
};

}  // namespace

void each_block(const Patch& out, const Patches& parts, const OnBlock& f) {
  PatchBlocks to(out);
  std::vector<PatchBlocks> from;
  for (auto& p : parts) from.emplace_back(p);
  std::vector<const std::byte*> places(parts.size());
  std::int64_t n = 0;
  for (std::int64_t at = 0; at < out.count; at += n) {
    n = out.count - at;
    auto end_block_before = [&](const PatchBlocks& b) {
      n = std::min(n, b.in_long_pieces() ? b.left(at) : PatchBlocks::kBlock);
    };
    end_block_before(to);
    for (auto& b : from) end_block_before(b);
    for (std::size_t k = 0; k < from.size(); ++k) places[k] = from[k].place(at, n, true);
    f(to.place(at, n, false), places, n);
    to.put_back();
  }
}
void copy_patch(const Patch& from, const Patch& to) {
  const auto width = bytes_of(to.dtype);
  each_block(to, {from}, [&](std::byte* out, const auto& parts, std::int64_t n) {
    std::memcpy(out, parts[0], std::size_t(n * width));
  });
}
void fill_zeros(const Patch& p) {
  const auto width = bytes_of(p.dtype);
  each_block(p, {}, [&](std::byte* out, const auto&, std::int64_t n) {
    std::memset(out, 0, std::size_t(n * width));
  });
}
bool participates(const program::Collective& c, const void* const* x) {
  const bool has_flag =
      c.skip_flag == program::SkipFlag::unread || c.skip_flag == program::SkipFlag::zeros;
  return !has_flag || *static_cast<const bool*>(x[c.x.size() - 1]);
}
Dims sent_dims(const program::Collective& c, const void* const* x, const Dims& start, Dims dims) {
  if (c.skip_flag != program::SkipFlag::rows) return dims;
  auto& counts = c.x.back();
  const auto counted = std::ptrdiff_t(counts.dims.size());
  auto box = box_patch(const_cast<void*>(x[c.x.size() - 1]), counts, start,
                       Dims(dims.begin(), dims.begin() + counted), nullptr);
  std::vector<std::int64_t> rows(std::size_t(box.count));
  pack({box}, reinterpret_cast<std::byte*>(rows.data()));
  const auto most = rows.empty() ? 0 : *std::max_element(rows.begin(), rows.end());
  auto& sent = dims[std::size_t(counted)];
  sent = std::clamp<std::int64_t>(most - start[std::size_t(counted)], 0, sent);
  return dims;
}
void fill_rest(const Patch& box, const Dims& sent) {
  for (std::size_t d = 0; d < sent.size(); ++d) {
    if (sent[d] == box.dims[d]) continue;
    auto rest = box;
    rest.at += sent[d] * box.strides[d] * bytes_of(box.dtype);
    rest.dims[d] -= sent[d];
    rest.count = program::points(rest.dims);
    fill_zeros(rest);
  }
}

Patch reordered(Patch p, const std::vector<std::size_t>& order) {
  auto dims = p.dims, strides = p.strides;
  for (std::size_t d = 0; d < order.size(); ++d) {
    p.dims[d] = dims[order[d]];
    p.strides[d] = strides[order[d]];
  }
  return p;
}
std::vector<std::size_t> order_in_memory(const Dims& strides) {
  std::vector<std::size_t> order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return std::abs(strides[a]) > std::abs(strides[b]); });
  return order;
}

static std::pair<std::int64_t, std::int64_t> share(std::int64_t n, std::size_t ranks,
                                                   std::size_t g) {
  auto each = (n + std::int64_t(ranks) - 1) / std::int64_t(ranks),
       from = std::min(std::int64_t(g) * each, n);
  return {from, std::min(each, n - from)};
}
Patch share_of(Patch p, std::size_t ranks, std::size_t g) {
  std::tie(p.from, p.count) = share(p.count, ranks, g);
  return p;
}
std::pair<std::int64_t, std::int64_t> block_in_group(const program::Collective& c, std::size_t k,
                                                     std::size_t ranks, std::size_t g) {
  return share(c.size[k], ranks, g);
}

Patch full_patch(void* at, const program::Operand& o) {
  return {static_cast<std::byte*>(at), o.dims, o.view.strides, o.view.dtype, 0,
          program::points(o.dims)};
}
Patch box_patch(void* at, const program::Operand& o, const Dims& start, const Dims& dims,
                const Dims* step) {
  auto p = full_patch(at, o);
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    offset += start[d] * p.strides[d];
    if (step) p.strides[d] *= (*step)[d];
  }
  p.at += offset * bytes_of(p.dtype);
  p.dims = dims;
  p.count = program::points(dims);
  return p;
}
Patch slice_patch(void* at, const program::Operand& o, int dim, std::int64_t from,
                  std::int64_t size) {
  Dims start(o.dims.size()), dims = o.dims;
  start[std::size_t(dim)] = from;
  dims[std::size_t(dim)] = size;
  return box_patch(at, o, start, dims, nullptr);
}

}  // namespace haliax
