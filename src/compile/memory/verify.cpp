// Legality checks of Programs.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/verify_error.h"
#include "compile/memory/memory.h"
#include "program/legality.h"
#include "program/views.h"
#include "graph/node.h"
#include "haliax/error.h"

namespace haliax {
namespace {

using program::Dims;
using program::Home;
using program::Kind;
using program::Monoid;
using program::Program;
using program::Step;
using program::View;

// The elements that a view reaches in all iterations of the enclosing loops: the first, the last,
// and bounds of their number.
struct Extent {
  std::int64_t first, last, least = 1, most = 1;
};
using Strides = std::vector<std::pair<std::int64_t, std::int64_t>>;  // pairs of stride and size
// Returns a lower bound of the number of distinct elements. It is exact if each stride is at
// least as large as the span of all shorter ones.
std::int64_t elements_of(Strides strides) {
  std::sort(strides.begin(), strides.end());
  std::int64_t span = 1, least = 1;
  for (auto [stride, size] : strides) {
    if (stride >= span) least *= size;  // otherwise, elements may repeat
    span += (size - 1) * stride;
  }
  return least;
}
using TripCounts = std::map<int, std::int64_t>;  // iterations of the enclosing loops, by variable
Extent extent_of(const View& v, const Dims& dims, const std::vector<program::Indexed>& ids,
                 const TripCounts& trip_counts) {
  Extent e{v.offset, v.offset};
  Strides strides;  // strides that are certainly traversed
  auto reach = [&](std::int64_t size, std::int64_t stride, bool is_traversed) {
    if (size <= 1 || stride == 0) return;
    (stride < 0 ? e.first : e.last) += (size - 1) * stride;
    if (is_traversed) strides.emplace_back(std::abs(stride), size);
    e.most = std::min(e.most * size, most_elements);
  };
  for (std::size_t d = 0; d < dims.size(); ++d) reach(dims[d], v.strides[d], true);
  for (auto& i : ids) reach(i.size, i.stride, false);
  for (auto& t : v.terms)
    if (auto known = trip_counts.find(t.loop); t.slot >= 0)
      reach(t.limit + 1, t.stride, false);
    else if (known != trip_counts.end())
      reach(known->second, t.stride, true);
  e.least = elements_of(strides);
  return e;
}
// Returns the table of a gather or scatter along an axis of size 0, which is not accessed. Null for
// any other step.
const View* untouched(const Step& s) {
  auto has_empty_axis = [](auto& x) {
    return std::any_of(x.indexed.begin(), x.indexed.end(), [](auto& i) { return i.size == 0; });
  };
  return s.kind == Kind::gather && has_empty_axis(s.gather)     ? &s.gather.table
         : s.kind == Kind::scatter && has_empty_axis(s.scatter) ? &s.scatter.target
                                                                : nullptr;
}
// Returns true if two elements of the step are written to the same place. Strides of 0 belong to
// dims that the result lacks.
bool writes_twice(const Step& s, const View& v) {
  if (s.kind == Kind::scatter || s.kind == Kind::collective || s.kind == Kind::host) return false;
  auto dims = dims_of(s);
  Strides strides;
  std::int64_t points = 1;
  for (std::size_t d = 0; d < std::min(dims.size(), v.strides.size()); ++d)
    if (dims[d] > 1 && v.strides[d] != 0) {
      strides.emplace_back(std::abs(v.strides[d]), dims[d]);
      points *= dims[d];
    }

  return elements_of(strides) < points;
}

struct ProgramCheck {
  const Program& p;
  const char* after;
  bool placed;                       // slots have offsets
  const std::vector<bool>& donated;  // by argument; missing entries are false
  TripCounts trip_counts = {};
  std::vector<int> in_arena = {};  // nonempty slots of the arena, by offset
  // By slot of the arena: the slots whose bytes overlap it.
  std::vector<std::vector<int>> neighbors = {};
  // By slot, which may share its memory: the step of its last write.
  std::map<int, int> last_write_of_slot = {};
  struct Filled {
    std::int64_t begin = 0, end = 0, bytes = 0;
  };
  struct MemoryState {
    bool has_value = false;
    Filled filled = {};  // the range of written bytes, and an upper bound of their number
    // With `placed`: the steps of the last write and of the last scratch over it, and the slot and
    // the iteration of the last write.
    int last_write = -1, last_scratch = -1, writer_slot = -1, iteration = -1;
  };
  std::vector<MemoryState> memories = std::vector<MemoryState>(p.slots.size());
  std::vector<std::pair<const View*, Extent>> extents = {};  // extents of the views of the step
  int second_pass = 0;  // number of enclosing loops in their second pass
  // The memories of the arrays of a started collective.
  struct OpenCollective {
    std::set<int> x, out;
  };
  std::map<int, OpenCollective> open = {};  // started collectives, by number
  bool in_last_iteration = false;           // the last one of the enclosing loop
  bool may_be_skipped = false;              // in a conditional that the last iteration may skip
  // current step; step before the first one of the iteration or conditional
  int position = 0, iteration_start = -1;

