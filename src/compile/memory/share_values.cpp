// Values that share memory with a value that they replace: the result of an elementwise step with
// an operand, a result with a donated argument, and the next value of a carry with the carry.
#include <algorithm>

#include "compile/memory/shared_slots.h"
#include "program/stripes.h"

namespace haliax {
namespace {

using program::Code;
using program::Home;
using program::Instr;
using program::Kind;
using program::Step;

class ValueSharing {
 public:
  explicit ValueSharing(SharedSlots& s) : s_(s) {}
  void run() {
    return_donated();
    update_carries();
    for (int at = 1; at <= s_.last(); ++at)
      if (auto& s = s_.timeline.step(at); s.kind == Kind::fused) in_place(s.fused, at);
    for (int at = 1; at <= s_.last(); ++at)
      if (auto [s, span] = s_.timeline.positions()[std::size_t(at)];
          s->kind == Kind::copy && try_join(*s, at, body_at(span)))
        s_.drop(*s);
  }

 private:
  // Returns the body with this index; null for -1.
  const BodySpan* body_at(int span) const {
    return span < 0 ? nullptr : &s_.timeline.spans()[std::size_t(span)];
  }
  static bool writes_once(const program::Fused& f, int slot) {
    auto writes = [&](auto& i) { return is_store(i.code) && i.view.slot == slot; };
    return std::count_if(f.code.begin(), f.code.end(), writes) == 1;
  }
  // Writes the result of an elementwise step over an operand that this step reads last.
  void in_place(const program::Fused& f, int position) {
    for (auto& store : f.code) {
      if (store.code != Code::store) continue;
      int o = store.view.slot;
      auto& out = s_.p.slot(o);
      if (out.home == Home::argument || !s_.is_root(o) || s_.liveness(o).first != position)
        continue;
      if (!writes_once(f, o)) continue;
      auto over = std::find_if(f.code.begin(), f.code.end(),
                               [&](auto& load) { return may_overwrite(f, load, store, position); });
      if (over != f.code.end()) s_.share(o, over->view.slot);
    }
  }
  // Returns true if the result may overwrite the memory of this load.
  bool may_overwrite(const program::Fused& f, const Instr& load, const Instr& store, int position) {
    if (load.code != Code::load) return false;
    int i = load.view.slot, r = s_.find_root(i), o = store.view.slot;
    auto home = s_.p.slot(o).home;
    bool may = (home == Home::result && s_.is_donated(r)) ||
               (home == Home::arena && s_.is_overwritable(r));
    if (i == o || !s_.equally_gathered(i, o) || !may || s_.liveness(r).last != position)
      return false;
    auto bytes = s_.p.slot(o).bytes;
    if (s_.p.slot(i).bytes != bytes || s_.p.slot(r).bytes != bytes ||
        !same_place(load.view, store.view))
      return false;
    if (load.inner != store.inner && f.outer < int(f.dims.size())) return false;
    // Every read of this memory in the step is at the same place, and the only write is this store.
    return std::all_of(f.code.begin(), f.code.end(), [&](auto& other) {
      bool touches = accesses_memory(other.code) && s_.find_root(other.view.slot) == r;
      return !s_.has_offset_in(other.view, r) &&
             (!touches || (other.code == Code::load && same_place(other.view, store.view)));
    });
  }

