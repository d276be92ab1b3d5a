// Emits the graph of one device from a plan. All devices run their collectives in the same order.
//
// LocalValues   the node of each version; ops on the blocks of this device
// RingLoop      the state of a ring loop, step by step
// Collectives   one collective for all versions of a bucket
// Emitter       the bodies and loops of the plan, in execution order
#include <algorithm>
#include <unordered_set>

#include "compile/loops/early_exit.h"
#include "compile/sharding/passes.h"
#include "compile/sharding/rules.h"
#include "ops/attr.h"
#include "ops/block.h"
#include "transforms/rewrite.h"

namespace haliax::partitioning {
namespace {

using program::CollectiveKind;
using program::SkipFlag;

// Returns the array with its axes in the order of `like`.
NodePtr in_order(const NodePtr& x, const Axes& like) {
  Axes axes;
  for (auto& a : like) axes.push_back(*find(*x, a.name));
  return prim::fit(x, axes);
}

// The index of an iteration of this device, and the first position of the device.
struct LocalIndex {
  NodePtr index;  // null: a constant, in a step of a ring loop
  std::int64_t first;
};

// The values of one device, and the ops on its blocks that communicate nothing.
class LocalValues {
 public:
  const Plan& plan;
  const GlobalGraph& graph;
  const Mesh& mesh;
  const int device;
  std::vector<NodePtr> of_version;                         // null: not emitted yet
  std::unordered_map<const Node*, LocalIndex> iterations;  // by global index

  LocalValues(const Plan& p, const GlobalGraph& g, const Mesh& m, int d)
      : plan(p), graph(g), mesh(m), device(d), of_version(p.versions.size()) {}

  NodePtr& operator[](int v) { return of_version[std::size_t(v)]; }
  const NodePtr& operator[](int v) const { return of_version[std::size_t(v)]; }
  const Version& version(int v) const { return plan.version(v); }
  const NodePtr& node(const Version& v) const { return graph.ptr(v.node); }  // unsharded
  Axes axes_of(const Version& v) const {
    return local_axes(node(v)->axes, v.sharding, mesh, device);
  }
  // Returns the index that counts the iterations of this device.
  const NodePtr& local_index(const NodePtr& index) const {
    auto own = iterations.find(index.get());
    return own == iterations.end() ? index : own->second.index;
  }
  // Drops the values of the previous iteration of a body.
  void forget(int body) {
    for (int k : plan.body(body).versions) {
      (*this)[k] = nullptr;
      for (int inner : plan.bodies_of(version(k))) forget(inner);
    }
  }

