// The legality check of a Program.
#include <algorithm>
#include <map>
#include <set>

#include "compile/memory/memory.h"
#include "compile/memory/views.h"
#include "haliax/error.h"

namespace haliax {
namespace {

using program::Dims;
using program::Home;
using program::Kind;
using program::Program;
using program::Step;
using program::View;

// f(view, dims that it is walked over) of each view of a step.
template <class F> void each_walked_view(const Step& s, F f) {
  auto dims_of = [&]() -> Dims {
    switch (s.kind) {
      case Kind::fused: return s.fused.dims;
      case Kind::gather: return s.gather.dims;
      case Kind::scatter: return s.scatter.dims;
      case Kind::sort: return s.sort.dims;
      case Kind::cumulative: return s.cumulative.dims;
      case Kind::copy: return s.copy.dims;
      case Kind::custom: return s.custom.dims;
      case Kind::contract: {
        Dims all;
        for (auto* part : {&s.contract.batch, &s.contract.m, &s.contract.n, &s.contract.k}) all.insert(all.end(), part->begin(), part->end());
        return all;
      }
      default: return {};
    }
  };
  if (s.kind == Kind::collective) {
    for (auto& o : s.collective.x) f(o.view, o.dims);
    for (auto& o : s.collective.out) f(o.view, o.dims);
    return;
  }
  // Ids find nothing along an axis of size 0, so the table is not touched.
  auto empty = [](const std::vector<program::Indexed>& indexed) {
    return std::any_of(indexed.begin(), indexed.end(), [](auto& i) { return i.size == 0; });
  };
  auto untouched = [&](const View& v) {
    return s.kind == Kind::gather    ? &v == &s.gather.table && empty(s.gather.indexed)
           : s.kind == Kind::scatter ? &v == &s.scatter.target && empty(s.scatter.indexed)
                                     : false;
  };
  auto dims = dims_of();
  each_view(s, [&](const View& v, bool) {
    if (!untouched(v)) f(v, dims);
  });
}

struct Check {
  const Program& p;
  const char* after;
  bool placed;                               // slots have offsets
  std::map<int, std::int64_t> turns = {};    // of the loops around, by variable
  std::set<int> written = {};                // memory that holds something
  std::vector<std::vector<int>> beside = {}; // of a slot of the arena: those whose bytes overlap its own
  std::vector<int> last_write = {};          // of a slot, by step
  int now = 0;

