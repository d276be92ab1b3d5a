// shard_map: functions of local shards. In the global graph, a sharded axis is split into (shards,
// local). f sees the local axis; the axis of shards is hidden, as under vmap. Each value of f is
// computed for each shard, and a reduction over the hidden axis communicates between devices.
#include "haliax/shard.h"

#include "base/name.h"
#include "graph/fail.h"
#include "ops/named.h"
#include "ops/prim.h"
#include "transforms/leaves.h"
#include "transforms/sharding.h"

namespace haliax {
namespace {

// Returns the mesh as in error messages.
std::string mesh_of_shards() {
  std::string out;
  for (auto& [name, shards] : context().shards)
    out += fmt::format("{}{}={}", out.empty() ? "" : ", ", name, shards.size);
  return out;
}
// Returns the hidden axes that represent mesh axes.
Axes shards_of(const char* op, const AxisSelection& mesh_axes) {
  auto& all = context().shards;
  if (all.empty()) fail(op, "this function must be called inside shard_map");
  if (mesh_axes.all()) fail(op, "name one or more axes of the mesh");
  Axes out;
  for (auto& m : mesh_axes.items()) {
    auto found =
        std::find_if(all.begin(), all.end(), [&](auto& s) { return s.first == m.name.text(); });
    if (found == all.end())
      fail(op, "mesh axis {} is not in the mesh ({}){}", m.name, mesh_of_shards(),
           did_you_mean(m.name.text(), all, [](auto& s) { return s.first; }));
    if (has(out, found->second.name)) fail(op, "mesh axis {} is named twice", m.name);
    out.push_back(found->second);
  }
  return out;
}
// Returns the hidden axes of these mesh axes.
Axes of_mesh_axes(const MeshAxes& mesh_axes) {
  Axes out;
  for (int x : mesh_axes) out.push_back(context().shards[std::size_t(x)].second);
  return out;
}
// Reduces over the hidden axes of these mesh axes. x lacks the hidden axis if it is equal on these
// devices. Its sum is then x times the number of devices.
NamedArray folded(const char* op, Monoid m, Arr x, const AxisSelection& mesh_axes) {
  CallSite here(x.at());
  auto over = shards_of(op, mesh_axes);
  auto n = ops::node_of(op, x);
  if (m == Monoid::sum && n->dtype == DType::boolean) n = prim::cast(n, DType::i32);
  auto copies = double(axis_size(without_axes(over, n->axes)));
  auto remaining = without_axes(n->axes, over);
  if (remaining.size() != n->axes.size()) n = prim::reduce(m, n, remaining);
  return NamedArray(m == Monoid::sum && copies > 1 ? prim::scale(n, copies) : n);
}
// (..., hidden, local, ...) -> (..., global, ...), in the place of the local axis.
NodePtr joined(NodeRef x, const Axes& outer, Name local) {
  const Axis mine = *find(*x, local);
  const auto parts = concat_axes(outer, {mine});
  const auto side_by_side = replace_axis(without_axes(x->axes, outer), local, parts);
  return prim::flatten(prim::fit(x, side_by_side), names_of(parts), mine.resize(axis_size(parts)));
}
// The inverse of `joined`. Raises if the size is not divisible.
NodePtr split(const char* op, NodeRef x, const Axes& outer, Name axis, const std::string& what) {
  auto full = *find_axis(x->axes, axis);
  auto pieces = axis_size(outer);
  if (full.size % pieces)
    fail(op,
         "axis {} of {} does not divide among {} devices; "
         "use round_axis_for_partitioning for a size that does",
         full, what, pieces);
  return prim::unflatten(x, axis, concat_axes(outer, {full.resize(full.size / pieces)}));
}

}  // namespace

namespace detail {

JitOptions fsdp_options(Mapping params, Mapping compute, JitOptions options) {
  options.in = params;
  options.out = std::move(params);
  options.axis_resources = std::move(compute);
  return options;
}
ShardMap::ShardMap(const JitOptions& options) : options_(options) {
  CallSite here(options.at);
  mesh_ = options.mesh ? std::make_shared<const Mesh>(*options.mesh) : current_mesh();
  if (!mesh_)
    fail("shard_map", "there is no mesh; pass one as an option, or set one with use_mesh");
  auto outer = current_mesh();
  if (outer && !(*outer == *mesh_))
    fail("shard_map", "the mesh ({}) differs from that of the enclosing function ({})", *mesh_,
         *outer);
  outside_ = options.axis_resources ? std::make_shared<const Mapping>(*options.axis_resources)
                                    : current_mapping();
  context().shards.clear();
  for (auto& [name, size] : mesh_->axes())
    context().shards.push_back(
        {name, Axis(fresh_hidden(Name("shards of " + name), options.at), size)});
}
const Mapping& ShardMap::mapping_of(const std::optional<Mappings>& own, int part) const {
  static const Mapping none;
  auto* mapping = own ? own->of(std::size_t(part)) : outside_.get();
  return mapping ? *mapping : none;
}

Leaves ShardMap::enter(const Leaves& leaves, const Parts& arguments) {
  CallSite here(options_.at);
  require_each("shard_map", "in", options_.in, arguments.count, "arguments");
  Leaves out = leaves;
  std::vector<Mapping::Entry> inside;  // mapping of the hidden axes: each stays on its mesh axis
  for (std::size_t k = 0; k < out.size(); ++k) {
    if (out[k].empty()) continue;
    auto n = out[k].node();
    auto argument = arguments.of_leaf[k];
    auto what = "argument " + std::to_string(argument);
    auto at = sharding_for(n->axes, mapping_of(options_.in, argument), *mesh_, what);
    for (auto& [name, mesh_axes] : at.dims) {
      n = split("shard_map", n, of_mesh_axes(mesh_axes), name,
                what + " " + to_string(leaves[k].axes()));
      for (int x : mesh_axes) {
        auto& [mesh_axis, hidden] = context().shards[std::size_t(x)];
        if (has(context().hidden, hidden.name)) continue;
        context().hidden.push_back(hidden);
        inside.push_back({Name(hidden.name.text()), mesh_axis.c_str()});
      }
    }
    out[k] = NamedArray(n);
  }
  context().origin.mapping = std::make_shared<const Mapping>(Mapping::of(std::move(inside)));
  for (std::size_t k = 0; k < out.size(); ++k)
    if (out[k].node() != leaves[k].node()) out[k] = ops::constrained("shard_map", out[k]);
  return out;
}
Leaves ShardMap::leave(const Leaves& leaves, const Parts& result) const {
  CallSite here(options_.at);
  require_each("shard_map", "out", options_.out, result.count, "results");
  Leaves out = leaves;
  for (std::size_t k = 0; k < out.size(); ++k) {
    if (out[k].empty()) continue;
    auto n = out[k].node();
    auto& mapping = mapping_of(options_.out, result.of_leaf[k]);
    auto shown = out[k].axes();
    auto at = sharding_for(shown, mapping, *mesh_, "a result");
    for (auto& [name, mesh_axes] : at.dims) n = joined(n, of_mesh_axes(mesh_axes), name);
    for (auto& [mesh_axis, hidden] : context().shards)
      if (has(n->axes, hidden.name))
        fail("shard_map",
             "a result {} differs between devices along mesh axis {}, but the mapping {} shards "
             "none of its axes over it; psum or pmean it over {}, or use a mapping in `out` that "
             "shards it",
             shown, mesh_axis, mapping, mesh_axis);
    out[k] =
        NamedArray(at.dims.empty() ? n
                                   : prim::sharding_constraint(
                                         n, std::make_shared<const Mapping>(mapping), "shard_map"));
  }
  return out;
}

}  // namespace detail

NamedArray psum(Arr x, const AxisSelection& mesh_axes) {
  return folded("psum", Monoid::sum, x, mesh_axes);
}
NamedArray pmax(Arr x, const AxisSelection& mesh_axes) {
  return folded("pmax", Monoid::max, x, mesh_axes);
}
NamedArray pmin(Arr x, const AxisSelection& mesh_axes) {
  return folded("pmin", Monoid::min, x, mesh_axes);
}
NamedArray pmean(Arr x, const AxisSelection& mesh_axes) {
  auto total = psum(x, mesh_axes);
  return total / double(axis_size(shards_of("pmean", mesh_axes)));
}
// The hidden axis of a mesh axis is sharded along it (ShardMap::enter). Under a name without a mesh
// axis, the constraint makes it replicated, which requires an all-gather. For example, with a mesh
// axis `data` of 4 devices:
//   (shards of data: 4, embed: 8) -> (parts: 4, embed: 8) -> (embed: 32)
NamedArray all_gather(Arr x, const AxisSelector& axis, const AxisSelection& mesh_axes) {
  CallSite here(x.at());
  auto outer = shards_of("all_gather", mesh_axes);
  auto n = ops::node_of("all_gather", x);
  auto mine = ops::axis_of("all_gather", n, axis);
  Axes own, all = n->axes;  // own: the axes of `outer` under names without a mesh axis
  Names from, to;
  for (auto& o : outer) {
    own.push_back(Axis(fresh_hidden(Name("parts")), o.size));
    from.push_back(o.name);
    to.push_back(own.back().name);
    if (!has(all, o.name)) all.insert(all.begin(), o);  // x is equal on all of these devices
  }
  return ops::constrained(
      "all_gather", NamedArray(joined(prim::rename(prim::fit(n, all), from, to), own, mine.name)));
}
// The sum over all devices, of which each device keeps one block of `axis`: the axis is split into
// (shards, block), the inverse of all_gather.
NamedArray psum_scatter(Arr x, const AxisSelector& axis, const AxisSelection& mesh_axes) {
  auto total = psum(x, mesh_axes);
  CallSite here(x.at());
  auto outer = shards_of("psum_scatter", mesh_axes);
  auto mine = ops::axis_of("psum_scatter", ops::node_of("psum_scatter", x), axis);
  return ops::constrained("psum_scatter", NamedArray(split("psum_scatter", total.node(), outer,
                                                           mine.name, to_string(x.axes()))));
}
NamedArray axis_index(const AxisSelector& mesh_axis, SourceLocation at) {
  CallSite here(at);
  auto shards = shards_of("axis_index", mesh_axis);
  return NamedArray(prim::iota(shards[0]));
}

}  // namespace haliax
