// What a loop makes, and a later loop makes again turn by turn, need not be made again where memory lies idle between them: in a value
// that the later loop writes turn by turn, before it has come there. The first turns keep their product at the end of that memory, as many
// as fit while the writes, which follow, have not reached what is still to be read.
//
//   later loop, turn j:   | written: turns 0 ... j | free | kept of turns j ... K-1 |
//
// So the gradient of a head hosts the logits from which it is made: three contractions in the kept turns, where recomputing takes four, in
// not one byte more.
#include <algorithm>
#include <map>
#include <optional>

#include "compile/memory/memory.h"
#include "compile/memory/views.h"

namespace haliax {
namespace {

using program::Code;
using program::Contract;
using program::Home;
using program::Kind;
using program::Program;
using program::Step;
using program::Term;
using program::View;

constexpr std::int64_t kFewest = 96;   // multiplications an element, from which to make it costs more than to keep it
constexpr std::int64_t kAlign = 64;    // bytes

struct Access {
  std::size_t top;     // the step of the program that it is in
  const Step* step;
  const View* view;    // none: a term reads it
  bool writes;
};
using Accesses = std::vector<std::vector<Access>>;   // by slot, in order

void note(Accesses& all, const std::vector<Step>& steps, std::size_t top, bool whole) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    auto& s = steps[i];
    auto at = whole ? i : top;
    each_view(s, [&](const View& v, bool writes) {
      if (v.slot < 0) return;
      all[std::size_t(v.slot)].push_back({at, &s, &v, writes});
      for (auto& t : v.terms) if (t.slot >= 0) all[std::size_t(t.slot)].push_back({at, &s, nullptr, false});
    });
    if (s.kind == Kind::loop) note(all, s.loop.body, at, false);
  }
}

// From the first element that a view reaches in a turn to behind the last one; none if that cannot be said.
std::optional<std::int64_t> extent(const View& v, const program::Dims& dims) {
  std::int64_t n = 1;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (v.strides[d] < 0) return {};
    n += (dims[d] - 1) * v.strides[d];
  }
  return n;
}
program::Dims dims_of(const Contract& c) {
  program::Dims all;
  for (auto* part : {&c.batch, &c.m, &c.n, &c.k}) all.insert(all.end(), part->begin(), part->end());
  return all;
}
std::int64_t points(const program::Dims& dims) {
  std::int64_t n = 1;
  for (auto d : dims) n *= d;
  return n;
}

// The same elements in the same turn of either loop.
bool same_view(const View& a, int in_a, const View& b, int in_b) {
  if (a.slot != b.slot || a.dtype != b.dtype || a.offset != b.offset || a.strides != b.strides || a.terms.size() != b.terms.size()) return false;
  for (std::size_t i = 0; i < a.terms.size(); ++i) {
    auto x = a.terms[i], y = b.terms[i];
    if (x.slot >= 0 || (x.loop == in_a) != (y.loop == in_b)) return false;
    if (x.loop == in_a) x.loop = y.loop;
    if (!(x == y)) return false;
  }
  return true;
}
bool same_product(const Contract& a, int in_a, const Contract& b, int in_b) {
  return a.batch == b.batch && a.m == b.m && a.n == b.n && a.k == b.k && !a.accumulate && !b.accumulate && same_view(a.a, in_a, b.a, in_b) &&
         same_view(a.b, in_a, b.b, in_b) && a.out.dtype == b.out.dtype && a.out.strides == b.out.strides && a.out.offset == 0 &&
         b.out.offset == 0 && a.out.terms.empty() && b.out.terms.empty();
}

struct Find {
  const Program& p;
  Accesses all;
  struct Plan {
    std::size_t first = 0, later = 0;           // the two loops
    std::size_t made = 0, again = 0;            // the product in the body of each
    int host = -1;
    std::int64_t turns = 0, start = 0, each = 0;   // that are kept; elements of the product: in the host, and a turn
  };

  explicit Find(const Program& program) : p(program), all(program.slots.size()) { note(all, p.steps, 0, true); }

