// Runs collectives concurrently with work: a collective starts once its operands are computed, and
// the first step that accesses its arrays waits for it.
// - A collective moves up to the steps that compute its operands, past at most two contractions.
// - In a loop, a collective may continue in the next iteration, up to the step that accesses its
//   arrays again.
// - A gather in an iteration is prefetched: it starts in the previous iteration, after the last
//   reader of the previous value. The gather of the first iteration runs before the loop, and each
//   iteration but the last one starts the next.
//
// The cost is memory: arrays that a collective reads or writes in a loop are its own for the entire
// loop. The communication volume is unchanged, and all devices run collectives in the same order.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "compile/memory/memory.h"
#include "program/views.h"

namespace haliax {
namespace {

using program::Code;
using program::Instr;
using program::Kind;
using program::Program;
using program::Step;
using program::Term;
using program::View;

using Slots = std::set<int>;
struct SlotAccess {
  Slots reads, writes;
};
void collect_accesses(const Step& s, SlotAccess& out) {
  each_access(s, [&](int slot, bool writes, const View*) {
    (writes ? out.writes : out.reads).insert(slot);
  });
  for (auto& inner : s.body) collect_accesses(inner, out);
}
SlotAccess accessed_by(const Step& s) {
  SlotAccess out;
  collect_accesses(s, out);
  return out;
}
bool conflict(const Slots& a, const Slots& b) {
  return std::any_of(a.begin(), a.end(), [&](int s) { return b.count(s) > 0; });
}
// Returns true if one writes slots that the other reads or writes. Such steps keep their order.
bool conflict(const SlotAccess& a, const SlotAccess& b) {
  return conflict(a.reads, b.writes) || conflict(a.writes, b.writes) || conflict(a.writes, b.reads);
}

// A collective that has started. Slots that determine the place of its operands were read at the
// start.
struct StartedCollective {
  Step finish;
  SlotAccess in_flight;        // its operands and results
  bool is_prefetched = false;  // for the next iteration; there is none after the last iteration
  bool conflicts_with(const SlotAccess& a) const { return conflict(in_flight, a); }
};
StartedCollective started(const Step& s, bool is_prefetched) {
  StartedCollective out{.finish = {.kind = Kind::finish, .op = s.op, .where = s.where},
                        .in_flight = {},
                        .is_prefetched = is_prefetched};
  out.finish.finish.call = s.collective.call;
  // Notes the slots of the operands, and adds a view of each to the operands of `finish`.
  auto note_slots = [](auto& operands, Slots& slots, std::vector<View>& views) {
    for (auto& op : operands)
      if (slots.insert(op.view.slot).second)
        views.push_back({op.view.slot, op.view.dtype, 0, {}, {}});
  };
  note_slots(s.collective.x, out.in_flight.reads, out.finish.finish.x);
  note_slots(s.collective.out, out.in_flight.writes, out.finish.finish.out);
  return out;
}

constexpr double kMinSentBytes = 256;  // smaller collectives do not overlap
// Contractions that a start may move past. A larger distance holds memory for longer without a
// further gain.
constexpr int kMaxPassedContracts = 2;

class Overlap {
 public:
  explicit Overlap(Program& p) : p_(p) {
    each_step(p.steps, [&](const Step& s) { count(s); });
  }
  void run() {
    for (auto& c : start_and_finish(p_.steps)) p_.steps.push_back(c.finish);
  }

 private:
  Program& p_;
  // By slot, in the entire Program.
  std::vector<int> accesses_ = std::vector<int>(p_.slots.size());

  void count(const Step& s) {
    each_access(s, [&](int slot, bool, const View*) { ++accesses_[std::size_t(slot)]; });
  }
  int fresh(DType dtype) {
    p_.slots.push_back({.bytes = bytes_of(dtype), .purpose = "scratch"});
    accesses_.push_back(0);
    return int(p_.slots.size()) - 1;
  }

