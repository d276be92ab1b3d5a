// Reuses matmuls that a later loop recomputes, without additional memory. The results are saved
// between the loops in idle memory: in a slot that the later loop writes iteration by iteration,
// the host. The first iterations save their result at the end of the host. The number of saved
// iterations is limited so that the writes of the later loop do not reach a saved result before it
// is read.
//
//   later loop, iteration j:   | written: iterations 0 ... j | free | saved: iterations j ... K-1 |
//
// For example, the gradient of a head hosts the logits from which it is computed. The saved
// iterations need three contractions rather than the four of recomputation, with the same memory.
#include <algorithm>
#include <map>
#include <optional>

#include "compile/memory/memory.h"
#include "program/views.h"

namespace haliax {
namespace {

using program::Code;
using program::Contract;
using program::Home;
using program::Kind;
using program::Program;
using program::Step;
using program::View;
using program::aligned;
using program::kAlignment;
using program::points;

// Fewest multiplications per element at which recomputation costs more than saving.
constexpr std::int64_t kMinMultiplications = 96;

// Returns the number of elements from the first to the last one that a view of the step reaches in
// an iteration; none if it is not known.
std::optional<std::int64_t> extent(const View& v, const Step& s) {
  std::int64_t n = 1;
  auto dims = dims_of(s);
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (v.strides[d] < 0) return {};
    n += (dims[d] - 1) * v.strides[d];
  }
  return n;
}

// Returns true if both views reach the same elements in the same iteration of either loop.
bool same_view(const View& a, int in_a, View b, int in_b) {
  for (auto& t : b.terms) {
    if (t.slot >= 0) return false;
    if (t.loop == in_b) t.loop = in_a;
  }
  return a == b;
}
bool same_matmul(const Step& s, int in_a, const Step& t, int in_b) {
  if (s.kind != Kind::contract || t.kind != Kind::contract) return false;
  auto &a = s.contract, &b = t.contract;
  auto is_plain = [](const Contract& c) {
    return !c.accumulate && c.block_mask.flags.slot < 0 && c.out.offset == 0 && c.out.terms.empty();
  };
  return a.batch == b.batch && a.m == b.m && a.n == b.n && a.k == b.k && is_plain(a) &&
         is_plain(b) && same_view(a.a, in_a, b.a, in_b) && same_view(a.b, in_a, b.b, in_b) &&
         a.out.dtype == b.out.dtype && a.out.strides == b.out.strides;
}

// A saved matmul: iterations of a matmul in one loop that a later loop recomputes, at the end of a
// slot that the later loop writes.
struct Reuse {
  int first = 0, later = 0;                // steps of the two loops
  std::size_t original = 0, repeated = 0;  // steps of the matmul in both bodies
  int host = -1;
  // Number of saved iterations; first element in the host; elements per iteration.
  std::int64_t iterations = 0, start = 0, each = 0;
};

struct ReuseSearch {
  const Program& p;
  Accesses accesses = Accesses(p.slots.size());  // at steps of the Program
  const std::vector<Access>& of(int slot) const { return accesses[std::size_t(slot)]; }

  explicit ReuseSearch(const Program& program) : p(program) {
    for (int at = 0; at < int(p.steps.size()); ++at) {
      note(accesses, p.steps[std::size_t(at)], at);
      each_step(p.steps[std::size_t(at)].body, [&](auto& s) { note(accesses, s, at); });
    }
  }
  // Returns true if only this loop accesses the slot, and only `writer` writes it.
  bool is_private(int slot, int loop, const Step& writer) const {
    auto own = [&](const Access& a) {
      return a.at == loop && a.view && (!a.writes || a.step == &writer);
    };
    return p.slot(slot).home == Home::arena && std::all_of(of(slot).begin(), of(slot).end(), own);
  }
  // Returns true if a step between the two loops, or in them, writes the slot.
  bool is_written(int slot, const Reuse& r) const {
    return std::any_of(of(slot).begin(), of(slot).end(),
                       [&](auto& a) { return a.writes && a.at >= r.first && a.at <= r.later; });
  }

