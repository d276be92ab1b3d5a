// The code of docs/reference/op-semantics.md, compiled and run, and rows of its tables.
#include <doctest/doctest.h>

#include <cmath>
#include <iostream>

#include "docs/printed.h"
#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis N("n", 3), K("k", 2), None("none", 0);
std::string text(const NamedArray& x) { return x.to_string(); }

}  // namespace

TEST_CASE("op semantics: reductions along an empty axis") {
  Printed out;
  const Axis Batch("batch", 2), Empty("n", 0);
  auto x = zeros({Batch, Empty});

  out.start();
  std::cout << sum(x, "n") << " " << prod(x, "n") << "\n";
  std::cout << mean(x, "n") << " " << logsumexp(x, "n") << "\n";
  std::cout << any(x, "n") << " " << all(x, "n") << "\n";
  std::cout << dot(x, x, "n") << " " << softmax(x, "n") << "\n";
  CHECK(out.text() ==
        "NamedArray(f32, (batch=2), [0, 0]) NamedArray(f32, (batch=2), [1, 1])\n"
        "NamedArray(f32, (batch=2), [nan, nan]) NamedArray(f32, (batch=2), [-inf, -inf])\n"
        "NamedArray(bool, (batch=2), [false, false]) NamedArray(bool, (batch=2), [true, true])\n"
        "NamedArray(f32, (batch=2), [0, 0]) NamedArray(f32, (batch=2, n=0), [[], []])");

  raises([&] { return haliax::max(x, "n"); }, {"[max]", "n=0"});
  raises([&] { return argmax(x, "n"); }, {"[argmax]", "n=0"});
  raises([&] { return top_k(x, "n", 1); }, {"[top_k]", "n=0"});
  CHECK(std::isnan(var(x).item()));
}

TEST_CASE("op semantics: positions out of range") {
  Printed out;
  auto table = arange(Axis("n", 3), {.dtype = DType::f32});
  auto ids = array({0, 7, -1}, Axis("k", 3)).astype(DType::i32);

  out.start();
  std::cout << take(table, "n", ids) << "\n";
  std::cout << table[{"n", ids}] << "\n";
  std::cout << table.at({"n", ids}).add(10.) << "\n";
  CHECK(out.text() ==
        "NamedArray(f32, (k=3), [0, nan, 2])\n"
        "NamedArray(f32, (k=3), [0, 2, 2])\n"
        "NamedArray(f32, (n=3), [10, 1, 12])");

  raises([&] { return table[{"n", 3}]; }, {"[index]", "3", "n=3"});
  raises([&] { return slice(table, "n", 2, 2); }, {"[slice]", "n=3"});
  raises([&] { return at_set(table, {{"n", 5}}, 1.); }, {"[at_set]", "5", "n=3"});
  auto from = [&](const NamedArray& start) { return slice(table, "n", start, 2); };
  CHECK(text(jit(from)(NamedArray(7).astype(DType::i32))) == "NamedArray(f32, (n=2), [1, 2])");
  auto picks = zeros(K, DType::i32);
  CHECK(text(zeros(None, DType::i32)[{"none", picks}]) ==
        "NamedArray(i32, (k=2), [-2147483648, -2147483648])");
  CHECK(text(take(zeros(None, DType::boolean), "none", picks)) ==
        "NamedArray(bool, (k=2), [true, true])");
  // A dynamic slice reads 0 out of range; a position of `picks` occurs twice.
  CHECK(text(table[{"n", ds(2, 2)}]) == "NamedArray(f32, (n=2), [2, 0])");
  auto scaled = [&](const NamedArray& x) { return sum(at_mul(x, {{"n", picks}}, 2.)); };
  CHECK(text(grad(scaled)(table)) == "NamedArray(f32, (n=3), [4, 1, 1])");
}