  // Returns the node of a version that is computed without communication.
  NodePtr computed(const Version& v) const {
    if (v.is<Generate>()) return generated(v);
    if (v.is<Compute>()) return applied(v);
    if (v.is<Shift>()) return shifted(v, nullptr);
    if (v.is<Regroup>()) return regrouped(v, retained_part(v));
    return v.step().kind == ReshardStep::Kind::make_partial ? partial(v) : sliced(v);
  }
  // Returns this device's block of a shift, concatenated from local boxes and received ones.
  // received: at their positions in the block; null: all boxes are local.
  NodePtr shifted(const Version& v, const NodePtr& received) const {
    const Name a = v.step().axis;
    const auto axes = axes_of(v);
    auto [start, size] = block(node(v)->axes, v.sharding, a);
    Nodes parts;
    for (auto& p : v.boxes()) {
      auto begin = std::max(start, p.to), end = std::min(start + size, p.to + p.size);
      // An empty array is not communicated.
      if (begin >= end || node(v)->size() == 0) continue;
      if (received && !p.sharding.mesh_axes(a).empty()) {
        parts.push_back(prim::slice(received, a, begin - start, end - begin));
        continue;
      }
      auto from = p.from + p.step * (begin - p.to) - block(p.axes, p.sharding, a).first;
      auto part = prim::slice((*this)[v.in[std::size_t(p.array)]], a, from, end - begin, p.step);
      parts.push_back(in_order(part, node(v)->axes));
    }
    if (parts.empty()) return prim::filled(0, node(v)->dtype, axes);
    return prim::concat(parts, *find_axis(axes, a));
  }
  // Return the operand of a regroup in the form in which it is communicated, with all parts in one
  // axis; the axes of the received array in this form; and the result that it becomes.
  NodePtr with_joined_parts(const Version& v) const {
    auto& p = v.boxes()[0];
    auto& x = (*this)[v.in[0]];
    if (p.source_layout.parts.empty()) return x;
    Names names;
    for (auto& a : p.source_layout.parts) names.push_back(a.name);
    return prim::flatten(x, names, Axis(p.axis, p.source_layout.size(mesh, device)));
  }
  Axes joined_axes(const Version& v) const {
    auto& p = v.boxes()[0];
    auto out = local_axes(p.axes, v.sharding, mesh, device);
    for (auto& a : out)
      if (a.name == p.axis && !p.result_layout.parts.empty())
        a.size = p.result_layout.size(mesh, device);
    return out;
  }
  NodePtr regrouped(const Version& v, const NodePtr& joined) const {
    auto& [parts, mesh_axes] = v.boxes()[0].result_layout;
    if (parts.empty()) return prim::fit(joined, axes_of(v));
    Axes local;
    for (std::size_t k = 0; k < parts.size(); ++k)
      local.push_back(parts[k].resize(block_of(parts[k], mesh_axes[k], mesh, device).second));
    return prim::fit(prim::unflatten(joined, v.boxes()[0].axis, local), axes_of(v));
  }

