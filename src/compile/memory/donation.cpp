// Explains why a donated argument could not become a result.
#include <fmt/format.h>

#include <algorithm>

#include "compile/memory/memory.h"
#include "program/timeline.h"

namespace haliax {
namespace {

using program::Home;
using program::Program;
using program::Step;

struct Touch {
  const Step* step = nullptr;
  int at = 0;
  int loop = -1;  // position of the outermost enclosing loop; -1: none
};
std::string describe(const Step& s) { return s.op + (s.where.empty() ? "" : "; " + s.where); }

// The first write and the last read of a memory: of a slot and all slots that share its memory.
struct Touches {
  Touch first_write, last_read;
};
Touches touches_of(const Timeline& by_memory, int memory) {
  Touches out;
  for (auto& a : by_memory.accesses(memory)) {
    const Touch touch{a.step, a.at, by_memory.outermost_loop(a.at)};
    if (a.writes && !out.first_write.step) out.first_write = touch;
    if (!a.writes) out.last_read = touch;
  }
  return out;
}

}  // namespace

std::string why_not_donated(const Program& p, int argument) {
  const int x = p.argument_slots[std::size_t(argument)];
  const auto bytes = p.slot(x).bytes;
  std::vector<int> free;  // results of this size that replace no donated argument
  bool any = false;
  for (int r = 0; r < p.results; ++r) {
    auto& s = p.slot(p.result_slots[std::size_t(r)]);
    any |= s.bytes == bytes;
    if (s.bytes == bytes && !(s.alias >= 0 && p.slot(s.alias).home == Home::argument))
      free.push_back(r);
  }
  if (!any) return fmt::format("no result has its size of {} bytes", bytes);
  if (free.empty()) return "each result of its size reuses the memory of another argument";
  const Timeline by_memory(p, true);
  const auto read = touches_of(by_memory, p.memory(x)).last_read;
  const int created_in = p.memory(p.result_slots[std::size_t(free[0])]);
  const auto write = touches_of(by_memory, created_in).first_write;
  auto result = fmt::format("result {}", free[0]);
  if (!read.step || !write.step) return fmt::format("{} is written before any read of it", result);
  auto created = fmt::format("{} is first written by {}", result, describe(*write.step));
  if (read.at > write.at)
    return fmt::format("{}, but it is read later by {}; read it earlier, or read the new value",
                       created, describe(*read.step));
  if (read.step == write.step)
    return fmt::format(
        "{}, which reads it at other positions than it writes; "
        "updated_slice and at_set update an array in place",
        created);
  if (read.loop >= 0 && read.loop == write.loop)
    return fmt::format(
        "{}, in a loop whose iterations read more of it than they write: {}; pass it as "
        "an argument of scan, which slices it",
        created, describe(*read.step));
  return fmt::format(
      "{}, but not from it: it is last read by {}; updated_slice, "
      "at_set and a scan that slices it update an array in place",
      created, describe(*read.step));
}

}  // namespace haliax