  // Returns the iterations that this slot can host; iterations = 0: none.
  Reuse with_host(int slot, Reuse r, const Step& matmul) const {
    auto& host = p.slot(slot);
    auto& loop = p.steps[std::size_t(r.later)].loop;
    if (host.home == Home::argument || host.gathered || of(slot).empty() ||
        of(slot).front().at != r.later)
      return r;
    // Bytes: the end of the write of the first iteration, and the advance per iteration.
    std::int64_t end = 0, step = 0;
    for (auto& a : of(slot)) {
      if (a.at != r.later) continue;
      bool is_plain = a.view && a.writes &&
                      (a.step->kind == Kind::contract || a.step->kind == Kind::fused) &&
                      a.view->terms.size() == 1 && a.view->terms[0].loop == loop.variable &&
                      a.view->terms[0].stride > 0;
      auto extent_reached = is_plain ? extent(*a.view, *a.step) : std::nullopt;
      if (!extent_reached) return r;
      auto bytes = bytes_of(a.view->dtype);
      end = std::max(end, (a.view->offset + *extent_reached) * bytes);
      step = std::max(step, a.view->terms[0].stride * bytes);
    }
    std::int64_t unit = bytes_of(matmul.contract.out.dtype),
                 all = host.bytes / kAlignment * kAlignment, room = all - end;
    auto extent_reached = extent(matmul.contract.out, matmul);
    if (!extent_reached) return r;
    auto each = aligned(*extent_reached * unit);
    // room >= iterations * each. The write of the last saved iteration must end before its saved
    // result: room >= each + (iterations - 1) * max(each, step).
    if (room < each) return r;
    r.iterations = std::min(loop.trips, 1 + (room - each) / std::max(each, step));
    r.each = each / unit;
    r.start = all / unit - r.iterations * r.each;
    r.host = slot;
    return r;
  }
  // Returns the matmul of two loops that saves the most multiplications.
  std::optional<Reuse> best() const {
    std::optional<Reuse> found;
    std::int64_t most = 0;  // saved multiplications
    auto is_loop = [](const Step& s) { return s.kind == Kind::loop && !s.loop.reverse; };
    for (int later = 1; later < int(p.steps.size()); ++later) {
      for (int first = 0; first < later; ++first) {
        auto &a = p.steps[std::size_t(first)], &b = p.steps[std::size_t(later)];
        if (!is_loop(a) || !is_loop(b) || a.loop.trips != b.loop.trips) continue;
        for (std::size_t original = 0; original < a.body.size(); ++original)
          for (std::size_t repeated = 0; repeated < b.body.size(); ++repeated)
            if (auto r = best_host({first, later, original, repeated}))
              if (auto saved = r->iterations * points(dims_of(b.body[repeated])); saved > most) {
                most = saved;
                found = r;
              }
      }
    }
    return found;
  }
  std::optional<Reuse> best_host(const Reuse& r) const {
    auto &first = p.steps[std::size_t(r.first)], &later = p.steps[std::size_t(r.later)];
    // The body of a conditional is not searched, since it saves no result if it is skipped.
    auto &original = first.body[r.original], &repeated = later.body[r.repeated];
    if (!same_matmul(original, first.loop.variable, repeated, later.loop.variable)) return {};
    auto& c = repeated.contract;
    if (points(c.k) < kMinMultiplications || is_written(c.a.slot, r) || is_written(c.b.slot, r))
      return {};
    if (!is_private(original.contract.out.slot, r.first, original) ||
        !is_private(c.out.slot, r.later, repeated))
      return {};
    std::optional<Reuse> found;
    for (int slot = 0; slot < int(p.slots.size()); ++slot)
      if (auto h = with_host(slot, r, repeated); h.iterations > (found ? found->iterations : 0))
        found = h;
    return found;
  }
};

// ---- the rewrite ----
// Replaces accesses to the result by accesses to the host, at the place of the iteration.
void redirect(Step& loop, int slot, const Reuse& r) {
  each_step(loop.body, [&](Step& s) {
    each_view(s, [&](View& v, bool) {
      if (v.slot != slot) return;
      v.slot = r.host;
      v.offset += r.start;
      v.terms.push_back({.loop = loop.loop.variable, .stride = r.each});
    });
  });
}
// Returns the iterations from `first_iteration` on as a separate loop, with slots of its own.
Step rest_of_loop(Program& p, int top, const Accesses& accesses, std::int64_t first_iteration) {
  Step rest = p.steps[std::size_t(top)];
  auto old_variable = rest.loop.variable;
  rest.loop.variable = p.loops++;
  rest.loop.trips -= first_iteration;
  std::map<int, int> variables{{old_variable, rest.loop.variable}}, own;
  each_step(rest.body, [&](Step& s) {
    if (s.kind == Kind::loop) {
      variables[s.loop.variable] = p.loops;
      s.loop.variable = p.loops++;
    }
  });
  for (int slot = 0; slot < int(accesses.size()); ++slot) {
    auto& use = accesses[std::size_t(slot)];
    bool here =
        !use.empty() && std::all_of(use.begin(), use.end(), [&](auto& a) { return a.at == top; });
    if (here && p.slot(slot).home == Home::arena) {
      own[slot] = int(p.slots.size());
      p.slots.push_back(program::Slot(p.slot(slot)));
    }
  }
  auto replace = [](int& index, const std::map<int, int>& replacements) {
    if (auto to = replacements.find(index); to != replacements.end()) index = to->second;
  };
  each_step(rest.body, [&](Step& s) {
    for (auto& i : s.fused.code)
      if (i.code == Code::iota)
        for (auto& t : i.view.terms)
          i.integer += t.loop == old_variable ? first_iteration * t.stride : 0;
    each_view(s, [&](View& v, bool) {
      replace(v.slot, own);
      for (auto& t : v.terms) {
        if (t.loop == old_variable && v.slot >= 0) v.offset += first_iteration * t.stride;
        replace(t.loop, variables);
        replace(t.slot, own);
      }
    });
  });
  return rest;
}

void rewrite(Program& p, const Reuse& r, const Accesses& accesses) {
  // Stores the matmul of the first iterations in the host. Returns the other iterations as a loop.
  auto split_loop = [&](int top, std::size_t matmul) {
    std::optional<Step> rest;
    auto& step = p.steps[std::size_t(top)];
    auto& loop = step.loop;
    loop.parallel_slots = 0;  // saved results require sequential iterations
    if (r.iterations < loop.trips) rest = rest_of_loop(p, top, accesses, r.iterations);
    loop.trips = r.iterations;
    redirect(step, step.body[matmul].contract.out.slot, r);
    return rest;
  };
  auto later = split_loop(r.later, r.repeated), first = split_loop(r.first, r.original);
  auto& body = p.steps[std::size_t(r.later)].body;
  body.erase(body.begin() + std::ptrdiff_t(r.repeated));
  if (later) p.steps.insert(p.steps.begin() + r.later + 1, std::move(*later));
  if (first) p.steps.insert(p.steps.begin() + r.first + 1, std::move(*first));
}

}  // namespace

std::optional<Program> reuse_matmuls(const Program& p) {
  if (std::count_if(p.steps.begin(), p.steps.end(),
                    [](auto& s) { return s.kind == program::Kind::loop; }) < 2)
    return {};
  std::optional<Program> out;
  for (;;) {  // each host once: afterwards it is in use before the later loop
    ReuseSearch search(out ? *out : p);
    auto found = search.best();
    if (!found) return out;
    if (!out) out = p;
    rewrite(*out, *found, search.accesses);
  }
}

}  // namespace haliax