 private:
  std::pair<std::int64_t, std::int64_t> block(const Axes& axes, const Sharding& sharding,
                                              Name axis) const {
    return block_of(*find_axis(axes, axis), sharding.mesh_axes(axis), mesh, device);
  }
  // Returns a block of a value that depends only on scalars and positions.
  NodePtr generated(const Version& v) const {
    auto& x = node(v);
    std::vector<Block> blocks;
    for (auto& a : x->axes) {
      if (v.sharding.mesh_axes(a.name).empty()) continue;
      auto [start, size] = block(x->axes, v.sharding, a.name);
      blocks.push_back({a.name, prim::integer(start, DType::i64), size});
    }
    auto is_recomputed = [](const NodePtr& n) { return n->op->kind != Kind::leaf; };
    auto out = prim::Blocks(is_recomputed)(x, std::move(blocks));
    Rewrite to;
    for (auto& [index, own] : iterations) {
      if (!out->varies_with(index)) continue;
      auto& [local_index, start] = own;
      auto first = prim::integer(start, index->dtype);
      to[index] = local_index ? prim::add(prim::cast(local_index, index->dtype), first) : first;
    }
    return to.empty() ? out : substitute(out, to);
  }
  NodePtr applied(const Version& v) const {
    auto& n = *node(v);
    Nodes in;
    for (int k : v.in) in.push_back(k < 0 ? nullptr : (*this)[k]);
    if (n.op->on_block) return picked(v, in);
    if (v.as<Compute>().local_iterations) in.back() = local_index(n.in.back());
    return prim::rebuilt(n, std::move(in), axes_of(v));
  }
  // Selects from a table of which this device has a block, or writes into it.
  NodePtr picked(const Version& v, const Nodes& in) const {
    auto& n = *node(v);
    auto& table = rules::writes_into(n) ? v.sharding : version(v.in[0]).sharding;
    std::vector<Block> blocks;
    for (auto& [name, mesh_axes] : table.dims) {
      if (along(n, 0, name).way != Along::Way::pick) continue;
      auto [start, size] = block(n.in[0]->axes, table, name);
      blocks.push_back({name, prim::integer(start, DType::i64), size});
    }
    auto out = prim::on_block(n, in, axes_of(v), blocks);
    if (blocks.empty()) return out;
    bool mine = true;  // one device provides the value of an index outside of all blocks
    for (auto& [x, m] : v.sharding.partial) mine &= coordinate(mesh, device, x) == 0;
    auto none = mine ? prim::picked_outside(n.dtype) : prim::number(0, n.dtype);
    return prim::where_in_range(n, in, out, none);
  }
  // Returns this device's block of the data that it holds.
  NodePtr sliced(const Version& v) const {
    auto x = (*this)[v.in[0]];
    auto& from = version(v.in[0]).sharding;
    for (auto& a : node(v)->axes) {
      if (v.sharding.mesh_axes(a.name) == from.mesh_axes(a.name)) continue;
      auto [start, size] = block(node(v)->axes, v.sharding, a.name);
      auto held = block(node(v)->axes, from, a.name).first;
      x = prim::slice(x, a.name, start - std::min(start, held), size);
    }
    return x;
  }
  // The first rank stores the value, the other ranks store the identity of the monoid. They wait
  // for the value, since every device takes part in the collectives that it depends on.
  NodePtr partial(const Version& v) const {
    auto& x = (*this)[v.in[0]];
    auto monoid = Monoid::sum;
    bool first = true;
    for (auto& [m, how] : v.sharding.partial)
      if (!version(v.in[0]).sharding.is_partial(m)) {
        first &= coordinate(mesh, device, m) == 0;
        monoid = how;
      }
    if (first) return x;
    auto nothing = prim::fit(prim::identity(monoid, x->dtype), x->axes);
    return prim::is_number(x) ? nothing : prim::barrier(nothing, x);
  }
  // Returns this device's part of the data that it holds, for a regroup without communication.
  NodePtr retained_part(const Version& v) const {
    auto& p = v.boxes()[0];
    auto x = with_joined_parts(v);
    auto runs = own_runs(p, v.sharding, mesh, device);
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
};

// An unrolled ring loop. Step t of device d processes the block of device d - t. Each device starts
// with its own block, and at each step every block is sent to a different device. A block is
// received directly from its owner, when the step before the last one is done. At most one block
// more than the current one is therefore in memory. From the second step on, a step may be skipped
// if it changes no result: `changes_of` derives the flag by a dry run of the body on placeholders.
class RingLoop {
 public:
  RingLoop(LocalValues& values, const Version& v)
      : values_(values), plan_(values.plan.loop(v.loop())), loop_(loop_of(*values.node(v))),
        number_(v.loop()),
        may_skip_(partitioning::may_skip(values.plan, values.graph, plan_.bodies[0])) {
    for (int start : plan_.start) results_.push_back(start < 0 ? nullptr : values_[start]);
  }
  // Emits all steps. `emit_body` emits the versions of the body that can be computed and that have
  // no node yet.
  template <class F> void run(F emit_body) {
    const int count = ranks(values_.mesh, plan_.ring_axes),
              mine = coordinate(values_.mesh, values_.device, plan_.ring_axes[0]);
    const bool carries =
        std::any_of(loop_.results.begin(), loop_.results.end(), [](auto& r) { return r.carry; });
    NodePtr changes;
    for (; step_ < count; ++step_) {
      const auto first = (mine - step_ + count) % count * prim::index_chunk(index());
      if (step_ == 1 && may_skip_) changes = changes_of(emit_body);
      // The receive of the first remote block must not depend on the carries of the first step.
      const bool known = changes && (step_ > 1 || !carries);
      Rewrite to{{&index(), prim::integer(first, index().dtype)}};
      flag_ = known ? substitute(Nodes{changes}, to, &index())[0] : nullptr;
      auto before = results_;
      begin_step({nullptr, first});
      emit_body();
      end_step(emit_body);
      if (step_ > 0) results_before_ = std::move(before);
    }
    values_.iterations.erase(&index());
    for (std::size_t k = 0; k < results_.size(); ++k)
      results_[k] = prim::cast(results_[k], loop_.results[k].value[0]->dtype);
  }
  const NodePtr& result(std::size_t k) const { return results_[k]; }

