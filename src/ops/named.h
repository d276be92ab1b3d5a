// What the ops of include/haliax/ops.h share: operands as nodes, axes by name, and who broadcasts
// to whom.
//
// An op reads: `auto [here, n] = Call(op, x);`, resolves axes, and builds primitives. Inside vmap a
// node has hidden axes too. Users neither see nor name them; every result carries those of all its
// operands, before the axes that users see.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/name.h"
#include "haliax/ops.h"
#include "ops/prim.h"

namespace haliax::ops {

using G = const NodePtr&;
inline NamedArray wrap(NodePtr n) { return NamedArray(std::move(n)); }
inline std::string text(Name n) { return std::string(n.text()); }
inline std::string text(DType d) { return std::string(name_of(d)); }

// ---- axes ----
Axes visible(Axes);  // what users see
inline Axes visible(const Node& n) { return visible(n.axes); }
Axes hidden(const Nodes&);  // of all the nodes, in order of appearance
// result axes: the hidden ones of the operands, then these
Axes with_hidden(const Nodes& of, const Axes& shown);

// The axis or axes selected; raises for one that is missing (naming the nearest) or of another
// size. None twice.
Axis axis_of(const char* op, const Axes&, const AxisSelector&);
inline Axis axis_of(const char* op, const NodePtr& x, const AxisSelector& s) {
  return axis_of(op, x->axes, s);
}
Axes axes_of(const char* op, const NodePtr&, const AxisSelection&);
void check_unique(const char* op, const Axes&);            // raises if a name is in there twice
void check_free(const char* op, Name, const Axes& taken);  // raises if the name is taken
void check_sizes(const char* op, const Axes& a, const Axes& b);  // raises if a name has two sizes
// that axis; raises if the name is taken; empty: as it is
NodePtr renamed(const char* op, const NodePtr&, const Axis&, Name);

// ---- operands ----
// a number: f32, i32 (or i64) or bool; raises if it is empty
NodePtr node_of(const char* op, const Arr&);
// in this dtype; raises for an integer that does not fit
NodePtr node_of(const char* op, const Arr&, DType);
const NodePtr& node_of(const char* op, const NamedArray&);
// What an op begins with: for its length, errors say where it was called; its operand; the axis
// that it goes along.
struct Call {
  CallSite here;
  NodePtr x;
  Call(const char* op, const Arr& a) : here(a.at()), x(node_of(op, a)) {}
};
struct CallAlong {
  CallSite here;
  NodePtr x;
  Axis axis;
  CallAlong(const char* op, const Arr& a, const AxisSelector& s)
      : here(a.at()), x(node_of(op, a)), axis(axis_of(op, x, s)) {}
};
// The dtype of a result. A number takes that of the arrays it meets, but a real one makes integers
// f32, an integer bools i32.
DType promoted(const char* op, std::span<const Arr* const>);
// for functions that integers are not closed over
inline DType float_of(DType d) { return is_float(d) ? d : DType::f32; }
// to compute in: f32 for bf16
inline DType wide_of(DType d) { return is_float(d) && bytes_of(d) >= 4 ? d : DType::f32; }
inline DType no_bool(DType d) { return d == DType::boolean ? DType::i32 : d; }  // to count in
// Of a sum of so many: i32 for bools and narrow integers, u32 for unsigned ones; i64, u64 where
// that is too small to count them.
DType sum_dtype(DType, std::int64_t count);
bool holds(DType, std::int64_t);  // is there such a number? Of floats: about
NodePtr to_bool(const NodePtr&);  // x != 0
inline NodePtr cast(const NodePtr& x, DType d) {
  return d == DType::boolean ? to_bool(x) : prim::cast(x, d);
}
// raises if it is not bool or has an axis that x lacks
NodePtr mask_of(const char* op, const NamedArray& mask, const Node& x);

// The axes of a pointwise result: of the visible axes, one operand's must contain all the others'.
Axes broadcast(const char* op, const Nodes&);
Axes broadcast(const char* op, const std::vector<Axes>& visible);
NamedArray pointwise(const char* op, const Op&, Nodes, DType);  // a map over the broadcast axes

// of a product: all in one dtype; raises if there are none
Nodes operands_of(const char* op, const std::vector<Arr>&);
// The product of the nodes, summed over the names: pairs, cheapest first. Hidden axes are never
// summed. Result axes: the hidden ones, then `out`.
NodePtr contract_all(const char* op, Nodes, const Axes& out, DType);

// What the caller says of the labels in a string. One that is never looked for is a mistake.
class Bindings {
 public:
  using List = std::vector<std::pair<std::string, AxisSelector>>;
  explicit Bindings(const List& given) : given_(given), used_(given.size()) {}
  const AxisSelector* find(const std::string& label);  // null: nothing is said of it
  const std::string* unused() const;                   // null: there is none

 private:
  const List& given_;
  std::vector<bool> used_;
};

// ---- results ----
// by the mapping in scope, if any (transforms/mesh.cpp)
NamedArray constrained(const char* op, const NamedArray&);

}  // namespace haliax::ops
