// A Program as text, one line per step, for reports and tests.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "program/fused.h"
#include "program/peak.h"
#include "program/profile.h"

namespace haliax::program {
namespace {

const char* const kKinds[] = {"fused",       "contract", "gather",     "scatter", "sort",
                              "cumulative",  "loop",     "collective", "finish",  "copy",
                              "conditional", "custom",   "host"};
const char* const kCollectiveKindNames[] = {"all_reduce", "reduce_scatter", "all_gather",
                                            "exchange"};
const char* const kSkipFlagNames[] = {"", " unless unread", " unless zero", " unless uncounted"};

std::string text(const Dims& d) { return fmt::format("[{}]", fmt::join(d, " ")); }
std::string name(const Program& p, int slot) {
  auto& s = p.slot(slot);
  return s.home == Home::argument ? fmt::format("arg{}", s.index)
         : s.home == Home::result ? fmt::format("out{}", s.index)
                                  : fmt::format("%{}", slot);
}
std::string text(const Program& p, const View& v) {
  if (v.slot < 0) return "-";
  auto out = name(p, v.slot);
  if (int with = p.slot(v.slot).alias; with >= 0) out += "=" + name(p, with);
  if (v.offset) out += fmt::format("+{}", v.offset);
  for (auto& t : v.terms)
    out += t.loop >= 0 ? fmt::format("+i{}*{}", t.loop, t.stride)
                       : fmt::format("+[{}]*{}", name(p, t.slot), t.stride);
  return out + text(v.strides);
}
std::string text(const Program& p, const std::vector<Operand>& operands) {
  std::string out;
  for (auto& x : operands) out += " " + text(p, x.view);
  return out;
}
std::string text(const Program& p, const Fused& f, const std::string& indent) {
  Dims outer(f.dims.begin(), f.dims.begin() + f.outer),
      inner(f.dims.begin() + f.outer, f.dims.end());
  auto out = "fused " + text(outer) + (inner.empty() ? "" : text(inner));
  for (std::size_t k = 0; k < f.code.size(); ++k) {
    auto& i = f.code[k];
    out += fmt::format("\n{}    {}{} {} {}", indent, k, i.inner ? ':' : '.', name_of(i.code),
                       name_of(i.dtype));
    for (int a : operands(i)) out += fmt::format(" {}", a);
    if (i.code == Code::constant) out += fmt::format(" {}", i.number);
    if (i.view.slot >= 0) out += " " + text(p, i.view);
  }
  return out;
}
std::string text(const Program& p, const Step& s, const std::string& indent) {
  auto of = [&](auto& x) { return text(p, x); };
  switch (s.kind) {
    case Kind::fused:
      return text(p, s.fused, indent);
    case Kind::contract: {
      auto& c = s.contract;
      return fmt::format("contract {} {} {} x {}  batch{} m{} n{} k{}{}", of(c.out),
                         c.accumulate ? "+=" : "=", of(c.a), of(c.b), text(c.batch), text(c.m),
                         text(c.n), text(c.k),
                         c.block_mask.flags.slot < 0 ? "" : " where " + of(c.block_mask.flags));
    }
    case Kind::gather:
      return "gather " + of(s.gather.out) + " from " + of(s.gather.table);
    case Kind::scatter:
      return "scatter " + of(s.scatter.updates) + " into " + of(s.scatter.target);
    case Kind::sort:
      return "sort " + of(s.sort.x);
    case Kind::cumulative:
      return "cumulative " + of(s.cumulative.x);
    case Kind::copy:
      return fmt::format("copy {} {} to {}", text(s.copy.dims), of(s.copy.x), of(s.copy.out));
    case Kind::custom: {
      auto& c = s.custom;
      auto split = c.dims.begin() + c.outer;
      auto out =
          fmt::format("{} {}{}", s.op, text({c.dims.begin(), split}), text({split, c.dims.end()}));
      for (auto& x : c.arrays) out += (&x == &c.arrays.back() ? " to " : " ") + of(x);
      return out;
    }
    case Kind::conditional:
      return "if " + of(s.conditional.flag);
    case Kind::collective: {
      auto& c = s.collective;
      auto start = c.call < 0 ? "" : fmt::format("start {}: ", c.call);
      return start + kCollectiveKindNames[int(c.kind)] + kSkipFlagNames[int(c.skip_flag)] +
             of(c.x) + " to" + of(c.out);
    }
    case Kind::finish:
      return fmt::format("finish {}", s.finish.call);
    case Kind::host:
      return "host" + of(s.host.arrays);
    case Kind::loop:
      break;
  }
  auto& l = s.loop;
  auto parallel_slots = l.parallel_slot_bytes > 0
                            ? fmt::format(" in {} parallel slots of {} bytes", l.parallel_slots,
                                          l.parallel_slot_bytes)
                        : l.parallel_slots > 0 ? " in parallel"
                                               : "";
  return fmt::format("loop i{} x{}{}{}{}", l.variable, l.trips, l.reverse ? " reversed" : "",
                     l.continues_previous ? " again" : "", parallel_slots);
}
// The positions of each step in the Timeline: one, or the first and the last one of a loop.
using Positions = std::unordered_map<const Step*, StepRange>;
Positions positions_of(const Timeline& timeline) {
  Positions out;
  for (int at = 1; at <= timeline.last(); ++at)
    out.try_emplace(&timeline.step(at), StepRange{at, at}).first->second.end = at;
  return out;
}
// Returns the text of steps. The comment of a step starts with its positions, if they are given.
std::string text(const Program& p, const std::vector<Step>& steps, const Positions& positions,
                 const std::string& indent = "") {
  std::string out;
  for (auto& s : steps) {
    std::string comment;
    if (auto at = positions.find(&s); at != positions.end()) {
      auto [first, last] = at->second;
      comment += first == last ? fmt::format(" {}", first) : fmt::format(" {}..{}", first, last);
    }
    if (!s.where.empty()) comment += fmt::format(" {} {}", s.op, s.where);
    out += indent + text(p, s, indent);
    if (!comment.empty()) out += "    #" + comment;
    out += "\n" + text(p, s.body, positions, indent + "  ");
  }
  return out;
}

// Returns the memory of each slot, after plan_memory. Slots that no step uses have none and are
// skipped.
bool has_place(const Slot& s) { return s.offset >= 0 || s.alias >= 0; }
std::string places(const Program& p, const Timeline& timeline) {
  std::vector<std::string> why(p.slots.size());
  for (auto& s : live_slots(p, timeline))
    why[std::size_t(s.slot)] =
        fmt::format(", live {}..{}{}{}", s.live.begin, s.live.end,
                    s.first_write.empty() ? "" : ", written by ", s.first_write);
  std::string out;
  for (int k = 0; k < int(p.slots.size()); ++k) {
    auto& s = p.slot(k);
    if (s.home == Home::arena && !has_place(s)) continue;
    out += fmt::format("slot {}: ", k);
    if (s.home != Home::arena) out += name(p, k) + ", ";
    out += s.alias >= 0 ? "in " + name(p, s.alias) : fmt::format("{} bytes", s.bytes);
    if (s.offset >= 0) out += fmt::format(" at {}", s.offset);
    out +=
        fmt::format(", {}{}{}\n", s.purpose, s.gathered ? ", gathered" : "", why[std::size_t(k)]);
  }
  return out;
}

}  // namespace

const char* name_of(Kind k) { return kKinds[int(k)]; }
const char* name_of(Code c) { return code_names[int(c)]; }

std::string to_string(const Program& p) {
  auto head = fmt::format("{} arguments, {} results, arena {} bytes, peak {} bytes\n", p.arguments,
                          p.results, p.arena_bytes, p.peak_bytes);
  if (std::none_of(p.slots.begin(), p.slots.end(), has_place)) return head + text(p, p.steps, {});
  const Timeline timeline(p);
  return head + places(p, timeline) + text(p, p.steps, positions_of(timeline));
}

}  // namespace haliax::program
