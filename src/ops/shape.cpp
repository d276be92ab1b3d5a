// Ops that change axes but no values. A view costs nothing; an axis change that strides cannot
// express is one copy.
#include "graph/emit.h"
#include "ops/attr.h"
#include "ops/block.h"
#include "ops/blockwise.h"
#include "ops/fault.h"
#include "ops/block_scan.h"
#include "ops/prim.h"

namespace haliax::prim {
namespace {

std::size_t position(const Axes& axes, Name n) {
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (axes[i].name == n) return i;
  fail("shape", "axis " + std::string(n.text()) + " is not in " + to_string(axes));
}

Place fit_view(const Node& n, const Place& in, Emit&) {
  Place p = in;
  p.strides = Emit::view(in, n.in[0]->axes, n.axes).strides;
  return p;
}

// Returns the place of a slice of an array at `p`. dynamic: a start that is added to c.start,
// clamped so that the slice is inside of the array; null: none. For example, positions 2 and 4 of
// an axis with stride 3 have an offset of 6 elements and a stride of 6.
Place place_of_slice(const SliceAttr& c, const Axes& full, Place p, NodeRef dynamic, Emit& e) {
  auto d = position(full, c.axis);
  auto stride = p.strides[d];
  p.offset += c.start * stride;
  if (dynamic) {
    const auto span = (c.size - 1) * c.step + 1;  // positions from the first to the last one
    auto t = e.term(dynamic, stride, full[d].size - c.start - span);
    if (t.loop < 0 && t.slot < 0)
      p.offset += t.stride;  // a constant start
    else
      p.terms.push_back(t);
  }
  if (c.drop)
    p.strides.erase(p.strides.begin() + std::ptrdiff_t(d));
  else
    p.strides[d] = stride * c.step;
  return p;
}
NodePtr dynamic_of(const Node& n) { return n.in.size() > 1 ? n.in[1] : nullptr; }
Axes sliced_axes(const Axes& full, const SliceAttr& c) {
  return replaced(full, c.axis, c.drop ? Axes{} : Axes{Axis(c.axis, c.size)});
}
NodePtr make_sliced(const Op& op, NodeRef x, const Axes& axes, const SliceAttr& c,
                    NodePtr dynamic) {
  Nodes in{x};
  if (dynamic) in.push_back(std::move(dynamic));
  return build(op, std::move(in), axes, x->dtype, c.attr());
}
Place slice_view(const Node& n, const Place& in, Emit& e) {
  return place_of_slice(SliceAttr::of(n), n.in[0]->axes, in, dynamic_of(n), e);
}
void place_lower(const Node& n, Emit& e) {
  e.zero(e.result(), n.axes);
  e.copy(e.operand(0), place_of_slice(SliceAttr::of(n), n.axes, e.result(), dynamic_of(n), e),
         n.in[0]->axes);
}

// Returns the place of a flattened array with its axes before flattening.
Place unflattened(const Place& p, const Axes& flat, const Axes& parts, const Names& old,
                  Name flat_name) {
  Place out = p;
  out.strides = Emit::view(p, flat, parts).strides;
  std::int64_t inner = 1;
  auto stride = p.strides[position(flat, flat_name)];
  for (std::size_t k = old.size(); k-- > 0;) {
    auto d = position(parts, old[k]);
    out.strides[d] = stride * inner;
    inner *= parts[d].size;
  }
  return out;
}
// Returns the place of an array with axes `from`, with the axes `old` merged into `flat`. The
// merged axes have one stride if the stride of each of them is the extent of the next one: strides
// (3, 1) of axes with 2 and 3 positions do. Returns no place for other strides, which need a copy.
Place flattened(const Place& in, const Axes& from, const Axes& to, const Names& old, Name flat) {
  Place p = in;
  p.strides.clear();
  std::int64_t stride = 1, extent = 0;  // merged axes that are larger than 1
  bool merges_any = false;
  for (std::size_t k = old.size(); k-- > 0;) {
    auto d = position(from, old[k]);
    if (from[d].size == 1) continue;
    if (!merges_any)
      stride = in.strides[d];
    else if (in.strides[d] != extent)
      return {};
    extent = in.strides[d] * from[d].size;
    merges_any = true;
  }
  for (auto& a : to)
    p.strides.push_back(a.name == flat ? stride : in.strides[position(from, a.name)]);
  return p;
}
Place flatten_view(const Node& n, const Place& in, Emit&) {
  auto [parts, flat] = RegroupAttr::of(n);
  return flattened(in, n.in[0]->axes, n.axes, parts, flat);
}
Place flatten_unview(const Node& n, const Place& out) {
  auto [parts, flat] = RegroupAttr::of(n);
  return unflattened(out, n.axes, n.in[0]->axes, parts, flat);
}
void flatten_lower(const Node& n, Emit& e) {
  e.copy(e.operand(0), flatten_unview(n, e.result()), n.in[0]->axes);
}
Place unflatten_view(const Node& n, const Place& in, Emit&) {
  auto [parts, flat] = RegroupAttr::of(n);
  return unflattened(in, n.in[0]->axes, n.axes, parts, flat);
}
Place unflatten_unview(const Node& n, const Place& out) {
  auto [parts, flat] = RegroupAttr::of(n);
  return flattened(out, n.axes, n.in[0]->axes, parts, flat);
}

// ---- rules along axes ----
using Way = Along::Way;
Along fit_along(const Node&, std::size_t, Name a) { return {Way::map, a}; }
Along rename_along(const Node& n, std::size_t k, Name a) {
  return {Way::map, k == kResultSide ? a : RenameAttr::of(n).renamed(a)};
}
std::vector<AxisSegment> slice_segments(const Node& n) {
  auto c = SliceAttr::of(n);
  return {{0, c.start, 0, c.size, c.step}};
}
std::vector<AxisSegment> place_segments(const Node& n) {
  auto c = SliceAttr::of(n);
  return {{0, 0, c.start, c.size}};
}
Along slice_along(const Node& n, std::size_t, Name a) {
  auto c = SliceAttr::of(n);
  bool known = n.in.size() == 1 && !c.drop && (n.op == &kSlice || c.step == 1);
  return {a != c.axis ? Way::map : known ? Way::shift : Way::full, a};
}
Linear moves_first(const Node&, std::size_t k) { return k == 0 ? Linear::moves : Linear::no; }
Along flatten_along(const Node& n, std::size_t k, Name a) {
  auto r = RegroupAttr::of(n);
  return k != kResultSide && r.is_part(a) ? Along{Way::regroup, r.flat} : Along{Way::map, a};
}
Along unflatten_along(const Node& n, std::size_t k, Name a) {
  return k != kResultSide && a == RegroupAttr::of(n).flat ? Along{Way::regroup, {}}
                                                          : Along{Way::map, a};
}
Along concat_along(const Node& n, std::size_t, Name a) {
  return {a == AlongAttr::of(n).axis ? Way::shift : Way::map, a};
}
std::vector<AxisSegment> concat_segments(const Node& n) {
  auto axis = AlongAttr::of(n).axis;
  std::vector<AxisSegment> out;
  std::int64_t at = 0;
  for (std::size_t k = 0; k < n.in.size(); at += out[k++].size)
    out.push_back({k, 0, at, find(*n.in[k], axis)->size});
  return out;
}

void concat_lower(const Node& n, Emit& e) {
  auto d = position(n.axes, AlongAttr::of(n).axis);
  for (auto& s : concat_segments(n)) {
    Place piece = e.result();
    piece.offset += s.to * piece.strides[d];
    piece.strides = Emit::view(piece, n.axes, n.in[s.operand]->axes).strides;
    e.copy(e.operand(s.operand), piece, n.in[s.operand]->axes);
  }
}

// ---- for the verifier ----
std::string view_fault(const Node& n) { return fault_of_dtypes(n, 1); }
// Checks that the part has the selected positions, and that they are positions of the full axes.
std::string fault_of_part(const Node& n, const Axes& full, const Axes& part) {
  if (auto wrong = fault_of_dtypes(n, 1); !wrong.empty()) return wrong;
  auto c = SliceAttr::of(n);
  auto *all = find_axis(full, c.axis), *mine = find_axis(part, c.axis);
  if (!all) return fmt::format("{} is not a slice of {}", part, full);
  if (c.drop ? mine != nullptr : !mine || mine->size != c.size)
    return fmt::format("the slice has {}, but {} positions are sliced", part, c.size);
  auto first = c.start, last = c.start + (c.size - 1) * c.step;
  bool inside = std::min(first, last) >= 0 && std::max(first, last) < all->size;
  bool never = n.in.size() > 1 && all->size == 0;  // at the index of a loop without iterations
  return axis_size(part) == 0 || inside || never ? "" : "it reaches outside of " + to_string(full);
}
std::string slice_fault(const Node& n) { return fault_of_part(n, n.in[0]->axes, n.axes); }
std::string place_fault(const Node& n) { return fault_of_part(n, n.axes, n.in[0]->axes); }
// Checks that the product of the parts, which are axes of one side, is the size of the merged axis
// of the other side.
std::string regroup_fault(const Node& n, const Axes& separate, const Axes& together) {
  if (auto wrong = fault_of_dtypes(n, 1); !wrong.empty()) return wrong;
  auto [parts, flat] = RegroupAttr::of(n);
  auto *full = find_axis(together, flat), *part = full;
  std::int64_t size = 1;
  for (auto p : parts)
    if (part && (part = find_axis(separate, p))) size *= part->size;
  return part && size == full->size ? "" : fault_of_sizes(n);
}
std::string flatten_fault(const Node& n) { return regroup_fault(n, n.in[0]->axes, n.axes); }
std::string unflatten_fault(const Node& n) { return regroup_fault(n, n.axes, n.in[0]->axes); }
std::string concat_fault(const Node& n) {
  if (auto wrong = fault_of_dtypes(n, n.in.size()); !wrong.empty()) return wrong;
  auto axis = AlongAttr::of(n).axis;
  std::int64_t done = 0;
  for (auto& x : n.in)
    if (auto* part = find(*x, axis)) done += part->size;
  auto size = find(n, axis)->size;
  return done == size ? "" : fmt::format("its parts have {} positions, but it has {}", done, size);
}
}  // namespace

const Op kFit{.name = "fit",
              .kind = Kind::view,
              .linear = Linear::moves,
              .grad = [](NodeRef, NodeRef g) { return Nodes{g}; },
              .view = fit_view,
              .along = fit_along,
              .fault = view_fault,
              .cheap = true};
const Op kRename{.name = "rename",
                 .kind = Kind::view,
                 .linear = Linear::moves,
                 .grad =
                     [](NodeRef o, NodeRef g) {
                       auto r = RenameAttr::of(*o);
                       return Nodes{rename(g, r.to, r.from)};
                     },
                 .view = [](const Node&, const Place& in, Emit&) { return in; },
                 .along = rename_along,
                 .fault = view_fault,
                 .cheap = true};
const Op kSlice{.name = "slice",
                .kind = Kind::view,
                .linear = Linear::moves,
                .grad =
                    [](NodeRef o, NodeRef g) {
                      auto c = SliceAttr::of(*o);
                      Nodes out(o->in.size());
                      out[0] =
                          place(g, o->in[0]->axes, c.axis, c.start, c.step, c.drop, dynamic_of(*o));
                      return out;
                    },
                .view = slice_view,
                .along = slice_along,
                .segments = slice_segments,
                .linear_in = moves_first,
                .fault = slice_fault,
                .blockwise = slice_blockwise,
                .block_scan = first_block_scan};
const Op kPlace{.name = "place",
                .kind = Kind::step,
                .linear = Linear::moves,
                .grad =
                    [](NodeRef o, NodeRef g) {
                      Nodes out(o->in.size());
                      out[0] = slice(g, SliceAttr::of(*o), dynamic_of(*o));
                      return out;
                    },
                .lower = place_lower,
                .along = slice_along,
                .segments = place_segments,
                .linear_in = moves_first,
                .fault = place_fault,
                .blockwise = place_blockwise};
const Op kFlatten{.name = "flatten",
                  .kind = Kind::view,
                  .linear = Linear::moves,
                  .grad =
                      [](NodeRef o, NodeRef g) {
                        auto r = RegroupAttr::of(*o);
                        Axes parts;
                        for (auto p : r.parts) parts.push_back(*find(*o->in[0], p));
                        return Nodes{unflatten(g, r.flat, parts)};
                      },
                  .view = flatten_view,
                  .unview = flatten_unview,
                  .lower = flatten_lower,
                  .along = flatten_along,
                  .fault = flatten_fault};
const Op kUnflatten{.name = "unflatten",
                    .kind = Kind::view,
                    .linear = Linear::moves,
                    .grad =
                        [](NodeRef o, NodeRef g) {
                          auto r = RegroupAttr::of(*o);
                          return Nodes{flatten(g, r.parts, *find(*o->in[0], r.flat))};
                        },
                    .view = unflatten_view,
                    .unview = unflatten_unview,
                    .along = unflatten_along,
                    .fault = unflatten_fault};
const Op kConcat{.name = "concatenate",
                 .kind = Kind::step,
                 .linear = Linear::moves,
                 .grad =
                     [](NodeRef o, NodeRef g) {
                       Nodes out;
                       for (auto& s : concat_segments(*o))
                         out.push_back(slice(g, AlongAttr::of(*o).axis, s.to, s.size));
                       return out;
                     },
                 .lower = concat_lower,
                 .along = concat_along,
                 .segments = concat_segments,
                 .fault = concat_fault};

NodePtr fit(NodeRef x, const Axes& axes) {
  for (auto& a : x->axes)
    if (auto* now = find_axis(axes, a.name); now ? now->size != a.size : a.size != 1)
      fail("fit", "axis " + std::string(a.name.text()) + " of " + to_string(x->axes) +
                      " has another size in " + to_string(axes));
  return build(kFit, {x}, axes, x->dtype);
}
NodePtr rebuilt(const Node& n, Nodes in, const Axes& axes) {
  if (n.op->kind == Kind::map)
    for (auto& x : in) x = stripped(x);
  if (n.op == &kSlice) return slice(in[0], SliceAttr::of(n), in.size() > 1 ? in[1] : nullptr);
  return build(*n.op, std::move(in), axes, n.dtype, n.attr);
}
NodePtr rename(NodeRef x, const Names& from, const Names& to) {
  RenameAttr r;  // only names that change
  Axes axes = x->axes;
  for (auto& a : axes) {
    auto now = RenameAttr{from, to}.renamed(a.name);
    if (now == a.name) continue;
    r.from.push_back(a.name);
    r.to.push_back(now);
    a.name = now;
  }
  if (r.from.empty()) return x;
  return build(kRename, {x}, axes, x->dtype, r.attr());
}

NodePtr slice(NodeRef x, Name axis, std::int64_t start, std::int64_t size, std::int64_t step,
              bool drop, NodePtr dynamic) {
  return slice(x, SliceAttr{axis, start, size, step, drop}, std::move(dynamic));
}
NodePtr slice(NodeRef x, const SliceAttr& c, NodePtr dynamic) {
  return make_sliced(kSlice, x, sliced_axes(x->axes, c), c, std::move(dynamic));
}
NodePtr at_position(NodeRef x, Name axis, std::int64_t position) {
  return slice(x, axis, position, 1, 1, true);
}
NodePtr slice_at(NodeRef x, NodeRef index, bool drop) {
  auto loop_index = IndexAttr::of(*index);
  return block_of(x, {{loop_index.axis.name, index, loop_index.chunk, drop}});
}
NodePtr place(NodeRef x, const Axes& full, Name axis, std::int64_t start, std::int64_t step,
              bool drop, NodePtr dynamic) {
  auto* part = find(*x, axis);
  SliceAttr c{axis, start, drop || !part ? 1 : part->size, step, drop};
  // The other axes of the result are the axes of x: a gradient may have another order, but never
  // other names.
  auto fitted = sum_to(x, sliced_axes(full, c));
  return make_sliced(kPlace, fitted, full, c, std::move(dynamic));
}

NodePtr flatten(NodeRef x, const Names& old, const Axis& flat) {
  Axes axes;
  bool done = false;
  for (auto& a : x->axes) {
    bool merged = has(old, a.name);
    if (!merged)
      axes.push_back(a);
    else if (!done) {
      axes.push_back(flat);
      done = true;
    }
  }
  return build(kFlatten, {x}, axes, x->dtype, RegroupAttr{old, flat.name}.attr());
}
NodePtr unflatten(NodeRef x, Name flat, const Axes& parts) {
  auto axes = replace_axis(x->axes, flat, parts, context().origin.at);
  return build(kUnflatten, {x}, axes, x->dtype, RegroupAttr{names_of(parts), flat}.attr());
}
NodePtr concat(const Nodes& xs, const Axis& full) {
  if (xs.size() == 1) return xs[0];
  return make(kConcat, xs, replaced(xs[0]->axes, full.name, {full}), xs[0]->dtype,
              AlongAttr{full.name}.attr());
}
NodePtr pad(NodeRef x, Name axis, std::int64_t before, std::int64_t after, NodeRef value) {
  Nodes parts;
  Axes piece = x->axes;
  auto& mine = piece[position(piece, axis)];
  auto full = mine.size + before + after;
  auto fill = [&](std::int64_t n) {
    mine.size = n;
    if (n) parts.push_back(fit(value, piece));
  };
  fill(before);
  parts.push_back(x);
  fill(after);
  return concat(parts, {axis, full});
}

const bool shapes_registered =
    register_ops({&kFit, &kRename, &kSlice, &kPlace, &kFlatten, &kUnflatten, &kConcat});

}  // namespace haliax::prim