  [[noreturn]] void bad(const Step& s, const std::string& why) const {
    throw Error(fmt::format("[verify] {} after {}: {}{}", s.op, after, why, location_suffix(s)));
  }
  int memory(int slot) const { return p.memory(slot); }
  MemoryState& state(int slot) { return memories[std::size_t(memory(slot))]; }
  const MemoryState& state(int slot) const { return memories[std::size_t(memory(slot))]; }
  // Checks that the elements of a view are in its slot, for all ids.
  void check_view(const Step& s, const View& v, const Dims& dims,
                  const std::vector<program::Indexed>& ids = {}) {
    if (v.slot < 0 || program::points(dims) == 0) return;
    if (v.slot >= int(p.slots.size())) bad(s, fmt::format("slot {} does not exist", v.slot));
    if (s.kind == Kind::finish && p.slot(v.slot).bytes == 0) return;  // a finish has no dims
    if (v.strides.size() != dims.size())
      bad(s, fmt::format("a view has {} strides for {} dims", v.strides.size(), dims.size()));
    auto reached = extent_of(v, dims, ids, trip_counts);
    for (auto& t : v.terms)
      if (t.slot < 0 && !trip_counts.count(t.loop))
        bad(s, "a view uses the index of a loop that does not contain it");
    auto bytes = p.slot(v.slot).bytes;
    if (reached.first < 0 || (reached.last + 1) * bytes_of(v.dtype) > bytes)
      bad(s, fmt::format("a view reaches elements {} to {} of slot {}, which has {} bytes",
                         reached.first, reached.last, v.slot, bytes));
    extents.emplace_back(&v, reached);
  }
  void check_views(const Step& s) {
    for (auto* operands : {&s.collective.x, &s.collective.out, &s.host.arrays})
      for (auto& o : *operands) check_view(s, o.view, o.dims);
    if (s.kind == Kind::collective || s.kind == Kind::host) return;
    auto dims = dims_of(s);
    auto* none = untouched(s);
    each_view(s, [&](const View& v, bool) {
      if (&v == none) return;
      if (&v == &s.gather.table) return check_view(s, v, dims, s.gather.indexed);
      check_view(s, v, dims,
                 &v == &s.scatter.target ? s.scatter.indexed : std::vector<program::Indexed>());
    });
  }
  const Extent* extent(const View* v) const {  // null: no element
    auto known =
        std::find_if(extents.begin(), extents.end(), [&](auto& e) { return e.first == v; });
    return known == extents.end() ? nullptr : &known->second;
  }
  // Checks that no more is read than was written.
  void check_extent(const Step& s, int slot, const View& v) const {
    auto* e = extent(&v);
    if (!e) return;
    auto& has = state(slot).filled;
    const std::int64_t size = bytes_of(v.dtype);
    if (e->first * size < has.begin || (e->last + 1) * size > has.end ||
        e->least * size > has.bytes)
      bad(s, fmt::format("{} elements from {} to {} of slot {} are read, but only {} bytes from {} "
                         "to {} were written",
                         e->least, e->first, e->last, slot, has.bytes, has.begin, has.end));
  }
  void check_read(const Step& s, int slot, const View* v) const {
    if (p.slot(slot).bytes == 0) return;
    auto& own = state(slot);
    if (!own.has_value) bad(s, fmt::format("slot {} is read before it is written", slot));
    if (v) check_extent(s, slot, *v);
    if (!placed) return;
    for (int other : neighbors[std::size_t(memory(slot))])
      if (state(other).last_write > own.last_write)
        bad(s, fmt::format("slot {} is read after slot {} overwrote it", slot, other));
    auto write = last_write_of_slot.find(slot);
    // within this iteration, outside of inner loops
    const bool is_recent = write != last_write_of_slot.end() && write->second > iteration_start &&
                           own.iteration == iteration_start;
    if (is_recent && write->second < own.last_write)
      bad(s, fmt::format("slot {} is read after slot {} of the same memory was written", slot,
                         own.writer_slot));
    if (own.last_scratch > own.last_write)
      bad(s, fmt::format("slot {} is read after scratch memory overwrote it", slot));
  }
  // Checks that the memory a step writes shares no bytes with other memory that it uses, except in
  // place, and that its scratch overlaps none of it.
  void check_disjoint(const Step& s) {
    std::set<int> used, created;
    each_access(s, [&](int slot, bool writes, const View*) {
      used.insert(memory(slot));
      if (writes) created.insert(memory(slot));
    });
    for (int m : created)
      for (int other : neighbors[std::size_t(m)])
        if (used.count(other))
          bad(s, fmt::format("it writes slot {}, which shares bytes with slot {}", m, other));
    if (s.scratch_bytes == 0) return;
    if (s.scratch < 0 || s.scratch + s.scratch_bytes > p.arena_bytes)
      bad(s, "its scratch memory is outside of the arena");
    if (s.scratch % program::kAlignment)
      bad(s, fmt::format("its scratch memory is at offset {}, which is not aligned", s.scratch));
    for (int k : in_arena) {
      auto& slot = p.slot(k);
      if (slot.offset >= s.scratch + s.scratch_bytes || s.scratch >= slot.offset + slot.bytes)
        continue;
      if (used.count(k))
        bad(s, fmt::format("its scratch memory overlaps slot {}, which it uses", k));
      for (auto& [call, arrays] : open)
        if (arrays.x.count(k) || arrays.out.count(k))
          bad(s, fmt::format(
                     "its scratch memory overlaps slot {}, which unfinished collective {} uses", k,
                     call));
      memories[std::size_t(k)].last_scratch = position;
    }
  }
  void check_write(const Step& s, int slot, const View& v) {
    auto& of = p.slot(memory(slot));
    bool own = of.home != Home::argument ||
               (of.index < int(donated.size()) && donated[std::size_t(of.index)]);
    if (!own) bad(s, fmt::format("it overwrites argument {}, which is not donated", of.index));
    if (writes_twice(s, v))
      bad(s, fmt::format("two of its elements write one element of slot {}", slot));
    const std::int64_t size = bytes_of(v.dtype);
    if (auto* e = extent(&v))
      fill(slot, {e->first * size, (e->last + 1) * size, e->most * size});
    else
      fill(slot, all_of(slot));  // an empty sum
  }
  Filled all_of(int slot) const { return {0, p.slot(slot).bytes, p.slot(slot).bytes}; }
  void fill(int slot, const Filled& more) {
    auto& own = state(slot);
    if (!own.has_value) own.filled = {more.begin, more.end};
    own.has_value = true;
    if (second_pass == 0) {
      own.filled.begin = std::min(own.filled.begin, more.begin);
      own.filled.end = std::max(own.filled.end, more.end);
      own.filled.bytes = std::min(own.filled.bytes + more.bytes, most_elements);
    }
    if (!placed) return;
    last_write_of_slot[slot] = position;
    own.last_write = position;
    own.writer_slot = slot;
    own.iteration = iteration_start;
  }
  // Returns true if the slot overlaps arrays of a collective in flight.
  bool shares(const std::set<int>& all, int slot) const {
    int mine = memory(slot);
    auto overlaps = [&](int other) { return all.count(other) > 0; };
    return overlaps(mine) || std::any_of(neighbors[std::size_t(mine)].begin(),
                                         neighbors[std::size_t(mine)].end(), overlaps);
  }
  void check_open_collectives(const Step& s) {
    if (s.kind == Kind::finish) open.erase(s.finish.call);
    each_access(s, [&](int slot, bool writes, const View*) {
      for (auto& [call, arrays] : open)
        if (shares(arrays.out, slot) || (writes && shares(arrays.x, slot)))
          bad(s, fmt::format("slot {} is {} before collective {} is finished", slot,
                             writes ? "written" : "read", call));
    });
    if (s.kind != Kind::collective || s.collective.call < 0 || may_be_skipped) return;
    auto& mine = open[s.collective.call];
    for (auto& x : s.collective.x) mine.x.insert(memory(x.view.slot));
    for (auto& o : s.collective.out) mine.out.insert(memory(o.view.slot));
  }
  void find_overlaps() {
    neighbors.resize(p.slots.size());
    for (int k = 0; k < int(p.slots.size()); ++k) {
      auto& s = p.slot(k);
      if (s.home != Home::arena || s.alias >= 0 || s.offset < 0) continue;
      if (s.offset % program::kAlignment)
        bad({}, fmt::format("slot {} is at offset {}, which is not aligned", k, s.offset));
      if (s.offset + s.bytes > p.arena_bytes)
        bad({}, fmt::format("a slot of {} bytes at offset {} is outside of the arena", s.bytes,
                            s.offset));
      if (s.bytes > 0) in_arena.push_back(k);
    }
    std::sort(in_arena.begin(), in_arena.end(),
              [&](int a, int b) { return p.slot(a).offset < p.slot(b).offset; });
    for (auto a = in_arena.begin(); a != in_arena.end(); ++a)
      for (auto b = a + 1;
           b != in_arena.end() && p.slot(*b).offset < p.slot(*a).offset + p.slot(*a).bytes; ++b) {
        neighbors[std::size_t(*a)].push_back(*b);
        neighbors[std::size_t(*b)].push_back(*a);
      }
  }
  void check_steps(const std::vector<Step>& all) {
    for (auto& s : all) {
      ++position;
      extents.clear();
      check_views(s);
      if (auto wrong = fault_of(s, p); !wrong.empty()) bad(s, wrong);
      if (placed) check_open_collectives(s);
      if (s.kind == Kind::finish) continue;
      for (bool written : {false, true})
        each_access(s, [&](int slot, bool writes, const View* v) {
          if (writes == written) writes ? check_write(s, slot, *v) : check_read(s, slot, v);
        });
      if (placed) check_disjoint(s);
      if (s.kind == Kind::conditional) {
        auto outer = std::exchange(may_be_skipped, in_last_iteration);
        auto outer_start = std::exchange(iteration_start, position);
        check_steps(s.body);
        may_be_skipped = outer;
        iteration_start = outer_start;
      }
      if (s.kind != Kind::loop) continue;
      if (s.loop.trips == 0) continue;  // its steps never run
      trip_counts[s.loop.variable] = s.loop.trips;
      auto outer = std::exchange(in_last_iteration, false);
      auto outer_start = std::exchange(iteration_start, position);
      check_steps(s.body);
      in_last_iteration = true;
      // The second pass finds values of the first iteration that the second one reads after they
      // are overwritten.
      iteration_start = position;
      ++second_pass;
      if (placed && s.loop.trips > 1) check_steps(s.body);
      --second_pass;
      in_last_iteration = outer;
      iteration_start = outer_start;
      trip_counts.erase(s.loop.variable);
    }
  }
  // Checks that a slot in the memory of another slot fits there.
  void check_aliases() const {
    const int count = int(p.slots.size());
    for (int k = 0; k < count; ++k) {
      int of = k, links = 0;
      while (of >= 0 && of < count && p.slot(of).alias >= 0 && links++ < count)
        of = p.slot(of).alias;
      if (of >= count || links > count) bad({}, fmt::format("slot {} has no memory", k));
      if (p.slot(k).bytes > p.slot(of).bytes)
        bad({}, fmt::format("slot {} of {} bytes aliases slot {}, which has {}", k, p.slot(k).bytes,
                            of, p.slot(of).bytes));
    }
  }
  void run() {
    check_aliases();
    if (placed) find_overlaps();
    for (int s : p.argument_slots) fill(s, all_of(s));
    check_steps(p.steps);
    if (!open.empty()) bad({}, fmt::format("collective {} is never finished", open.begin()->first));
    for (std::size_t k = 0; k < p.result_slots.size(); ++k) {
      const int s = p.result_slots[k];
      const auto bytes = p.slot(s).bytes;
      if (bytes == 0) continue;
      if (!state(s).has_value) bad({}, "a result is never written");
      auto& has = state(s).filled;
      if (has.begin > 0 || has.end < bytes || has.bytes < bytes)
        bad({}, fmt::format("{} bytes from {} to {} of result {} are written, but it has {}",
                            has.bytes, has.begin, has.end, k, bytes));
    }
  }
};

}  // namespace

void verify(const Program& p, const char* after, bool placed, const std::vector<bool>& donated) {
  ProgramCheck{p, after, placed, donated}.run();
  check_parallel_slots(p, after);
}

}  // namespace haliax
