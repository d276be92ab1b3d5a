// The legality check of scratch: memory of values that other devices sent.
#include <algorithm>
#include <map>

#include "haliax/error.h"
#include "compile/memory/memory.h"
#include "compile/memory/views.h"

namespace haliax {
namespace {

using program::Home;
using program::Program;
using program::Step;
using program::View;

struct Check {
  const Program& p;
  std::vector<const Step*> around = {};                        // loops, outermost first
  std::map<int, std::vector<const Step*>> written_in = {};     // gathered slot -> the loops around its first write
  std::map<int, const Step*> left = {};                        // slots whose turn is over -> the loop

  [[noreturn]] static void refuse(const Step& s, const std::string& what) {
    throw Error("[scratch] " + what + ": what other devices send is read at once and never kept" + (s.where.empty() ? "" : "; " + s.where));
  }
  bool gathered(int slot) const { return slot >= 0 && p.slots[std::size_t(slot)].gathered; }
  void slots() const {
    for (auto& s : p.slots) {
      if (s.gathered && s.home != Home::arena) refuse({}, s.home == Home::result ? "a result is scratch" : "an argument is scratch");
      if (s.alias >= 0 && s.gathered != p.slots[std::size_t(s.alias)].gathered)
        refuse({}, s.home == Home::result ? "a result shares memory with scratch" : "a value that is kept shares memory with scratch");
    }
  }
  void read(int slot, const Step& s) {
    if (!gathered(slot)) return;
    auto known = written_in.find(slot);
    if (known == written_in.end()) refuse(s, around.empty() ? "scratch is read before it is written" : "a carry of a loop is scratch");
    if (auto over = left.find(slot); over != left.end()) refuse(s, "a value that a loop keeps is scratch");
  }
  void steps(const std::vector<Step>& all) {
    for (auto& s : all) {
      each_view(s, [&](const View& v, bool writes) {
        if (!writes) read(v.slot, s);
        for (auto& t : v.terms) read(t.slot, s);
      });
      each_view(s, [&](const View& v, bool writes) {
        if (writes && gathered(v.slot) && written_in.try_emplace(v.slot, around).second) left.erase(v.slot);
      });
      if (s.kind != program::Kind::loop) continue;
      around.push_back(&s);
      steps(s.loop.body);
      for (auto& [slot, loops] : written_in)
        if (!loops.empty() && loops.back() == &s) left[slot] = &s;
      around.pop_back();
    }
  }
};

}  // namespace

void check_received(const Program& p) {
  if (std::none_of(p.slots.begin(), p.slots.end(), [](auto& s) { return s.gathered; })) return;
  Check c{p};
  c.slots();
  c.steps(p.steps);
}

}  // namespace haliax
