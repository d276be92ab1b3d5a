// Loops and cumulative ops in chunks: which of them a nested loop, or a later pass over the data,
// recomputes.
#include <doctest/doctest.h>

#include <functional>
#include <limits>

#include "haliax/haliax.h"

using namespace haliax;

namespace {

const Axis M{"m", 3}, N{"n", 5};
using F = std::function<NamedArray(const NamedArray&)>;

NamedArray input() { return sin(arange({M, N}, {.dtype = DType::f64}) * 1.3).eval(); }
// Checks that f on chunks and its gradient match f.
void same(const char* what, const Names& axes, const std::vector<std::int64_t>& chunks,
          const F& f) {
  CAPTURE(std::string(what));
  auto x = input();
  auto chunked = [=](const NamedArray& x) {
    return chunked_reduce(axes, {.chunks = chunks}, f)(x);
  };
  CHECK(max(abs(jit(chunked)(x) - f(x))).item() < 1e-12);
  auto gradient = [](const F& f) {
    return grad([=](const NamedArray& x) { return sum(square(f(x))); });
  };
  CHECK(max(abs(jit(gradient(chunked))(x) - gradient(f)(x))).item() < 1e-12);
}
// Folds over the axis, with a state whose residuals depend on it.
F folded(const char* axis) {
  return [=](const NamedArray& x) {
    return fold([](const NamedArray& c, const NamedArray& p) { return tanh(c + p); }, axis)(
        zeros_like(sum(x, axis)), x);
  };
}

}  // namespace

TEST_CASE("chunks of two axes: a loop along the outer axis has a state with the inner axis") {
  same("chunks of one position", {"m", "n"}, {1, 2}, folded("m"));
  same("chunks of several", {"m", "n"}, {2, 2}, folded("m"));
  same("and the other way round", {"n", "m"}, {2, 2}, folded("m"));
  same("what it leaves is used", {"m", "n"}, {1, 3},
       [](const NamedArray& x) { return folded("m")(x) * 2.; });
}

TEST_CASE("chunks: a later pass over the data recomputes a loop that reads a cumulative sum") {
  auto f = [](const NamedArray& x) { return folded("m")(cumsum(x, "n")); };
  for (int chunk : {1, 2, 3}) same("a fold", {"n"}, {chunk}, f);
  // A slice of a recomputed result is not a slice of an outside array.
  same("flipped", {"n"}, {2}, [](const NamedArray& x) { return flip(cumsum(x, "n"), "m"); });
  same("a slice", {"n"}, {2}, [](const NamedArray& x) { return slice(cumsum(x, "n"), "m", 1, 2); });
}

TEST_CASE("chunks: the state of a loop may depend on values outside of the region") {
  auto f = [](const NamedArray& x) {
    auto body = [](const NamedArray& c, const NamedArray& p, const NamedArray& q) {
      auto next = c * 0.5 + p;
      return std::pair{next, next * q};
    };
    return scan(body, M)(zeros(N, DType::f64), arange({M, N}, {.dtype = DType::f64}), sum(x, "m"))
        .second;
  };
  same("of positions", {"n"}, {2}, f);
}

TEST_CASE("loops: a concatenation that two loops compute is inside the iterations of each") {
  auto f = [](const NamedArray& x) {
    auto body = [](const NamedArray& s) {
      auto y = concatenate("n", {s, s * 2.});
      return std::pair{y, take(y, "n", argmin(y, "n"))};
    };
    auto [y, z] = map(body, M)(x);
    return sum(square(y)) + sum(square(z));
  };
  CHECK(max(abs(jit(grad(f))(input()) - grad(f)(input()))).item() < 1e-12);
}

TEST_CASE("chunks: the softmax of a row without a finite maximum matches the full row") {
  const Axis N("n", 5), V("v", 8), D("d", 1);
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> v(40, 1);
  v[9] = inf;
  v[18] = -inf;
  v[27] = nan;                               // rows 1, 2, 3
  std::fill(v.begin() + 32, v.end(), -inf);  // and 4
  auto x = array(v, {N, V, D}).eval(), ones = full({D}, 1.f).eval();
  auto agree = [](const NamedArray& a, const NamedArray& b) {
    return all(isnan(a) == isnan(b) && (isnan(a) || a == b || abs(a - b) < 1e-6)).item() != 0;
  };
  auto scores = [&](const NamedArray& x) { return dot(x, ones, "d"); };  // computed in each chunk
  auto f = [&](const NamedArray& x) {
    return std::pair{softmax(scores(x), "v"), logsumexp(scores(x), "v")};
  };
  auto [p, l] = f(x);
  for (int chunk : {1, 3, 8}) {
    CAPTURE(chunk);
    auto [q, m] = chunked_reduce("v", {.chunk = chunk}, f)(x);
    CHECK(agree(p, q));
    CHECK(agree(l, m));
    auto each = chunked_reduce("v", {.chunk = chunk}, [&](const NamedArray& x) {
      return sum(softmax(scores(x), "v") * 3.f, "v");
    })(x);
    CHECK(agree(sum(p * 3.f, "v"), each));
  }
}