  [[noreturn]] void bad(const Step& s, const std::string& why) const {
    throw Error("[verify] " + std::string(s.why) + " after " + after + ": " + why + (s.where.empty() ? "" : "; " + s.where));
  }
  int memory(int slot) const {   // the slot whose memory it lies in
    while (p.slots[std::size_t(slot)].alias >= 0) slot = p.slots[std::size_t(slot)].alias;
    return slot;
  }
  // The elements that a view reaches lie in its slot.
  void inside(const Step& s, const View& v, const Dims& dims) const {
    if (v.slot < 0 || std::find(dims.begin(), dims.end(), 0) != dims.end()) return;
    if (v.slot >= int(p.slots.size())) bad(s, "there is no slot " + std::to_string(v.slot));
    if (v.strides.size() != dims.size()) bad(s, "a view has " + std::to_string(v.strides.size()) + " strides for " + std::to_string(dims.size()) + " dims");
    std::int64_t least = v.offset, most = v.offset;
    auto reach = [&](std::int64_t far) { (far < 0 ? least : most) += far; };
    for (std::size_t d = 0; d < dims.size(); ++d) reach((dims[d] - 1) * v.strides[d]);
    for (auto& t : v.terms) {
      auto known = turns.find(t.loop);
      if (t.slot < 0 && known == turns.end()) bad(s, "a view counts the turns of a loop that is not around it");
      reach((t.slot >= 0 ? t.limit : known->second - 1) * t.stride);
    }
    auto bytes = p.slots[std::size_t(v.slot)].bytes;
    if (least < 0 || (most + 1) * bytes_of(v.dtype) > bytes)
      bad(s, "elements " + std::to_string(least) + " to " + std::to_string(most) + " of slot " + std::to_string(v.slot) + ", which has " + std::to_string(bytes) + " bytes");
  }
  void read(const Step& s, int slot) const {
    if (slot < 0) return;
    int mine = memory(slot);
    if (!written.count(mine)) bad(s, "slot " + std::to_string(slot) + " is read before it is written");
    if (!placed) return;
    for (int other : beside[std::size_t(mine)])
      if (last_write[std::size_t(other)] > last_write[std::size_t(mine)])
        bad(s, "slot " + std::to_string(slot) + " is read, and slot " + std::to_string(other) + " was written over it");
  }
  void write(int slot) {
    written.insert(memory(slot));
    if (placed) last_write[std::size_t(memory(slot))] = now;
  }
  void find_overlaps() {
    beside.resize(p.slots.size()), last_write.assign(p.slots.size(), -1);
    std::vector<int> in_arena;
    for (int k = 0; k < int(p.slots.size()); ++k) {
      auto& s = p.slots[std::size_t(k)];
      if (s.home == Home::arena && s.alias < 0 && s.offset >= 0 && s.bytes > 0) in_arena.push_back(k);
    }
    auto slot = [&](int k) -> auto& { return p.slots[std::size_t(k)]; };
    std::sort(in_arena.begin(), in_arena.end(), [&](int a, int b) { return slot(a).offset < slot(b).offset; });
    for (std::size_t i = 0; i < in_arena.size(); ++i)
      for (auto j = i + 1; j < in_arena.size() && slot(in_arena[j]).offset < slot(in_arena[i]).offset + slot(in_arena[i]).bytes; ++j)
        beside[std::size_t(in_arena[i])].push_back(in_arena[j]), beside[std::size_t(in_arena[j])].push_back(in_arena[i]);
  }
  void fused(const Step& s) {   // in the order of its code: what it stores it may read
    for (auto& i : s.fused.code) {
      for (auto& t : i.view.terms) read(s, t.slot);
      if (i.code == program::Code::load || i.code > program::Code::store) read(s, i.view.slot);
      if (i.code >= program::Code::store) write(i.view.slot);
    }
  }
  void steps(const std::vector<Step>& all) {
    for (auto& s : all) {
      ++now;
      // Of a fused step only loads and stores are views; an iota has terms alone.
      if (s.kind != Kind::loop) each_walked_view(s, [&](const View& v, const Dims& dims) { inside(s, v, dims); });
      if (s.kind == Kind::fused) {
        fused(s);
      } else {
        each_view(s, [&](const View& v, bool writes) {
          for (auto& t : v.terms) read(s, t.slot);
          bool adds = (s.kind == Kind::contract && s.contract.accumulate) || s.kind == Kind::scatter;
          if (!writes || adds) read(s, v.slot);
        });
        each_view(s, [&](const View& v, bool writes) {
          if (writes && v.slot >= 0) write(v.slot);
        });
      }
      if (placed && s.scratch_bytes > 0 && (s.scratch < 0 || s.scratch + s.scratch_bytes > p.arena_bytes)) bad(s, "its scratch lies outside of the arena");
      if (s.kind != Kind::loop) continue;
      turns[s.loop.variable] = s.loop.trips;
      steps(s.loop.body);
      if (placed && s.loop.trips > 1) steps(s.loop.body);   // once more: what the first turn has written over is read in the second
      turns.erase(s.loop.variable);
    }
  }
  void run() {
    for (auto& s : p.slots)
      if (placed && s.home == Home::arena && s.alias < 0 && s.offset >= 0 && s.offset + s.bytes > p.arena_bytes)
        bad({}, "a slot of " + std::to_string(s.bytes) + " bytes at " + std::to_string(s.offset) + " lies outside of the arena");
    if (placed) find_overlaps();
    for (int s : p.argument_slots) write(s);
    steps(p.steps);
    for (int s : p.result_slots)
      if (p.slots[std::size_t(s)].bytes > 0 && !written.count(memory(s))) bad({}, "a result is never written");
  }
};

}  // namespace

void verify(const Program& p, const char* after, bool placed) { Check{p, after, placed}.run(); }

namespace {

// The calls of a Program in order, and the loops that hold some.
std::vector<std::string> calls_of(const std::vector<Step>& steps, bool& any) {
  const char* const names[] = {"all-reduce", "reduce-scatter", "all-gather", "exchange"};
  std::vector<std::string> out;
  for (auto& s : steps) {
    if (s.kind == Kind::collective) {
      auto& c = s.collective;
      std::string call = names[int(c.wire)];
      for (int x : c.over) call += " " + std::to_string(x);
      out.push_back(call + " of " + std::to_string(c.out.size()) + "; " + s.where), any = true;
    } else if (s.kind == Kind::loop) {
      bool inside = false;
      auto body = calls_of(s.loop.body, inside);
      if (!inside) continue;
      any = true;
      out.push_back(std::to_string(s.loop.trips) + " turns");
      out.insert(out.end(), body.begin(), body.end());
    }
  }
  return out;
}

}  // namespace

void verify_calls(const std::vector<const Program*>& devices) {
  std::vector<std::string> first;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    bool any = false;
    auto mine = calls_of(devices[d]->steps, any);
    if (d == 0) first = std::move(mine);
    else if (mine != first) {
      auto k = std::size_t(std::mismatch(mine.begin(), mine.end(), first.begin(), first.end()).first - mine.begin());
      auto at = [&](auto& all) { return k < all.size() ? all[k] : std::string("nothing"); };
      throw Error("[verify] call " + std::to_string(k) + " of device " + std::to_string(d) + " is " + at(mine) + ", that of device 0 " + at(first));
    }
  }
}

}  // namespace haliax