TEST_CASE("op semantics: elementwise extremes") {
  const double nan = std::nan("");
  auto x = array({1, nan, 3}, N);
  CHECK(text(arange(N) / 0) == "NamedArray(f32, (n=3), [nan, inf, inf])");
  CHECK(text(floor_divide(arange(N), 0)) == "NamedArray(i32, (n=3), [-1, -1, -1])");
  CHECK(text(arange(N) % 0) == "NamedArray(i32, (n=3), [0, 1, 2])");
  CHECK(text(fmod(arange(N), 0)) == "NamedArray(i32, (n=3), [0, 1, 2])");
  CHECK(fmod(NamedArray(-7), 3).item() == -1);
  CHECK(mod(-7, 3).item() == 2);
  CHECK(power(0., 0.).item() == 1);
  CHECK(std::isnan(power(-2., 0.5).item()));
  raises([] { return power(2, -1); }, {"[power]"});
  raises([] { return negative(ones(N, DType::boolean)); }, {"[negative]"});
  raises([&] { return x & x; }, {"[bitwise_and]", "f32"});
  CHECK(text(clip(x, 0., 2.)) == "NamedArray(f32, (n=3), [1, nan, 2])");
  CHECK(text(clip(x, 2., 0.)) == "NamedArray(f32, (n=3), [0, nan, 0])");
  CHECK(text(fmax(x, 2.)) == "NamedArray(f32, (n=3), [2, 2, 3])");
  CHECK(text(x < 2.) == "NamedArray(bool, (n=3), [true, false, false])");
  CHECK(text(x != x) == "NamedArray(bool, (n=3), [false, true, false])");
  CHECK(text(logical_not(x)) == "NamedArray(bool, (n=3), [false, false, false])");
  CHECK(text(array({1e20, -1e20, nan}, N).astype(DType::i32)) ==
        "NamedArray(i32, (n=3), [2147483647, -2147483648, 0])");
  CHECK(text(array({0., 0.5, nan}, N).astype(DType::boolean)) ==
        "NamedArray(bool, (n=3), [false, true, true])");
  CHECK(left_shift(1, 40).item() == 0);
  CHECK(right_shift(-8, 40).item() == -1);
  CHECK(text(round(array({0.5, 1.5, 2.5}, N))) == "NamedArray(f32, (n=3), [0, 2, 2])");
  CHECK((ones(N, DType::boolean) + ones(N, DType::boolean)).dtype() == DType::boolean);
  CHECK(floor(arange(N)).dtype() == DType::i32);
  CHECK(hypot(arange(N), arange(N)).dtype() == DType::f32);
  CHECK(text(one_hot(array({0, 5}, K).astype(DType::i32), N)) ==
        "NamedArray(f32, (k=2, n=3), [[1, 0, 0], [0, 0, 0]])");
}

TEST_CASE("op semantics: NaN and infinities along an axis") {
  const double nan = std::nan(""), inf = INFINITY;
  auto x = array({1, nan, 3}, N);
  CHECK(argmin(x).item() == 1);
  CHECK(text(sort(x, "n")) == "NamedArray(f32, (n=3), [1, 3, nan])");
  CHECK(text(top_k(x, "n", 2).first) == "NamedArray(f32, (n=2), [nan, 3])");
  CHECK(text(cumsum(x, "n")) == "NamedArray(f32, (n=3), [1, nan, nan])");
  CHECK(logsumexp(full(N, -inf)).item() == -inf);
  for (auto& row : {x, full(N, -inf), array({1, inf, 3}, N)})
    for (float value : softmax(row, "n").floats()) CHECK(std::isnan(value));
  auto none = zeros(N, DType::boolean);
  CHECK(haliax::max(ones(N), {}, {.where = none}).item() == -inf);
  CHECK(std::isnan(mean(ones(N), {}, {.where = none}).item()));
  CHECK(prod(ones(N, DType::i8)).dtype() == DType::i32);
  CHECK(trace(ones({N, K}, DType::u8), "n", "k").dtype() == DType::u32);
}

TEST_CASE("op semantics: loops over an empty axis return their start") {
  auto x = zeros({K, None});
  auto step = [](const NamedArray& c, const NamedArray& v) { return std::pair(c + v, v * 2.); };
  auto [carry, stacked] = scan(step, "none")(ones(K), x);
  CHECK(text(carry) == "NamedArray(f32, (k=2), [1, 1])");
  CHECK(text(stacked) == "NamedArray(f32, (none=0, k=2), [])");
  auto plus = [](const NamedArray& a, const NamedArray& b) { return a + b; };
  raises([&] { return haliax::reduce(plus, AxisHere("none"), x); }, {"[reduce]", "none=0"});
  auto below = [](const NamedArray& v) { return v < 9.; };
  auto twice = [](const NamedArray& v) { return v * 2.; };
  CHECK(while_loop(below, twice, None)(NamedArray(1.)).item() == 1);
  raises([&] { return random::categorical(random::key(0), x, "none"); }, {"categorical", "none=0"});
}
