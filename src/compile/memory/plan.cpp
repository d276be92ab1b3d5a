// Where everything lies. Slots that die give their memory to slots that come later; an elementwise step writes over an operand that dies
// with it; a carry is updated in its place; a donated argument becomes the result that replaces it.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <string_view>

#include "compile/memory/memory.h"
#include "compile/memory/views.h"

namespace haliax {
namespace {

using program::Code;
using program::Home;
using program::Program;
using program::Step;
using program::View;

constexpr std::int64_t kAlign = 64;

// HALIAX_POISON=1 or a debug build.
bool poisons() {
  auto* asked = std::getenv("HALIAX_POISON");
#ifdef NDEBUG
  return asked && *asked == '1';
#else
  return !asked || *asked != '0';
#endif
}

struct Access {
  int position;
  Step* step;
  bool writes;
  const View* view;
};
struct LoopSpan { int begin, end; };

struct Planner {
  Program& p;
  const std::vector<bool>& donated;
  bool reuse;
  int clock = 0;
  std::vector<std::vector<Access>> access = {};   // by slot
  std::vector<LoopSpan> spans = {};
  std::vector<std::pair<Step*, int>> scratch = {};
  struct CopyStep { Step* step; int position; std::vector<LoopSpan> inside; };
  std::vector<CopyStep> copies = {};
  std::vector<std::pair<Step*, int>> fused = {};
  std::vector<LoopSpan> open = {};

  void touch(const View& v, Step* s, bool writes) {
    if (v.slot < 0) return;
    access[std::size_t(v.slot)].push_back({clock, s, writes, &v});
    for (auto& t : v.terms) if (t.slot >= 0) access[std::size_t(t.slot)].push_back({clock, s, false, nullptr});
  }
  void walk(std::vector<Step>& steps) {
    for (auto& s : steps) {
      ++clock;
      if (s.scratch_bytes > 0) scratch.push_back({&s, clock});
      if (s.kind == program::Kind::fused) fused.push_back({&s, clock});
      if (s.kind == program::Kind::copy) copies.push_back({&s, clock, open});
      each_view(s, [&](const View& v, bool writes) { touch(v, &s, writes); });
      if (s.kind != program::Kind::loop) continue;
      auto at = spans.size();
      spans.push_back({clock, 0});
      open.push_back({clock, int(at)});
      walk(s.loop.body);
      open.pop_back();
      spans[at].end = ++clock;
    }
  }

  // ---- lifetimes: of a slot and all that share its memory ----
  struct Life { int first = 1 << 30, last = -1; };
  std::vector<Life> life = {};
  std::vector<int> root = {};
  int find_root(int s) const {
    while (root[std::size_t(s)] != s) s = root[std::size_t(s)];
    return s;
  }
  Life life_of(int slot) const {
    Life l;
    auto& all = access[std::size_t(slot)];
    if (all.empty()) return l;
    bool given = p.slots[std::size_t(slot)].home == Home::argument;   // made before all steps
    l.first = given ? 0 : all.front().position, l.last = all.back().position;
    for (auto& s : spans) {   // what is touched inside and outside of a loop stays there for all its turns
      auto inside = [&](const Access& a) { return a.position > s.begin && a.position < s.end; };
      auto count = std::count_if(all.begin(), all.end(), inside);
      if (count > 0 && (given || std::size_t(count) < all.size())) l.first = std::min(l.first, s.begin), l.last = std::max(l.last, s.end);
    }
    if (given && !is_donated(slot)) l.last = 1 << 30;
    if (p.slots[std::size_t(slot)].home == Home::result) l.last = 1 << 30;
    return l;
  }
  bool is_donated(int slot) const {
    auto& s = p.slots[std::size_t(slot)];
    return s.home == Home::argument && donated[std::size_t(s.index)];
  }
  // What came from other devices shares memory with nothing else, or that would be kept in scratch.
  bool alike(int a, int b) const { return p.slots[std::size_t(find_root(a))].gathered == p.slots[std::size_t(find_root(b))].gathered; }
  bool shareable(int slot) const { return p.slots[std::size_t(slot)].home == Home::arena || is_donated(slot); }
  void share(int slot, int with) {   // slot lies in the memory of `with`
    int r = find_root(with);
    root[std::size_t(slot)] = r;
    auto &a = life[std::size_t(r)], &b = life[std::size_t(slot)];
    a.first = std::min(a.first, b.first), a.last = std::max(a.last, b.last);
  }
  static bool same_place(const View& a, const View& b) { return a.offset == b.offset && a.strides == b.strides && a.terms == b.terms && a.dtype == b.dtype; }
  std::int64_t bytes(int slot) const { return p.slots[std::size_t(slot)].bytes; }
  bool free_to_share(int slot) const { return root[std::size_t(slot)] == slot; }

