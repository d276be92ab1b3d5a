// Emits the graph of one device from a plan. All devices run their collectives in the same order.
#include <algorithm>
#include <tuple>
#include <unordered_set>

#include "compile/loops/loops.h"
#include "compile/sharding/passes.h"
#include "compile/sharding/rules.h"
#include "ops/attr.h"
#include "ops/block.h"
#include "transforms/rewrite.h"

namespace haliax::partitioning {
namespace {

using program::Outside;
using program::CollectiveKind;

class Emitter {
 public:
  Emitter(const Plan& plan, const GlobalGraph& graph, const Mesh& mesh, int device, bool verify)
      : plan_(plan), global_(graph), mesh_(mesh), device_(device), verify_(verify),
        local_(plan.versions.size()) {}

  std::vector<NodePtr> inputs(const std::vector<PartitionInput>& in) {
    std::vector<NodePtr> out;
    for (auto& i : in) {
      out.push_back(prim::input(local_axes(i.global->axes, i.at, mesh_, device_), i.global->dtype,
                                i.global->origin.module));
      given_inputs_[i.global.get()] = out.back();
    }

    return out;
  }
  Nodes run() {
    in_body(0);
    Nodes out;
    for (int s : plan_.roots) out.push_back(local(s));
    keep(0, out);
    if (verify_) verify_device(plan_, global_, device_, local_, "emit");
    return out;
  }

 private:
  const Plan& plan_;
  const GlobalGraph& global_;
  const Mesh& mesh_;
  int device_;
  bool verify_;
  std::vector<NodePtr> local_;
  std::unordered_map<const Node*, NodePtr> given_inputs_;
  // global index -> (index on this device, first position). The index is null in a ring loop.
  std::unordered_map<const Node*, std::pair<NodePtr, std::int64_t>> local_iterations_;
  struct RingLoop {
    int ring_step = 0;
    Nodes results = {};  // results so far, per loop result
    Nodes before = {};   // results at the start of the step before
    // its collectives carry a flag that specifies if a device needs the data
    bool may_skip = false;
    NodePtr flag = {};   // false: this step changes no result on this device; null: it always runs
    NodePtr index = {};  // index of the loop of one iteration that a flag requires
    Nodes known = {};    // results so far, as the body sees them
    // by version: the value that this step computes and sends back
    std::map<int, NodePtr> parts = {};
    bool sends_back = false;   // all other values of the step have been computed
    bool looks_ahead = false;  // dry run that only derives the flag
    Nodes blocks = {};         // placeholders for blocks of other devices in the dry run
  };
  std::map<int, RingLoop> ring_loops_;  // by loop
  std::map<int, Nodes> calls_;  // per body: collectives, and loops that may contain collectives
  int created_calls_ = 0;

  const Version& version(int s) const { return plan_.version(s); }
  const NodePtr& node(const Version& s) const { return global_.ptr(s.node); }
  const NodePtr& local(int s) const { return local_[std::size_t(s)]; }
  Axes axes_of(const Version& s) const { return local_axes(node(s)->axes, s.at, mesh_, device_); }
  std::pair<std::int64_t, std::int64_t> block(const Axes& axes, const Sharding& at, Name a) const {
    return block_of(*find_axis(axes, a), at.mesh_axes(a), mesh_, device_);
  }

