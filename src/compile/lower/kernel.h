// One fused step: an SSA program over outer and inner points.
//
// In: the nodes of a kernel unit; what else they read lies in memory, or is made here again. Out:
// one step, written by finish(). Always: an instruction comes after its operands; it is inner if a
// value that it reads is, or its place along an inner dimension counts; of one node along the same
// dimensions there is one instruction.
#pragma once
#include <set>
#include <unordered_map>

#include "graph/emit.h"

namespace haliax {

class Lowering;
using Env = std::vector<std::pair<Name, std::size_t>>;  // axis name -> dimension

class Kernel {
 public:
  Kernel(Lowering&, const Axes& outer, const Axes& inner);
  Env names(const Axes&) const;
  // The value of a node, as an instruction; its axes lie along the dimensions that `env` says.
  int value(const NodePtr&, Env);
  int compute(const NodePtr&, const Env&);      // anew
  int elementwise(const NodePtr&, const Env&);  // of a point-wise node
  int reduction(const NodePtr&);                // of a reduction, over the inner dimensions
  void store(int value, const Place&, const Axes&, bool accumulate, Monoid);
  void finish();  // the step is written

  std::unordered_map<const Node*, int> computed;  // nodes of this unit
  std::set<const Node*> pending;                  // likewise, made or not

 private:
  static std::size_t dim(const Env&, Name);
  int push(program::Instr);
  bool is_inner(int i) const { return code_[std::size_t(i)].inner; }
  int iota(const NodePtr&, int dim, std::int64_t stride);
  int load(const NodePtr&, const Env&);
  Env of(const NodePtr& operand, const Env&) const;

  Lowering& l_;
  Axes dims_;
  std::size_t outer_;
  std::vector<program::Instr> code_;
  std::vector<std::pair<std::pair<const Node*, Env>, int>> memo_;
};

}  // namespace haliax
