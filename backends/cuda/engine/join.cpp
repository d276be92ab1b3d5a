// Merges equal, independent kernels into one launch, at the position of the first one. An example
// is the steps of an optimizer over the leaves of a model. Each kernel does the same work with the
// same number of blocks, so results are bitwise identical.
#include <algorithm>
#include <map>
#include <tuple>

#include "sequence.h"

namespace haliax::cuda {
namespace {

using namespace program;

constexpr std::size_t kNear = 256;  // items: maximum distance of the search

// A range of bytes that an item accesses. Arguments and results have separate memory, and so have
// flags and shadow results.
struct Touched {
  int where = 0;  // slot, or kArenaSlot, kFlagSlot, kShadowSlot
  std::int64_t begin = 0, end = 0;
  bool writes = false;
  bool conflicts_with(const Touched& o) const {
    return where == o.where && begin < o.end && o.begin < end && (writes || o.writes);
  }
};
using AllTouched = std::vector<Touched>;
bool conflict(const AllTouched& a, const AllTouched& b) {
  return std::any_of(a.begin(), a.end(), [&](auto& x) {
    return std::any_of(b.begin(), b.end(), [&](auto& y) { return x.conflicts_with(y); });
  });
}

class Joiner {
 public:
  explicit Joiner(const Program& p) : program_(p) {}

  std::vector<Item> join(std::vector<Item> items) {
    for (auto& i : items)
      if (!i.body.empty()) i.body = Joiner(program_).join(std::move(i.body));
    std::map<Key, int> many;  // number of kernels by key
    for (auto& i : items)
      if (is_kernel(i)) ++many[key_of(i)];
    for (auto& i : items) {
      Group g{.touched = touched(i)};
      const bool has_equals = is_kernel(i) && many[key_of(i)] > 1;
      if (has_equals) {
        g.after = last_collective(g.touched);
        g.differs.resize(i.launch.arguments.size());
      }

      g.all.push_back(std::move(i));
      if (auto* into = has_equals ? equal_before(g) : nullptr) {
        into->differs = differing(*into, g.all[0].launch);
        into->touched.insert(into->touched.end(), g.touched.begin(), g.touched.end());
        into->all.push_back(std::move(g.all[0]));
      } else {
        done_.push_back(std::move(g));
      }
    }
    std::vector<Item> out;
    for (auto& g : done_) {
      std::vector<Launch> launches;
      for (auto& i : g.all) launches.push_back(i.launch);
      out.push_back(std::move(g.all[0]));
      if (launches.size() > 1) out.back().launch = joined(launches);
    }
    return out;
  }

 private:
  // Items that become one launch. Other kinds of items are groups of one.
  struct Group {
    std::vector<Item> all = {};
    AllTouched touched = {};
    std::vector<bool> differs = {};  // by argument
    // number of groups up to the last collective that it must wait for
    std::size_t after = 0;
  };
  using Key = std::tuple<std::string_view, int, std::int64_t, bool>;
  static bool is_kernel(const Item& i) { return i.kind == Item::Kind::launch; }
  static Key key_of(const Item& i) {
    return {i.launch.source, i.launch.threads, i.launch.shared, i.launch.waits};
  }

  // ---- accessed memory ----
  // Entire slots, because loops and scalars on the device move views within them.
  void add(AllTouched& to, int slot, const Step& of, bool writes) const {
    auto& l = of.loop;  // a loop in parallel slots may write all of its slots
    if (slot == kArenaSlot && of.kind == Kind::loop)
      to.push_back({kArenaSlot, l.parallel_slot_start,
                    l.parallel_slot_start + l.parallel_slot_bytes * l.parallel_slots, true});
    else if (slot == kArenaSlot)
      to.push_back({kArenaSlot, of.scratch, of.scratch + of.scratch_bytes, writes});
    if (slot == kFlagSlot || slot == kShadowSlot) to.push_back({slot, 0, 1, writes});
    if (slot < 0) return;
    slot = program_.memory(slot);
    auto& s = program_.slot(slot);
    const bool in_arena = s.home == Home::arena;
    to.push_back({in_arena ? kArenaSlot : slot, in_arena ? s.offset : 0,
                  (in_arena ? s.offset : 0) + s.bytes, writes});
  }
  void add(AllTouched& to, const Item& i) const {
    for (auto& w : i.launch.arguments) add(to, w.slot, *i.step, w.writes);
    for (auto& m : i.messages) add(to, m.at.slot, *i.step, !m.sends);
    for (auto& part : i.body) add(to, part);
  }
  AllTouched touched(const Item& i) const {
    AllTouched out;
    add(out, i);
    return out;
  }

  // ---- groups ----
  std::size_t last_collective(const AllTouched& mine) const {
    for (auto k = done_.size(); k-- > 0;)
      if (done_[k].all[0].kind == Item::Kind::collective && conflict(done_[k].touched, mine))
        return k + 1;
    return 0;
  }
  static std::vector<bool> differing(const Group& g, const Launch& l) {
    auto out = g.differs;
    for (std::size_t k = 0; k < out.size(); ++k)
      out[k] = out[k] || l.arguments[k] != g.all[0].launch.arguments[k];
    return out;
  }
  // Kernels with scratch memory merge only within one step. A merged kernel must not delay a member
  // by a collective, because collectives run concurrently.
  static bool fits(const Group& g, const Group& one) {
    auto &first = g.all[0], &i = one.all[0];
    if (!is_kernel(first) || key_of(first) != key_of(i) ||
        g.all.size() + 1 > most_joined(differing(g, i.launch)))
      return false;
    auto in_scratch = [](auto& w) { return w.slot == kArenaSlot; };
    const bool scratch =
        std::any_of(i.launch.arguments.begin(), i.launch.arguments.end(), in_scratch);
    return one.after <= g.after && (!scratch || first.step == i.step);
  }
  // Returns an earlier group that the kernel can join, ahead of all groups in between, or null.
  Group* equal_before(const Group& one) {
    for (std::size_t back = 1; back <= std::min(kNear, done_.size()); ++back) {
      auto& g = done_[done_.size() - back];
      if (g.all[0].kind == Item::Kind::host || conflict(g.touched, one.touched)) return nullptr;
      if (fits(g, one)) return &g;
    }
    return nullptr;
  }

  const Program& program_;
  std::vector<Group> done_;
};

}  // namespace

void join_equal(Sequence& s, const Program& p) { s.items = Joiner(p).join(std::move(s.items)); }

}  // namespace haliax::cuda