  void in_body(int r) {
    for (int k : plan_.body(r).versions) {
      auto& s = version(k);
      if (!s.live || local(k) || s.ring() >= 0) continue;
      OriginScope here(node(s)->origin);
      if (auto* gather = ringed(s))
        ring(r, k, *gather);
      else if (s.in_ring_loop())
        ring_move(r, k);
      else if (s.communicates())
        collective(r, k);
      else
        local_[std::size_t(k)] = created(s);
    }
  }
  // Makes one result of the body depend on all of its collectives. A device whose blocks are short
  // or empty may not need the data, but the other devices of the collective wait for it.
  void keep(int body, Nodes& out) {
    auto& calls = calls_[body];
    if (calls.empty()) return;
    std::unordered_set<const Node*> seen;
    for (auto& n : all_nodes(out)) seen.insert(n.get());
    auto& waits = least(out);
    for (auto& c : calls)
      if (!seen.count(c.get()))
        waits = prim::barrier(waits, c->op == &kLoop ? loop_result(c, 0) : collective_result(c, 0));
  }
  static NodePtr& least(Nodes& some) {
    return *std::min_element(some.begin(), some.end(),
                             [](auto& a, auto& b) { return a->bytes() < b->bytes(); });
  }
  NodePtr created(const Version& s) {
    return std::visit([&](auto& kind) { return created(s, kind); }, s.kind);
  }
  NodePtr created(const Version& s, const Given&) {
    auto found = given_inputs_.find(node(s).get());
    return found == given_inputs_.end() ? node(s) : found->second;
  }
  NodePtr created(const Version& s, const Carry& c) {
    auto& p = plan_.loop(c.loop);
    // the bodies of a loop share it
    if (auto& known = local(p.carry[c.result][0])) return known;
    return prim::carry(local_index_of(loop_of(global_.node(p.node)).index[0]), axes_of(s),
                       node(s)->dtype);
  }
  NodePtr created(const Version& s, const Generate&) { return generated(s); }
  NodePtr created(const Version& s, const Compute&) { return computed(s); }
  NodePtr created(const Version& s, const Shift&) { return shifted(s, {}); }
  NodePtr created(const Version& s, const Regroup&) { return regrouped(s, retained_part(s)); }
  NodePtr created(const Version& s, const Reshard& r) {
    return r.step.kind == ReshardStep::Kind::make_partial ? partial_of(s) : sliced(s);
  }
  NodePtr created(const Version&, const RingReceive&) { return nullptr; }  // see `in_body`
  NodePtr created(const Version&, const RingReturn&) { return nullptr; }
  NodePtr created(const Version& s, const RunLoop& r) {
    return plan_.loop(r.loop).ring_axes.empty() ? loop(s) : unrolled_ring(s);
  }
  NodePtr created(const Version& s, const ResultOfLoop& r) {
    auto ring_loop = ring_loops_.find(r.loop);
    return ring_loop == ring_loops_.end() ? loop_result(local(s.in[0]), r.result)
                                          : ring_loop->second.results[r.result];
  }

