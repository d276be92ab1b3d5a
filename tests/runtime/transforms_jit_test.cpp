// jit: retracing, inputs, donation, and errors inside a trace.
#include <doctest/doctest.h>

#include <functional>

#include "haliax/haliax.h"
#include "support/near.h"

using namespace haliax;

namespace {

const Axis N("n", 8);

NamedArray numbers(const AxisSpec& axes) { return arange(axes, {.dtype = DType::f32}).eval(); }

struct Layer {
  NamedArray weight;
  double scale = 1;
  NamedArray (*activation)(Arr) = tanh;
};

}  // namespace

TEST_CASE("jit: traces once per signature, and `why` has the reason for a retrace") {
  int traces = 0;
  auto f = jit([&](const Layer& l, const NamedArray& x) {
    ++traces;
    return l.activation(l.weight * x) * l.scale;
  });
  Layer l{numbers({N}) / 10};
  auto x = numbers({N});
  CHECK(difference(f(l, x), tanh(l.weight * x), 1e-6) == "");
  CHECK(f.report().traces == 1);
  CHECK(f.report().why == "the first call");
  CHECK(difference(f(l, x + 1), tanh(l.weight * (x + 1)), 1e-6) == "");
  CHECK(traces == 1);
  f(l, numbers(Axis("n", 8)));
  CHECK(traces == 1);  // other values, the same signature
  f(l, numbers({Axis("batch", 2), N}));
  CHECK(traces == 2);
  CHECK(f.report().why.find("(batch=2, n=8), not (n=8)") != std::string::npos);
  f(l, x);
  CHECK(traces == 2);  // both traces are cached
  f(l, x.astype(DType::f64));
  CHECK(traces == 3);
  CHECK(f.report().why.find("dtype") != std::string::npos);
  l.scale = 2;
  CHECK(difference(f(l, x.astype(DType::f64)), tanh(l.weight * x.astype(DType::f64)) * 2, 1e-6) ==
        "");
  CHECK(traces == 4);
  CHECK(f.report().why.find("static") != std::string::npos);
  l.activation = exp;
  CHECK(difference(f(l, x * 0.01), exp(l.weight * x * 0.01) * 2, 1e-5) == "");
  CHECK(traces == 5);
  CHECK(f.report().traces == 5);
}

TEST_CASE("jit: captured arrays are hidden inputs, not constants") {
  auto captured = numbers(Axis("n", 8));
  auto f = jit([captured](const NamedArray& x) { return x * captured; });
  CHECK(difference(f(captured), captured * captured, 0) == "");
  CHECK(f.report().program.find("2 arguments") != std::string::npos);
  NamedArray lazy = captured + 1;  // captured before it has a value
  auto g = jit([&](const NamedArray& x) { return x * lazy; });
  CHECK(difference(g(captured), captured * (captured + 1), 0) == "");
  CHECK(difference(g(captured), captured * (captured + 1), 0) == "");
  // The variable may be assigned again; the trace retains the captured value.
  lazy = captured + 2;
  CHECK(difference(g(captured), captured * (captured + 1), 0) == "");
}

TEST_CASE("jit: trees, results that are arguments, no arguments, and empty leaves") {
  using Tree = std::pair<NamedArray, std::vector<NamedArray>>;
  auto x = numbers({N});
  auto f = jit([](const Tree& t) {
    return Tree{t.second[0], {t.first, t.first + t.second[0], NamedArray()}};
  });
  auto r = f(Tree{x, {x * 2}});
  CHECK(difference(r.first, x * 2, 0) == "");
  CHECK(difference(r.second[0], x, 0) == "");
  CHECK(difference(r.second[1], x * 3, 0) == "");
  CHECK(r.second[2].empty());
  CHECK(difference(jit([] { return arange(Axis("n", 8)); })(), arange(Axis("n", 8)), 0) == "");
  CHECK(difference(jit([](const NamedArray& a) { return a; })(x), x, 0) == "");
}