  // ---- a version that is received or sent back in the current step ----
  // Returns its node if the step needs no collective for it: in the first step, and in the dry run,
  // which records the placeholder that it returns.
  NodePtr local_block(const Version& v) {
    if (step_ == 0) return block_of_step(v);
    if (!is_dry_run_) return nullptr;
    blocks_.push_back(prim::input(values_.axes_of(v), values_.node(v)->dtype));
    return prim::barrier(blocks_.back(), loop_.index[0]);
  }
  // Returns true if it must be emitted later: other values of the step have not been computed.
  bool must_wait(const Version& v) const { return v.is<RingReturn>() && !values_are_computed_; }
  NodePtr sent(const Version& v) const {
    auto x = in_order(block_of_step(v), values_.node(v)->axes);
    // Without this barrier, the sums of all steps could be delayed, and the addends of each step
    // would stay in memory.
    for (auto& done : v.is<RingReceive>() ? results_before_ : Nodes()) x = prim::barrier(x, done);
    return x;
  }
  // Returns the boxes that it consists of: all blocks move by as many devices as steps were done.
  std::vector<CopyBox> boxes(const Version& v) const {
    auto axes = values_.node(v)->axes;
    auto sharding = v.sharding;
    const Name axis = v.step().axis;
    sharding.set(axis, v.step().over);
    const auto by = step_ * find_axis(axes, axis)->size;
    for (auto& a : axes)
      if (a.name == axis) a.size *= ranks(values_.mesh, v.step().over);
    const auto size = find_axis(axes, axis)->size;
    // Received blocks come from lower ranks; sent blocks go back to them.
    const auto left = v.is<RingReceive>() ? size - by : by;
    return {{.axes = axes, .sharding = sharding, .axis = axis, .from = left, .size = size - left},
            {.axes = axes, .sharding = sharding, .axis = axis, .to = size - left, .size = left}};
  }
  NodePtr received(const NodePtr& block) const {
    return flag_ ? prim::barrier(block, flag_index_) : block;
  }
  // Returns a flag that is true if this device needs the data. Null: all devices always do.
  NodePtr flag() const { return flag_ || !may_skip_ ? flag_ : prim::number(1, DType::boolean); }

 private:
  LocalValues& values_;
  const LoopPlan& plan_;
  const Loop& loop_;
  int number_;  // index into Plan::loops
  bool may_skip_;
  int step_ = 0;
  Nodes results_ = {};         // results so far
  Nodes results_before_ = {};  // results at the start of the step before
  NodePtr flag_ = {};  // false: this step changes no result on this device; null: it always runs
  NodePtr flag_index_ = {};  // index of the loop of one iteration that a flag requires
  Nodes carried_ = {};       // results so far, as the body sees them
  std::map<int, NodePtr> sent_back_ = {};  // by version: the value that this step sends back
  bool values_are_computed_ = false;       // all other values of the step have been computed
  bool is_dry_run_ = false;                // dry run that only derives the flag
  Nodes blocks_ = {};  // placeholders for blocks of other devices in the dry run

