// `Lowering`: places of values, and the steps of units other than loops.
#include "compile/lower/lowering.h"

#include <algorithm>
#include <utility>

#include "base/where.h"
#include "compile/lower/kernel.h"
#include "compile/lower/masked_matmuls.h"
#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/collective.h"
#include "ops/prim.h"

namespace haliax {

using program::Step;
using program::Term;

namespace {

std::vector<std::int64_t> row_major(const Axes& axes) {
  std::vector<std::int64_t> s(axes.size());
  std::int64_t n = 1;
  for (std::size_t i = axes.size(); i-- > 0;) {
    s[i] = n;
    n *= axes[i].size;
  }
  return s;
}

}  // namespace

// ---- places ----
int Lowering::new_slot(std::int64_t bytes, const char* purpose, program::Home home, int index) {
  p_.slots.push_back({bytes, home, index, -1, -1, purpose});
  return int(p_.slots.size()) - 1;
}
Place Lowering::in_slot(int slot, const NodePtr& n) const {
  return {slot, n->dtype, 0, row_major(n->axes), {}};
}
Place Lowering::fresh(const Axes& axes, DType d, const char* purpose) {
  return {new_slot(axis_size(axes) * bytes_of(d), purpose), d, 0, row_major(axes), {}};
}
Place Lowering::reordered(Place p, const Axes& of, const Axes& as) {
  p.strides = view(p, of, as).strides;
  return p;
}
Place Lowering::fresh_for(const NodePtr& n) {
  constexpr std::int64_t kLarge = 1 << 20;  // bytes
  auto order = layouts_.find(n.get());
  auto& axes = order == layouts_.end() ? n->axes : order->second;
  auto p = fresh(axes, n->dtype, purposes_.of(*n));
  auto& slot = p_.slots.back();
  slot.gathered = analysis::Purposes::gathered(*n);
  if (aligned_.count(n.get()) && axes.size() > 1 && slot.bytes >= kLarge) {
    const std::int64_t size = bytes_of(n->dtype), row = axes.back().size * size;
    if (auto over = row % options_.row_alignment; over > 0 && options_.row_alignment % size == 0) {
      auto wide = axes;
      wide.back().size = (row - over + options_.row_alignment) / size;
      p.strides = row_major(wide);
      slot.bytes = axis_size(wide) * size;
    }
  }
  return reordered(p, axes, n->axes);
}
void Lowering::set_place(const Node* n, Place p) {
  places_[n] = std::move(p);
  added_.push_back(n);
}
void Lowering::forget(std::size_t from) {
  for (; added_.size() > from; added_.pop_back()) {
    places_.erase(added_.back());
    reader_places_.erase(added_.back());
  }
}
Place Lowering::place_of(const NodePtr& n) {
  if (auto known = places_.find(n.get()); known != places_.end()) return known->second;
  Place p;
  if (is_alias(*n))
    p = place_of(aliased(*n));
  else if (n->op->kind == Kind::view) {
    Place in = place_of(n->in[0]);
    p = n->op->view(*n, in, *this);
    if (!p) p = copied(n, fresh(n->axes, n->dtype));
  } else {
    fail_at(n->origin, n->op->name, "has no memory");
  }
  set_place(n.get(), p);
  return p;
}
Place Lowering::copied(const NodePtr& n, const Place& to) {
  auto* was = std::exchange(current_node_, n.get());
  auto before = std::exchange(result_, to);
  n->op->lower(*n, *this);
  current_node_ = was;
  return std::exchange(result_, before);
}
bool Lowering::in_memory(const NodePtr& n) const {
  return places_.count(n.get()) || places_.count(base_of(n).get());
}
Place Lowering::target_place(const NodePtr& n) {
  if (auto t = scope_->targets.find(n.get());
      t != scope_->targets.end() && !t->second[0]->accumulate)
    return t->second[0]->place;
  if (auto known = reader_places_.find(n.get()); known != reader_places_.end())
    return known->second;
  if (auto part = scope_->in_reader.find(n.get()); part != scope_->in_reader.end())
    if (auto place = place_in_reader(n, part->second)) return place;
  return fresh_for(n);
}
Place Lowering::place_in_reader(const NodePtr& n, const Scope::InReader& part) {
  auto& reader = *part.reader;
  Place all = reader_places_[&reader] = target_place(part.reader);
  added_.push_back(&reader);  // in another scope its place differs
  if (part.start > 0)
    all.offset +=
        part.start * view(all, reader.axes, {*find(reader, AlongAttr::of(reader).axis)}).strides[0];
  Place place = reordered(all, reader.axes, part.operand->axes);
  for (auto x = part.operand; x != n && place; x = x->in[0]) place = place_of_operand(*x, place);
  return n->op->kind != Kind::contract || !place || suits_matmul(*n, place) ? place : Place();
}
// Returns true if a contraction may be written to this place by a matmul with enough rows: one axis
// has unit stride, and the strides of the others merge into rows. Each matmul packs its operand
// again, which takes time in proportion to the terms of a sum, divided by the rows.
bool Lowering::suits_matmul(const Node& n, const Place& place) {
  constexpr std::int64_t kFewestRows = 16, kTermsPerRow = 4;
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // strides and sizes, smallest first
  for (std::size_t d = 0; d < n.axes.size(); ++d)
    if (n.axes[d].size > 1) dims.push_back({place.strides[d], n.axes[d].size});
  std::sort(dims.begin(), dims.end());
  if (dims.empty()) return true;
  if (dims[0].first != 1) return false;
  std::int64_t rows = 1, most = 1, all = 1, next = 0;  // next: stride that continues the rows
  for (std::size_t d = 1; d < dims.size(); ++d) {
    const auto [stride, size] = dims[d];
    rows = stride == next ? rows * size : size;
    next = stride * size;
    most = std::max(most, rows);
    all *= size;
  }
  const auto terms = axis_size(without(common(n.in[0]->axes, n.in[1]->axes), n.axes));
  return most == all || (most >= kFewestRows && most * kTermsPerRow >= terms);
}
// Returns the place of the operand of a view, given the place of the view.
Place Lowering::place_of_operand(const Node& view, const Place& place) {
  if (view.op->unview) return view.op->unview(view, place);
  auto axes = view.in[0]->axes;  // with the names in the view
  for (auto& a : axes) a.name = name_in_result(view, 0, a.name);
  return reordered(place, view.axes, axes);
}
const Target* Lowering::accumulation(const NodePtr& n) const {
  auto t = scope_->targets.find(n.get());
  bool only_target =
      t != scope_->targets.end() && t->second.size() == 1 && !scope_->in_memory.count(n.get());
  return only_target && t->second[0]->accumulate ? t->second[0] : nullptr;
}

// ---- Emit ----
void Lowering::zero(const Place& p, const Axes& axes) { fill(p, axes, prim::number(0, p.dtype)); }
void Lowering::copy(const Place& from, const Place& to, const Axes& axes) {
  // A value that was computed in place needs no copy.
  bool there = from.slot == to.slot && from.offset == to.offset && from.terms == to.terms;
  for (std::size_t d = 0; d < axes.size(); ++d)
    there &= axes[d].size == 1 || from.strides[d] == to.strides[d];
  if (!there)
    push({.kind = program::Kind::copy,
          .copy = {sizes(axes), view(from, axes, axes), view(to, axes, axes)}});
}
void Lowering::push(Step s) {
  if (current_node_) {
    s.op = prim::user_name(*current_node_);
    auto origin = current_node_->origin;
    if (auto known = modules_.find(current_node_); known != modules_.end())
      origin.module = known->second;
    s.where = where_of(origin);
  }
  steps_->push_back(std::move(s));
}
Term Lowering::term(const NodePtr& start, std::int64_t stride, std::int64_t limit) {
  Term t;
  if (start->op == &prim::kIndex) {
    auto at = prim::index_start(*start);
    auto variable = variables_.at(start.get());  // >= 0: the index starts at 0 (lower_loop)
    if (variable < 0)
      t.stride = at * stride;
    else {
      t.loop = variable;
      t.stride = prim::index_chunk(*start) * stride;
    }
    return t;
  }
  if (prim::is_number(start)) {
    t.stride = std::clamp<std::int64_t>(integer_of(*start), 0, limit) * stride;
    return t;
  }
  Place p = place_of(start);
  if (!p.terms.empty()) {
    Place plain = fresh({}, p.dtype);
    copy(p, plain, {});
    p = plain;
  }
  t.slot = p.slot;
  t.slot_dtype = p.dtype;
  t.slot_offset = p.offset;
  t.limit = limit;
  t.stride = stride;
  return t;
}

// ---- units ----
void Lowering::lower_scope(const std::vector<Target>& targets) {
  Scope s = make_scope(targets, places_, options_.fuse);
  auto* outer = std::exchange(scope_, &s);
  for (int u : schedule(s, places_, !options_.fuse))
    // A unit that was merged into another one is empty.
    if (auto& each = s.units[std::size_t(u)]; !each.nodes.empty()) lower_unit(each);
  scope_ = outer;
}
void Lowering::lower_unit(const Unit& u) {
  auto* was = std::exchange(current_node_, u.nodes.back().get());
  if (u.type == Unit::Type::kernel)
    lower_kernel(u);
  else if (u.type == Unit::Type::copy)
    copy_into(u);
  else
    lower_node(u.nodes[0]);
  current_node_ = was;
}
void Lowering::lower_node(const NodePtr& n) {
  if (n->op == &kLoop) return lower_loop(n);
  if (n->op == &kCollective)
    return collective_spec_of(*n).is_ring() ? lower_ring(n) : lower_collective(n);
  auto* add = n->op->kind == Kind::contract || n->op->accumulates ? accumulation(n) : nullptr;
  result_ = add ? add->place : target_place(n);
  if (n->op->kind == Kind::contract) {
    auto &a = n->in[0], &b = n->in[1];
    if (n->op == &kMaskedMatmul)
      lower_masked_matmul(*n, add != nullptr);
    else
      push_contract({result_, n->axes}, {place_of(a), a->axes}, {place_of(b), b->axes},
                    add != nullptr);
  } else if (add) {
    accumulating_ = true;
    n->op->lower(*n, *this);
    accumulating_ = false;
  } else {
    n->op->lower(*n, *this);
  }
  if (!add) set_place(n.get(), result_);
}
void Lowering::lower_collective(const NodePtr& n) {
  auto& w = collective_spec_of(*n);
  Step s{.kind = program::Kind::collective, .collective = w.collective};
  for (auto& x : n->in)
    s.collective.x.push_back({sizes(x->axes), view(place_of(x), x->axes, x->axes)});
  std::vector<Place> places;
  Nodes results;
  for (std::size_t k = 0; k < w.out.size(); ++k) {
    results.push_back(collective_result(n, k));
    places.push_back(target_place(results[k]));
    s.collective.out.push_back({sizes(w.out[k]), view(places[k], w.out[k], w.out[k])});
    auto* axis = k < w.along.size() ? find_axis(w.out[k], w.along[k]) : nullptr;
    s.collective.dim.push_back(axis ? int(axis - w.out[k].data()) : -1);
  }
  push(std::move(s));
  for (std::size_t k = 0; k < results.size(); ++k) set_place(results[k].get(), places[k]);
  retained_.insert(retained_.end(), results.begin(), results.end());
}
// Lowers a ring contraction. The block of another rank is in memory while it is contracted, and is
// sent to the next rank from there. Step r of rank i contracts positions (i + r) % ranks * size of
// `fixed` with the block that it has: first its own, then those received from rank i + 1.
void Lowering::lower_ring(const NodePtr& n) {
  auto& w = collective_spec_of(*n);
  auto &fixed = n->in[0], &rotating = n->in[1];
  auto result = collective_result(n, 0);
  auto out = target_place(result), fixed_place = place_of(fixed), block_place = place_of(rotating);
  auto size = find(*rotating, w.along[0])->size;
  bool sums = !find(*result, w.along[0]);
  for (std::int64_t ring_step = 0; ring_step < w.ranks; ++ring_step) {
    if (ring_step > 0) {
      auto next = fresh(rotating->axes, rotating->dtype, "scratch");
      p_.slots.back().gathered = true;
      Step s{.kind = program::Kind::collective, .collective = w.collective};
      for (auto [side, place] :
           {std::pair{&s.collective.x, &block_place}, {&s.collective.out, &next}})
        side->push_back({sizes(rotating->axes), view(*place, rotating->axes, rotating->axes)});
      s.collective.dim = {-1};
      push(std::move(s));
      block_place = next;
    }
    const auto start = (w.rank + ring_step) % w.ranks * size;
    push_contract(block_of({out, result->axes}, w.along[0], size, start),
                  block_of({fixed_place, fixed->axes}, w.along[0], size, start),
                  {block_place, rotating->axes}, sums && ring_step > 0);
  }
  set_place(result.get(), out);
  retained_.push_back(result);
}
Lowering::Placed Lowering::block_of(Placed p, Name axis, std::int64_t size, std::int64_t start,
                                    int variable) {
  for (std::size_t d = 0; d < p.axes.size(); ++d) {
    if (p.axes[d].name != axis) continue;
    const auto stride = p.place.strides[d];
    p.axes[d].size = size;
    p.place.offset += start * stride;
    if (variable >= 0) p.place.terms.push_back({.loop = variable, .stride = size * stride});
  }
  return p;
}
void Lowering::push_contract(const Placed& out, const Placed& a, const Placed& b, bool accumulate) {
  const MatmulAxes x(a.axes, b.axes, out.axes);
  Axes all = x.batch;
  for (auto* part : {&x.m, &x.n, &x.k}) all.insert(all.end(), part->begin(), part->end());
  auto of = [&](const Placed& p) { return view(p.place, p.axes, all); };
  push({.kind = program::Kind::contract,
        .contract = {sizes(x.batch), sizes(x.m), sizes(x.n), sizes(x.k), of(a), of(b), of(out),
                     accumulate}});
}
void Lowering::lower_masked_matmul(const Node& n, bool add) {
  auto masked = MaskedMatmulAttr::of(n);
  const Placed out{result_, n.axes}, a{place_of(n.in[0]), n.in[0]->axes},
      b{place_of(n.in[1]), n.in[1]->axes};
  if (!masked.in_kernel) return lower_masked_blocks(n, out, a, b, add);
  push_contract(out, a, b, add);
  auto& c = steps_->back().contract;
  const MatmulAxes of(a.axes, b.axes, out.axes);
  const auto flags = place_of(n.in[2]);
  c.block_mask.flags = view(flags, {}, {});
  c.block_mask.flags.strides.assign(c.out.strides.size(), 0);
  c.block_mask.zero = masked.zero;
  for (std::size_t k = 0; k < masked.blocked.size(); ++k) {
    auto [axis, size] = masked.blocked[k];
    (has(of.k, axis)   ? c.block_mask.k
     : has(of.m, axis) ? c.block_mask.m
                       : c.block_mask.n) = {size, flags.strides[k]};
  }
}
// Lowers a masked matmul as a loop over blocks. A block is computed if its flag is true. A
// remainder block is at the end.
void Lowering::lower_masked_blocks(const Node& n, const Placed& out, const Placed& a,
                                   const Placed& b, bool add) {
  auto masked = MaskedMatmulAttr::of(n);
  const auto [axis, block] = masked.blocked[0];
  const bool sums = !find(n, axis);
  const Placed flags{place_of(n.in[2]), n.in[2]->axes};
  if (!add && (sums || masked.zero)) zero(result_, n.axes);
  const auto size = find(find(*n.in[0], axis) ? *n.in[0] : *n.in[1], axis)->size,
             full_blocks = size / block;
  auto emit_block = [&, axis = axis, block = block](std::int64_t positions, std::int64_t number,
                                                    int variable) {
    auto part = [&](const Placed& p) {
      return block_of(p, axis, positions, number * block, variable);
    };
    conditional(block_of(flags, flags.axes[0].name, 1, number, variable).place,
                [&] { push_contract(part(out), part(a), part(b), add || sums); });
  };
  if (full_blocks > 0) {
    const int variable = p_.loops++;
    Step loop{.kind = program::Kind::loop, .loop = {.variable = variable, .trips = full_blocks}};
    push_with_body(std::move(loop), [&] { emit_block(block, 0, variable); });
  }
  if (size % block) emit_block(size % block, full_blocks, -1);
}
void Lowering::copy_into(const Unit& u) {
  auto& n = u.nodes[0];
  auto& t = *u.target;
  if (!t.accumulate && in_memory(n)) {
    const bool is_known_view =
        n->op->kind == Kind::view && !is_alias(*n) && !places_.count(n.get());
    if (is_known_view && !n->op->view(*n, place_of(n->in[0]), *this))
      return set_place(n.get(), copied(n, t.place));
    return copy(place_of(n), t.place, n->axes);
  }
  Kernel k(*this, n->axes, {});
  int value = k.value(n, k.dims_of(n->axes));
  k.store(value, t.place, n->axes, t.accumulate, t.monoid);
  k.finish();
}
void Lowering::fill(const Place& p, const Axes& axes, const NodePtr& number) {
  if (accumulating_) return;  // the target holds a sum already
  Kernel k(*this, axes, {});
  k.store(k.compute(number, {}), p, axes, false, Monoid::sum);
  k.finish();
}
void Lowering::lower_kernel(const Unit& u) {
  Kernel k(*this, u.outer, u.inner);
  for (auto& n : u.nodes) k.own_nodes.insert(n.get());
  std::vector<std::pair<const Node*, Place>> stored;
  for (auto& n : u.nodes) {
    auto dims = k.dims_of(n->axes);
    int v = n->op->kind == Kind::reduce ? k.reduction(n)
            : n->op->kind == Kind::map  ? k.elementwise(n, dims)
                                        : k.compute(n, dims);
    k.instr_of[n.get()] = v;
    bool placed = false;
    if (auto t = scope_->targets.find(n.get()); t != scope_->targets.end())
      for (auto* target : t->second) {
        k.store(v, target->place, n->axes, target->accumulate, target->monoid);
        if (!target->accumulate && !placed) {
          stored.push_back({n.get(), target->place});
          placed = true;
        }
      }
    if (!placed && scope_->in_memory.count(n.get())) {
      auto p = target_place(n);
      k.store(v, p, n->axes, false, Monoid::sum);
      stored.push_back({n.get(), p});
    }
  }
  k.finish();
  for (auto& [n, p] : stored) set_place(n, p);
}

}  // namespace haliax