  bool inside(int slot, std::size_t top, const Step& writer) const {   // no other loop sees it, nobody else writes it
    return p.slots[std::size_t(slot)].home == Home::arena && std::all_of(all[std::size_t(slot)].begin(), all[std::size_t(slot)].end(), [&](auto& a) {
      return a.top == top && a.view && (!a.writes || a.step == &writer);
    });
  }
  bool written(int slot, std::size_t from, std::size_t to) const {
    return std::any_of(all[std::size_t(slot)].begin(), all[std::size_t(slot)].end(), [&](auto& a) { return a.writes && a.top >= from && a.top <= to; });
  }
  static program::Dims iterated(const Step& s) { return s.kind == Kind::contract ? dims_of(s.contract) : s.fused.dims; }

  // How many turns this slot can keep; 0: none.
  Plan hosted(int slot, Plan plan, const Contract& product) const {
    auto& host = p.slots[std::size_t(slot)];
    auto& use = all[std::size_t(slot)];
    auto& loop = p.steps[plan.later].loop;
    if (host.home == Home::argument || host.gathered || use.empty() || use.front().top != plan.later) return plan;
    std::int64_t end = 0, step = 0;              // bytes: behind what the first turn writes, and how far each turn goes on
    for (auto& a : use) {
      if (a.top != plan.later) continue;
      bool plain = a.view && a.writes && (a.step->kind == Kind::contract || a.step->kind == Kind::fused) && a.view->terms.size() == 1 &&
                   a.view->terms[0].loop == loop.variable && a.view->terms[0].stride > 0;
      if (!plain || (a.step->kind == Kind::contract && a.step->contract.accumulate)) return plan;
      if (a.step->kind == Kind::fused)
        for (auto& i : a.step->fused.code) if (i.code > Code::store && i.view.slot == slot) return plan;
      auto reach = extent(*a.view, iterated(*a.step));
      if (!reach) return plan;
      auto bytes = bytes_of(a.view->dtype);
      end = std::max(end, (a.view->offset + *reach) * bytes), step = std::max(step, a.view->terms[0].stride * bytes);
    }
    auto unit = std::int64_t(bytes_of(product.out.dtype));
    auto reach = extent(product.out, dims_of(product));
    if (!reach) return plan;
    auto each = (*reach * unit + kAlign - 1) / kAlign * kAlign, room = host.bytes / kAlign * kAlign - end;
    // room >= turns * each, and so that the last turn's write ends before what that turn keeps: room >= each + (turns - 1) * max(each, step)
    if (room < each) return plan;
    plan.turns = std::min(loop.trips, 1 + (room - each) / std::max(each, step));
    plan.each = each / unit, plan.start = host.bytes / kAlign * kAlign / unit - plan.turns * plan.each, plan.host = slot;
    return plan;
  }

  std::optional<Plan> best() const {
    std::optional<Plan> found;
    std::int64_t most = 0;                       // multiplications that are saved
    for (std::size_t later = 1; later < p.steps.size(); ++later) {
      if (p.steps[later].kind != Kind::loop || p.steps[later].loop.reverse) continue;
      auto& two = p.steps[later].loop;
      for (std::size_t first = 0; first < later; ++first) {
        if (p.steps[first].kind != Kind::loop || p.steps[first].loop.reverse || p.steps[first].loop.trips != two.trips) continue;
        auto& one = p.steps[first].loop;
        auto ends = [](const Step& s) { return s.kind == Kind::skip; };   // a turn that ends early keeps nothing
        if (std::any_of(one.body.begin(), one.body.end(), ends)) continue;
        for (std::size_t made = 0; made < one.body.size(); ++made)
          for (std::size_t again = 0; again < two.body.size(); ++again) {
            auto &a = one.body[made], &b = two.body[again];
            if (a.kind != Kind::contract || b.kind != Kind::contract || !same_product(a.contract, one.variable, b.contract, two.variable)) continue;
            auto& c = b.contract;
            if (points(c.k) < kFewest || written(c.a.slot, first, later) || written(c.b.slot, first, later)) continue;
            if (!inside(a.contract.out.slot, first, a) || !inside(c.out.slot, later, b)) continue;
            for (int slot = 0; slot < int(p.slots.size()); ++slot) {
              auto plan = hosted(slot, {first, later, made, again}, c);
              auto saved = plan.turns * points(dims_of(c));
              if (saved > most) most = saved, found = plan;
            }
          }
      }
    }
    return found;
  }
};