  // Moves starts of collectives up, near the steps that compute their operands. Collectives keep
  // their order.
  static void move_starts_up(std::vector<Step>& list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind != Kind::collective || list[i].collective.sent_bytes < kMinSentBytes)
        continue;
      const auto call = accessed_by(list[i]);
      auto k = i;
      for (int passed = 0; k > 0; --k) {
        auto& before = list[k - 1];
        passed += before.kind == Kind::contract;
        bool stays = before.kind == Kind::collective || !before.body.empty();
        if (stays || passed > kMaxPassedContracts || conflict(call, accessed_by(before))) break;
      }
      std::rotate(list.begin() + std::ptrdiff_t(k), list.begin() + std::ptrdiff_t(i),
                  list.begin() + std::ptrdiff_t(i) + 1);
    }
  }
  // Starts the collectives of a list and finishes each before the first step that accesses its
  // arrays. Returns the collectives that are in flight after the list.
  std::vector<StartedCollective> start_and_finish(std::vector<Step>& list) {
    move_starts_up(list);
    std::vector<Step> out;
    std::vector<StartedCollective> open;
    auto push = [&](Step s) {
      auto t = accessed_by(s);
      std::erase_if(open, [&](StartedCollective& c) {
        if (!c.conflicts_with(t)) return false;
        // The next step already waits for it: it remains one synchronous call.
        bool at_once = out.back().kind == Kind::collective &&
                       out.back().collective.call == c.finish.finish.call;
        if (at_once)
          out.back().collective.call = -1;
        else
          out.push_back(c.finish);
        return true;
      });
      out.push_back(std::move(s));
    };
    for (auto& s : list) {
      std::vector<StartedCollective> more;
      if (s.kind == Kind::loop) {
        for (auto& first : prefetch(s)) push(std::move(first));
        more = start_and_finish_in_loop(s.body);
      } else if (s.kind == Kind::conditional) {
        more = start_and_finish(s.body);
      } else if (s.kind == Kind::collective) {
        const bool is_prefetched = s.collective.call >= 0;  // prefetch() numbered it
        if (!is_prefetched && s.collective.sent_bytes >= kMinSentBytes)
          s.collective.call = p_.calls++;
        if (s.collective.call >= 0) more.push_back(started(s, is_prefetched));
      }
      push(std::move(s));
      open.insert(open.end(), more.begin(), more.end());
    }
    list = std::move(out);
    return open;
  }
  // Collectives in flight at the end of an iteration are finished in the next iteration, or after
  // the loop.
  std::vector<StartedCollective> start_and_finish_in_loop(std::vector<Step>& body) {
    auto open = start_and_finish(body);
    auto left = open;
    std::vector<Step> out;
    for (auto& s : body) {
      auto t = accessed_by(s);
      std::erase_if(left, [&](StartedCollective& c) {
        if (!c.conflicts_with(t)) return false;
        out.push_back(c.finish);
        return true;
      });
      out.push_back(std::move(s));
    }
    body = std::move(out);
    std::erase_if(open, [](auto& c) { return c.is_prefetched; });
    return open;
  }

  // ---- prefetched gathers ----