  // A donated argument that is returned unchanged: the result is placed in its memory, and no other
  // value is written there.
  void return_donated() {
    for (auto& [s, span] : s_.timeline.positions()) {
      if (!s || s->kind != Kind::copy || span >= 0 || !s_.copies_full_slots(s->copy)) continue;
      int x = s->copy.x.slot, o = s->copy.out.slot;
      auto& all = s_.timeline.accesses(o);
      bool is_written_once =
          std::count_if(all.begin(), all.end(), [](auto& a) { return a.writes; }) == 1;
      // the first result that returns this argument
      bool first = s_.is_donated(x) && s_.liveness(x).last != SharedSlots::kForever;
      bool may = first && is_written_once && s_.p.slot(o).home == Home::result && s_.is_root(o) &&
                 s_.equally_gathered(x, o);
      if (may) {
        s_.share(o, x);
        s_.drop(*s);
      }
    }
  }
  // Places both sides of a copy in one memory, if this is legal. Returns true if they are.
  bool try_join(const Step& step, int position, const BodySpan* body) {
    auto& copy = step.copy;
    int x = copy.x.slot, out = copy.out.slot;
    int root_x = s_.find_root(x), root_out = s_.find_root(out);
    if (!s_.copies_full_slots(copy) || !s_.equally_gathered(x, out)) return false;
    if (root_x == root_out) return true;
    auto home = s_.p.slot(out).home;
    if (home == Home::argument) return false;
    // x has its last read and `out` its first write at this copy, so they become one slot. In this
    // way, the start of a carry becomes the carry, and a result is computed in its own memory.
    if (s_.liveness(root_x).last == position && s_.liveness(root_out).first == position &&
        s_.is_root(out) && s_.is_overwritable(root_x)) {
      // The shared memory is that of a result, unless x is a donated argument, which the result
      // replaces.
      if (home == Home::arena || s_.is_donated(root_x))
        s_.share(out, x);
      else
        s_.share(root_x, out);
      return true;
    }
    // x is the next value of a carry
    if (!is_computed_in(x, body) || !old_reads(root_x, out, step, *body).end_before_write)
      return false;
    s_.share(root_x, out);
    return true;
  }
  // ---- the next value of a carry, computed in the memory of the carry ----
  // This is legal only if the old value has no later reader.
  bool is_computed_in(int x, const BodySpan* body) const {
    if (!body || s_.p.slot(s_.find_root(x)).home != Home::arena) return false;
    auto created = s_.liveness(s_.find_root(x)).first;
    return created > body->begin && created < body->end;
  }
  struct OldReads {
    bool end_before_write, are_in_writer;
  };
  // end_before_write: the last read of the old value is before x is computed, or in the step that
  // computes x, at the place of the write. are_in_writer: the latter step reads the old value.
  OldReads old_reads(int x, int carry, const Step& move, const BodySpan& body) const {
    auto created = s_.liveness(x).first;
    OldReads reads{true, false};
    for (int slot = 0; slot < int(s_.p.slots.size()); ++slot) {
      if (s_.find_root(slot) != s_.find_root(carry)) continue;
      for (auto& a : s_.timeline.accesses(slot)) {
        if (a.at <= body.begin || a.at >= body.end || a.step == &move || a.at < created) continue;
        reads.end_before_write &=
            a.at == created && s_.is_elementwise(*a.step, x, s_.find_root(carry));
        reads.are_in_writer |= a.at == created;
      }
    }
    return reads;
  }
  // Returns true if x is computed over the old value, or over another such value with no later
  // reader: h + a, and (h + a) + b. `chain`: the values on the way.
  bool find_chain(int x, int carry, const Step& move, const BodySpan* body,
                  std::vector<int>& chain) {
    if (!s_.is_root(x) || !is_computed_in(x, body)) return false;
    auto [end_before_write, are_in_writer] = old_reads(x, carry, move, *body);
    chain.push_back(x);
    if (end_before_write && are_in_writer) return true;
    int created = s_.liveness(x).first;
    auto& f = s_.timeline.step(created).fused;
    auto store = std::find_if(f.code.begin(), f.code.end(),
                              [&](auto& i) { return i.code == Code::store && i.view.slot == x; });
    if (end_before_write && store != f.code.end() && writes_once(f, x))
      for (auto& load : f.code)
        if (may_overwrite(f, load, *store, created) &&
            find_chain(load.view.slot, carry, move, body, chain))
          return true;
    chain.pop_back();
    return false;
  }
  void update_carries() {
    for (auto& [s, span] : s_.timeline.positions()) {
      if (!s || s->kind != Kind::copy || span < 0 || !s_.copies_full_slots(s->copy)) continue;
      int x = s->copy.x.slot, o = s->copy.out.slot;
      std::vector<int> chain;
      if (s_.p.slot(o).home == Home::argument || !s_.equally_gathered(x, o) ||
          !find_chain(x, o, *s, body_at(span), chain))
        continue;
      for (int slot : chain) s_.share(slot, o);
      s_.drop(*s);
    }
  }

  SharedSlots& s_;
};

}  // namespace

void share_values(SharedSlots& s) { ValueSharing(s).run(); }

}  // namespace haliax