TEST_CASE("jit: donation reuses the memory of an argument") {
  auto x = numbers({Axis("n", 4096)});
  auto step = jit([](const NamedArray& p, const NamedArray& g) { return p - g * 0.5; },
                  {.donate = {0}, .backend = "cpu"});
  auto p = (x + 0).eval(), q = step(p, x);
  CHECK(difference(q, x * 0.5, 1e-6) == "");
  CHECK(step.report().not_donated.empty());
  CHECK_THROWS_WITH_AS(p.floats(),
                       doctest::Contains("donated to the call of jit at transforms_jit_test.cpp"),
                       Error);
  CHECK_THROWS_WITH_AS((p + 1).floats(), doctest::Contains("donated"), Error);
  CHECK_THROWS_WITH_AS(step(p, x), doctest::Contains("donated"), Error);
  CHECK(difference(step(q, x), x * 0.0, 1e-6) == "");
  // No result has its size: this is reported, and the call still consumes the argument.
  auto shrink = jit([](const NamedArray& a) { return sum(a); }, {.donate = {0}});
  auto y = (x * 0 + 1).eval();
  CHECK(shrink(y).item() == 4096);
  REQUIRE(shrink.report().not_donated.size() == 1);
  CHECK(shrink.report().not_donated[0].find("argument 0 (n=4096)") == 0);
  CHECK_THROWS_WITH_AS(jit([](const NamedArray& a) { return a; }, {.donate = {1}})(x),
                       doctest::Contains("[jit] donate has argument 1, but the function has "
                                         "1 arguments, counted from 0; transforms_jit_test.cpp"),
                       Error);
  CHECK_THROWS_AS(jit([](const NamedArray& a) { return a; }, {.donate = {-1}})(x), Error);
  // Memory that another array shares is not overwritten.
  auto a = (x + 3).eval();
  auto same = a;
  auto both =
      jit([](const NamedArray& u, const NamedArray& v) { return u * 2 + v; }, {.donate = {0}});
  CHECK(difference(both(a, a), (x + 3) * 3, 1e-5) == "");
}

TEST_CASE("jit: equal arrays are donated separately") {
  auto first = zeros({N}), second = zeros({N});  // lazy and equal: one node
  auto step = jit([](const NamedArray& a) { return a + 1; }, {.donate = {0}});
  CHECK(difference(step(first), ones({N}), 0) == "");
  CHECK(difference(second, zeros({N}), 0) == "");
  CHECK(difference(step(zeros({N})), ones({N}), 0) == "");
}

TEST_CASE("jit: an error inside a trace leaves it usable") {
  bool bad = true;
  auto f = jit([&](const NamedArray& x) { return bad ? sum(x, "m") : sum(x, "n"); });
  auto x = numbers({N});
  CHECK_THROWS_WITH_AS(f(x), doctest::Contains("[sum]"), Error);
  CHECK_THROWS_AS(jit([](const NamedArray& v) { return v * v.item(); })(sum(x)), Error);
  bad = false;
  CHECK(f(x).item() == 28);
  CHECK((x + 1).floats()[0] == 1);  // eager evaluation works too
  CHECK(difference(grad([](const NamedArray& v) { return sum(v * v); })(x), x * 2, 0) == "");
  auto v = vmap(jit([](const NamedArray& a) { return a * a; }), "n");
  CHECK(difference(v(x), x * x, 0) ==
        "");  // inside another trace, the call becomes part of that trace
  CHECK(f(x).item() == 28);
  CHECK_THROWS_WITH_AS(jit([](const NamedArray& a) { return a; }, {.backend = "cpuu"})(x),
                       doctest::Contains("did you mean cpu?"), Error);
}

