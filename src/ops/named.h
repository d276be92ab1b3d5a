// Helpers that the public ops of include/haliax/ops.h share: operands as nodes, axes by name, and
// broadcasting.
//
// A public op reads: `auto [here, n] = Call(op, x);`, resolves axes, and builds primitives. Inside
// vmap, a node also has hidden axes, which users neither see nor name. Every result has the hidden
// axes of all its operands, before the axes that users see.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/name.h"
#include "haliax/ops.h"
#include "ops/prim.h"

namespace haliax::ops {

inline NamedArray wrap(NodePtr n) { return NamedArray(std::move(n)); }
inline std::string text(Name n) { return std::string(n.text()); }
inline std::string text(DType d) { return std::string(name_of(d)); }

// ---- axes ----
Axes visible(Axes);  // without hidden axes: the axes that users see
inline Axes visible(const Node& n) { return visible(n.axes); }
Axes hidden(const Nodes&);  // hidden axes of all nodes, in order of appearance
// Returns the axes of a result: the hidden axes of the operands `of`, then `shown`.
Axes with_hidden(const Nodes& of, const Axes& shown);

// Return the selected axis or axes. They raise if an axis is missing (the message suggests the
// nearest name), has another size, or is selected twice.
Axis axis_of(const char* op, const Axes&, const AxisSelector&);
inline Axis axis_of(const char* op, NodeRef x, const AxisSelector& s) {
  return axis_of(op, x->axes, s);
}
Axes axes_of(const char* op, NodeRef, const AxisSelection&);
void check_unique(const char* op, const Axes&);  // raises if a name occurs twice
void check_new(const char* op, const Axes&);     // raises also for more elements than an array has
void check_free(const char* op, Name, const Axes& taken);        // raises if the name is in `taken`
void check_sizes(const char* op, const Axes& a, const Axes& b);  // raises if one name has two sizes
// Renames the axis. Raises if the new name exists; an empty name changes nothing.
NodePtr renamed(const char* op, NodeRef, const Axis&, Name);

// ---- operands ----
// Return the operand as a node. A C++ scalar becomes f32, i32 (or i64) or bool. Raise if the
// operand is empty.
NodePtr node_of(const char* op, const Arr&);
// Returns the operand in this dtype. Raises for an integer that does not fit.
NodePtr node_of(const char* op, const Arr&, DType);
NodeRef node_of(const char* op, const NamedArray&);
// The start of an op: the call site for errors, as long as the object lives; the operand; and the
// axis along which the op works.
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
// Returns the dtype of a result. C++ scalars are weakly typed: they adopt the dtype of the arrays,
// except that a real scalar makes integers f32, and an integer scalar makes bools i32.
DType promoted(const char* op, std::span<const Arr* const>);
// Returns the result dtype of functions such as exp, which map integers to floats.
inline DType float_of(DType d) { return is_float(d) ? d : DType::f32; }
// Returns the dtype to compute in: f32 for 16-bit floats.
inline DType wide_of(DType d) { return is_float(d) && bytes_of(d) >= 4 ? d : DType::f32; }
inline DType no_bool(DType d) { return d == DType::boolean ? DType::i32 : d; }  // dtype to count in
// Returns the dtype of a sum of `count` terms: i32 for bools and small signed integers, u32 for
// small unsigned integers, and i64 or u64 where `count` exceeds 32 bits. Other dtypes stay.
DType sum_dtype(DType, std::int64_t count);
// Returns true if the dtype can represent the integer (floats: approximately).
bool holds(DType, std::int64_t);
NodePtr to_bool(NodeRef);
inline NodePtr cast(NodeRef x, DType d) {
  return d == DType::boolean ? to_bool(x) : prim::cast(x, d);
}
// Returns the mask as a node. Raises if it is not bool or has an axis that x lacks.
NodePtr mask_of(const char* op, const NamedArray& mask, const Node& x);

// Return the axes of an elementwise result. One operand must have all visible axes of the others.
Axes broadcast(const char* op, const Nodes&);
Axes broadcast(const char* op, const std::vector<Axes>& visible);
// Applies an elementwise op over the broadcast axes.
NamedArray pointwise(const char* op, const Op&, Nodes, DType);

// Returns the operands of a matmul in one dtype. Raises if the list is empty.
Nodes operands_of(const char* op, const std::vector<Arr>&);
// Contracts the nodes: multiplies them and sums over the axes that `out` lacks. Contracts pairs of
// nodes, the cheapest pair first. Hidden axes are never summed. The result has the hidden axes,
// then `out`.
NodePtr contract_all(const char* op, Nodes, const Axes& out, DType);

// Contracts operands of one dtype, as contract_all, with the dtype that the caller prefers. The
// result has the sharding of the mapping in scope.
NamedArray contracted(const char* op, const Nodes&, const Axes& out, std::optional<DType>);

// The axes that the caller binds to the labels of a string (einsum, rearrange). A binding that is
// never looked up is an error.
class Bindings {
 public:
  using List = std::vector<std::pair<std::string, AxisSelector>>;
  explicit Bindings(const List& given) : given_(given), used_(given.size()) {}
  const AxisSelector* find(const std::string& label);  // null: the label is not bound
  const std::string* unused() const;                   // null: every binding was used

 private:
  const List& given_;
  std::vector<bool> used_;
};

// ---- results ----
// Constrains the sharding by the mapping in scope, if there is one (transforms/mesh.cpp).
NamedArray constrained(const char* op, const NamedArray&);

}  // namespace haliax::ops
