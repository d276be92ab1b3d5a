// Collectives as transfers and kernels. The network only transfers bytes: partial results arrive
// unchanged, and kernels reduce them in rank order, 16-bit floats in f32. Results are bitwise
// identical on all ranks, in every run, and to those of the threads' communicator.
#include <algorithm>
#include <cstdlib>

#include "sequence.h"

namespace haliax::cuda {
namespace {

using namespace program;

// Returns true if the view is contiguous, and no scalar in memory moves it.
bool dense(const View& v, const Dims& dims) {
  const auto expected = row_major(dims);
  for (std::size_t d = 0; d < dims.size(); ++d)
    if (dims[d] > 1 && v.strides[d] != expected[d]) return false;
  return std::none_of(v.terms.begin(), v.terms.end(), [](auto& t) { return t.slot >= 0; });
}
View moved(View v, std::int64_t elements) {
  v.offset += elements;
  return v;
}
Dims with(Dims dims, int d, std::int64_t n) {
  dims[std::size_t(d)] = n;
  return dims;
}

// Blocks of an axis. The last block may be short or empty.
struct Blocks {
  std::int64_t size, ranks, step = (size + ranks - 1) / std::max<std::int64_t>(ranks, 1);
  std::int64_t first(std::int64_t r) const { return r * step; }
  std::int64_t count(std::int64_t r) const {
    return std::clamp<std::int64_t>(size - first(r), 0, step);
  }
};

// Elements of an array in scratch memory: packed data to send, and received data. 0: transferred
// directly from or to the array.
struct Staging {
  std::int64_t sent = 0, received = 0;
};
// Returns true if each block along dim is contiguous.
bool outermost(const Operand& o, int dim) {
  return dense(o.view, o.dims) && points(Dims(o.dims.begin(), o.dims.begin() + dim)) <= 1;
}
Staging staging(const Collective& c, std::size_t k) {
  const auto &x = c.x[k], &out = c.out[k];
  switch (c.kind) {
    case CollectiveKind::all_reduce: {
      const auto all = Blocks{points(out.dims), c.ranks}.step * c.ranks;
      return {dense(out.view, out.dims) ? 0 : all, all};
    }
    case CollectiveKind::reduce_scatter:
      return {outermost(x, c.dim[k]) ? 0 : points(x.dims), points(out.dims) * c.ranks};
    case CollectiveKind::all_gather:
      return {dense(x.view, x.dims) ? 0 : points(x.dims),
              outermost(out, c.dim[k]) ? 0 : points(out.dims)};
    case CollectiveKind::exchange:
      break;
  }
  return {};
}
View box_of(const Operand& o, const program::BoxTransfer& p) {
  View v = o.view;
  for (std::size_t d = 0; d < p.dims.size(); ++d) {
    v.offset += p.start[d] * v.strides[d];
    v.strides[d] *= p.step.empty() ? 1 : p.step[d];
  }

  return v;
}
std::int64_t bytes(std::int64_t elements, DType d) { return aligned(elements * bytes_of(d)); }
// Returns the scratch bytes of the transfer of a box: 0 if the box is contiguous.
std::int64_t staged_bytes(const Operand& o, const program::BoxTransfer& p) {
  return dense(box_of(o, p), p.dims) ? 0 : bytes(points(p.dims), o.view.dtype);
}

class CollectiveMaker {
 public:
  CollectiveMaker(const Step& s, const Program& p)
      : step_(s), c_(s.collective), at_(s.scratch), device_(p.device) {
    group_ = {device_};
    for (int axis : c_.over) {  // in rank order: major to minor
      std::int64_t stride = points(Dims(p.mesh.begin() + axis + 1, p.mesh.end()));
      auto size = p.mesh[std::size_t(axis)];
      std::vector<int> wider;
      for (int g : group_)
        for (std::int64_t r = 0; r < size; ++r)
          wider.push_back(int(g + (r - g / stride % size) * stride));
      group_ = wider;
    }
    rank_ = std::find(group_.begin(), group_.end(), device_) - group_.begin();
  }
  std::vector<Part> make() {
    for (std::size_t k = 0; k < c_.out.size() && c_.kind != CollectiveKind::exchange; ++k) {
      if (c_.kind == CollectiveKind::all_reduce) all_reduce(k);
      if (c_.kind == CollectiveKind::reduce_scatter) reduce_scatter(k);
      if (c_.kind == CollectiveKind::all_gather) all_gather(k);
    }
    if (c_.kind == CollectiveKind::exchange) exchange();
    std::vector<Part> out;
    auto add = [&](auto& steps, auto& messages) {
      for (auto& s : steps) out.push_back({std::move(s)});
      if (!messages.empty()) out.push_back({{}, std::move(messages)});
    };
    add(before_, first_);
    add(between_, second_);
    std::vector<Message> none;
    add(after_, none);
    return out;
  }