TEST_CASE("jit: training steps with a donated weight match eager steps, with one trace") {
  auto x = numbers({Axis("batch", 4), N}) / 32;
  auto loss = [&](const NamedArray& w) { return mean(square(dot(x, w, "n") - 1)); };
  auto step = jit(
      [&](const NamedArray& w) {
        auto [l, g] = value_and_grad(loss)(w);
        return std::pair{w - g * 0.1, l};
      },
      {.donate = {0}});
  auto w = array({1, 1, 1, 1, 1, 1, 1, 1}, N), v = array({1, 1, 1, 1, 1, 1, 1, 1}, N);
  double last = 1e9;
  for (int i = 0; i < 20; ++i) {
    auto [next, l] = step(w);
    v = (v - grad(loss)(v) * 0.1).eval();
    w = next;
    CHECK(l.item() < last);
    last = l.item();
  }
  CHECK(step.report().traces == 1);
  CHECK(difference(w, v, 1e-6) == "");
}

TEST_CASE("jit: compile reports memory and time without running") {
  const Axis A("a", 1000);
  int traced = 0;
  auto f = jit([&](const NamedArray& x) {
    ++traced;
    return sort(exp(x), A);
  });
  const auto x = zeros(A).eval();
  CHECK(f.compile(x).peak_bytes >= 2 * 4000);
  CHECK(traced == 1);
  f(x);
  CHECK(f.report().traces == 1);
}

TEST_CASE("jit: one expression reads a value in order and flipped") {
  Axis A{"a", 3}, B{"b", 5};
  auto x = random::normal(random::key(1), {A, B});
  auto made = [](const NamedArray& v) { return tanh(v) * 2. + v; };
  auto y = made(x).doubles();
  for (auto* backend : {"cpu", "reference"}) {
    auto both = jit(
        [&](const NamedArray& v) {
          auto m = made(v);
          return std::pair{m * flip(m, B), sum(m + flip(m, B), B)};
        },
        {.backend = backend})(x);
    auto products = both.first.doubles(), sums = both.second.doubles();
    for (std::size_t a = 0; a < 3; ++a) {
      double sum = 0;
      for (std::size_t b = 0; b < 5; ++b) {
        sum += 2 * y[a * 5 + b];
        CHECK(products[a * 5 + b] ==
              doctest::Approx(y[a * 5 + b] * y[a * 5 + 4 - b]).epsilon(1e-5));
      }
      CHECK(sums[a] == doctest::Approx(sum).epsilon(1e-5));
    }
  }
}

TEST_CASE("jit: a donated argument that a loop reads is available in every iteration") {
  const Axis L("l", 3), N("n", 64), V("v", 8);
  auto s = arange(L).astype(DType::f32), w = random::normal(random::key(1), {N, V});
  using Of = NamedArray (*)(const NamedArray&);
  const Of makes[] = {[](const NamedArray& x) { return cumsum(x, "n"); },
                      [](const NamedArray& x) { return sort(x, "n"); },
                      [](const NamedArray& x) { return x * x + 1.; }};
  for (auto make : makes) {
    auto f = [=](const NamedArray& q) {
      return fold([=](const NamedArray& c, const NamedArray& t) { return c + sum(make(q * t)); },
                  L)(zeros(Axes{}), s);
    };
    auto nested = [=](const NamedArray& q) {
      return fold([=](const NamedArray& c, const NamedArray& t) { return c + f(q) * t; }, L)(
          zeros(Axes{}), s);
    };
    auto product = [=](const NamedArray& q) {
      return fold([=](const NamedArray& c,
                      const NamedArray& t) { return c + sum(dot(make(q * t), w, "n")); },
                  L)(zeros(Axes{}), s);
    };
    auto given = [&] { return random::normal(random::key(2), N).eval(); };
    for (auto& g : {std::function<NamedArray(const NamedArray&)>(f), {nested}, {product}}) {
      auto once = given();
      const double expected = jit(g, {.backend = "reference"})(once).item();
      CHECK(jit(g, {.donate = {0}})(given()).item() == doctest::Approx(expected).epsilon(1e-5));
    }
  }
}
