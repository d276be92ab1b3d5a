// Legality checks of Programs.
#include <fmt/format.h>
#include <fmt/ranges.h>

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
// and their least and greatest number.
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
  std::set<int> written = {};      // memory with a value
  std::vector<int> in_arena = {};  // nonempty slots of the arena, by offset
  // By slot of the arena: the slots whose bytes overlap it.
  std::vector<std::vector<int>> neighbors = {};
  // By slot: the step of the last write, and of the last scratch over it.
  std::vector<int> last_write = {}, last_scratch = {};
  // By memory: the slot of the last write, and its iteration.
  std::vector<int> last_writer = {}, last_iteration = {};
  // By slot, which may share its memory: the step of its last write.
  std::map<int, int> wrote = {};
  struct Filled {
    std::int64_t begin = 0, end = 0, bytes = 0;
  };
  // By memory: the range of written bytes, and an upper bound of their number.
  std::map<int, Filled> filled = {};
  std::vector<std::pair<const View*, Extent>> extents = {};  // extents of the views of the step
  int second_pass = 0;  // number of enclosing loops in their second pass
  // The memories of the arrays of a started collective.
  struct OpenCall {
    std::set<int> x, out;
  };
  std::map<int, OpenCall> open = {};  // started collectives, by number
  bool last = false;                  // the last iteration of the enclosing loop is checked
  bool skips = false;                 // in a conditional that the last iteration may skip
  // current step; step before the first one of the iteration or conditional
  int now = 0, iteration_start = -1;

  [[noreturn]] void bad(const Step& s, const std::string& why) const {
    throw Error(fmt::format("[verify] {} after {}: {}{}", s.op, after, why, location_suffix(s)));
  }
  int memory(int slot) const { return p.memory(slot); }
  // Checks that the elements of a view are in its slot, for all ids.
  void inside(const Step& s, const View& v, const Dims& dims,
              const std::vector<program::Indexed>& ids = {}) {
    if (v.slot < 0 || program::points(dims) == 0) return;
    if (v.slot >= int(p.slots.size())) bad(s, fmt::format("slot {} does not exist", v.slot));
    if (s.kind == Kind::finish && p.slot(v.slot).bytes == 0) return;  // a finish has no dims
    if (v.strides.size() != dims.size())
      bad(s, fmt::format("a view has {} strides for {} dims", v.strides.size(), dims.size()));
    auto far = extent_of(v, dims, ids, trip_counts);
    for (auto& t : v.terms)
      if (t.slot < 0 && !trip_counts.count(t.loop))
        bad(s, "a view uses the index of a loop that does not contain it");
    auto bytes = p.slot(v.slot).bytes;
    if (far.first < 0 || (far.last + 1) * bytes_of(v.dtype) > bytes)
      bad(s, fmt::format("a view reaches elements {} to {} of slot {}, which has {} bytes",
                         far.first, far.last, v.slot, bytes));
    extents.emplace_back(&v, far);
  }
  void views(const Step& s) {
    for (auto* operands : {&s.collective.x, &s.collective.out, &s.host.arrays})
      for (auto& o : *operands) inside(s, o.view, o.dims);
    if (s.kind == Kind::collective || s.kind == Kind::host) return;
    auto dims = dims_of(s);
    auto* none = untouched(s);
    each_view(s, [&](const View& v, bool) {
      if (&v == none) return;
      if (&v == &s.gather.table) return inside(s, v, dims, s.gather.indexed);
      inside(s, v, dims,
             &v == &s.scatter.target ? s.scatter.indexed : std::vector<program::Indexed>());
    });
  }
  const Extent* extent(const View* v) const {  // null: no element
    auto known =
        std::find_if(extents.begin(), extents.end(), [&](auto& e) { return e.first == v; });
    return known == extents.end() ? nullptr : &known->second;
  }
  // Checks that no more is read than was written.
  void read_part(const Step& s, int slot, const View& v) const {
    auto* e = extent(&v);
    if (!e) return;
    auto& has = filled.at(memory(slot));
    const std::int64_t size = bytes_of(v.dtype);
    if (e->first * size < has.begin || (e->last + 1) * size > has.end ||
        e->least * size > has.bytes)
      bad(s, fmt::format("{} elements from {} to {} of slot {} are read, but only {} bytes from {} "
                         "to {} were written",
                         e->least, e->first, e->last, slot, has.bytes, has.begin, has.end));
  }
  void read(const Step& s, int slot, const View* v) const {
    int mine = memory(slot);
    if (p.slot(slot).bytes == 0) return;
    if (!written.count(mine)) bad(s, fmt::format("slot {} is read before it is written", slot));
    if (v) read_part(s, slot, *v);
    if (!placed) return;
    for (int other : neighbors[std::size_t(mine)])
      if (last_write[std::size_t(other)] > last_write[std::size_t(mine)])
        bad(s, fmt::format("slot {} is read after slot {} overwrote it", slot, other));
    auto own = wrote.find(slot);
    // within this iteration, outside of inner loops
    bool here = own != wrote.end() && own->second > iteration_start &&
                last_iteration[std::size_t(mine)] == iteration_start;
    if (here && own->second < last_write[std::size_t(mine)])
      bad(s, fmt::format("slot {} is read after slot {} of the same memory was written", slot,
                         last_writer[std::size_t(mine)]));
    if (last_scratch[std::size_t(mine)] > last_write[std::size_t(mine)])
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
      last_scratch[std::size_t(k)] = now;
    }
  }
  void write(const Step& s, int slot, const View& v) {
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
    written.insert(memory(slot));
    if (second_pass == 0) {
      auto& f = filled.try_emplace(memory(slot), Filled{more.begin, more.end}).first->second;
      f.begin = std::min(f.begin, more.begin);
      f.end = std::max(f.end, more.end);
      f.bytes = std::min(f.bytes + more.bytes, most_elements);
    }
    if (!placed) return;
    wrote[slot] = now;
    auto mine = std::size_t(memory(slot));
    last_write[mine] = now;
    last_writer[mine] = slot;
    last_iteration[mine] = iteration_start;
  }
  // Returns true if the slot overlaps arrays of a collective in flight.
  bool shares(const std::set<int>& all, int slot) const {
    int mine = memory(slot);
    auto overlaps = [&](int other) { return all.count(other) > 0; };
    return overlaps(mine) || std::any_of(neighbors[std::size_t(mine)].begin(),
                                         neighbors[std::size_t(mine)].end(), overlaps);
  }
  void calls(const Step& s) {
    if (s.kind == Kind::finish) open.erase(s.finish.call);
    each_access(s, [&](int slot, bool writes, const View*) {
      for (auto& [call, arrays] : open)
        if (shares(arrays.out, slot) || (writes && shares(arrays.x, slot)))
          bad(s, fmt::format("slot {} is {} before collective {} is finished", slot,
                             writes ? "written" : "read", call));
    });
    if (s.kind != Kind::collective || s.collective.call < 0 || skips) return;
    auto& mine = open[s.collective.call];
    for (auto& x : s.collective.x) mine.x.insert(memory(x.view.slot));
    for (auto& o : s.collective.out) mine.out.insert(memory(o.view.slot));
  }
  void find_overlaps() {
    neighbors.resize(p.slots.size());
    last_write.assign(p.slots.size(), -1);
    last_scratch = last_writer = last_iteration = last_write;
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
  void steps(const std::vector<Step>& all) {
    for (auto& s : all) {
      ++now;
      extents.clear();
      views(s);
      if (auto wrong = fault_of(s, p); !wrong.empty()) bad(s, wrong);
      if (placed) calls(s);
      if (s.kind == Kind::finish) continue;
      for (bool written : {false, true})
        each_access(s, [&](int slot, bool writes, const View* v) {
          if (writes == written) writes ? write(s, slot, *v) : read(s, slot, v);
        });
      if (placed) check_disjoint(s);
      if (s.kind == Kind::conditional) {
        auto outer = std::exchange(skips, last);
        auto outer_start = std::exchange(iteration_start, now);
        steps(s.body);
        skips = outer;
        iteration_start = outer_start;
      }
      if (s.kind != Kind::loop) continue;
      if (s.loop.trips == 0) continue;  // its steps never run
      trip_counts[s.loop.variable] = s.loop.trips;
      auto outer = std::exchange(last, false);
      auto outer_start = std::exchange(iteration_start, now);
      steps(s.body);
      last = true;
      // The second pass finds values of the first iteration that the second one reads after they
      // are overwritten.
      iteration_start = now;
      ++second_pass;
      if (placed && s.loop.trips > 1) steps(s.body);
      --second_pass;
      last = outer;
      iteration_start = outer_start;
      trip_counts.erase(s.loop.variable);
    }
  }
  // Checks that a slot in the memory of another slot fits there.
  void aliases() const {
    const int count = int(p.slots.size());
    for (int k = 0; k < count; ++k) {
      int of = k, far = 0;
      while (of >= 0 && of < count && p.slot(of).alias >= 0 && far++ < count) of = p.slot(of).alias;
      if (of >= count || far > count) bad({}, fmt::format("slot {} has no memory", k));
      if (p.slot(k).bytes > p.slot(of).bytes)
        bad({}, fmt::format("slot {} of {} bytes aliases slot {}, which has {}", k, p.slot(k).bytes,
                            of, p.slot(of).bytes));
    }
  }
  void run() {
    aliases();
    if (placed) find_overlaps();
    for (int s : p.argument_slots) fill(s, all_of(s));
    steps(p.steps);
    if (!open.empty()) bad({}, fmt::format("collective {} is never finished", open.begin()->first));
    for (std::size_t k = 0; k < p.result_slots.size(); ++k) {
      const int s = p.result_slots[k];
      const auto bytes = p.slot(s).bytes;
      if (bytes == 0) continue;
      if (!written.count(memory(s))) bad({}, "a result is never written");
      auto& has = filled.at(memory(s));
      if (has.begin > 0 || has.end < bytes || has.bytes < bytes)
        bad({}, fmt::format("{} bytes from {} to {} of result {} are written, but it has {}",
                            has.bytes, has.begin, has.end, k, bytes));
    }
  }
};

