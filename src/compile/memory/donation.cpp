// Why a donated argument could not become a result.
#include <fmt/format.h>

#include <algorithm>

#include "compile/memory/memory.h"
#include "program/views.h"

namespace haliax {
namespace {

using program::Home;
using program::Kind;
using program::Program;
using program::Step;

struct Touch {
  const Step* step = nullptr;
  int at = 0, loop = -1;  // the outermost loop around, by its number
};
std::string told(const Step& s) { return s.why + (s.where.empty() ? "" : "; " + s.where); }

struct TouchTimes {
  const Program& p;
  std::vector<Touch> first_write, last_read;  // by memory: the slot that others are aliases of
  int now = 0, loops = 0;

  explicit TouchTimes(const Program& program)
      : p(program), first_write(p.slots.size()), last_read(p.slots.size()) {
    walk(p.steps, -1);
  }
  std::size_t memory(int slot) const { return std::size_t(p.memory(slot)); }
  void walk(const std::vector<Step>& steps, int loop) {
    for (auto& s : steps) {
      ++now;
      each_access(s, [&](int slot, bool writes, const program::View*) {
        auto m = memory(slot);
        if (!writes)
          last_read[m] = {&s, now, loop};
        else if (!first_write[m].step)
          first_write[m] = {&s, now, loop};
      });
      if (s.kind == Kind::loop) walk(s.loop.body, loop >= 0 ? loop : loops++);
    }
  }
};

}  // namespace

std::string why_not_donated(const Program& p, int argument) {
  const int x = p.argument_slots[std::size_t(argument)];
  const auto bytes = p.slot(x).bytes;
  std::vector<int> free;  // results of this size that are no donated argument
  bool any = false;
  for (int r = 0; r < p.results; ++r) {
    auto& s = p.slot(p.result_slots[std::size_t(r)]);
    any |= s.bytes == bytes;
    if (s.bytes == bytes && !(s.alias >= 0 && p.slot(s.alias).home == Home::argument))
      free.push_back(r);
  }
  if (!any) return fmt::format("no result has its {} bytes", bytes);
  if (free.empty()) return "each result of its size took the place of another argument";
  const TouchTimes touched(p);
  auto& read = touched.last_read[touched.memory(x)];
  auto& write = touched.first_write[touched.memory(p.result_slots[std::size_t(free[0])])];
  auto result = fmt::format("result {}", free[0]);
  if (!read.step || !write.step) return fmt::format("nothing reads it before {} is made", result);
  auto made = fmt::format("{} is first written by {}", result, told(*write.step));
  if (read.at > write.at)
    return fmt::format("{}, and it is read after that by {}; read it before, or read the new value",
                       made, told(*read.step));
  if (read.step == write.step)
    return fmt::format(
        "{}, which reads it at other places than it writes; updated_slice and at_set change an "
        "array in its place",
        made);
  if (read.loop >= 0 && read.loop == write.loop)
    return fmt::format(
        "{}, in a loop that reads more of it in each turn than the part it makes: {}; take it as "
        "an argument of "
        "scan, which slices it",
        made, told(*read.step));
  return fmt::format(
      "{}, and not from it: it is read last by {}; updated_slice, at_set and a scan that slices it "
      "change an "
      "array in its place",
      made, told(*read.step));
}

}  // namespace haliax