  const Node& index() const { return *loop_.index[0]; }
  const NodePtr& block_of_step(const Version& v) const {
    return v.is<RingReceive>() ? values_[v.in[0]] : sent_back_.at(v.in[0]);
  }
  void begin_step(LocalIndex local_index) {
    values_.forget(plan_.bodies[0]);
    values_.iterations[&index()] = std::move(local_index);
    carried_ = results_;
    sent_back_.clear();
    values_are_computed_ = false;
    flag_index_ = flag_ ? prim::conditional_index(number_, LoopOrigin::ring) : nullptr;
    if (flag_)
      for (auto& x : carried_) x = prim::carry(flag_index_, x->axes, x->dtype);
    for (std::size_t k = 0; k < plan_.carry.size(); ++k)
      for (int carry : plan_.carry[k]) values_[carry] = carried_[k];
  }
  // Returns the version that the body computes for a result. A sum that is sent back is the operand
  // of this version.
  int computed(std::size_t k) const {
    const int value = plan_.value[k][0];
    auto& v = values_.version(value);
    return v.is<RingReturn>() ? v.in[0] : value;
  }
  bool is_sent_back(std::size_t k) const { return computed(k) != plan_.value[k][0]; }
  template <class F> void end_step(F emit_body) {
    Nodes values;
    for (std::size_t k = 0; k < carried_.size(); ++k) {
      auto& value = values_[computed(k)];
      values.push_back(is_sent_back(k) ? value : with_step(loop_.results[k], carried_[k], value));
    }
    if (flag_) values = computed_if_flag(values);
    for (std::size_t k = 0; k < values.size(); ++k)
      (is_sent_back(k) ? sent_back_[computed(k)] : results_[k]) = values[k];
    values_are_computed_ = true;
    emit_body();
    for (std::size_t k = 0; k < values.size(); ++k)
      if (is_sent_back(k))
        results_[k] = with_step(loop_.results[k], results_[k], values_[plan_.value[k][0]]);
  }
  // Returns the values of a step, or the previous results if its flag is false. Values that are
  // sent back are then 0.
  Nodes computed_if_flag(const Nodes& values) const {
    auto l = prim::conditional(flag_index_, flag_);
    for (std::size_t k = 0; k < values.size(); ++k) {
      auto& v = values[k];
      auto start = is_sent_back(k) ? prim::zeros_like(v) : results_[k];
      auto carry = is_sent_back(k) ? prim::carry(flag_index_, v->axes, v->dtype) : carried_[k];
      l.results.push_back(
          {.kind = ResultKind::carry, .value = {v}, .start = start, .carry = carry});
    }
    auto created = make_loop(std::move(l));
    Nodes out;
    for (std::size_t k = 0; k < values.size(); ++k) out.push_back(loop_result(created, k + 1));
    return out;
  }
  // Returns a flag for a step with any index. It is false if the step changes no result, given the
  // results after the step of this device's own block. Steps may run in any order, so a step that
  // would change nothing directly after the first step can be skipped at any time. Null: not known.
  template <class F> NodePtr changes_of(F emit_body) {
    flag_ = nullptr;
    is_dry_run_ = true;
    begin_step({loop_.index[0], 0});
    emit_body();
    is_dry_run_ = false;
    std::vector<IterationResult> created;
    for (std::size_t k = 0; k < loop_.results.size(); ++k) {
      auto& r = loop_.results[k];
      auto value = untiled(values_[computed(k)], &index());
      if (!value || r.effect || (r.kind == ResultKind::fold && r.monoid != Monoid::sum))
        return nullptr;
      created.push_back({value, r.carry ? results_[k] : nullptr});
    }
    auto flag = iteration_flags(created, &index()).changes;
    return flag && reads_blocks(flag) ? nullptr : flag;
  }
  bool reads_blocks(const NodePtr& flag) const {
    bool found = false;
    // Older nodes cannot depend on the blocks.
    auto newer = [&](const Node& n) { return !blocks_.empty() && n.id >= blocks_[0]->id; };
    traverse({flag}, newer, [&](const NodePtr& n, PendingNodes& todo) {
      found |= std::count(blocks_.begin(), blocks_.end(), n) > 0;
      add_reads(n, todo);
    });
    return found;
  }
  // Returns a result after one more step. Sums of 16-bit floats are rounded once, at the end.
  static NodePtr with_step(const LoopResult& r, const NodePtr& known, const NodePtr& value) {
    if (r.carry) return value;
    auto v = r.kind == ResultKind::stack ? widened(value) : value;
    if (!known) return v;
    auto& op = prim::pairwise(r.kind == ResultKind::stack ? Monoid::sum : r.monoid);
    return prim::build(op, {known, prim::fit(v, known->axes)}, known->axes, v->dtype);
  }
};

class Collectives {
 public:
  explicit Collectives(LocalValues& values) : values_(values) {}

