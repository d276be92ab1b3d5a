// C++ scalars as arguments of jit: traced if f has an array parameter, otherwise static, with a
// warning about repeated traces.
#include <doctest/doctest.h>

#include <functional>

#include "haliax/haliax.h"
#include "support/near.h"
#include "support/output.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis N("n", 4);
NamedArray scaled(const NamedArray& x, const NamedArray& by) { return x * by; }
struct Decay {
  double rate = 0.5;
  NamedArray (*shape)(Arr) = exp;
  NamedArray weight = NamedArray(1.);
};
struct Model {
  std::vector<Decay> layers;
};

}  // namespace

TEST_CASE("jit: a hundred calls with different C++ scalars are one trace") {
  auto x = arange(N).astype(DType::f32);
  int traces = 0;
  auto f = jit([&](const NamedArray& v, const NamedArray& by, NamedArray more) {
    ++traces;
    return v * by + more;
  });
  for (int i = 0; i < 100; ++i)
    CHECK(difference(f(x, 0.25 * i, i), x * (0.25 * i) + double(i), 1e-5) == "");
  CHECK(traces == 1);
  CHECK(f.report().traces == 1);
  CHECK(difference(f(x, NamedArray(3.), 1), x * 3. + 1., 0) == "");
  CHECK(difference(f(x, true, 1.f), x + 1., 0) == "");
  CHECK(traces == 1);  // an array with the dtype of these scalars shares the trace
  // Function pointers and std::function work too. The result and its dtype equal those of f without
  // jit.
  auto pointer = jit(scaled);
  auto wrapped = jit(std::function<NamedArray(const NamedArray&, const NamedArray&)>(scaled));
  auto narrow = x.astype(DType::bf16);
  for (double by : {0.5, 1.5, 2.5}) {
    CHECK(difference(pointer(x, by), x * by, 0) == "");
    CHECK(difference(wrapped(x, by), x * by, 0) == "");
    CHECK(pointer(narrow, by).dtype() == scaled(narrow, by).dtype());
  }
  CHECK(pointer.report().traces == 2);
  CHECK(wrapped.report().traces == 1);
  // In a plan, donated, and inside another trace.
  CHECK(pointer.compile(x, 7.).traces == 2);
  auto given =
      jit([](const NamedArray& v, const NamedArray& by) { return v * by; }, {.donate = {1}});
  CHECK(difference(given(x, 2.), x * 2., 0) == "");
  CHECK(difference(given(x, 3.), x * 3., 0) == "");
  CHECK(difference(jit([&](const NamedArray& v) { return pointer(v, 3.); })(x), x * 3., 0) == "");
  Mesh mesh{{{"data", 2}}};
  auto sharded = named_jit(scaled, {.mesh = mesh, .axis_resources = Mapping{{"n", "data"}}});
  for (int i = 0; i < 3; ++i) CHECK(difference(sharded(x, i), x * double(i), 0) == "");
  CHECK(sharded.report().traces == 1);
}

TEST_CASE("jit: scalars are traced through transforms of functions with array parameters") {
  auto x = arange(N).astype(DType::f32);
  auto f = [](const NamedArray& v, const NamedArray& by) { return sum(v * v * by); };
  Mesh mesh{{{"data", 2}}};
  auto check = [&](auto g, auto&& expected) {
    for (int i = 1; i < 4; ++i) CHECK(difference(g(x, 0.5 * i), expected(0.5 * i), 1e-5) == "");
    CHECK(g.report().traces == 1);
  };
  auto slope = [&](double by) { return x * (2 * by); };
  auto value = [&](double by) { return sum(x * x * by); };
  check(jit(grad(f)), slope);
  check(jit(grad(checkpoint(f))), slope);
  check(jit(checkpoint(f)), value);
  check(jit(jit(f)), value);
  check(jit(chunked_reduce(N, {.chunk = 2}, f)), value);
  check(jit(vmap(f, N)), [&](double by) { return x * x * by; });
  check(jit(haliax::map(f, N)), [&](double by) { return x * x * by; });
  check(jit(custom_vjp(f, [](const auto& in, const NamedArray&, const NamedArray&) { return in; })),
        value);
  check(shard_map(f, {.mesh = mesh, .axis_resources = Mapping{}}), value);
  auto both = jit(value_and_grad(f));
  for (int i = 0; i < 3; ++i) CHECK(difference(both(x, i).second, slope(i), 1e-5) == "");
  CHECK(both.report().traces == 1);
  auto maybe = jit(
      [](const NamedArray& v, const std::optional<NamedArray>& by) { return by ? v * *by : v; });
  check(maybe, [&](double by) { return x * by; });
  CHECK(difference(maybe(x, std::optional<NamedArray>()), x, 0) == "");
}