  // An elementwise step writes over an operand that dies with it.
  void in_place(Step& s, int position) {
    auto& code = s.fused.code;
    for (auto& store : code) {
      if (store.code != Code::store) continue;
      int o = store.view.slot;
      auto& out = p.slots[std::size_t(o)];
      if (out.home == Home::argument || !free_to_share(o) || life[std::size_t(o)].first != position) continue;
      int writes = 0;
      for (auto& i : code) writes += i.code >= Code::store && i.view.slot == o;
      if (writes != 1) continue;
      for (auto& load : code) {
        if (load.code != Code::load) continue;
        int i = load.view.slot, r = find_root(i);
        bool donated_result = out.home == Home::result && is_donated(r);
        if (i == o || !alike(i, o) || !(donated_result || (out.home == Home::arena && shareable(r)))) continue;
        if (bytes(i) != bytes(o) || bytes(r) != bytes(o) || !same_place(load.view, store.view) || life[std::size_t(r)].last != position) continue;
        if (load.inner != store.inner && s.fused.outer < int(s.fused.dims.size())) continue;
        bool alone = true;   // every read of that memory here is at the same place, every write is this one
        for (auto& other : code) {
          bool touches = (other.code == Code::load || other.code >= Code::store) && find_root(other.view.slot) == r;
          if (touches && !(other.code == Code::load && same_place(other.view, store.view))) alone = false;
          for (auto& t : other.view.terms) alone &= t.slot < 0 || find_root(t.slot) != r;
        }
        if (!alone) continue;
        share(o, i);
        break;
      }
    }
  }
  bool covers(const program::Copy& c) const {   // whole slots, in the same order
    std::int64_t n = bytes_of(c.x.dtype);
    for (auto d : c.dims) n *= d;
    return same_place(c.x, c.out) && c.x.offset == 0 && c.x.terms.empty() && n == bytes(c.x.slot) && n == bytes(c.out.slot);
  }
  void drop(Step& s) { s.kind = program::Kind::fused, s.fused = {}; }   // swept out afterwards