  // Two slots: the index of the next iteration (i32), and a flag that it exists (bool).
  struct Next {
    int iteration, exists;
  };
  // A gather in a body, with the steps that compute its operand there.
  struct Gathering {
    std::set<std::size_t> steps;
    std::size_t last = 0;  // last step of the body that reads the result
  };
  // Returns the gather at step i if it can be prefetched: its steps are in the body, and other
  // steps of an iteration only read the gathered value.
  std::optional<Gathering> gathering(const std::vector<Step>& body,
                                     const std::vector<SlotAccess>& accessed, std::size_t i) const {
    auto& s = body[i];
    if (s.kind != Kind::collective || s.collective.kind != program::CollectiveKind::all_gather ||
        s.collective.call >= 0 || s.collective.sent_bytes < kMinSentBytes)
      return {};
    Gathering g;
    std::vector<std::size_t> todo{i};
    while (!todo.empty()) {
      auto k = todo.back();
      todo.pop_back();
      if (!g.steps.insert(k).second) continue;
      for (int slot : accessed[k].reads)
        for (std::size_t j = 0; j < body.size(); ++j) {
          if (!accessed[j].writes.count(slot)) continue;
          auto kind = body[j].kind;
          if (j >= i || (kind != Kind::fused && kind != Kind::copy && kind != Kind::gather))
            return {};
          todo.push_back(j);
        }
    }
    for (auto k : g.steps)
      for (int slot : accessed[k].writes) {
        int mine = 0, here = 0;
        for (std::size_t j = 0; j < body.size(); ++j) {
          auto times = accesses_to(body[j], slot);
          here += times;
          mine += g.steps.count(j) > 0 ? times : 0;
          bool reads = times > 0 && g.steps.count(j) == 0;
          if (reads && (k != i || j < i || accessed[j].writes.count(slot))) return {};
          if (reads) g.last = std::max(g.last, j);
        }
        if (here != accesses_[std::size_t(slot)] || p_.slot(slot).home != program::Home::arena)
          return {};
      }
    return g.last > i ? std::optional(g) : std::nullopt;
  }
  static int accesses_to(const Step& s, int slot) {
    int n = 0;
    each_access(s, [&](int k, bool, const View*) { n += k == slot; });
    for (auto& inner : s.body) n += accesses_to(inner, slot);
    return n;
  }
  // Moves gathers out of the body. Each is started after its last reader, for the next iteration.
  // Returns the steps that gather for the first iteration.
  std::vector<Step> prefetch(Step& loop) {
    std::vector<Step> first;
    auto& l = loop.loop;
    if (l.trips < 2) return first;
    std::optional<Next> next;
    for (std::size_t i = 0; i < loop.body.size();) {
      std::vector<SlotAccess> accessed;
      for (auto& s : loop.body) accessed.push_back(accessed_by(s));
      auto g = gathering(loop.body, accessed, i);
      if (!g) {
        ++i;
        continue;
      }
      if (!next) next = Next{fresh(DType::i32), fresh(DType::boolean)};
      const int call = p_.calls++;
      for (auto k : g->steps)
        loop.body[k].collective.call = loop.body[k].kind == Kind::collective ? call : -1;
      for (auto k : g->steps) {
        first.push_back(at_iteration(loop.body[k], l.variable, [&](View& v, const Term& t) {
          v.offset += t.stride * (l.reverse ? l.trips - 1 : 0);
        }));
        count(first.back());
      }
      const auto prefetched = conditional_prefetch(loop, *g, i, *next);
      std::vector<Step> body;
      for (std::size_t k = 0; k < loop.body.size(); ++k) {
        if (!g->steps.count(k)) body.push_back(std::move(loop.body[k]));
        if (k == g->last) body.push_back(prefetched);
      }
      loop.body = std::move(body);
      i = i + 1 - g->steps.size();  // these steps were removed
    }
    if (next) loop.body.insert(loop.body.begin(), next_iteration(l, *next));
    return first;
  }
  // Returns the steps that gather for the next iteration, if there is one. gather: the step that
  // they replace.
  static Step conditional_prefetch(const Step& loop, const Gathering& g, std::size_t gather,
                                   const Next& next) {
    Step out{.kind = Kind::conditional,
             .conditional = {{next.exists, DType::boolean, 0, {}, {}}},
             .op = loop.body[gather].op,
             .where = loop.body[gather].where};
    for (auto k : g.steps)
      out.body.push_back(
          at_iteration(loop.body[k], loop.loop.variable, [&](View& v, const Term& t) {
            v.terms.push_back({.slot = next.iteration,
                               .slot_dtype = DType::i32,
                               .limit = loop.loop.trips - 1,
                               .stride = t.stride});
          }));
    return out;
  }
  static Step next_iteration(const program::Loop& l, const Next& next) {
    Step s{.kind = Kind::fused, .op = "index"};
    View iteration{-1, DType::i32, 0, {}, {{.loop = l.variable, .stride = 1}}};
    Instr follows{.code = Code::iota,
                  .dtype = DType::i32,
                  .integer = l.reverse ? -1 : 1,
                  .stride = 0,
                  .view = iteration};
    Instr end{.code = Code::constant, .dtype = DType::i32, .integer = l.reverse ? -1 : l.trips};
    Instr exists{.code = Code::not_equal, .dtype = DType::boolean, .args = {0, 1, -1, -1}};
    Instr store_index{.code = Code::store,
                      .dtype = DType::i32,
                      .args = {0, -1, -1, -1},
                      .view = {next.iteration, DType::i32, 0, {}, {}}};
    Instr store_flag{.code = Code::store,
                     .dtype = DType::boolean,
                     .args = {2, -1, -1, -1},
                     .view = {next.exists, DType::boolean, 0, {}, {}}};
    s.fused.code = {follows, end, exists, store_index, store_flag};
    return s;
  }
  // Returns the step with each offset term of this loop variable replaced by replace(view, term).
  // For example, weights[i] has the term {loop, stride 64}. The gather before the loop adds 64 *
  // (first iteration) to the offset, and the prefetch reads the next iteration from a slot.
  template <class F> static Step at_iteration(Step s, int loop, F replace) {
    each_view(s, [&](View& v, bool) {
      auto terms = std::move(v.terms);
      v.terms.clear();
      for (auto& t : terms) {
        if (t.slot < 0 && t.loop == loop)
          replace(v, t);
        else
          v.terms.push_back(t);
      }
    });
    return s;
  }
};

