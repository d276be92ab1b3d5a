// Searches for the plan with the least communication.
#include <algorithm>
#include <set>
#include <tuple>

#include "compile/sharding/planner.h"
#include "compile/sharding/gather_reasons.h"

namespace haliax::partitioning {
namespace {

// most elements that the devices compute, relative to the default plan
constexpr double kMostPoints = 1.01;

std::string op_signature(const Node& n, OpChoice choice) {
  auto text = std::string(n.op->name) + to_string(n.axes);
  // All addends of a sum stay partial together, otherwise nothing is saved.
  if (choice == Choice::keep_partial) return text;
  for (auto& x : n.in) text += x ? to_string(x->axes) : "-";
  return text;
}
}  // namespace

bool is_cheaper(const Plan& p, const GlobalGraph& graph, const Plan& other,
                const GlobalGraph& of_other, bool strict) {
  return p.bytes < other.bytes - 1 &&
         !(strict && unrequested_gathers(p, graph) > unrequested_gathers(other, of_other));
}

// Compares the communication volume of the full program for each choice, such as gathering a weight
// or moving an activation. A gather that another op needs anyway adds nothing, and reductions that
// share a collective are counted once. A choice is accepted only if it reduces the total.
Plan best_plan(GlobalGraph& graph, Planner& planner, bool strict) {
  Choices choices;
  const int given = int(graph.values.size());
  auto [best, op_alternatives, stack_alternatives] = planner.run(choices, true);
  auto most_points = best.points * kMostPoints;
  auto accept = [&, &best = best](const Choices& c) {
    Plan p = planner.run(c, false).plan;
    if (p.points > most_points || !is_cheaper(p, graph, best, graph, strict)) return false;
    best = std::move(p);
    choices = c;
    return true;
  };
  for (auto& [stack, sharding] : stack_alternatives) {
    auto c = choices;
    c.stacks[stack] = sharding;
    accept(c);
  }
  // Ops that look equal in each layer are decided together. Ops of an expansion are decided before
  // the op that they expand.
  std::map<std::tuple<bool, std::string, OpChoice>, std::set<int>> equal_ops;
  for (auto& [n, choice] : op_alternatives)
    equal_ops[{n < given, op_signature(graph.node(n), choice), choice}].insert(n);
  struct Declined {
    const std::set<int>& nodes;
    OpChoice choice;
    std::set<int> read = {};  // operands, without weights, which are moved for many readers
  };
  std::vector<Declined> declined;
  auto decide = [](Choices& c, const Declined& d) {
    for (int n : d.nodes) c.ops.insert_or_assign(n, d.choice);
  };
  for (auto& [decision, nodes] : equal_ops) {
    auto c = choices;
    Declined d{nodes, std::get<OpChoice>(decision)};
    decide(c, d);
    if (accept(c)) continue;
    for (int n : nodes)
      for (int x : graph.at(n).in)
        if (x >= 0 && !graph.at(x).generated && !graph.is_weight(x)) d.read.insert(x);
    declined.push_back(std::move(d));
  }
  // An operand of two ops may move for both of them, or for neither.
  auto overlap = [](const std::set<int>& a, const std::set<int>& b) {
    return std::any_of(a.begin(), a.end(), [&](int x) { return b.count(x) > 0; });
  };
  for (auto d = declined.begin(); d != declined.end(); ++d)
    for (auto e = declined.begin(); e != d; ++e) {
      if (!overlap(d->read, e->read) || overlap(d->nodes, e->nodes)) continue;
      auto c = choices;
      decide(c, *d);
      decide(c, *e);
      accept(c);
    }
  return best;
}

}  // namespace haliax::partitioning
