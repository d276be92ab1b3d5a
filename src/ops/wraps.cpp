// Wraps: nodes with the value of in[0] that carry information for a transform or a pass. kCustomVjp
// is in graph/loop.cpp, kLogsumexp in named_reduce.cpp.
#include "ops/attr.h"

namespace haliax::prim {

const Op kBarrier{
    .name = "barrier", .kind = Kind::wrap, .linear = Linear::moves, .grad = [](NodeRef, NodeRef g) {
      return Nodes{g, nullptr};
    }};
const Op kShardingConstraint{
    .name = "shard", .kind = Kind::wrap, .grad = [](NodeRef o, NodeRef g) {
      auto& c = sharding_constraint_of(*o);
      return Nodes{c.of_gradient ? sharding_constraint(g, c.of_gradient, c.by, c.mapping) : g};
    }};
const Op kTracer{.name = "tracer",
                 .kind = Kind::wrap,
                 .linear = Linear::moves,
                 .grad = [](NodeRef, NodeRef g) { return Nodes{g}; },
                 .placeholder = true};

// A cotangent enters the region where a value leaves it.
const Op kEnter{
    .name = "enter", .kind = Kind::wrap, .linear = Linear::moves, .grad = [](NodeRef o, NodeRef g) {
      return Nodes{leave(g, o->attr)};
    }};
const Op kLeave{
    .name = "leave", .kind = Kind::wrap, .linear = Linear::moves, .grad = [](NodeRef o, NodeRef g) {
      return Nodes{enter(g, o->attr)};
    }};

namespace {
NodePtr boundary(const Op& op, NodeRef x, const Attr& region) {
  auto tiled = tiled_axis(region);
  auto* axis = find(*x, tiled.name);
  return axis && *axis == tiled ? make(op, {x}, x->axes, x->dtype, region) : x;
}
}  // namespace
const Op kGradientBarrier{.name = "awaited",
                          .kind = Kind::wrap,
                          .linear = Linear::moves,
                          .grad = [](NodeRef o, NodeRef g) { return Nodes{barrier(g, o)}; }};

NodePtr enter(NodeRef x, const Attr& region) { return boundary(kEnter, x, region); }
NodePtr leave(NodeRef x, const Attr& region) { return boundary(kLeave, x, region); }
NodePtr tracer(NodeRef x, Name path) {
  OriginScope here;
  if (path) context().origin.module = path;
  // Its own payload makes the node unlike any other.
  return make(kTracer, {x}, x->axes, x->dtype, {.payload = std::make_shared<Payload>()});
}
const Op kCheckpointName{.name = "checkpoint_name",
                         .kind = Kind::wrap,
                         .linear = Linear::moves,
                         .grad = [](NodeRef, NodeRef g) { return Nodes{g}; }};
NodePtr checkpoint_name(NodeRef x, Name name) {
  return make(kCheckpointName, {x}, x->axes, x->dtype, CheckpointNameAttr{name}.attr());
}
std::optional<Name> checkpoint_name_of(const Node& n) {
  if (n.op != &kCheckpointName) return {};
  return CheckpointNameAttr::of(n).name;
}
// The second operand is the counts.
const Op kCountedRows{.name = "counted_rows",
                      .kind = Kind::wrap,
                      .linear = Linear::moves,
                      .grad = [](NodeRef o, NodeRef g) {
                        return Nodes{first_rows(g, o->in[1], AlongAttr::of(*o).axis), nullptr};
                      }};
NodePtr counted_rows(NodeRef x, NodeRef counts, Name axis) {
  return make(kCountedRows, {x, counts}, x->axes, x->dtype, AlongAttr{axis}.attr());
}
// (counts, axis, rest): the rows that are sent are contiguous.
NodePtr first_rows(NodeRef x, NodeRef counts, Name axis) {
  auto axes = counts->axes;
  auto rows = *find(*x, axis);
  axes.push_back(rows);
  auto taken = less(fit(cast(iota(rows), DType::i64), axes), fit(counts, axes));
  axes = joined(axes, x->axes);
  return counted_rows(select(taken, fit(x, axes), number(0, x->dtype), axes), counts, axis);
}
bool counts_rows(const Node& n) { return n.op == &kCountedRows; }
NodePtr barrier(NodeRef x, NodeRef after) { return make(kBarrier, {x, after}, x->axes, x->dtype); }
NodePtr gradient_barrier(NodeRef x) { return make(kGradientBarrier, {x}, x->axes, x->dtype); }
NodePtr sharding_constraint(NodeRef x, std::shared_ptr<const Mapping> mapping, const char* by,
                            std::shared_ptr<const Mapping> of_gradient) {
  auto p = std::make_shared<ShardingConstraint>();
  p->mapping = std::move(mapping);
  p->of_gradient = std::move(of_gradient);
  p->by = by;
  return make(kShardingConstraint, {x}, x->axes, x->dtype, {.payload = p});
}

namespace {
const bool wraps_registered =
    register_ops({&kBarrier, &kShardingConstraint, &kTracer, &kEnter, &kLeave, &kGradientBarrier,
                  &kCheckpointName, &kCountedRows});
}  // namespace
}  // namespace haliax::prim
