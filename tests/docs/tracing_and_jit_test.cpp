// The code of docs/concepts/tracing-and-jit.md, compiled and run.
#include <doctest/doctest.h>

#include <iostream>

#include "docs/printed.h"
#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis N("n", 4), Large("n", 1 << 20);

struct Layer {
  NamedArray weight;  // an input of the program
  double rate = 0.5;  // static
  NamedArray operator()(const NamedArray& x) const { return tanh(x * weight) * rate; }
};

}  // namespace

TEST_CASE("jit: a function is traced once for each signature") {
  Printed out;
  auto f = jit([](const NamedArray& x) { return sum(x * x); });
  auto x = ones(N);
  f(x);                  // traces, compiles and runs
  f(x * 2.);             // runs
  f(ones(N.resize(8)));  // another axis size: traces and compiles again

  out.start();
  std::cout << f.report().traces << ": " << f.report().why << "\n";
  CHECK(out.text() == "2: argument 0 is (n=8), not (n=4)");
}

TEST_CASE("jit: scalars are inputs where the function has a NamedArray parameter") {
  Printed out;
  auto x = arange(N).astype(DType::f32);
  auto scale = jit([](const NamedArray& x, const NamedArray& by) { return x * by; });
  for (int step = 0; step < 100; ++step) scale(x, 0.01 * step);  // one trace

  auto slower = jit([](const auto& x, auto by) { return x * by; });
  for (int step = 0; step < 5; ++step) slower(x, 0.01 * step);  // five traces: `by` is a double

  out.start();
  std::cout << scale.report().traces << " " << slower.report().traces << "\n";
  std::cout << slower.report().why << "\n";
  CHECK(out.text() == "1 5\nthe static argument 1 is 0.04, not 0.03");
}

TEST_CASE("jit: fields of modules are inputs or static, by their type") {
  Printed out;
  auto apply = jit([](const Layer& layer, const NamedArray& x) { return layer(x); });
  Layer layer{ones(N)};
  apply(layer, ones(N));
  layer.weight = layer.weight * 2.;
  apply(layer, ones(N));  // other values of an array: no retrace
  layer.rate = 0.75;
  apply(layer, ones(N));  // another static value: retraces

  out.start();
  std::cout << apply.report().traces << ": " << apply.report().why << "\n";
  CHECK(out.text() == "2: the static argument 0: rate is 0.75, not 0.5");
}

TEST_CASE("jit: refuse_retraces raises after repeated retraces by static values") {
  auto f = jit([](const NamedArray& x, double by) { return x * by; }, {.refuse_retraces = true});
  for (int i = 0; i < 7; ++i) f(ones(N), i);
  raises([&] { return f(ones(N), 7); }, {"[jit] traced 8 times", "argument 1"});
}

TEST_CASE("jit: captured arrays are inputs with the values of the trace") {
  auto offset = ones(N);
  auto shifted = jit([=](const NamedArray& x) { return x + offset; });
  CHECK(shifted(ones(N)).floats()[0] == 2);
}

TEST_CASE("jit: tracers have no value") {
  auto f = jit([](const NamedArray& x) { return x.sum().item() > 0 ? x : x * 2.; });
  raises([&] { return f(ones(N)); }, {"inside jit", "tracing_and_jit_test.cpp"});
  auto g = jit([](const NamedArray& x) { return where(sum(x) > 0., x, x * 2.); });
  CHECK(g(ones(N)).floats()[0] == 1);
  NamedArray leaked;
  jit([&](const NamedArray& x) { return leaked = x * 2.; })(ones(N));
  raises([&] { return leaked.item(); }, {"tracer", "return it from that function"});
}

TEST_CASE("jit: donation updates parameters in place") {
  Printed out;
  auto update = [](const NamedArray& p, const NamedArray& g) { return p - g * 0.1; };
  auto copying = jit(update);
  auto in_place = jit(update, {.donate = {0}});
  auto p = ones(Large).eval(), g = ones(Large).eval();
  copying(p, g);
  auto next = in_place(p, g);  // p must not be read afterwards

  out.start();
  std::cout << copying.report().peak_bytes << " " << in_place.report().peak_bytes << "\n";
  CHECK(out.text() == "4194304 0");
  CHECK(next.floats()[0] == doctest::Approx(0.9));
  raises([&] { return p.floats(); }, {"donated", "tracing_and_jit_test.cpp"});

  auto unused =
      jit([](const NamedArray& p, const NamedArray& g) { return sum(p * g); }, {.donate = {0}});
  unused(next, g);
  out.start();
  for (auto& line : unused.report().not_donated) std::cout << line << "\n";
  CHECK(out.text() == "argument 0 (n=1048576): no result has its size of 4194304 bytes");
}

TEST_CASE("jit: a cache is updated in place inside a loop over layers") {
  auto decode = jit(
      [](const NamedArray& cache, const NamedArray& keys, const NamedArray& position) {
        // c (position, embed): the cache of one layer
        auto layer = [&](const NamedArray& h, const NamedArray& c, const NamedArray& k) {
          auto next = updated_slice(c, {{"position", position}}, k);
          auto weights = softmax(dot(next, h, "embed"), "position");
          return std::pair(h + dot(weights, next, "position"), next);
        };
        return scan(layer, Axis("layers", 4))(zeros(Axis("embed", 16)), cache, keys);
      },
      {.donate = {0}});
  const Axis L("layers", 4), E("embed", 16);
  decode(zeros({L, Axis("position", 64), E}).eval(), ones({L, E}),
         NamedArray(3.).astype(DType::i32));
  CHECK(decode.report().not_donated.empty());
  CHECK(decode.report().peak_bytes < 64 * 16 * 4);
}

TEST_CASE("jit: reports, compile and plan run nothing") {
  auto f = jit([](const NamedArray& x) { return sum(exp(x)); });
  auto report = f.compile(ones(Large));  // traces and compiles, runs nothing
  std::int64_t bytes = report.argument_bytes + report.peak_bytes;
  CHECK(bytes >= 4 << 20);
  CHECK(explain(f).find("memory at the peak") != std::string::npos);
}

TEST_CASE("jit: a jitted function as a member is declared by its signature") {
  Jitted<NamedArray(const NamedArray&, const NamedArray&)> add;
  add = jit([](const NamedArray& a, const NamedArray& b) { return a + b; });
  CHECK(add(ones(N), ones(N)).floats()[0] == 2);
}
