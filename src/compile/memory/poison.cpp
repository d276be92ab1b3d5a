// HALIAX_POISON=1: fills the memory of gathered values with NaN after the last reader, which
// reveals later reads.
#include <limits>
#include <map>
#include <set>

#include "compile/memory/memory.h"
#include "program/views.h"
#include "graph/node.h"

namespace haliax {
namespace {

using program::Code;
using program::Home;
using program::Instr;
using program::Kind;
using program::Program;
using program::Step;
using program::View;

struct Poison {
  const Program& p;
  // Gathered float arrays in the arena with an access.
  std::map<int, DType> gathered = {};

  explicit Poison(const Program& program) : p(program) {
    each_step(p.steps, [&](auto& s) {
      each_access(s, [&](int slot, bool, const View* view) {
        const int m = p.memory(slot);
        auto& its = p.slot(m);
        if (view && is_float(view->dtype) && its.gathered && its.home == Home::arena)
          gathered.emplace(m, view->dtype);
      });
    });
  }
  std::set<int> accessed(const Step& step) const {  // including the steps in its body
    std::set<int> out;
    auto add = [&](auto& s) {
      each_access(s, [&](int slot, bool, const View*) {
        if (gathered.count(p.memory(slot))) out.insert(p.memory(slot));
      });
    };
    add(step);
    each_step(step.body, add);
    return out;
  }
  Step filled(int memory) const {
    const auto dtype = gathered.at(memory);
    Instr nan{
        .code = Code::constant, .dtype = dtype, .number = std::numeric_limits<double>::quiet_NaN()};
    Instr store{.code = Code::store,
                .dtype = dtype,
                .args = {0, -1, -1, -1},
                .view = {memory, dtype, 0, {1}, {}}};
    Step fill{.fused = {{p.slot(memory).bytes / bytes_of(dtype)}, 1, {nan, store}}, .op = "poison"};
    fill.where = "gathered, after its last reader";
    return fill;
  }
  // Fills the memories after the last step that accesses them. If this step is a loop and no other
  // step accesses the memory, the fill is in the body of the loop. The fill follows a conditional,
  // since its body may be skipped.
  void after_last_use(std::vector<Step>& steps, const std::set<int>& memories) const {
    std::map<int, std::size_t> last, times;
    for (std::size_t k = 0; k < steps.size(); ++k)
      for (int m : accessed(steps[k]))
        if (memories.count(m)) {
          last[m] = k;
          ++times[m];
        }
    std::vector<Step> out;
    for (std::size_t k = 0; k < steps.size(); ++k) {
      std::set<int> inside, after;
      for (auto& [m, at] : last)
        if (at == k) (steps[k].kind == Kind::loop && times[m] == 1 ? inside : after).insert(m);
      if (!inside.empty()) after_last_use(steps[k].body, inside);
      out.push_back(std::move(steps[k]));
      for (int m : after) out.push_back(filled(m));
    }
    steps = std::move(out);
  }
};

}  // namespace

void poison(Program& p) {
  const Poison poison_fill(p);
  std::set<int> all;
  for (auto& [m, dtype] : poison_fill.gathered) all.insert(m);
  poison_fill.after_last_use(p.steps, all);
}

}  // namespace haliax