// Checks that gathered values are not retained.
struct GatheredCheck {
  const Program& p;
  // By slot: the loop with its first write; null: outside of loops.
  std::map<int, const Step*> created_in = {};
  std::set<const Step*> over = {};  // finished loops

  [[noreturn]] static void refuse(const Step& s, const std::string& what) {
    throw VerifyError("[gathered] " + what +
                      "; gathered values must be read at once and not stored" + location_suffix(s));
  }
  void slots() const {
    for (auto& s : p.slots) {
      bool result = s.home == Home::result;
      if (s.gathered && s.home != Home::arena)
        refuse({}, result ? "a result is gathered" : "an argument is gathered");
      if (s.alias >= 0 && s.gathered != p.slot(s.alias).gathered)
        refuse({}, std::string(result ? "a result" : "a stored value") +
                       " shares memory with a gathered value");
    }
  }
  void steps(const std::vector<Step>& all, const Step* loop) {
    for (auto& s : all) {
      each_access(s, [&](int slot, bool writes, const View*) {
        if (!p.slot(slot).gathered) return;
        auto created = writes ? created_in.try_emplace(slot, loop).first : created_in.find(slot);
        if (created == created_in.end())
          refuse(s, loop ? "a loop carry is gathered" : "it is read before it is written");
        if (!writes && over.count(created->second))
          refuse(s, "a gathered value is read after the loop that gathered it");
      });
      if (s.kind == Kind::conditional) steps(s.body, loop);
      if (s.kind == Kind::loop) {
        steps(s.body, &s);
        over.insert(&s);
      }
    }
  }
};