  // Emits a collective for a version and the others of its bucket. ring: the ring loop that the
  // version belongs to; null: none. Returns the collective.
  NodePtr emit(int first, const RingLoop* ring) {
    auto& v = values_.version(first);
    std::vector<int> members;
    for (int k : values_.plan.body(v.body).versions) {
      auto& other = values_.version(k);
      bool joins = v.bucket >= 0 && v.bucket == other.bucket && other.live;
      if (k == first || joins) members.push_back(k);
    }
    CollectiveSpec spec;
    Nodes operands;
    spec.collective.kind = v.step().collective();
    spec.collective.over.assign(v.step().over.begin(), v.step().over.end());
    spec.collective.ranks = ranks(values_.mesh, v.step().over);
    for (int k : members) add(values_.version(k), ring, spec, operands);
    if (auto flag = ring ? ring->flag() : nullptr) {
      spec.collective.skip_flag = v.is<RingReceive>() ? SkipFlag::unread : SkipFlag::zeros;
      operands.push_back(flag);
    }
    auto created = call(v.body, std::move(operands), std::move(spec));
    for (std::size_t i = 0; i < members.size(); ++i) {
      auto& member = values_.version(members[i]);
      auto part = collective_result(created, i);
      values_[members[i]] = member.is<Shift>()         ? values_.shifted(member, part)
                            : member.is<Regroup>()     ? values_.regrouped(member, part)
                            : member.is<RingReceive>() ? ring->received(part)
                                                       : part;
    }
    return created;
  }
  // Emits a contraction that reads the blocks of a gather one by one. Returns the collective.
  NodePtr emit_ring(int contraction, const Version& gather) {
    auto& v = values_.version(contraction);
    auto& n = *values_.node(v);
    auto& other = values_[&values_.version(v.in[0]) == &gather ? v.in[1] : v.in[0]];
    auto& block = values_[gather.in[0]];
    CollectiveSpec spec;
    spec.out = {values_.axes_of(v)};
    spec.along = {gather.step().axis};
    set_ring(spec, block->axes, gather.step().over, values_.mesh, values_.device);
    spec.collective.sent_bytes = gather.step().bytes / (spec.ranks - 1);
    spec.dtype = find(n, gather.step().axis) ? n.dtype : DType::f32;  // accumulation dtype
    auto created = call(v.body, {other, block}, std::move(spec));
    values_[contraction] = prim::cast(collective_result(created, 0), n.dtype);
    return created;
  }

 private:
  LocalValues& values_;
  int created_ = 0;