  // ---- computations without communication ----
  NodePtr generated(const Version& s) {  // a value that depends only on scalars and positions
    auto& x = node(s);
    std::vector<Block> blocks;
    for (auto& a : x->axes) {
      if (s.at.mesh_axes(a.name).empty()) continue;
      auto [start, size] = block(x->axes, s.at, a.name);
      blocks.push_back({a.name, prim::integer(start, DType::i64), size});
    }
    auto is_recomputed = [](const NodePtr& n) { return n->op->kind != Kind::leaf; };
    return in_local_iterations(prim::Blocks(is_recomputed)(x, std::move(blocks)));
  }
  NodePtr in_local_iterations(const NodePtr& x) {
    Rewrite to;
    for (auto& [index, own] : local_iterations_) {
      if (!x->varies_with(index)) continue;
      auto& [local_index, start] = own;
      auto first = prim::integer(start, index->dtype);
      to[index] = local_index ? prim::add(prim::cast(local_index, index->dtype), first) : first;
    }
    return to.empty() ? x : substitute(x, to);
  }
  NodePtr sliced(const Version& s) {  // this device's block of the data that it holds
    auto x = local(s.in[0]);
    auto& from = version(s.in[0]);
    for (auto& a : node(s)->axes) {
      if (s.at.mesh_axes(a.name) == from.at.mesh_axes(a.name)) continue;
      auto [start, size] = block(node(s)->axes, s.at, a.name);
      x = prim::slice(x, a.name,
                      start - std::min(start, block(node(s)->axes, from.at, a.name).first), size);
    }
    return x;
  }
  // The first rank stores the value, the other ranks store the identity of the monoid.
  NodePtr partial_of(const Version& s) {
    auto& x = local(s.in[0]);
    auto monoid = Monoid::sum;
    bool first = true;
    for (auto& [m, how] : s.at.partial)
      if (!version(s.in[0]).at.is_partial(m)) {
        first &= coordinate(mesh_, device_, m) == 0;
        monoid = how;
      }

    return first ? x : nothing_instead_of(x, monoid);
  }
  // Waits for x: every device takes part in the collectives that x depends on.
  static NodePtr nothing_instead_of(const NodePtr& x, Monoid m) {
    auto nothing = prim::fit(prim::identity(m, x->dtype), x->axes);
    return prim::is_number(x) ? nothing : prim::barrier(nothing, x);
  }
  NodePtr computed(const Version& s) {
    auto& n = *node(s);
    Nodes in;
    for (int k : s.in) in.push_back(k < 0 ? nullptr : local(k));
    auto axes = axes_of(s);
    if (n.op->on_block) return picked(s, std::move(in), axes);
    if (s.as<Compute>().local_iterations) in.back() = local_index_of(n.in.back());
    return prim::rebuilt(n, std::move(in), axes);
  }
  // Selects from a table of which this device has a block, or writes into it.
  NodePtr picked(const Version& s, Nodes in, const Axes& axes) {
    auto& n = *node(s);
    auto& table = rules::writes_into(n) ? s.at : version(s.in[0]).at;
    std::vector<Block> blocks;
    for (auto& [name, mesh_axes] : table.dims) {
      if (along(n, 0, name).way != Along::Way::pick) continue;
      auto [start, size] = block(n.in[0]->axes, table, name);
      blocks.push_back({name, prim::integer(start, DType::i64), size});
    }
    auto out = prim::on_block(n, in, axes, blocks);
    if (blocks.empty()) return out;
    bool mine = true;  // one device provides the value of an index outside of all blocks
    for (auto& [x, m] : s.at.partial) mine &= coordinate(mesh_, device_, x) == 0;
    auto none = mine ? prim::picked_outside(n.dtype) : prim::number(0, n.dtype);
    return prim::where_in_range(n, in, out, none);
  }
  NodePtr loop(const Version& s) {
    auto& p = plan_.loop(s.loop());
    Loop out = loop_of(*node(s));
    if (!p.shared_by.empty()) {
      auto [start, size] = block_of(out.axis, p.shared_by, mesh_, device_);
      auto& index = out.index[0];
      auto local_index = prim::index(out.axis.resize(size), 0, prim::index_chunk(*index),
                                     IndexAttr::of(*index).depth, IndexAttr::of(*index).origin);
      local_iterations_[index.get()] = {local_index, start};
      out.axis = out.axis.resize(size);
      index = local_index;
    }
    for (std::size_t b = 0; b < p.bodies.size(); ++b) {
      in_body(p.bodies[b]);
      Nodes values;
      for (auto& v : p.value) values.push_back(local(v[b]));
      keep(p.bodies[b], values);
      for (std::size_t k = 0; k < values.size(); ++k) out.results[k].value[b] = values[k];
    }
    for (std::size_t k = 0; k < out.results.size(); ++k) {
      auto& r = out.results[k];
      if (r.carry) r.carry = local(p.carry[k][0]);
      if (p.start[k] >= 0) r.start = local(p.start[k]);
    }
    auto created = make_loop(std::move(out));
    // Another loop may use the same index.
    local_iterations_.erase(loop_of(*node(s)).index[0].get());
    if (std::any_of(p.bodies.begin(), p.bodies.end(), [&](int r) { return !calls_[r].empty(); }))
      calls_[s.body].push_back(created);
    return created;
  }