// A collective of a Program, in order, or the start or end of a body that contains collectives.
struct ListedCall {
  std::string text;
  const Step* step = nullptr;  // null: the start or end of a body
};
std::vector<ListedCall> calls_of(const std::vector<Step>& steps) {
  std::vector<ListedCall> out;
  for (auto& s : steps) {
    if (s.kind == Kind::collective) {
      std::string call = name_of(s.collective.kind);
      for (int x : s.collective.over) call += " " + std::to_string(x);
      if (auto m = s.collective.monoid; m != Monoid::sum)
        call += fmt::format(", monoid {}", int(m));
      if (auto skip_flag = s.collective.skip_flag; skip_flag != program::SkipFlag::nothing)
        call += fmt::format(", spares {}", int(skip_flag));
      out.push_back({fmt::format("{} of {}; {}", call, s.collective.out.size(), s.where), &s});
    } else if (auto body = calls_of(s.body); !body.empty()) {
      const bool is_loop = s.kind == Kind::loop;
      out.push_back({is_loop ? std::to_string(s.loop.trips) + " iterations" : "a conditional"});
      out.insert(out.end(), body.begin(), body.end());
      out.push_back({is_loop ? "the end of the iterations" : "the end of the conditional"});
    }
  }
  return out;
}
std::string box(DType d, const Dims& dims) {
  return fmt::format("{} ({})", name_of(d), fmt::join(dims, ", "));
}
// Returns the properties that are equal on all devices of a collective: the arrays that are summed,
// or concatenated from blocks.
std::string shared_by_call(const program::Collective& c) {
  std::string out = name_of(c.kind);
  for (std::size_t k = 0; k < c.x.size(); ++k) {
    auto& full = c.kind == program::CollectiveKind::all_gather ? c.out[k] : c.x[k];
    out += (k ? ", " : " of ") + box(full.view.dtype, full.dims);
    if (c.kind != program::CollectiveKind::all_reduce) out += fmt::format(" along {}", c.dim[k]);
  }
  return out;
}
struct CallCheck {
  const std::vector<const Program*>& devices;
  std::vector<std::vector<ListedCall>> calls = {};  // by device

