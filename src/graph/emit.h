// The interface through which an op is lowered: the places of its operands and its result, and the
// steps that compute it.
#pragma once
#include "graph/axes.h"
#include "program/program.h"

namespace haliax {

// The location of a value in memory: an offset and one stride per axis of its node, in elements.
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
  virtual Place operand(std::size_t k) = 0;          // place of in[k] in memory
  virtual Place result() = 0;                        // place of the node that is lowered
  virtual void zero(const Place&, const Axes&) = 0;  // fills a place with 0
  // Fills a place with a scalar.
  virtual void fill(const Place&, const Axes&, NodeRef number) = 0;
  virtual void copy(const Place& from, const Place& to, const Axes&) = 0;
  virtual void push(program::Step) = 0;
  // Returns the term that a scalar start adds to an offset: start * stride, with the start clamped
  // to [0, limit]. The start is a loop index or a scalar in memory. A constant start yields a term
  // without loop and slot, whose `stride` is the offset.
  virtual program::Term term(NodeRef start, std::int64_t stride, std::int64_t limit) = 0;

  // Returns a view of a place over `dims`. Axes match by name; a dim that the place lacks has
  // stride 0.
  static program::View view(const Place& p, const Axes& of, const Axes& dims) {
    program::View v{p.slot, p.dtype, p.offset, program::Dims(dims.size(), 0), p.terms};
    for (std::size_t d = 0; d < dims.size(); ++d)
      for (std::size_t i = 0; i < of.size(); ++i)
        if (of[i].name == dims[d].name) v.strides[d] = p.strides[i];
    return v;
  }
  // Returns the sizes of the axes.
  static program::Dims sizes(const Axes& axes) { return sizes_of(axes); }
};

}  // namespace haliax