 private:
  std::int64_t ranks() const { return std::int64_t(group_.size()); }
  View scratch(DType d, std::int64_t elements) {
    View v{kArenaSlot, d, at_ / bytes_of(d), {}, {}};
    at_ += bytes(elements, d);
    if (at_ > step_.scratch + step_.scratch_bytes)
      throw Error("[collective] a collective requires more scratch memory than planned");
    return v;
  }
  static View laid(View v, const Dims& dims) {
    v.strides = row_major(dims);
    return v;
  }
  static void copy(std::vector<Step>& to, const Dims& dims, const View& from, const View& out) {
    if (points(dims) > 0) to.push_back({.kind = Kind::copy, .copy = {dims, from, out}});
  }
  static KernelArgument argument(const View& v) {
    KernelArgument w{v.slot, v.offset * bytes_of(v.dtype)};
    for (auto& t : v.terms) w.loops.push_back({t.loop, t.stride * bytes_of(v.dtype)});
    return w;
  }
  void move(std::vector<Message>& group, std::int64_t rank, bool sends, const View& v,
            std::int64_t elements) {
    if (elements > 0)
      group.push_back(
          {group_[std::size_t(rank)], sends, argument(v), elements * bytes_of(v.dtype)});
  }
  // out (dims) = the reduction of the values of all ranks, in rank order.
  void fold(const Dims& dims, const std::vector<View>& of_rank, const View& out) {
    if (points(dims) == 0) return;
    constexpr Code codes[] = {Code::add, Code::mul, Code::max, Code::min};
    const auto d = is_float(out.dtype) && out.dtype != DType::f64 ? DType::f32 : out.dtype;
    Step s;
    s.fused.dims = dims;
    s.fused.outer = int(dims.size());
    auto& code = s.fused.code;
    for (auto& v : of_rank) {
      code.push_back({.code = Code::load, .dtype = d, .view = v});
      if (code.size() == 1) continue;
      const int so_far = code.size() == 2 ? 0 : int(code.size()) - 2;
      code.push_back({.code = codes[int(c_.monoid)],
                      .dtype = d,
                      .args = {so_far, int(code.size()) - 1, -1, -1}});
    }
    code.push_back({.code = Code::store,
                    .dtype = out.dtype,
                    .args = {int(code.size()) - 1, -1, -1, -1},
                    .view = out});
    between_.push_back(std::move(s));
  }

