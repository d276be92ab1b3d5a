// Checks that gathered values are not retained.
#include <map>
#include <set>

#include "base/verify_error.h"
#include "compile/memory/memory.h"
#include "program/views.h"

namespace haliax {
namespace {

using program::Home;
using program::Kind;
using program::Program;
using program::Step;
using program::View;

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

}  // namespace

void check_gathered(const Program& p) {
  GatheredCheck c{p};
  c.slots();
  c.steps(p.steps, nullptr);
}

}  // namespace haliax
