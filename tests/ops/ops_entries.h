// One entry for each op: example inputs, the call, and the expected dtype and axes. The driver in
// ops_test.cpp derives the tests, and `bench --all` derives its cases (bench/all_ops.cpp).
#pragma once
#include <set>
#include <string>
#include <vector>

#include "graph/node.h"
#include "haliax/haliax.h"

namespace ops_test {

using namespace haliax;
using In = const Leaves&;

// Parses axes: "b2n3" is (b=2, n=3). Names have one letter.
Axes axes_of(std::string_view text);
std::string text_of(const Axes&);  // the inverse of axes_of

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
inline Sample ints(const char* axes, int low, int high, DType dtype = DType::i32) {
  return {axes, double(low), double(high), dtype};
}
inline Sample mask(const char* axes) { return {axes, 0, 2, DType::boolean}; }

// How often the op can be differentiated at the example, checked against finite differences.
// Integers and bools have no derivative.
enum class Smooth { none, once, twice };

struct Entry {
  std::string name;  // name in haliax/ops.h, with an optional word for the variant
  std::vector<Sample> in;
  NamedArray (*f)(In x);
  std::string axes;  // axes of the result, in this order
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
Entries primitive_entries();  // primitives that no public op creates alone
Entries layer_entries();      // convolutions, pools, groups of rows, top-k
Entries all_entries();

// ---- for all drivers ----
// Returns the values of a sample; another seed selects other values.
std::vector<double> values_of(const Sample&, std::size_t seed);
NamedArray array_of(const Sample&, std::size_t seed, DType floats = DType::f32);
// Returns example inputs; another shift selects other values.
Leaves inputs_of(const Entry&, std::size_t shift = 0, DType floats = DType::f32);
bool differentiable(const Entry&);

// ---- for tests (ops_test.cpp) ----
// A weighted sum of the result: a loss whose gradient differs at each position.
struct Loss {
  NamedArray (*f)(In);
  NamedArray operator()(In x) const;
};
std::set<const Op*> primitives_of(const NamedArray&);  // ops of its graph, loop bodies included

}  // namespace ops_test