// ---- the rewriting ----
template <class F> void each_step(std::vector<Step>& steps, F f) {
  for (auto& s : steps) {
    f(s);
    if (s.kind == Kind::loop) each_step(s.loop.body, f);
  }
}
// The product lies in the host, at the turn's place.
void redirect(program::Loop& loop, int slot, const Find::Plan& plan) {
  each_step(loop.body, [&](Step& s) {
    each_view(s, [&](View& v, bool) {
      if (v.slot != slot) return;
      v.slot = plan.host, v.offset += plan.start;
      v.terms.push_back({.loop = loop.variable, .stride = plan.each});
    });
  });
}
// The turns from `turn` on, as a loop of their own with values of its own.
Step rest_of(Program& p, const Step& whole, std::size_t top, const Accesses& all, std::int64_t turn) {
  Step rest = whole;
  auto was = rest.loop.variable;
  rest.loop.variable = p.loops++, rest.loop.trips -= turn;
  std::map<int, int> variables{{was, rest.loop.variable}}, own;
  each_step(rest.loop.body, [&](Step& s) {
    if (s.kind == Kind::loop && s.loop.variable >= 0) variables[s.loop.variable] = p.loops, s.loop.variable = p.loops++;
  });
  for (std::size_t slot = 0; slot < all.size(); ++slot) {
    auto& use = all[slot];
    bool here = !use.empty() && std::all_of(use.begin(), use.end(), [&](auto& a) { return a.top == top; });
    if (here && p.slots[slot].home == Home::arena) own[int(slot)] = int(p.slots.size()), p.slots.push_back(program::Slot(p.slots[slot]));
  }
  each_step(rest.loop.body, [&](Step& s) {
    if (s.kind == Kind::fused)
      for (auto& i : s.fused.code)
        if (i.code == Code::iota)
          for (auto& t : i.view.terms) if (t.loop == was) i.integer += turn * t.stride;
    each_view(s, [&](View& v, bool) {
      if (auto to = own.find(v.slot); to != own.end()) v.slot = to->second;
      for (auto& t : v.terms) {
        if (t.loop == was && v.slot >= 0) v.offset += turn * t.stride;
        if (auto to = variables.find(t.loop); to != variables.end()) t.loop = to->second;
        if (auto to = own.find(t.slot); to != own.end()) t.slot = to->second;
      }
    });
  });
  return rest;
}

void rewrite(Program& p, const Find::Plan& plan, const Accesses& all) {
  auto take = [&](std::size_t top, std::size_t product) {
    auto& loop = p.steps[top].loop;
    std::optional<Step> rest;
    if (plan.turns < loop.trips) rest = rest_of(p, p.steps[top], top, all, plan.turns);
    loop.trips = plan.turns;
    redirect(loop, loop.body[product].contract.out.slot, plan);
    return rest;
  };
  auto later = take(plan.later, plan.again), first = take(plan.first, plan.made);
  auto& body = p.steps[plan.later].loop.body;
  body.erase(body.begin() + std::ptrdiff_t(plan.again));
  if (later) p.steps.insert(p.steps.begin() + std::ptrdiff_t(plan.later) + 1, std::move(*later));
  if (first) p.steps.insert(p.steps.begin() + std::ptrdiff_t(plan.first) + 1, std::move(*first));
}

}  // namespace

std::optional<Program> reuse_products(const Program& p) {
  if (std::count_if(p.steps.begin(), p.steps.end(), [](auto& s) { return s.kind == program::Kind::loop; }) < 2) return {};
  std::optional<Program> out;
  for (;;) {   // each host once: it is in use before the later loop from then on
    Find find(out ? *out : p);
    auto plan = find.best();
    if (!plan) return out;
    if (!out) out = p;
    rewrite(*out, *plan, find.all);
  }
}

}  // namespace haliax
