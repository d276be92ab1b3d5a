// Tests every op on meshes, by its entry. Each of its axes is sharded over one mesh axis and over
// two, into blocks that are uneven or empty. Inputs may be partial sums. Value and gradient match
// one device.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <string_view>

#include "haliax/jit.h"
#include "haliax/shard.h"
#include "support/near.h"
#include "ops/prim.h"
#include "ops_entries.h"

namespace ops_test {
namespace {

using Function = std::function<Leaves(In)>;
const Mesh mesh{{{"data", 2}, {"model", 3}}};
const Axis Parts("parts", 3);  // addends of an input that is a partial sum

// Returns the axes of inputs and result that can be sharded.
std::set<std::string> names_of(const Entry& e) {
  std::set<std::string> out;
  auto add = [&](std::string_view axes) {
    for (auto& a : axes_of(axes))
      if (a.size > 1) out.insert(std::string(a.name.text()));
  };
  for (auto& s : e.in) add(s.axes);
  add(e.axes);
  return out;
}

// Returns an empty string, or the first difference that exceeds `allowed` times the largest value.
std::string wrong(const NamedArray& got, const NamedArray& expected, double allowed) {
  // compares everything but finite values
  if (auto text = difference(got, expected, INFINITY); !text.empty() || got.empty()) return text;
  auto a = got.doubles(), b = expected.doubles();
  double largest = 0;
  for (double v : b)
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::isfinite(b[i]) && std::abs(a[i] - b[i]) > allowed * largest)
      return "position " + std::to_string(i) + ": " + std::to_string(a[i]) + ", not " +
             std::to_string(b[i]);
  return "";
}

// Entries of cumulative ops, which run block by block along a sharded axis. Devices may add and
// multiply their floats in another order than one device. Results of all other ops match exactly,
// unless the mesh reduces floats.
constexpr std::string_view cumulative_entries[] = {"cumsum", "cumprod",
                                                   "prim cumulative from the end"};

// Returns true if devices may compute floats in another order than one device.
bool reorders(const JitReport& report, const Entry& e) {
  auto& moves = report.collectives;
  return std::count(std::begin(cumulative_entries), std::end(cumulative_entries), e.name) > 0 ||
         std::any_of(moves.begin(), moves.end(),
                     [](auto& m) { return m.kind.find("reduce") != m.kind.npos; });
}

void check(const Entry& e, const Function& f, const Leaves& x, const Leaves& expected,
           const Mapping& m, const std::string& what) {
  std::string problem;
  try {
    auto step = named_jit(f, {.mesh = mesh, .axis_resources = m});
    auto got = step(x);
    for (std::size_t k = 0; k < expected.size() && problem.empty(); ++k) {
      bool exact =
          expected[k].empty() || !is_float(expected[k].dtype()) || !reorders(step.report(), e);
      problem = wrong(got.at(k), expected[k], exact ? 0 : 1e-5);
      if (!problem.empty()) problem = "array " + std::to_string(k) + ": " + problem;
    }
  } catch (const Error& error) {
    problem = error.what();
  }
  CHECK_MESSAGE(problem.empty(),
                e.name << ", " << what << ", by " << to_string(m) << ": " << problem);
}

// Returns (parts, ...): terms that add up to x exactly and in any order; for bools, the terms of an
// `or`.
NamedArray terms_of(const NamedArray& x) {
  auto none = zeros_like(x);
  if (x.dtype() == DType::boolean) return stack(Parts, {none, none, x}).eval();
  if (is_float(x.dtype())) return stack(Parts, {x / 2, none, x / 2}).eval();
  return stack(Parts, {x - ones_like(x), none, ones_like(x)}).eval();
}

// Checks f of x, and f of x as sums over Parts, under a mapping for each axis.
void check_all(const Entry& e, const Function& f, const std::string& what) {
  auto x = inputs_of(e);
  auto expected = jit(f)(x);
  for (auto name : names_of(e))
    for (auto& along :
         std::vector<std::vector<std::string>>{{"data"}, {"model"}, {"model", "data"}})
      check(e, f, x, expected, Mapping::of({{Name(name), along}}), what);

  if (x.empty()) return;
  Leaves terms;
  for (auto& v : x) terms.push_back(terms_of(v));
  auto of_sums = [&](In t) {
    Leaves sums;
    for (auto& v : t) sums.push_back(v.dtype() == DType::boolean ? any(v, Parts) : sum(v, Parts));
    return f(sums);
  };
  check(e, of_sums, terms, expected, {{"parts", "data"}}, what);
  for (auto name : names_of(e))
    check(e, of_sums, terms, expected, {{"parts", "data"}, {Name(name), "model"}}, what);
}

}  // namespace