  void copy_steps() {
    for (auto& c : copies) {
      auto& copy = c.step->copy;
      int x = copy.x.slot, o = copy.out.slot, rx = find_root(x), ro = find_root(o);
      if (!covers(copy) || !alike(x, o)) continue;
      if (rx == ro) { drop(*c.step); continue; }
      auto &xs = p.slots[std::size_t(x)], &os = p.slots[std::size_t(o)];
      auto &lx = life[std::size_t(rx)], &lo = life[std::size_t(ro)];
      // The start of a carry, or a result, that nobody reads again: it becomes the carry.
      if (lo.first == c.position && free_to_share(o) && lx.last == c.position && shareable(rx) && os.home != Home::argument &&
          (os.home == Home::arena || is_donated(rx))) {
        share(o, x), drop(*c.step);
        continue;
      }
      // What a result is copied from, if nobody reads it again, is made in the result's memory.
      bool dies = lx.last == c.position && p.slots[std::size_t(rx)].home == Home::arena;
      if (dies && lo.first == c.position && os.home == Home::result && free_to_share(o)) {
        share(rx, o), drop(*c.step);
        continue;
      }
      // The next value of a carry: may it be made in the carry's place? Only if the old value is not read afterwards.
      if (xs.home != Home::arena || !free_to_share(x) || c.inside.empty() || os.home == Home::argument) continue;
      auto span = spans[std::size_t(c.inside.back().end)];
      if (!(lx.first > span.begin && lx.first < span.end)) continue;
      bool ok = true;
      for (int slot = 0; slot < int(p.slots.size()); ++slot) {
        if (find_root(slot) != ro) continue;
        for (auto& a : access[std::size_t(slot)]) {
          if (a.position <= span.begin || a.position >= span.end || a.step == c.step) continue;
          if (a.position > lx.first) ok = false;
          if (a.position == lx.first) ok &= elementwise(*a.step, x, ro);
        }
      }
      if (ok) share(x, o), drop(*c.step);
    }
    for (auto& c : copies) {   // of the old value, over which the new one is made now
      auto& copy = c.step->copy;
      if (c.step->kind == program::Kind::copy && covers(copy) && find_root(copy.x.slot) == find_root(copy.out.slot)) drop(*c.step);
    }
  }
  bool elementwise(const Step& s, int made, int over) const {   // reads `over` only where it writes `made`
    if (s.kind == program::Kind::copy) return covers(s.copy) && s.copy.out.slot == made;
    if (s.kind != program::Kind::fused) return false;
    const program::Instr* store = nullptr;
    for (auto& i : s.fused.code)
      if (i.code >= Code::store && find_root(i.view.slot) == find_root(made)) {
        if (store || i.code != Code::store) return false;
        store = &i;
      }
    if (!store) return false;
    for (auto& i : s.fused.code) {
      if (i.code == Code::load && find_root(i.view.slot) == over && (!same_place(i.view, store->view) || i.inner != store->inner)) return false;
      for (auto& t : i.view.terms) if (t.slot >= 0 && find_root(t.slot) == over) return false;
    }
    return true;
  }
  static void sweep(std::vector<Step>& steps) {
    std::erase_if(steps, [](auto& s) { return s.kind == program::Kind::fused && s.fused.code.empty(); });
    for (auto& s : steps) if (s.kind == program::Kind::loop) sweep(s.loop.body);
  }

  struct Item { std::int64_t bytes; int first, last; std::int64_t* offset; const char* purpose; };
  void place() {
    std::vector<Item> items;
    for (std::size_t s = 0; s < p.slots.size(); ++s)
      if (root[s] == int(s) && p.slots[s].home == Home::arena && life[s].last >= 0)
        items.push_back({p.slots[s].bytes, life[s].first, life[s].last, &p.slots[s].offset, p.slots[s].purpose});
    for (auto& [s, at] : scratch) items.push_back({s->scratch_bytes, at, at, &s->scratch, "scratch"});
    auto up = [](std::int64_t b) { return (b + kAlign - 1) / kAlign * kAlign; };
    if (!reuse) {
      for (auto& i : items) *i.offset = p.arena_bytes, p.arena_bytes += up(i.bytes);
      return use(items);
    }
    std::stable_sort(items.begin(), items.end(), [](auto& a, auto& b) { return a.bytes > b.bytes; });
    std::vector<const Item*> placed;   // by offset
    for (auto& item : items) {
      std::int64_t best = -1, best_gap = 0, end = 0;
      for (auto* o : placed) {
        if (o->last < item.first || o->first > item.last) continue;
        auto gap = *o->offset - end;
        if (gap >= up(item.bytes) && (best < 0 || gap < best_gap)) best = end, best_gap = gap;
        end = std::max(end, *o->offset + up(o->bytes));
      }
      *item.offset = best < 0 ? end : best;
      p.arena_bytes = std::max(p.arena_bytes, *item.offset + up(item.bytes));
      placed.insert(std::upper_bound(placed.begin(), placed.end(), &item, [](auto* a, auto* b) { return *a->offset < *b->offset; }), &item);
    }
    use(items);
  }
  // What is alive when most is; the rest of the arena are gaps.
  void use(const std::vector<Item>& items) {
    std::vector<std::int64_t> grows(std::size_t(clock) + 2);
    for (auto& i : items) grows[std::size_t(i.first)] += i.bytes, grows[std::size_t(std::min(i.last, clock)) + 1] -= i.bytes;
    std::int64_t now = 0, most = 0;
    int at = 0;
    for (int t = 0; t <= clock; ++t)
      if (now += grows[std::size_t(t)]; now > most) most = now, at = t;
    std::int64_t gaps = p.arena_bytes;
    for (auto& i : items) {
      if (reuse && (i.first > at || i.last < at)) continue;
      auto known = std::find_if(p.at_peak.begin(), p.at_peak.end(), [&](auto& u) { return std::string_view(u.purpose) == i.purpose; });
      if (known == p.at_peak.end()) p.at_peak.push_back({i.purpose, i.bytes});
      else known->bytes += i.bytes;
      gaps -= i.bytes;
    }
    if (gaps > 0) p.at_peak.push_back({"gaps", gaps});
  }