  // ---- ring loops, step by step ----
  // Ring step t of device d processes the block of device d - t. Each device starts with its own
  // block, and at each step every block is sent to a different device. A block is received directly
  // from its owner, when the step before the last one is done. At most one block more than the
  // current one is therefore in memory.
  NodePtr unrolled_ring(const Version& s) {
    auto& p = plan_.loop(s.loop());
    auto& l = loop_of(*node(s));
    const int body = p.bodies[0], count = ranks(mesh_, p.ring_axes),
              mine = coordinate(mesh_, device_, p.ring_axes[0]);
    auto& index = l.index[0];
    const bool carries =
        std::any_of(l.results.begin(), l.results.end(), [](auto& r) { return r.carry != nullptr; });
    auto& ring_loop = ring_loops_[s.loop()] = {};
    ring_loop.may_skip = may_skip(plan_, global_, body);
    for (int start : p.start) ring_loop.results.push_back(start < 0 ? nullptr : local(start));
    NodePtr changes;
    for (; ring_loop.ring_step < count; ++ring_loop.ring_step) {
      const auto first = (mine - ring_loop.ring_step + count) % count * prim::index_chunk(*index);
      if (ring_loop.ring_step == 1 && ring_loop.may_skip) changes = changes_of(s, ring_loop);
      // The receive of the first remote block must not depend on the carries of the first step.
      const bool known = changes && (ring_loop.ring_step > 1 || !carries);
      Rewrite to{{index.get(), prim::integer(first, index->dtype)}};
      ring_loop.flag = known ? substitute(Nodes{changes}, to, index.get())[0] : nullptr;
      auto before = ring_loop.results;
      begin_ring_step(s, ring_loop, {nullptr, first});
      in_body(body);
      end_ring_step(p, l, ring_loop);
      if (ring_loop.ring_step > 0) ring_loop.before = std::move(before);
      auto& calls = calls_[s.body];
      calls.insert(calls.end(), calls_[body].begin(), calls_[body].end());
    }
    local_iterations_.erase(index.get());
    for (std::size_t k = 0; k < ring_loop.results.size(); ++k)
      ring_loop.results[k] = prim::cast(ring_loop.results[k], l.results[k].value[0]->dtype);
    return ring_loop.results[0];
  }
  void begin_ring_step(const Version& s, RingLoop& ring_loop,
                       std::pair<NodePtr, std::int64_t> local_index) {
    auto& p = plan_.loop(s.loop());
    forget(p.bodies[0]);
    local_iterations_[loop_of(*node(s)).index[0].get()] = std::move(local_index);
    ring_loop.known = ring_loop.results;
    ring_loop.parts.clear();
    ring_loop.sends_back = false;
    ring_loop.index =
        ring_loop.flag ? prim::conditional_index(s.loop(), LoopOrigin::ring) : nullptr;
    if (ring_loop.flag)
      for (auto& known : ring_loop.known)
        known = prim::carry(ring_loop.index, known->axes, known->dtype);
    for (std::size_t k = 0; k < p.carry.size(); ++k)
      for (int carry : p.carry[k]) local_[std::size_t(carry)] = ring_loop.known[k];
  }
  void end_ring_step(const LoopPlan& p, const Loop& l, RingLoop& ring_loop) {
    std::vector<int> back;  // per result: the version that is sent back; -1: none
    Nodes values;
    for (std::size_t k = 0; k < l.results.size(); ++k) {
      const int created = p.value[k][0];
      back.push_back(version(created).is<RingReturn>() ? version(created).in[0] : -1);
      values.push_back(back[k] < 0 ? more(l.results[k], ring_loop.known[k], local(created))
                                   : local(back[k]));
    }
    if (ring_loop.flag) values = computed_if(ring_loop, values, back);
    for (std::size_t k = 0; k < values.size(); ++k)
      (back[k] < 0 ? ring_loop.results[k] : ring_loop.parts[back[k]]) = values[k];
    ring_loop.sends_back = true;
    in_body(p.bodies[0]);
    for (std::size_t k = 0; k < values.size(); ++k)
      if (back[k] >= 0)
        ring_loop.results[k] = more(l.results[k], ring_loop.results[k], local(p.value[k][0]));
  }
  // Returns the values of a step, or the previous results if its flag is false. Values that are
  // sent back are then 0.
  static Nodes computed_if(const RingLoop& ring_loop, const Nodes& values,
                           const std::vector<int>& back) {
    auto l = prim::conditional(ring_loop.index, ring_loop.flag);
    for (std::size_t k = 0; k < values.size(); ++k) {
      auto& v = values[k];
      auto start = back[k] < 0 ? ring_loop.results[k] : prim::zeros_like(v);
      auto carry =
          back[k] < 0 ? ring_loop.known[k] : prim::carry(ring_loop.index, v->axes, v->dtype);
      l.results.push_back({Fold::carry, Monoid::sum, {v}, start, carry});
    }
    auto created = make_loop(std::move(l));
    Nodes out;
    for (std::size_t k = 0; k < values.size(); ++k) out.push_back(loop_result(created, k + 1));
    return out;
  }
  // Returns a flag for a step with any index. It is false if the step changes no result, given the
  // results after the step of this device's own block. Steps may run in any order, so a step that
  // would change nothing directly after the first step can be skipped at any time. Null: not known.
  NodePtr changes_of(const Version& s, RingLoop& ring_loop) {
    auto& p = plan_.loop(s.loop());
    auto& l = loop_of(*node(s));
    auto& index = l.index[0];
    ring_loop.flag = nullptr;
    ring_loop.looks_ahead = true;
    begin_ring_step(s, ring_loop, {index, 0});
    in_body(p.bodies[0]);
    ring_loop.looks_ahead = false;
    std::vector<IterationResult> created;
    for (std::size_t k = 0; k < l.results.size(); ++k) {
      auto& r = l.results[k];
      auto& v = version(p.value[k][0]);
      auto value = untiled(local(v.is<RingReturn>() ? v.in[0] : p.value[k][0]), index.get());
      if (!value || r.effect || (r.fold == Fold::fold && r.monoid != Monoid::sum)) return nullptr;
      created.push_back({value, r.carry ? ring_loop.results[k] : nullptr});
    }
    auto flag = iteration_flags(created, index.get()).changes;
    return flag && reads_blocks(flag, ring_loop.blocks) ? nullptr : flag;
  }
  static bool reads_blocks(const NodePtr& flag, const Nodes& blocks) {
    if (blocks.empty()) return false;
    bool found = false;
    // Older nodes cannot depend on the blocks.
    auto newer = [&](const Node& n) { return n.id >= blocks[0]->id; };
    traverse({flag}, newer, [&](const NodePtr& n, Nodes& todo) {
      found |= std::find(blocks.begin(), blocks.end(), n) != blocks.end();
      add_reads(n, todo);
    });
    return found;
  }
  void ring_move(int body, int k) {
    auto& s = version(k);
    auto& ring_loop = ring_loop_of(s);
    auto& created = local_[std::size_t(k)];
    const bool receives = s.is<RingReceive>();
    if (receives && ring_loop.looks_ahead) {
      auto& block = ring_loop.blocks.emplace_back(prim::input(axes_of(s), node(s)->dtype));
      created = prim::barrier(
          block, loop_of(global_.node(plan_.loop(plan_.body(body).loop).node)).index[0]);
    } else if (!receives && !ring_loop.sends_back) {
      return;
    } else if (ring_loop.ring_step == 0) {
      created = receives ? local(s.in[0]) : ring_loop.parts.at(s.in[0]);
    } else {
      collective(body, k);
    }
  }
  // Returns a result after one more step. Sums of 16-bit floats are rounded once, at the end.
  static NodePtr more(const LoopResult& r, const NodePtr& known, const NodePtr& value) {
    if (r.carry) return value;
    auto v = r.fold == Fold::stack ? widened(value) : value;
    if (!known) return v;
    auto& op = prim::pairwise(r.fold == Fold::stack ? Monoid::sum : r.monoid);
    return prim::map(op, {known, prim::fit(v, known->axes)}, v->dtype, &known->axes);
  }
  void forget(int body) {  // drops the values of the previous step
    calls_[body].clear();
    for (int k : plan_.body(body).versions) {
      local_[std::size_t(k)] = nullptr;
      for (int inner : plan_.bodies_of(version(k))) forget(inner);
    }
  }
  RingLoop& ring_loop_of(const Version& s) { return ring_loops_.at(plan_.body(s.body).loop); }
  // Returns the boxes of the block that a step receives or sends back: all blocks move by as many
  // devices as steps were done.
  std::vector<CopyBox> passed(const Version& s, const Axes& axes, const Sharding& at) {
    const auto size = find_axis(axes, s.step().axis)->size;
    const auto by = ring_loop_of(s).ring_step * (size / ranks(mesh_, s.step().over));
    // Received blocks come from lower ranks; sent blocks go back to them.
    const auto left = s.is<RingReceive>() ? size - by : by;
    return {
        {.axes = axes, .at = at, .axis = s.step().axis, .from = left, .to = 0, .size = size - left},
        {.axes = axes,
         .at = at,
         .axis = s.step().axis,
         .from = 0,
         .to = size - left,
         .size = left}};
  }

