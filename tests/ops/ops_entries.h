// One entry for each op: what it is called with, and what must come out. The driver in ops_test.cpp
// does the rest.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "graph/node.h"
#include "haliax/haliax.h"

namespace ops_test {

using namespace haliax;
using In = const Leaves&;

// Axes are spelt "b2n3": (b=2, n=3). Names have one letter.
Axes axes_of(std::string_view text);

// An example input: distinct values, well spread over [low, high).
struct Sample {
  std::string axes;
  double low = -2, high = 2;
  DType dtype = DType::f32;
  Sample(const char* axes, double low = -2, double high = 2, DType dtype = DType::f32)
      : axes(axes), low(low), high(high), dtype(dtype) {}
};
inline Sample positive(const char* axes) { return {axes, 0.3, 3}; }
inline Sample unit(const char* axes) { return {axes, -0.9, 0.9}; }
inline Sample whole(const char* axes, int low, int high, DType dtype = DType::i32) {
  return {axes, double(low), double(high), dtype};
}
inline Sample mask(const char* axes) { return {axes, 0, 2, DType::boolean}; }

// How often the op can be differentiated at the example; checked against differences. Integers and
// bools have no derivative.
enum class Smooth { none, once, twice };

struct Entry {
  std::string name;  // as declared in haliax/ops.h, perhaps with a word about the variant
  std::vector<Sample> in;
  NamedArray (*f)(In x);
  std::string axes;  // of the result, in this order
  DType dtype = DType::f32;
  Smooth smooth = Smooth::twice;
};
using Entries = std::vector<Entry>;

Entries elementwise_entries();
Entries binary_entries();
Entries creation_entries();
Entries reduction_entries();
Entries shape_entries();
Entries picking_entries();
Entries primitive_entries();  // what no public op makes alone
Entries all_entries();

// ---- for all drivers (ops_test.cpp) ----
// another shift, other values
Leaves inputs_of(const Entry&, std::size_t shift = 0, DType floats = DType::f32);
bool differentiable(const Entry&);
// A weighted sum of the result: a loss whose gradient tells the positions apart.
struct Loss {
  NamedArray (*f)(In);
  NamedArray operator()(In x) const;
};
std::set<const Op*> primitives_of(const NamedArray&);  // of its graph, loop bodies included

}  // namespace ops_test