// Report of a collective: its first start, and the first step that waits for it.
struct OverlappedCollective {
  const Step *start = nullptr, *waits = nullptr;
  bool is_prefetched = false, next_iteration = false;
};
void collect_collectives(const std::vector<Step>& steps, bool in_conditional,
                         std::map<int, OverlappedCollective>& calls) {
  for (std::size_t k = 0; k < steps.size(); ++k) {
    auto& s = steps[k];
    if (s.kind == Kind::collective && s.collective.call >= 0) {
      auto& c = calls[s.collective.call];
      c.is_prefetched |= in_conditional && c.start;  // a prefetch is under a condition
      c.next_iteration |= c.waits && !c.is_prefetched;
      if (!c.start) c.start = &s;
    } else if (s.kind == Kind::finish) {
      auto next = k + 1;
      while (next < steps.size() && steps[next].kind == Kind::finish) ++next;
      auto& waits = calls[s.finish.call].waits;
      if (!waits && next < steps.size()) waits = &steps[next];
    }
    collect_collectives(s.body, s.kind == Kind::conditional, calls);
  }
}

}  // namespace

void overlap(Program& p) { Overlap(p).run(); }

std::vector<std::string> overlap_report(const Program& p) {
  std::map<int, OverlappedCollective> calls;
  collect_collectives(p.steps, false, calls);
  std::vector<std::string> out;
  auto place = [](const Step& s) { return s.where.empty() ? "" : " (" + s.where + ")"; };
  for (auto& [number, c] : calls) {
    if (!c.start) continue;
    auto& collective = c.start->collective;
    out.push_back(fmt::format("{} of {} arrays{}{}, finished before {}{}", name_of(collective.kind),
                              collective.x.size(), place(*c.start),
                              c.is_prefetched ? ", prefetched one iteration ahead" : "",
                              !c.waits ? "the end" : std::string(c.waits->op) + place(*c.waits),
                              c.next_iteration ? " of the next iteration" : ""));
  }
  return out;
}

}  // namespace haliax