TEST_CASE("every op on a mesh: the value matches one device") {
  for (auto& e : all_entries())
    check_all(
        e, [&](In x) { return Leaves{e.f(x)}; }, "value");
}

TEST_CASE("every op on a mesh: the gradient matches one device") {
  for (auto& e : all_entries())
    if (differentiable(e))
      check_all(
          e, [&](In x) { return grad(Loss{e.f})(x); }, "gradient");
}

TEST_CASE(
    "a position that is a partial sum is reduced before it is read, however small the slice") {
  auto x = array(std::vector<float>{10, 70, 30, 20, 50}, Axis("n", 5)).eval();
  auto terms = array(std::vector<std::int32_t>{1, 1, 1, 0}, Axis("t", 4)).eval();
  auto pick = [](const NamedArray& x, const NamedArray& t) {
    return std::pair{slice(x, "n", sum(t, "t"), 1), slice(x, "n", max(t, "t"), 1)};
  };
  auto [at_sum, at_max] =
      named_jit(pick, {.mesh = mesh, .axis_resources = Mapping{{"t", "data"}}})(x, terms);
  CHECK(at_sum.item() == 20);
  CHECK(at_max.item() == 70);
}

TEST_CASE("max and min over blocks, some of them empty, match the elements in every dtype") {
  const Axis N("n", 4), One("one", 1);  // sharded over two devices, one of which has no element
  auto both = [](const NamedArray& x) {
    bool flags = x.dtype() == DType::boolean;
    return std::pair{flags ? any(x, "one") : max(x, "one"), flags ? all(x, "one") : min(x, "one")};
  };
  for (int k = 0; k <= int(DType::boolean); ++k) {
    auto d = DType(k);
    auto small = array({1., 0, 3, 2}, {N, One}).astype(d).eval(), other = small;
    if (d != DType::boolean)
      other = (is_float(d) || is_signed(d) ? small - full({}, 100, d) : bitwise_not(small)).eval();
    for (auto& x : {small, other})
      for (auto* backend : {"cpu", "reference"}) {
        auto step = named_jit(both, {.backend = backend,
                                     .mesh = mesh,
                                     .axis_resources = Mapping{{"one", "data"}},
                                     .out = Mapping{}});
        auto [most, least] = step(x);
        CHECK_MESSAGE(difference(most, at(x, "one", 0), 0) == "", name_of(d) << " " << backend);
        CHECK_MESSAGE(difference(least, at(x, "one", 0), 0) == "", name_of(d) << " " << backend);
      }
  }
}

TEST_CASE(
    "every op is sharded on a mesh: each entry has an axis, and each primitive occurs in one") {
  std::set<const Op*> reached;
  for (auto& e : all_entries()) {
    CHECK_MESSAGE(!names_of(e).empty(), e.name << " has no axis that a mesh could cut");
    if (!names_of(e).empty()) reached.merge(primitives_of(e.f(inputs_of(e))));
  }
  for (auto* op : prim::all_ops())
    CHECK_MESSAGE(reached.count(op), "no entry that a mesh cuts makes the primitive " << op->name);
}

}  // namespace ops_test
