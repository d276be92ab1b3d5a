// Leaves: inputs, numbers, positions, and the placeholders of loops.
#include <limits>

#include "base/scalar.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax::prim {

const Op kInput{.name = "input", .kind = Kind::leaf, .placeholder = true};
const Op kNumber{.name = "number", .kind = Kind::leaf, .cheap = true};
const Op kIota{.name = "iota",
               .kind = Kind::leaf,
               .on_block =
                   [](const Node& n, Nodes, const Axes& axes, const std::vector<Block>& blocks) {
                     auto& block = blocks[0];
                     if (block.drop) return cast(block.start, n.dtype);
                     auto positions = iota(axes[0], n.dtype);
                     return add(positions, cast(block.start, n.dtype));
                   },
               .cheap = true};
const Op kIndex{.name = "index", .kind = Kind::leaf, .cheap = true};
const Op kCarry{.name = "carry", .kind = Kind::leaf};

namespace {
struct Input : Payload {
  std::shared_ptr<const Trace> trace;
};
}  // namespace

NodePtr input(const Axes& axes, DType dtype, Name path, std::shared_ptr<const Trace> trace) {
  OriginScope here;
  if (path) context().origin.module = path;
  auto payload = std::make_shared<Input>();
  payload->trace = trace ? std::move(trace) : context().trace;
  return make(kInput, {}, axes, dtype, {.payload = std::move(payload)});
}
const std::shared_ptr<const Trace>& trace_of(const Node& input) {
  return static_cast<const Input&>(*input.attr.payload).trace;
}

NodePtr number(double v, DType dtype) {
  if (!is_float(dtype)) return integer(std::int64_t(v), dtype);
  if (dtype == DType::f32) v = float(v);
  return make(kNumber, {}, {}, dtype, {.number = v});
}
NodePtr integer(std::int64_t v, DType dtype) {
  if (is_float(dtype)) return number(double(v), dtype);
  if (dtype == DType::boolean) v = v != 0;
  return make(kNumber, {}, {}, dtype, {.ints = {v}, .number = double(v)});
}
NodePtr extreme(DType d, bool largest) {
  auto v = largest ? scalar::highest(d) : scalar::lowest(d);
  return is_float(d) ? number(v.real, d) : integer(v.integer, d);
}
NodePtr identity(Monoid m, DType d) {
  if (m == Monoid::sum || m == Monoid::prod) return number(m == Monoid::prod, d);
  return extreme(d, m == Monoid::min);
}
NodePtr picked_outside(DType d) {
  return is_float(d) ? number(std::numeric_limits<double>::quiet_NaN(), d)
                     : extreme(d, !is_signed(d));
}
NodePtr filled(double v, DType dtype, const Axes& axes) { return fit(number(v, dtype), axes); }
NodePtr zeros_like(NodeRef x) { return filled(0, x->dtype, x->axes); }
NodePtr one(NodeRef like) { return number(1, like->dtype); }
NodeRef stripped(NodeRef n) { return n->op == &kFit ? n->in[0] : n; }
bool needs_no_memory(const Node& n) { return n.op == &kNumber || n.op == &kIota; }
bool is_number(NodeRef n) { return stripped(n)->op == &kNumber; }
bool is_number(NodeRef n, double v) { return is_number(n) && real_of(*stripped(n)) == v; }

DType position_dtype(std::int64_t size) {
  return size > std::numeric_limits<std::int32_t>::max() ? DType::i64 : DType::i32;
}
NodePtr iota(const Axis& axis, DType dtype) { return make(kIota, {}, {axis}, dtype); }
NodePtr iota(const Axis& axis) { return iota(axis, position_dtype(axis.size)); }
NodePtr flat_position(const Axes& axes, DType dtype) {
  auto sum = integer(0, dtype);
  std::int64_t stride = axis_size(axes);
  for (auto& a : axes) {
    stride = a.size ? stride / a.size : 0;
    sum = add(sum, mul(iota(a, dtype), integer(stride, dtype)));
  }
  return sum;
}

NodePtr index(const Axis& axis, std::int64_t start, std::int64_t chunk, int depth,
              LoopOrigin origin) {
  auto n = make(kIndex, {}, {}, position_dtype(axis.size),
                IndexAttr{axis, start, chunk, depth, origin}.attr());
  auto& node = const_cast<Node&>(*n);
  if (node.free.empty()) node.free = {n.get()};
  return n;
}
NodePtr index_of(const Node& other) {
  auto same = IndexAttr::of(other);
  return index(same.axis, same.start, same.chunk, same.depth, same.origin);
}
std::int64_t index_start(const Node& n) { return IndexAttr::of(n).start; }
std::int64_t index_chunk(const Node& n) { return IndexAttr::of(n).chunk; }

NodePtr carry(NodeRef index, const Axes& axes, DType dtype) {
  // The node varies with the index, although it does not read it. Its own payload makes it unlike
  // any other node.
  return make(kCarry, {index}, axes, dtype, {.payload = std::make_shared<Payload>()});
}

NodePtr conditional_index(int depth, LoopOrigin origin) {
  return index(Axis("(once)", 1), 0, 1, depth, origin);
}
Loop conditional(NodeRef index, NodeRef flag) {
  Loop l;
  l.axis = IndexAttr::of(*index).axis;
  l.index = {index};
  l.drop = true;
  auto same = carry(index, {}, DType::boolean);
  l.results.push_back({.kind = ResultKind::carry,
                       .value = {same},
                       .start = flag,
                       .carry = same,
                       .is_condition = true});
  return l;
}

static std::vector<const Op*>& registry() {
  static std::vector<const Op*> ops;
  return ops;
}
std::vector<const Op*> all_ops() { return registry(); }
bool register_ops(std::initializer_list<const Op*> ops) {
  registry().insert(registry().end(), ops);
  return true;
}

}  // namespace haliax::prim