  // ---- collectives: all versions of a bucket in one collective ----
  void collective(int body, int first) {
    std::vector<int> members;
    auto joins = [&](const Version& v) {
      return v.bucket >= 0 && v.bucket == version(first).bucket && v.live;
    };
    for (int k : plan_.body(body).versions)
      if (k == first || joins(version(k))) members.push_back(k);
    CollectiveSpec w;
    Nodes x;
    auto& h = version(first).step();
    w.collective.kind = h.kind == ReshardStep::Kind::all_reduce   ? CollectiveKind::all_reduce
                        : h.kind == ReshardStep::Kind::all_gather ? CollectiveKind::all_gather
                        : h.kind == ReshardStep::Kind::reduce_scatter
                            ? CollectiveKind::reduce_scatter
                            : CollectiveKind::exchange;
    for (int m : h.over) {
      w.collective.over.push_back(m);
      w.collective.ranks *= mesh_.axes()[std::size_t(m)].second;
    }

    for (int k : members) {
      auto& s = version(k);
      auto& n = *node(s);
      w.collective.sent_bytes += s.in_ring_loop() ? global_.bytes(s.node, s.at) : s.step().bytes;
      w.out.push_back(axes_of(s));
      if (s.in_ring_loop()) {
        auto at = s.at;
        at.set(s.step().axis, s.step().over);
        auto axes = n.axes;
        for (auto& a : axes)
          if (a.name == s.step().axis) a.size *= ranks(mesh_, s.step().over);
        pack(w.collective, passed(s, axes, at), int(x.size()), int(w.out.size()) - 1, axes, at,
             mesh_, device_);
        auto& ring_loop = ring_loop_of(s);
        const bool receives = s.is<RingReceive>();
        auto mine = in_order(receives ? local(s.in[0]) : ring_loop.parts.at(s.in[0]), n.axes);
        if (ring_loop.may_skip)
          w.collective.skip_flag = receives ? program::SkipFlag::unread : program::SkipFlag::zeros;
        // Without this barrier, the sums of all steps could be delayed, and the addends of each
        // step would stay in memory.
        for (auto& done : receives ? ring_loop.before : Nodes()) mine = prim::barrier(mine, done);
        x.push_back(mine);
        continue;
      }
      if (s.is<Regroup>()) {
        auto& p = s.boxes()[0];
        w.out.back() = local_axes(p.axes, s.at, mesh_, device_);
        if (!p.result_layout.parts.empty())
          for (auto& a : w.out.back())
            if (a.name == p.axis) a.size = p.result_layout.size(mesh_, device_);
        pack(w.collective, s.boxes(), int(x.size()), int(w.out.size()) - 1, p.axes, s.at, mesh_,
             device_);
        x.push_back(in_order(with_joined_parts(s), p.axes));
        continue;
      }
      if (w.collective.kind == CollectiveKind::exchange) {
        std::vector<CopyBox> copy_boxes;
        if (s.is<Shift>())
          copy_boxes = remote_boxes(s);
        else
          copy_boxes = {{.axes = n.axes, .at = version(s.in[0]).at}};
        pack(w.collective, copy_boxes, int(x.size()), int(w.out.size()) - 1, n.axes, s.at, mesh_,
             device_);
        const bool counted = s.is<Reshard>() && s.in.size() > 1;
        for (int i : s.in)
          x.push_back(in_order(local(i), counted ? node(version(i))->axes : n.axes));
        if (counted) w.collective.skip_flag = program::SkipFlag::rows;
        continue;
      }
      auto& from = version(s.in[0]).at;
      for (auto& [m, how] : from.partial)
        if (h.over.has(m)) w.collective.monoid = how;
      x.push_back(local(s.in[0]));
      w.along.push_back(s.step().axis);
      auto full_axes = s.step().kind == ReshardStep::Kind::all_gather
                           ? axes_of(s)
                           : local_axes(n.axes, from, mesh_, device_);
      w.collective.size.push_back(s.step().axis ? find_axis(full_axes, s.step().axis)->size : 0);
    }
    if (version(first).in_ring_loop() && w.collective.skip_flag != program::SkipFlag::nothing) {
      auto& flag = ring_loop_of(version(first)).flag;
      x.push_back(flag ? flag : prim::number(1, DType::boolean));
    }
    auto created = call(body, std::move(x), std::move(w));
    for (std::size_t i = 0; i < members.size(); ++i) {
      auto& s = version(members[i]);
      auto part = collective_result(created, i);
      local_[std::size_t(members[i])] = s.is<Shift>()     ? shifted(s, part)
                                        : s.is<Regroup>() ? regrouped(s, part)
                                                          : part;
      if (s.is<RingReceive>() && ring_loop_of(s).flag) {
        auto& block = local_[std::size_t(members[i])];
        block = prim::barrier(block, ring_loop_of(s).index);
      }
    }
  }
  NodePtr call(int body, Nodes x, CollectiveSpec w) {
    // If the operand is the same in all iterations on this device, the collective still runs in
    // each iteration of all enclosing loops, as on the other devices.
    for (int b = body; plan_.body(b).loop >= 0; b = plan_.body(b).parent) {
      auto index = index_of(b);
      bool same = index && std::none_of(x.begin(), x.end(),
                                        [&](auto& v) { return v->varies_with(index.get()); });
      if (same) x[0] = prim::barrier(x[0], index);
    }
    w.number = ++created_calls_;
    calls_[body].push_back(make_collective(std::move(x), std::move(w)));
    return calls_[body].back();
  }
  // Returns the gather whose blocks this contraction reads one by one. Null: none.
  const Version* ringed(const Version& s) const {
    for (int x : s.in)
      if (x >= 0 && version(x).ring() >= 0) return &version(x);
    return nullptr;
  }
  void ring(int body, int k, const Version& gather) {
    auto& s = version(k);
    auto& other = local(&version(s.in[0]) == &gather ? s.in[1] : s.in[0]);
    auto& block = local(gather.in[0]);
    CollectiveSpec w;
    w.out = {axes_of(s)};
    w.along = {gather.step().axis};
    set_ring(w, block->axes, gather.step().over, mesh_, device_);
    w.collective.sent_bytes = gather.step().bytes / (w.ranks - 1);
    w.dtype =
        // accumulation dtype
        find(*node(s), gather.step().axis) ? node(s)->dtype : DType::f32;
    local_[std::size_t(k)] =
        prim::cast(collective_result(call(body, {other, block}, std::move(w)), 0), node(s)->dtype);
  }
  // Returns the index of the enclosing loop. Null: the loop is a ring, which is unrolled.
  NodePtr index_of(int body) const {
    auto& r = plan_.body(body);
    if (!plan_.loop(r.loop).ring_axes.empty()) return nullptr;
    return local_index_of(loop_of(global_.node(plan_.loop(r.loop).node)).index[r.number]);
  }
  // counts the iterations of this device
  const NodePtr& local_index_of(const NodePtr& index) const {
    auto own = local_iterations_.find(index.get());
    return own == local_iterations_.end() ? index : own->second.first;
  }
  static NodePtr in_order(const NodePtr& x, const Axes& like) {
    Axes axes;
    for (auto& a : like) axes.push_back(*find(*x, a.name));
    return prim::fit(x, axes);
  }
  // ---- moved positions ----
  // `with_joined_parts` and `regrouped` convert the operand and the result of a regroup to the form
  // in which they are communicated: all parts in one axis.
  NodePtr with_joined_parts(const Version& s) const {
    auto& p = s.boxes()[0];
    if (p.source_layout.parts.empty()) return local(s.in[0]);
    Names names;
    for (auto& a : p.source_layout.parts) names.push_back(a.name);
    return prim::flatten(local(s.in[0]), names, Axis(p.axis, p.source_layout.size(mesh_, device_)));
  }
  NodePtr regrouped(const Version& s, const NodePtr& x) const {
    auto& p = s.boxes()[0];
    if (p.result_layout.parts.empty()) return prim::fit(x, axes_of(s));
    Axes parts;
    for (std::size_t k = 0; k < p.result_layout.parts.size(); ++k)
      parts.push_back(p.result_layout.parts[k].resize(
          block_of(p.result_layout.parts[k], p.result_layout.mesh_axes[k], mesh_, device_).second));
    return prim::fit(prim::unflatten(x, p.axis, parts), axes_of(s));
  }
  // Returns this device's part of the data that it holds, for a regroup without communication.
  NodePtr retained_part(const Version& s) const {
    auto& p = s.boxes()[0];
    auto x = with_joined_parts(s);
    auto runs = own_runs(p, s.at, mesh_, device_);
    auto axis = *find(*x, p.axis);
    if (runs.size() == 1 && runs[0].second == axis.size) return x;
    Nodes parts;
    axis.size = 0;
    for (auto [from, size] : runs) {
      parts.push_back(prim::slice(x, p.axis, from, size));
      axis.size += size;
    }

    return parts.empty() ? prim::slice(x, p.axis, 0, 0) : prim::concat(parts, axis);
  }
  static std::vector<CopyBox> remote_boxes(const Version& s) {  // boxes that other devices may hold
    std::vector<CopyBox> out;
    for (auto& p : s.boxes())
      if (!p.at.mesh_axes(p.axis).empty()) out.push_back(p);
    return out;
  }
  // Concatenates this device's block from boxes: received ones (`got`, at their position in the
  // result) and local ones.
  NodePtr shifted(const Version& s, const NodePtr& got) {
    Name a = s.step().axis;
    auto [start, size] = block(node(s)->axes, s.at, a);
    Nodes parts;
    // An empty array is not communicated.
    if (node(s)->size() == 0) return prim::filled(0, node(s)->dtype, axes_of(s));
    for (auto& p : s.boxes()) {
      auto begin = std::max(start, p.to), end = std::min(start + size, p.to + p.size);
      if (begin >= end) continue;
      if (got && !p.at.mesh_axes(a).empty()) {
        parts.push_back(prim::slice(got, a, begin - start, end - begin));
        continue;
      }
      auto have = block(p.axes, p.at, a).first;
      auto part = prim::slice(local(s.in[std::size_t(p.array)]), a,
                              p.from + p.step * (begin - p.to) - have, end - begin, p.step);
      parts.push_back(in_order(part, node(s)->axes));
    }
    auto axes = axes_of(s);
    if (parts.empty()) return prim::filled(0, node(s)->dtype, axes);
    return prim::concat(parts, *find_axis(axes, a));
  }
};

}  // namespace

Nodes emit(const Plan& plan, const GlobalGraph& graph, const std::vector<PartitionInput>& inputs,
           const Mesh& mesh, int device, Nodes& placeholders, bool verify) {
  Emitter e(plan, graph, mesh, device, verify);
  placeholders = e.inputs(inputs);
  return e.run();
}

}  // namespace haliax::partitioning
