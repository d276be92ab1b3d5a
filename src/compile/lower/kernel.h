// `Kernel`: builds one fused step, which is an SSA program over outer and inner elements.
//
// In      the nodes of a kernel unit. Other values that they read are in memory or are recomputed
//         here.
// Out     one step, written by `finish()`.
// Always  an instruction follows its operands. An instruction is inner if an operand is inner or if
//         its value depends on the position along an inner dimension. A node has one instruction
//         for each assignment of its axes to dimensions.
#pragma once
#include <set>
#include <unordered_map>

#include "graph/emit.h"

namespace haliax {

class Lowering;
using AxisDims = std::vector<std::pair<Name, std::size_t>>;

class Kernel {
 public:
  Kernel(Lowering&, const Axes& outer, const Axes& inner);
  AxisDims dims_of(const Axes&) const;
  // Returns the instruction that computes a node. `dims` maps the axes of the node to dimensions.
  int value(const NodePtr&, AxisDims);
  int compute(const NodePtr&, const AxisDims&);      // adds instructions even if the node has some
  int elementwise(const NodePtr&, const AxisDims&);  // instruction of an elementwise node
  int reduction(const NodePtr&);  // instruction of a reduction over the inner dimensions
  void store(int value, const Place&, const Axes&, bool accumulate, Monoid);
  void finish();  // writes the step

  std::unordered_map<const Node*, int> instr_of;  // nodes of this unit -> their instructions
  std::set<const Node*> own_nodes;                // all nodes of this unit, computed or not

 private:
  static std::size_t dim(const AxisDims&, Name);
  int push(program::Instr);
  bool is_inner(int i) const { return code_[std::size_t(i)].inner; }
  int iota(const NodePtr&, int dim, std::int64_t stride);
  int load(const NodePtr&, const AxisDims&);
  AxisDims operand_dims(const NodePtr& operand, const AxisDims&) const;

  Lowering& lowering_;
  Axes dims_;
  std::size_t outer_;
  std::vector<program::Instr> code_;
  struct KnownInstr {
    const Node* node;
    AxisDims dims;
    int instr;
  };
  std::vector<KnownInstr> known_;
};

}  // namespace haliax