TEST_CASE("jit: other scalars are static, and `why` names the argument and the field") {
  auto x = arange(N).astype(DType::f32);
  auto generic = jit([](const auto& v, auto by) { return v * by; });
  CHECK(difference(generic(x, 2), x * 2, 0) == "");
  CHECK(difference(generic(x, 3), x * 3, 0) == "");
  CHECK(generic.report().traces == 2);
  CHECK(generic.report().why == "the static argument 1 is 3, not 2");
  auto number = jit([](const NamedArray& v, double by, const std::string&) { return v * by; });
  number(x, 0.1, std::string("a"));
  number(x, 0.1, std::string("b"));
  CHECK(number.report().why == "the static argument 2 is \"b\", not \"a\"");
  // an op may read the value of the scalar
  auto ops = jit([](const NamedArray& v, Arr by) { return power(v, by); });
  CHECK(difference(ops(x, 2), x * x, 0) == "");
  CHECK(difference(ops(x, 3), x * x * x, 0) == "");
  CHECK(ops.report().traces == 2);

  auto f = jit([](const Model& m, const NamedArray& v) {
    auto out = v;
    for (auto& l : m.layers) out = l.shape(out * l.weight) * l.rate;
    return out;
  });
  Model m{{{}, {}}};
  f(m, x);
  m.layers[1].rate = 0.75;
  f(m, x);
  CHECK(f.report().why == "the static argument 0: layers.1.rate is 0.75, not 0.5");
  m.layers[0].shape = tanh;
  f(m, x);
  CHECK(f.report().why == "the static argument 0: layers.0.shape differs");
  m.layers.pop_back();
  f(m, x);
  CHECK(f.report().why == "the static argument 0: layers is of 1 items, not of 2 items");
  m.layers[0].weight = NamedArray();
  m.layers[0].shape = tanh;
  m.layers[0].weight = ones(N);
  f(m, x);
  CHECK(f.report().why == "argument 0: layers.0.weight is (n=4), not ()");
  m.layers[0].weight = ones(N, DType::bf16);
  f(m, x);
  CHECK(f.report().why == "the dtype of argument 0: layers.0.weight is bf16, not f32");
  auto lengths =
      jit([](const std::vector<int>& v, const Axis& a) { return arange(a) * int(v.size()); });
  std::vector<int> numbers{1, 2};
  lengths(numbers, N);
  numbers.push_back(3);
  lengths(numbers, N);
  CHECK(lengths.report().why == "the static argument 0 is of 3 items, not of 2 items");
  lengths(numbers, N.resize(5));
  CHECK(lengths.report().why == "the static argument 1 is n=5, not n=4");
}

TEST_CASE("jit: retraces, static values and donation are reported") {
  auto x = arange(N).astype(DType::f32);
  auto scale = jit([](const NamedArray& x, const NamedArray& by) { return x * by; });
  for (int step = 0; step < 100; ++step) scale(x, 0.01 * step);  // one trace

  auto slower = jit([](const auto& x, auto by) { return x * by; });
  for (int step = 0; step < 5; ++step) slower(x, 0.01 * step);  // five: `by` is a double

  auto decode = jit(
      [](const NamedArray& cache, const NamedArray& keys, const NamedArray& position) {
        // c (position, embed): of one layer
        auto layer = [&](const NamedArray& h, const NamedArray& c, const NamedArray& k) {
          auto next = updated_slice(c, {{"position", position}}, k);
          return std::pair(h + dot(softmax(dot(next, h, "embed"), "position"), next, "position"),
                           next);
        };
        // next: (layers, position, embed)
        return scan(layer, Axis("layers", 4))(zeros(Axis("embed", 16)), cache, keys);
      },
      {.donate = {0}});

  const Axis L("layers", 4), E("embed", 16);
  decode(zeros({L, Axis("position", 64), E}).eval(), ones({L, E}),
         NamedArray(3.).astype(DType::i32));
  CHECK(decode.report().not_donated.empty());
  CHECK(decode.report().peak_bytes < 64 * 16 * 4);
  CHECK(scale.report().traces == 1);
  CHECK(slower.report().traces == 5);
  CHECK(slower.report().why == "the static argument 1 is 0.04, not 0.03");
}

// The next case runs this one in a process of its own and reads stderr.
TEST_CASE("jit: traced for each number" * doctest::skip()) {
  auto f = jit([](const NamedArray& v, double by, const Decay& d) { return v * (by + d.rate); });
  for (int i = 0; i < 7; ++i) f(arange(N), 0.5 * i, Decay{.rate = 1. + i % 2});
  std::fprintf(stderr, "now\n");
  for (int i = 7; i < 20; ++i) f(arange(N), 0.5 * i, Decay{});
}
TEST_CASE("jit: a function that is traced for each scalar warns once, or raises") {
  const auto out = output_of_case("jit: traced for each number");
  const auto at = out.find(
      "haliax: warning: [jit] traced 8 times for different static values: "
      "argument 1 (0, 0.5, ..., 3.5); argument 2: rate (1, 2, 0.5); "
      "a number is traced once if the function accepts a NamedArray");
  CAPTURE(out);
  CHECK(at != out.npos);
  CHECK(out.find("now") < at);
  CHECK(out.find("jit_numbers_test.cpp:", at) != out.npos);
  CHECK(out.find("haliax: warning", at + 20) == out.npos);

  auto strict =
      jit([](const NamedArray& v, double by) { return v * by; }, {.refuse_retraces = true});
  for (int i = 0; i < 7; ++i) strict(arange(N), i);
  raises([&] { return strict(arange(N), 7); },
         {"[jit] traced 8 times", "argument 1 (0, 1, ..., 7)", "jit_numbers_test.cpp"});
  CHECK(difference(strict(arange(N), 6), arange(N) * 6., 1e-6) == "");
  // Shapes are not scalars: many of them cause no warning.
  auto shapes =
      jit([](const NamedArray& v, double by) { return v * by; }, {.refuse_retraces = true});
  for (int i = 1; i < 12; ++i) shapes(arange(N.resize(i)), 2.);
  CHECK(shapes.report().traces == 11);
}
