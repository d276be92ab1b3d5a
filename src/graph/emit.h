// What an op may say when it is lowered: where its operands and its result lie, and which step
// computes it.
#pragma once
#include "graph/axes.h"
#include "program/program.h"

namespace haliax {

// Where a value lies: one stride for each axis of its node, in elements.
struct Place {
  int slot = -1;
  DType dtype = DType::f32;
  std::int64_t offset = 0;
  std::vector<std::int64_t> strides;
  std::vector<program::Term> terms;
  explicit operator bool() const { return slot >= 0; }
};

class Emit {
 public:
  virtual ~Emit() = default;
  virtual Place operand(std::size_t k) = 0;          // of in[k], in memory
  virtual Place result() = 0;                        // of the node that is lowered
  virtual void zero(const Place&, const Axes&) = 0;  // fills it
  virtual void fill(const Place&, const Axes&, const NodePtr& number) = 0;
  virtual void copy(const Place& from, const Place& to, const Axes&) = 0;
  virtual void push(program::Step) = 0;
  // The offset that a scalar start (a loop index, or a number in memory) adds: start * stride, the
  // start clamped to [0, limit].
  virtual program::Term term(const NodePtr& start, std::int64_t stride, std::int64_t limit) = 0;

  // The strides of a place, over `dims` by name: 0 where it lacks one.
  static program::View view(const Place& p, const Axes& of, const Axes& dims) {
    program::View v{p.slot, p.dtype, p.offset, program::Dims(dims.size(), 0), p.terms};
    for (std::size_t d = 0; d < dims.size(); ++d)
      for (std::size_t i = 0; i < of.size(); ++i)
        if (of[i].name == dims[d].name) v.strides[d] = p.strides[i];
    return v;
  }
  static program::Dims sizes(const Axes& axes) { return sizes_of(axes); }
};

}  // namespace haliax