  // Checks that every device runs the same collectives, including the ones of other groups.
  void order() {
    for (auto* p : devices) calls.push_back(calls_of(p->steps));
    auto& first = calls[0];
    for (std::size_t d = 1; d < calls.size(); ++d) {
      auto& mine = calls[d];
      std::size_t k = 0, all = std::min(mine.size(), first.size());
      while (k < all && mine[k].text == first[k].text) ++k;
      if (k < std::max(mine.size(), first.size()))
        differs(k, d, text_at(mine, k), 0, text_at(first, k));
    }
  }
  static std::string text_at(const std::vector<ListedCall>& all, std::size_t k) {
    return k < all.size() ? all[k].text : "nothing";
  }
  using Text = const std::string&;
  [[noreturn]] static void differs(std::size_t k, std::size_t d, Text mine, std::size_t other,
                                   Text theirs) {
    throw Error(fmt::format("[verify] collective {} of device {} is {}, that of device {} is {}", k,
                            d, mine, other, theirs));
  }
  // Returns the coordinates of a device without the mesh axes of a collective. Devices of one group
  // have the same coordinates.
  Dims place(std::size_t d, const std::vector<int>& over) const {
    Dims at;
    auto left = std::int64_t(devices[d]->device);
    auto& mesh = devices[d]->mesh;
    for (auto x = int(mesh.size()); x-- > 0; left /= mesh[std::size_t(x)])
      if (std::count(over.begin(), over.end(), x) == 0) at.push_back(left % mesh[std::size_t(x)]);
    return at;
  }
  void arrays(std::size_t k) const {
    if (!calls[0][k].step) return;
    auto of = [&](std::size_t d) -> auto& { return calls[d][k].step->collective; };
    if (of(0).kind == program::CollectiveKind::exchange) return boxes(k);
    std::map<Dims, std::size_t> first;  // first device at each place
    for (std::size_t d = 0; d < devices.size(); ++d) {
      auto other = first.try_emplace(place(d, of(d).over), d).first->second;
      auto mine = shared_by_call(of(d)), theirs = shared_by_call(of(other));
      if (mine != theirs) differs(k, d, mine, other, theirs);
    }
  }
  // Checks that each box that a device sends matches the box that is received.
  void boxes(std::size_t k) const {
    std::map<std::pair<int, int>, std::vector<std::string>> sent, taken;  // by sender and receiver
    for (std::size_t d = 0; d < devices.size(); ++d) {
      auto& c = calls[d][k].step->collective;
      auto here = [&](const program::BoxTransfer& p) {
        return p.device < int(devices.size()) && program::points(p.dims) > 0;
      };
      for (auto& p : c.sends)
        if (here(p))
          sent[{int(d), p.device}].push_back(box(c.x[std::size_t(p.array)].view.dtype, p.dims));
      for (auto& p : c.receives)
        if (here(p))
          taken[{p.device, int(d)}].push_back(box(c.out[std::size_t(p.array)].view.dtype, p.dims));
    }
    for (auto& t : taken) sent[t.first];
    for (auto& [way, mine] : sent) {
      auto& theirs = taken[way];
      std::size_t n = 0;
      while (n < mine.size() && n < theirs.size() && mine[n] == theirs[n]) ++n;
      auto at = [&](auto& all) { return n < all.size() ? all[n] : "nothing"; };
      if (n == std::max(mine.size(), theirs.size())) continue;
      throw Error(
          fmt::format("[verify] collective {}: device {} sends {} to device {}, which expects {}",
                      k, way.first, at(mine), way.second, at(theirs)));
    }
  }
  void run() {
    order();
    for (std::size_t k = 0; k < calls[0].size(); ++k) arrays(k);
  }
};

}  // namespace

void verify(const Program& p, const char* after, bool placed, const std::vector<bool>& donated) {
  ProgramCheck{p, after, placed, donated}.run();
  check_parallel_slots(p, after);
}

void check_gathered(const Program& p) {
  GatheredCheck c{p};
  c.slots();
  c.steps(p.steps, nullptr);
}

std::string collectives_text(const Program& p) {
  std::string out;
  for (auto& call : calls_of(p.steps)) out += call.text + "\n";
  return out;
}
void verify_collectives(const std::vector<const Program*>& devices) { CallCheck{devices}.run(); }

}  // namespace haliax
