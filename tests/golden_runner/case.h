// One case of the golden data: its inputs, the results of Haliax, and the tolerance of the
// comparison.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "haliax/array.h"
#include "haliax/io.h"
#include "value.h"

namespace golden {

using Arrays = std::vector<haliax::NamedArray>;
// An op of the data. The README of the data lists the args of each op.
using Op = std::function<Arrays(const Arrays& inputs, const Value& args)>;
using Table = std::map<std::string, Op, std::less<>>;
using Problems = std::vector<std::string>;  // none: the case passes

// Thrown by an Op that the library does not have. The case counts as skipped, not as passed.
struct Skip {
  std::string what;
};

struct Tolerance {
  double rtol = 0, atol = 0;
  bool exact = false;
  Tolerance(double rtol, double atol) : rtol(rtol), atol(atol) {}
  explicit Tolerance(const Value&);
};

struct Group {
  std::string dir, name;
  std::vector<Value> cases;
  haliax::TensorFile tensors;  // empty for errors
};
Group read_group(const std::string& dir, const std::string& name);
haliax::TensorFile read_tensors(const std::string& path);  // raises BadData

haliax::Axes axes_of(const Value& pairs);                      // [[name, size], ...]
haliax::NamedArray array_of(const Group&, const Value& spec);  // {tensor, axes, dtype}
haliax::NamedArray array_of(const Group&, const std::string& tensor, const haliax::Axes&);

// Elements as doubles, whatever the dtype.
std::vector<double> decode(haliax::DType, const std::vector<std::byte>&);

// Appends a problem if `got` differs from the tensor that `spec` describes.
void compare(const std::string& part, const haliax::NamedArray& got, const Group&,
             const Value& spec, const Tolerance&, Problems&);
void compare_values(const std::string& part, const std::vector<double>& got,
                    const std::vector<double>& expected, const Tolerance&, Problems&);

// The source of a case's arrays, one after the other: the tensors of its group, or the arguments of
// a traced function.
using Source = std::function<haliax::NamedArray(const std::string& tensor, const haliax::Axes&)>;
Source tensors_of(const Group&);

// A computed part of a case, with its expected value.
struct Part {
  std::string name;
  haliax::NamedArray got;
  const Value* spec;
  const Value* tolerance;
};
// Returns the value, grads, second and jvp of one case, unevaluated. Raises haliax::Error if their
// number differs from the expected one.
std::vector<Part> parts_of(const Value& c, const Op&, const Source&);

// Checks all parts of one case in one evaluation.
Problems check(const Group&, const Value& c, const Op&);
using Check = std::function<Problems(const Group&, const Value& c, const Op&)>;

}  // namespace golden