  // Each rank reduces one block of all ranks' values, and sends the result to all ranks. A rank
  // sends 2 (ranks - 1) / ranks times the size of the array.
  void all_reduce(std::size_t k) {
    auto &x = c_.x[k], &out = c_.out[k];
    const auto d = out.view.dtype;
    const Dims flat{points(out.dims)};
    const Blocks blocks{flat[0], ranks()};
    const auto mine = blocks.count(rank_);
    const bool in_place = dense(out.view, out.dims), as_it_is = dense(x.view, x.dims);
    const auto all = laid(in_place ? out.view : scratch(d, blocks.step * ranks()), flat);
    const auto received = laid(scratch(d, blocks.step * ranks()), flat),
               from = as_it_is ? laid(x.view, flat) : all;
    if (!as_it_is) copy(before_, x.dims, x.view, laid(all, x.dims));
    std::vector<View> of_rank;
    for (std::int64_t r = 0; r < ranks(); ++r) {
      of_rank.push_back(r == rank_ ? moved(from, blocks.first(r))
                                   : moved(received, r * blocks.step));
      if (r == rank_) continue;
      move(first_, r, true, moved(from, blocks.first(r)), blocks.count(r));
      move(first_, r, false, of_rank.back(), mine);
      move(second_, r, true, moved(all, blocks.first(rank_)), mine);
      move(second_, r, false, moved(all, blocks.first(r)), blocks.count(r));
    }
    fold({mine}, of_rank, moved(all, blocks.first(rank_)));
    if (!in_place) copy(after_, out.dims, laid(all, out.dims), out.view);
  }
  void reduce_scatter(std::size_t k) {
    auto &x = c_.x[k], &out = c_.out[k];
    const auto d = out.view.dtype;
    const int dim = c_.dim[k];
    const Blocks blocks{c_.size[k], ranks()};
    const bool as_it_is = outermost(x, dim);
    auto sent = as_it_is ? x.view : scratch(d, points(x.dims));
    const auto received = scratch(d, points(out.dims) * ranks());
    // elements per position along dim
    const auto across = points(x.dims) / std::max<std::int64_t>(c_.size[k], 1);
    std::vector<View> of_rank;
    for (std::int64_t r = 0; r < ranks(); ++r) {
      const auto theirs = with(x.dims, dim, blocks.count(r));
      const auto part = moved(x.view, blocks.first(r) * x.view.strides[std::size_t(dim)]);
      of_rank.push_back(r == rank_ ? part : laid(moved(received, r * points(out.dims)), out.dims));
      if (r == rank_) continue;
      const auto packed = laid(moved(sent, blocks.first(r) * across), theirs);
      if (!as_it_is) copy(before_, theirs, part, packed);
      move(first_, r, true, packed, points(theirs));
      move(first_, r, false, of_rank.back(), points(out.dims));
    }
    fold(out.dims, of_rank, out.view);
  }
  void all_gather(std::size_t k) {
    auto &x = c_.x[k], &out = c_.out[k];
    const auto d = out.view.dtype;
    const int dim = c_.dim[k];
    const Blocks blocks{c_.size[k], ranks()};
    const bool as_it_is = dense(x.view, x.dims), in_place = outermost(out, dim);
    const auto sent = as_it_is ? x.view : laid(scratch(d, points(x.dims)), x.dims);
    const auto received = in_place ? out.view : scratch(d, points(out.dims));
    const auto across = points(out.dims) / std::max<std::int64_t>(c_.size[k], 1);
    if (!as_it_is) copy(before_, x.dims, x.view, sent);
    for (std::int64_t r = 0; r < ranks(); ++r) {
      const auto theirs = with(out.dims, dim, blocks.count(r));
      const auto part = moved(out.view, blocks.first(r) * out.view.strides[std::size_t(dim)]);
      if (r == rank_) {
        copy(after_, theirs, x.view, part);
        continue;
      }
      const auto packed = laid(moved(received, blocks.first(r) * across), theirs);
      move(first_, r, true, sent, points(x.dims));
      move(first_, r, false, packed, points(theirs));
      if (!in_place) copy(after_, theirs, packed, part);
    }
  }
  void exchange() {
    std::vector<View> own;  // boxes that this device sends to itself
    for (auto& p : c_.sends) {
      auto v = box_of(c_.x[std::size_t(p.array)], p);
      if (p.device == device_) {
        own.push_back(v);
        continue;
      }
      if (!dense(v, p.dims)) {
        const auto packed = laid(scratch(v.dtype, points(p.dims)), p.dims);
        copy(before_, p.dims, v, packed);
        v = packed;
      }
      if (points(p.dims) > 0)
        first_.push_back({p.device, true, argument(v), points(p.dims) * bytes_of(v.dtype)});
    }
    std::size_t next = 0;
    for (auto& p : c_.receives) {
      auto v = box_of(c_.out[std::size_t(p.array)], p);
      if (p.device == device_) {
        copy(after_, p.dims, own[next++], v);
        continue;
      }
      auto at = v;
      if (!dense(v, p.dims)) {
        at = laid(scratch(v.dtype, points(p.dims)), p.dims);
        copy(after_, p.dims, at, v);
      }
      if (points(p.dims) > 0)
        first_.push_back({p.device, false, argument(at), points(p.dims) * bytes_of(v.dtype)});
    }
  }

  const Step& step_;
  const Collective& c_;
  std::int64_t at_;  // offset in scratch memory, in bytes
  int device_;
  std::vector<int> group_;  // devices, in rank order
  std::int64_t rank_ = 0;
  std::vector<Step> before_, between_, after_;  // steps before, between and after the two groups
  std::vector<Message> first_, second_;
};

}  // namespace

std::vector<Part> parts_of(const Step& s, const Program& p) { return CollectiveMaker(s, p).make(); }

std::int64_t collective_scratch(const Collective& c) {
  std::int64_t sum = 0;
  if (c.kind == CollectiveKind::exchange) {
    for (auto& p : c.sends) sum += staged_bytes(c.x[std::size_t(p.array)], p);
    for (auto& p : c.receives) sum += staged_bytes(c.out[std::size_t(p.array)], p);
    return sum;
  }
  for (std::size_t k = 0; k < c.out.size(); ++k) {
    const auto elements = staging(c, k);
    const auto dtype = c.out[k].view.dtype;
    sum += bytes(elements.sent, dtype) + bytes(elements.received, dtype);
  }
  return sum;
}

}  // namespace haliax::cuda