  // Adds the operands and the result of a version.
  void add(const Version& v, const RingLoop* ring, CollectiveSpec& spec, Nodes& operands) const {
    auto& n = *values_.node(v);
    spec.collective.sent_bytes += ring ? values_.graph.bytes(v.node, v.sharding) : v.step().bytes;
    spec.out.push_back(v.is<Regroup>() ? values_.joined_axes(v) : values_.axes_of(v));
    if (spec.collective.kind == CollectiveKind::exchange)
      return add_exchange(v, ring, spec, operands);
    auto& from = values_.version(v.in[0]).sharding;
    for (auto& [m, how] : from.partial)
      if (v.step().over.has(m)) spec.collective.monoid = how;
    operands.push_back(values_[v.in[0]]);
    const Name axis = v.step().axis;
    auto full_axes = spec.collective.kind == CollectiveKind::all_gather
                         ? values_.axes_of(v)
                         : local_axes(n.axes, from, values_.mesh, values_.device);
    spec.along.push_back(axis);
    spec.collective.size.push_back(axis ? find_axis(full_axes, axis)->size : 0);
  }
  void add_exchange(const Version& v, const RingLoop* ring, CollectiveSpec& spec,
                    Nodes& operands) const {
    auto& n = *values_.node(v);
    const int first = int(operands.size());
    std::vector<CopyBox> boxes;
    if (ring) {
      boxes = ring->boxes(v);
      operands.push_back(ring->sent(v));
    } else if (v.is<Regroup>()) {
      boxes = v.boxes();
      operands.push_back(in_order(values_.with_joined_parts(v), boxes[0].axes));
    } else if (v.is<Shift>()) {
      for (auto& p : v.boxes())  // boxes that other devices may hold
        if (!p.sharding.mesh_axes(p.axis).empty()) boxes.push_back(p);
      for (int k : v.in) operands.push_back(in_order(values_[k], n.axes));
    } else {
      boxes = {{.axes = n.axes, .sharding = values_.version(v.in[0]).sharding}};
      if (v.in.size() > 1) spec.collective.skip_flag = SkipFlag::rows;
      for (int k : v.in)
        operands.push_back(in_order(values_[k], values_.node(values_.version(k))->axes));
    }
    pack(spec.collective, boxes, first, int(spec.out.size()) - 1,
         v.is<Shift>() ? n.axes : boxes[0].axes, ring ? boxes[0].sharding : v.sharding,
         values_.mesh, values_.device);
  }
  NodePtr call(int body, Nodes operands, CollectiveSpec spec) {
    // If the operand is the same in all iterations on this device, the collective still runs in
    // each iteration of all enclosing loops, as on the other devices. A ring loop is unrolled.
    auto& plan = values_.plan;
    for (auto* b = &plan.body(body); b->loop >= 0; b = &plan.body(b->parent)) {
      auto& l = plan.loop(b->loop);
      if (!l.ring_axes.empty()) continue;
      auto& index = values_.local_index(loop_of(values_.graph.node(l.node)).index[b->number]);
      bool same = std::none_of(operands.begin(), operands.end(),
                               [&](auto& operand) { return operand->varies_with(index.get()); });
      if (same) operands[0] = prim::barrier(operands[0], index);
    }
    spec.number = ++created_;
    return make_collective(std::move(operands), std::move(spec));
  }
};

class Emitter {
 public:
  Emitter(const Plan& plan, const GlobalGraph& graph, const Mesh& mesh, int device)
      : values_(plan, graph, mesh, device) {}

  void add_input(const NodePtr& global, const NodePtr& local) { inputs_[global.get()] = local; }
  Nodes run(bool verify) {
    emit_body(0);
    Nodes out;
    for (int k : values_.plan.roots) out.push_back(values_[k]);
    keep_calls(out);
    if (verify)
      verify_device(values_.plan, values_.graph, values_.device, values_.of_version, "emit");
    return out;
  }

 private:
  LocalValues values_;
  Collectives collectives_{values_};
  std::unordered_map<const Node*, NodePtr> inputs_;
  std::map<int, RingLoop> ring_loops_;  // by loop
  Nodes calls_;  // collectives of the current body, and loops that contain collectives

