// Tests every op by its entry: the cpu backend against the reference, dtype and axes, derivatives
// against finite differences, vmap against a loop, jit against eager evaluation. No op may lack an
// entry.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <regex>
#include <set>

#include "graph/loop.h"
#include "ops/prim.h"
#include "ops_entries.h"
#include "support/golden_dir.h"
#include "support/near.h"

namespace ops_test {

NamedArray Loss::operator()(In x) const {
  auto y = f(x);
  auto spec = text_of(y.axes());
  return sum(y * array_of(Sample(spec.c_str(), 0.5, 1.5), 7, DType::f64));
}
std::set<const Op*> primitives_of(const NamedArray& y) {
  std::set<const Node*> seen;
  std::set<const Op*> ops;
  Nodes todo{y.node()};
  while (!todo.empty()) {
    auto n = todo.back();
    todo.pop_back();
    if (!n || !seen.insert(n.get()).second) continue;
    ops.insert(n->op);
    todo.insert(todo.end(), n->in.begin(), n->in.end());
    if (n->op == &kLoop)
      for (auto& r : loop_of(*n).results) todo.insert(todo.end(), r.value.begin(), r.value.end());
  }
  return ops;
}

namespace {
void check_near(const NamedArray& got, const NamedArray& expected, double tolerance,
                const std::string& what) {
  auto wrong = difference(got, expected, tolerance);
  CHECK_MESSAGE(wrong.empty(), what << ": " << wrong);
}

// The weighted sum of the loss's gradients. Its gradient is the second derivative along the
// weights.
struct Slope {
  Loss loss;
  NamedArray operator()(In x) const {
    NamedArray total(0.0);
    auto g = grad(loss)(x);
    for (std::size_t k = 0; k < g.size(); ++k) {
      if (g[k].empty()) continue;
      auto spec = text_of(g[k].axes());
      total = total + sum(g[k] * array_of(Sample(spec.c_str(), 0.5, 1.5), 11 + k, DType::f64));
    }
    return total;
  }
};

// Checks the gradient of f against central differences, position by position.
template <class F> void check_gradient(const F& f, const Leaves& x, const std::string& what) {
  auto value = jit(f);
  auto g = jit(grad(f))(x);
  REQUIRE(value(x).dtype() == DType::f64);
  constexpr double h = 1e-5;
  for (std::size_t k = 0; k < x.size(); ++k) {
    if (!is_float(x[k].dtype())) {
      CHECK(g[k].empty());
      continue;
    }
    CHECK(g[k].dtype() == DType::f64);
    REQUIRE(to_string(g[k].axes()) == to_string(x[k].axes()));
    auto at = x[k].doubles(), got = g[k].doubles();
    for (std::size_t i = 0; i < at.size(); ++i) {
      auto shifted = [&](double d) {
        auto v = at;
        v[i] += d;
        auto y = x;
        y[k] = array(std::span<const double>(v), x[k].axes());
        return value(y).item();
      };
      double expected = (shifted(h) - shifted(-h)) / (2 * h);
      if (!is_near(got[i], expected, 2e-7)) {
        FAIL_CHECK(what << " by input " << k << ", position " << i << ": " << got[i] << ", not "
                        << expected);
        break;
      }
    }
  }
}

// Checks vmap over three positions of a new axis, first or last in memory. If `shared`, the first
// input lacks the axis.
void check_vmap(const Entry& e, bool shared) {
  const Axis V("v", 3);
  std::vector<Leaves> each;
  for (std::size_t p = 0; p < 3; ++p) {
    each.push_back(inputs_of(e, 10 * p));
    if (shared) each[p][0] = each[0][0];
  }
  Leaves mapped;
  for (std::size_t k = 0; k < e.in.size(); ++k) {
    auto all = stack(V, {each[0][k], each[1][k], each[2][k]});
    mapped.push_back(shared && k == 0 ? each[0][0]
                     : k % 2          ? rearrange(all, Names{ellipsis, "v"})
                                      : all);
  }
  std::vector<NamedArray> values;
  for (auto& x : each) values.push_back(e.f(x));
  check_near(vmap(e.f, V)(mapped), stack(V, values), 1e-5,
             shared ? "vmap with a shared input" : "vmap");

  if (!differentiable(e)) return;
  auto g = vmap(grad(Loss{e.f}), V)(mapped);
  for (std::size_t k = 0; k < g.size(); ++k) {
    Leaves expected;
    for (auto& x : each) {
      auto one = grad(Loss{e.f})(x)[k];
      if (!one.empty()) expected.push_back(one);
    }
    check_near(g[k], expected.empty() ? NamedArray() : stack(V, expected), 1e-5,
               "vmap of the gradient by input " + std::to_string(k));
  }
}

}  // namespace

TEST_CASE("every op: dtype and axes match the entry, and the cpu backend matches the reference") {
  for (auto& e : all_entries()) {
    CAPTURE(e.name);
    auto x = inputs_of(e);
    auto y = e.f(x);
    CHECK(y.dtype() == e.dtype);
    CHECK(to_string(y.axes()) == to_string(axes_of(e.axes)));
    check_near(jit(e.f)(x), y, 0, e.name + ", jit against eager");
    check_near(jit(e.f, {.backend = "cpu"})(x), jit(e.f, {.backend = "reference"})(x),
               is_float(e.dtype) ? 2e-6 : 0, e.name + ", cpu against reference");
  }
}

TEST_CASE("every op: gradient and second derivative match finite differences in f64") {
  for (auto& e : all_entries()) {
    if (!differentiable(e)) continue;
    CAPTURE(e.name);
    auto x = inputs_of(e, 0, DType::f64);
    check_gradient(Loss{e.f}, x, e.name);
    if (e.smooth == Smooth::twice) check_gradient(Slope{{e.f}}, x, e.name + ", second derivative");
  }
}

TEST_CASE("every op: vmap matches a loop over the positions") {
  for (auto& e : all_entries()) {
    if (e.in.empty()) continue;
    CAPTURE(e.name);
    check_vmap(e, false);
    if (e.in.size() > 1) check_vmap(e, true);
  }
}

TEST_CASE("every op: vmap over many positions on the cpu backend matches the reference") {
  for (auto& e : all_entries()) {
    if (e.in.empty()) continue;
    CAPTURE(e.name);
    Leaves x;
    for (std::size_t k = 0; k < e.in.size(); ++k) {
      auto all = e.in[k];
      all.axes = "v150" + all.axes;
      x.push_back(array_of(all, k));
    }
    auto f = vmap(e.f, "v");
    check_near(jit(f, {.backend = "cpu"})(x), jit(f, {.backend = "reference"})(x),
               is_float(e.dtype) ? 1e-5 : 0, e.name);
  }
}

TEST_CASE("reductions of a broadcast array match reductions of the stored array") {
  const Axis A("a", 2), B("b", 3), One("one", 1), None("none", 0);
  auto x = array(std::vector<double>{2, -3}, A);
  std::vector<NamedArray> broadcasts{broadcast_axis(x, B), broadcast_axis(x, {B, One}),
                                     full({A, B}, -2., DType::f64), broadcast_axis(x, One)};
  for (auto& lazy : broadcasts) {
    auto stored = array(std::span<const double>(lazy.doubles()), lazy.axes());
    for (auto& over :
         {AxisSelection(), AxisSelection(lazy.axes()[0]), AxisSelection(lazy.axes().back())}) {
      for (auto f : {sum, mean, prod, haliax::max, haliax::min})
        CHECK(difference(f(lazy, over, {}), f(stored, over, {}), 1e-14) == "");
      CHECK(difference(var(lazy, over), var(stored, over), 1e-14) == "");
      CHECK(difference(dot(lazy, lazy, over), dot(stored, stored, over), 1e-14) == "");
    }
  }
  // A sum over no positions is 0, even if the broadcast value is NaN.
  auto empty = broadcast_axis(full(A, NAN, DType::f64), None);
  CHECK(difference(sum(empty, None), zeros(A, DType::f64), 0) == "");
  CHECK(difference(prod(empty, None), ones(A, DType::f64), 0) == "");
  CHECK(difference(dot(empty, empty, None), zeros(A, DType::f64), 0) == "");
}

TEST_CASE("every primitive is reached by an entry, and has a gradient or is listed without one") {
  const std::set<std::string> no_gradient{
      "bitcast",     "stop_gradient", "sign",        "floor",      "ceil",        "round",
      "trunc",       "logical_not",   "bitwise_not", "isfinite",   "isnan",       "isinf",
      "floor_div",   "nextafter",     "less",        "less_equal", "equal",       "not_equal",
      "bitwise_and", "bitwise_or",    "bitwise_xor", "left_shift", "right_shift", "threefry0",
      "threefry1",   "threefry_xor",  "argmax",      "argmin",     "argsort",     "top_k"};
  std::set<const Op*> reached;
  for (auto& e : all_entries()) reached.merge(primitives_of(e.f(inputs_of(e))));
  std::set<std::string> names;
  CHECK(prim::all_ops().size() > 60);
  for (auto* op : prim::all_ops()) {
    const std::string name = op->name;
    CHECK_MESSAGE(names.insert(name).second, "two primitives are called " << name);
    CHECK_MESSAGE(reached.count(op), "no entry makes the primitive " << name);
    CHECK_MESSAGE(bool(op->grad) != bool(no_gradient.count(name)),
                  "the primitive " << name
                                   << (op->grad ? " is listed, but has a gradient"
                                                : " has no gradient and is not listed"));
  }
  for (auto& n : no_gradient) CHECK_MESSAGE(names.count(n), "there is no primitive " << n);
}

TEST_CASE("every public op has an entry") {
  std::set<std::string> entries;
  for (auto& e : all_entries()) entries.insert(e.name.substr(0, e.name.find(' ')));
  const std::regex declared(
      R"(([a-z_0-9]+)\((?:Arr\b|const Axis|std::initializer_list<Arr>|std::string_view))");
  std::size_t count = 0;
  for (std::string name : {"ops.h", "shape.h"}) {
    std::ifstream header(golden_dir() + "/../../include/haliax/" + name);
    REQUIRE(header);
    for (std::string line; std::getline(header, line);) {
      if (line.rfind("inline", 0) == 0) continue;  // skips the operators
      line = line.substr(0, line.find("//"));
      for (std::sregex_iterator i(line.begin(), line.end(), declared), end; i != end; ++i, ++count)
        CHECK_MESSAGE(entries.count((*i)[1]), "no entry for " << (*i)[1]);
    }
  }
  CHECK(count > 130);
}

}  // namespace ops_test