  // Each float slot of gathered values is filled with NaN after its last reader: what reads it later is found.
  void poison() {
    std::map<int, std::vector<Step>> after;   // by position
    for (std::size_t s = 0; s < p.slots.size(); ++s) {
      if (!p.slots[s].gathered || root[s] != int(s) || life[s].last < 0 || life[s].last > clock) continue;
      auto dtype = access[s].front().view->dtype;
      if (!is_float(dtype)) continue;
      Step fill;
      fill.why = "poison", fill.where = "scratch, after its last reader";
      fill.fused = {{p.slots[s].bytes / bytes_of(dtype)}, 1, {}};
      fill.fused.code.push_back({.code = Code::constant, .dtype = dtype, .number = std::numeric_limits<double>::quiet_NaN(), .view = {}});
      fill.fused.code.push_back({.code = Code::store, .dtype = dtype, .args = {0, -1, -1, -1}, .view = {int(s), dtype, 0, {1}, {}}});
      after[life[s].last].push_back(std::move(fill));
    }
    if (after.empty()) return;
    int at = 0;
    auto put = [&](auto& self, std::vector<Step>& steps) -> void {   // positions as in `walk`
      std::vector<Step> out;
      for (auto& s : steps) {
        ++at;
        if (s.kind == program::Kind::loop) self(self, s.loop.body), ++at;
        out.push_back(std::move(s));
        for (auto& fill : after[at]) out.push_back(fill);
      }
      steps = std::move(out);
    };
    put(put, p.steps);
  }

  void run() {
    access.resize(p.slots.size());
    walk(p.steps);
    root.resize(p.slots.size());
    life.resize(p.slots.size());
    for (std::size_t s = 0; s < p.slots.size(); ++s) root[s] = int(s), life[s] = life_of(int(s));
    if (reuse) {
      for (auto& [s, at] : fused) in_place(*s, at);
      copy_steps();
    }
    for (std::size_t s = 0; s < p.slots.size(); ++s) if (find_root(int(s)) != int(s)) p.slots[s].alias = find_root(int(s));
    place();
    if (poisons()) poison();
    sweep(p.steps);
    check_received(p);
    p.donated.assign(std::size_t(p.arguments), -1);
    p.peak_bytes = p.arena_bytes;
    for (int r = 0; r < p.results; ++r) {
      auto& s = p.slots[std::size_t(p.result_slots[std::size_t(r)])];
      if (s.alias >= 0 && p.slots[std::size_t(s.alias)].home == Home::argument) p.donated[std::size_t(p.slots[std::size_t(s.alias)].index)] = r;
      else p.peak_bytes += s.bytes;
    }
  }
};

}  // namespace

void plan_memory(Program& p, const std::vector<bool>& donated, bool reuse) { Planner{p, donated, reuse}.run(); }

}  // namespace haliax