  void emit_body(int body) {
    for (int k : values_.plan.body(body).versions) {
      auto& v = values_.version(k);
      if (!v.live || values_[k] || v.ring() >= 0) continue;
      OriginScope here(values_.node(v)->origin);
      auto* ring = v.in_ring_loop() ? &ring_loops_.at(values_.plan.body(body).loop) : nullptr;
      if (ring && ring->must_wait(v)) continue;
      if (ring) values_[k] = ring->local_block(v);
      if (values_[k]) continue;
      if (auto* gather = gather_of_ring(v))
        calls_.push_back(collectives_.emit_ring(k, *gather));
      else if (ring || v.communicates())
        calls_.push_back(collectives_.emit(k, ring));
      else
        values_[k] = created(v);
    }
  }
  // Returns the gather whose blocks this contraction reads one by one. Null: none.
  const Version* gather_of_ring(const Version& v) const {
    for (int k : v.in)
      if (k >= 0 && values_.version(k).ring() >= 0) return &values_.version(k);
    return nullptr;
  }
  // Makes one result of the body depend on all of its collectives. A device whose blocks are short
  // or empty may not need the data, but the other devices of the collective wait for it.
  void keep_calls(Nodes& results) const {
    if (calls_.empty()) return;
    std::unordered_set<const Node*> seen;
    for (auto& n : all_nodes(results)) seen.insert(n.get());
    auto& least = *std::min_element(results.begin(), results.end(),
                                    [](auto& a, auto& b) { return a->bytes() < b->bytes(); });
    for (auto& c : calls_)
      if (!seen.count(c.get()))
        least = prim::barrier(least, c->op == &kLoop ? loop_result(c, 0) : collective_result(c, 0));
  }
  NodePtr created(const Version& v) {
    if (v.is<Given>()) {
      auto input = inputs_.find(values_.node(v).get());
      return input == inputs_.end() ? values_.node(v) : input->second;
    }
    if (v.is<Carry>()) return carry(v);
    if (v.is<RunLoop>()) return values_.plan.loop(v.loop()).ring_axes.empty() ? loop(v) : ring(v);
    if (!v.is<ResultOfLoop>()) return values_.computed(v);
    const auto k = v.as<ResultOfLoop>().result;
    auto ring = ring_loops_.find(v.loop());
    return ring == ring_loops_.end() ? loop_result(values_[v.in[0]], k) : ring->second.result(k);
  }
  NodePtr carry(const Version& v) const {
    auto& p = values_.plan.loop(v.loop());
    // the bodies of a loop share it
    if (auto& known = values_[p.carry[v.as<Carry>().result][0]]) return known;
    auto& index = loop_of(values_.graph.node(p.node)).index[0];
    return prim::carry(values_.local_index(index), values_.axes_of(v), values_.node(v)->dtype);
  }
  NodePtr ring(const Version& v) {
    ring_loops_.erase(v.loop());
    auto& ring = ring_loops_.emplace(v.loop(), RingLoop(values_, v)).first->second;
    ring.run([&] { emit_body(values_.plan.loop(v.loop()).bodies[0]); });
    return ring.result(0);
  }
  NodePtr loop(const Version& v) {
    auto& p = values_.plan.loop(v.loop());
    Loop out = loop_of(*values_.node(v));
    const auto* global_index = out.index[0].get();
    if (!p.shared_by.empty()) {
      auto [start, size] = block_of(out.axis, p.shared_by, values_.mesh, values_.device);
      auto& index = out.index[0];
      out.axis = out.axis.resize(size);
      index = prim::index(out.axis, 0, prim::index_chunk(*index), IndexAttr::of(*index).depth,
                          IndexAttr::of(*index).origin);
      values_.iterations[global_index] = {index, start};
    }
    auto outer = std::exchange(calls_, {});
    bool communicates = false;
    for (std::size_t b = 0; b < p.bodies.size(); ++b) {
      emit_body(p.bodies[b]);
      Nodes results;
      for (auto& value : p.value) results.push_back(values_[value[b]]);
      keep_calls(results);
      for (std::size_t k = 0; k < results.size(); ++k) out.results[k].value[b] = results[k];
      communicates |= !std::exchange(calls_, {}).empty();
    }
    calls_ = std::move(outer);
    for (std::size_t k = 0; k < out.results.size(); ++k) {
      auto& r = out.results[k];
      if (r.carry) r.carry = values_[p.carry[k][0]];
      if (p.start[k] >= 0) r.start = values_[p.start[k]];
    }
    auto created = make_loop(std::move(out));
    values_.iterations.erase(global_index);  // another loop may use the same index
    if (communicates) calls_.push_back(created);
    return created;
  }
};

}  // namespace

Nodes emit(const Plan& plan, const GlobalGraph& graph, const std::vector<PartitionInput>& inputs,
           const Mesh& mesh, int device, Nodes& placeholders, bool verify) {
  Emitter e(plan, graph, mesh, device);
  for (auto& i : inputs) {
    auto& n = *i.global;
    auto axes = local_axes(n.axes, i.sharding, mesh, device);
    placeholders.push_back(prim::input(axes, n.dtype, n.origin.module));
    e.add_input(i.global, placeholders.back());
  }
  return e.run(verify);
}

}  // namespace haliax::partitioning
