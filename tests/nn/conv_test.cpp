// Convolutions and pools: initialization, errors, meshes and vmap. Values and gradients of all
// variants are checked by the entries of tests/ops and by the golden data.
#include <doctest/doctest.h>

#include <cmath>

#include "haliax/conv.h"
#include "haliax/haliax.h"
#include "support/near.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 4), Channel("channel", 6), Out("out", 8), Row("row", 8), Col("col", 8);

NamedArray image() { return random::normal(random::key(3), {Batch, Channel, Row, Col}).eval(); }
nn::Conv conv(nn::ConvOptions options = {}) {
  return nn::Conv::init({"row", "col"}, Channel, Out, 3, random::key(0), options);
}

// Returns the layer of some inputs, and all gradients, on a backend.
template <class Layer>
std::vector<double> values_on(const char* backend, const Layer& layer, const NamedArray& x) {
  auto f = [](const std::pair<Layer, NamedArray>& in) {
    auto apply = [](const std::pair<Layer, NamedArray>& t) { return t.first(t.second); };
    auto [y, back] = vjp(apply, in);
    auto gradient = back(y);
    return std::tuple(y, gradient.first.weight, *gradient.first.bias, gradient.second);
  };
  auto [y, weight, bias, input] = jit(f, {.backend = backend})(std::pair(layer, x));
  std::vector<double> out;
  for (auto& a : {y, weight, bias, input}) {
    auto scaled = (a.astype(DType::f32) / max(abs(a.astype(DType::f32)))).doubles();
    out.insert(out.end(), scaled.begin(), scaled.end());
  }
  return out;
}
template <class Layer> double worst_to_reference(Layer layer, NamedArray x, DType dtype) {
  layer = tree_map([&](const NamedArray& a) { return a.astype(dtype).eval(); }, layer);
  x = x.astype(dtype).eval();
  auto got = values_on("cpu", layer, x), expected = values_on("reference", layer, x);
  REQUIRE(got.size() == expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    worst = std::max(worst, std::abs(got[i] - expected[i]));
  return worst;
}

}  // namespace

TEST_CASE("convolutions of many channels and their gradients match the reference") {
  const Names axes{"row", "col"};
  for (DType dtype : {DType::f32, DType::bf16})
    for (std::int64_t channels : {33, 40}) {
      const Axis In("channel", channels), Features("out", 37), R("row", 9), C("col", 13);
      auto x = random::normal(random::key(3), {Batch.resize(2), In, R, C});
      auto check = [&](const auto& layer) {
        INFO(std::string(name_of(dtype)), " channels ", channels);
        CHECK(worst_to_reference(layer, x, dtype) < (dtype == DType::f32 ? 1e-5 : 0.012));
      };
      const auto key = random::key(0);
      check(nn::Conv::init(axes, In, Features, 3, key, {.padding = 1}));
      check(nn::Conv::init(axes, In, Features, {2, 3}, key, {.dilation = {1, 2}}));
      check(nn::Conv::init(axes, In, Features, 3, key, {.stride = 2, .padding = 1}));
      check(nn::Conv::init(axes, In, Features, {2, 3}, key, {.stride = {2, 3}}));
      check(nn::ConvTranspose::init(axes, In, Features, 4, key, {.stride = 2, .padding = 1}));
      check(nn::ConvTranspose::init(axes, In, Features, 3, key, {}));
      // the gradient of the input sums 17 channels, and adds windows that are small
      check(nn::Conv::init(axes, In, Axis("out", channels * 17), 2, key, {.groups = channels}));
    }
}

TEST_CASE("convolutions with a stride along the last axis match the reference") {
  const Axis In("channel", 20), Features("out", 18), B = Batch.resize(2), C("col", 90);
  for (std::int64_t stride : {2, 3, 4, 5}) {
    auto layer = nn::Conv::init("col", In, Features, 3, random::key(0), {.stride = stride});
    for (const Axes& order : {Axes{B, In, C}, Axes{In, B, C}, Axes{B, C, In}}) {
      auto x = random::normal(random::key(3), order);
      CHECK(worst_to_reference(layer, x, DType::f32) < 1e-5);
    }
  }
}

TEST_CASE("the phases of a ConvTranspose are computed in the place of the result") {
  const Axis In("channel", 16), Features("out", 16), R("row", 16), C("col", 16);
  auto layer = nn::ConvTranspose::init({"row", "col"}, In, Features, {3, 2}, random::key(0),
                                       {.stride = 2, .use_bias = false});
  auto x = random::normal(random::key(3), {Batch, R, C, In}).eval();
  auto f = jit([](const nn::ConvTranspose& l, const NamedArray& in) { return l(in); });
  auto y = f(layer, x);
  // the strides of a matmul's result: batch, every second row, every second column, channels
  CHECK(has(f.report().program, "[17408 1024 32 1 0 0 0] ="));
}

TEST_CASE("convolutions and their gradients match the reference in any order of the axes") {
  const Axis In("channel", 20), Features("out", 18), B = Batch.resize(3), Q("depth", 6),
                                                     R("row", 7), C("col", 8);
  const Names axes{"depth", "row", "col"};
  const auto key = random::key(0);
  for (DType dtype : {DType::f32, DType::bf16})
    for (const Axes& order : {Axes{B, In, Q, R, C}, Axes{In, B, Q, R, C}, Axes{B, Q, In, R, C},
                              Axes{Q, R, In, B, C}, Axes{B, Q, R, C, In}, Axes{R, C, B, Q, In}}) {
      INFO(std::string(name_of(dtype)), " ", to_string(order));
      auto x = random::normal(random::key(3), order);
      auto check = [&](const auto& layer) {
        CHECK(worst_to_reference(layer, x, dtype) < (dtype == DType::f32 ? 1e-5 : 0.015));
      };
      check(nn::Conv::init(axes, In, Features, 2, key, {.padding = 1}));
      check(nn::Conv::init(axes, In, Features, {2, 3, 1}, key, {.dilation = {2, 1, 1}}));
      check(nn::Conv::init(axes, In, Features, {2, 3, 2}, key, {.stride = {1, 2, 1}}));
      check(nn::ConvTranspose::init(axes, In, Features, 2, key, {.stride = {2, 1, 1}}));
    }
}

TEST_CASE("windowed axes are flattened if they are adjacent, and channels may be between others") {
  const Axis In("channel", 16), Features("out", 16), Q("depth", 24), R("row", 12), C("col", 12);
  const Names axes{"depth", "row", "col"};
  auto layer = nn::Conv::init(axes, In, Features, 2, random::key(0));
  auto program_of = [&](const Axes& order) {
    auto f = jit([](const nn::Conv& l, const NamedArray& in) { return l(in); });
    f(layer, random::normal(random::key(3), order).eval());
    return f.report().program;
  };
  CHECK(has(program_of({Q, In, R, C}), "m[23 132]"));  // rows and columns
  CHECK(has(program_of({R, C, In, Q}), "m[132 23]"));  // also in another order than `axes`
  CHECK(has(program_of({In, Q, R, C}), "m[3312]"));    // all three
  CHECK(has(program_of({Q, In, R, C}), "k[16 2 2 2]"));
  CHECK(has(program_of({R, In, Q, C}), "m[11 276]"));
}

TEST_CASE("a padding of several axes copies its array once") {
  auto layer = conv({.padding = 1});
  auto x = random::normal(random::key(3), {Batch, Channel, Axis("row", 8), Axis("col", 8)}).eval();
  auto f = jit([](const nn::Conv& l, const NamedArray& in) { return l(in); });
  f(layer, x);
  const std::string program = f.report().program;
  int copies = 0;  // copies of arrays, not of one value
  for (std::size_t at = 0; (at = program.find("\ncopy [", at)) != std::string::npos; ++at)
    copies +=
        program.substr(at, program.find("] to ", at) - at).find("[0 0 0 0") == std::string::npos;
  CHECK(copies == 1);
}

TEST_CASE("the gradient of a weight needs less memory than the windows") {
  const Axis In("channel", 32), Features("out", 32), R("row", 32), C("col", 32);
  auto layer = nn::Conv::init({"row", "col"}, In, Features, 3, random::key(0), {.padding = 1});
  auto f = jit([](const nn::Conv& l, const NamedArray& in, const NamedArray& cotangent) {
    return vjp([&](const nn::Conv& t) { return t(in); }, l).second(cotangent).weight;
  });
  for (const Axes& order : {Axes{Batch, In, R, C}, Axes{In, Batch, R, C}, Axes{Batch, R, C, In}}) {
    auto x = random::normal(random::key(3), order).eval();
    f(layer, x, rename(x, {{"channel", "out"}}).eval());
    CHECK(f.report().peak_bytes < 9 * x.size() * 4);
  }
}

TEST_CASE("depthwise convolutions and their gradients match the reference") {
  const Names axes{"row", "col"};
  const Axis In("channel", 12), Features("out", 12), Twice("out", 24), R("row", 19);
  auto check = [&](const auto& layer, DType dtype, std::int64_t columns) {
    INFO(std::string(name_of(dtype)), " columns ", columns);
    auto x = random::normal(random::key(3), {Batch.resize(3), In, R, Axis("col", columns)});
    CHECK(worst_to_reference(layer, x, dtype) < (dtype == DType::bf16 ? 0.015 : 1e-5));
  };
  const auto key = random::key(0);
  for (DType dtype : {DType::f32, DType::bf16, DType::f64})
    for (std::int64_t columns : {10, 21, 40}) {
      auto convolution = [&](const Axis& out, const nn::PerAxis& kernel, nn::ConvOptions o) {
        o.groups = In.size;
        check(nn::Conv::init(axes, In, out, kernel, key, o), dtype, columns);
      };
      convolution(Features, 7, {.padding = 3});
      convolution(Features, {3, 5}, {.dilation = {2, 1}});
      convolution(Features, 3, {.stride = 2, .padding = 1});
      convolution(Features, {3, 2}, {.stride = {1, 3}, .padding = "SAME"});
      convolution(Twice, 3, {.padding = 1});
      check(nn::ConvTranspose::init(axes, In, Features, 4, key,
                                    {.stride = 2, .padding = 1, .groups = In.size}),
            dtype, columns);
      check(nn::ConvTranspose::init(axes, In, Twice, 3, key, {.groups = In.size}), dtype, columns);
    }
}

TEST_CASE("a depthwise convolution and the gradient of its weight are one step each") {
  const Axis In("channel", 32), R("row", 30), C("col", 40);
  auto layer = nn::Conv::init({"row", "col"}, In, In.alias("out"), 5, random::key(0),
                              {.padding = 2, .groups = 32, .use_bias = false});
  auto x = random::normal(random::key(3), {Batch, In, R, C}).eval();
  auto gradient = [](const nn::Conv& l, const NamedArray& in, const NamedArray& cotangent) {
    using Both = std::pair<nn::Conv, NamedArray>;
    auto back = vjp([](const Both& t) { return t.first(t.second); }, Both(l, in)).second;
    auto [of_layer, of_input] = back(cotangent);
    return std::pair(of_layer.weight, of_input);
  };
  auto f = jit(gradient);
  f(layer, x, rename(x, {{"channel", "out"}}).eval());
  const auto program = f.report().program;
  auto count = [&](std::string_view what) {
    int n = 0;
    for (auto at = program.find(what); at != std::string::npos; at = program.find(what, at + 1))
      ++n;
    return n;
  };
  CHECK(count("\ncontract ") == 1);  // the gradient of the weight
  CHECK(count(": mul f32") + count(". mul f32") == 25);
}

TEST_CASE("the gradient of a ConvTranspose materializes no windows") {
  const Axis In("channel", 16), Features("out", 16), R("row", 16), C("col", 16);
  auto layer = nn::ConvTranspose::init({"row", "col"}, In, Features, 4, random::key(0),
                                       {.stride = 2, .padding = 1});
  auto x = random::normal(random::key(3), {Batch, In, R, C}).eval();
  auto f = jit([](const nn::ConvTranspose& l, const NamedArray& in, const NamedArray& cotangent) {
    return vjp([&](const NamedArray& a) { return l(a); }, in).second(cotangent);
  });
  auto y = layer(x).eval();
  f(layer, x, y);
  // The sums contract channels and kernel positions at once. With windows, a contraction has the
  // kernel positions in its result.
  CHECK(has(f.report().program, "k[16 2 2]"));
  CHECK(!has(f.report().program, "n[16 2 2]"));
}

TEST_CASE("Conv::init is uniform up to 1 / sqrt(fan in), with a name for each axis of the weight") {
  auto c = conv({.groups = 2});
  CHECK(c.weight.axes() == Axes{Out, Axis("channel", 3), Axis("row", 3), Axis("col", 3)});
  CHECK(c.bias->axes() == Axes{Out});
  const double limit = 1 / std::sqrt(27.);
  CHECK(max(abs(c.weight)).item() <= limit);
  CHECK(max(abs(c.weight)).item() > 0.9 * limit);
  CHECK(!conv({.use_bias = false}).bias);
}

TEST_CASE("a patch embedding is a reshape and one matmul, without a copy of windows") {
  auto patches = nn::Conv::init({"row", "col"}, Channel, Out, 4, random::key(0), {.stride = 4});
  auto x = image();
  auto f = jit([](const nn::Conv& layer, const NamedArray& in) { return layer(in); });
  auto y = f(patches, x);
  CHECK(y.axes() == Axes{Batch, Out, Row.resize(2), Col.resize(2)});
  auto split = unflatten_axis(unflatten_axis(x, "row", {Row.resize(2), Axis("r", 4)}), "col",
                              {Col.resize(2), Axis("c", 4)});
  auto w = rename(patches.weight, {{"row", "r"}, {"col", "c"}});
  auto expected = dot(split, w, {"channel", "r", "c"}) + *patches.bias;
  CHECK(difference(y, rearrange(expected, y.axes()), 1e-5) == "");
}

TEST_CASE("the gradient of a depthwise Conv with respect to its input sums no single channel") {
  auto depthwise = nn::Conv::init({"row", "col"}, Channel, Channel.alias("out"), 3, random::key(0),
                                  {.padding = 1, .groups = 6});
  auto f = jit([](const nn::Conv& layer, const NamedArray& in, const NamedArray& cotangent) {
    return vjp([&](const NamedArray& x) { return layer(x); }, in).second(cotangent);
  });
  auto x = image();
  f(depthwise, x, rename(x, {{"channel", "out"}}).eval());
  CHECK(!has(f.report().program, "reduce_sum"));
}

TEST_CASE("Conv shards batch and channels freely, and is right with sharded positions") {
  auto x = image();
  auto layer = conv({.padding = "SAME"});
  auto f = [](const nn::Conv& c, const NamedArray& in) { return c(in); };
  auto expected = f(layer, x).eval();
  const Mesh mesh{{{"data", 2}, {"model", 2}}};
  auto run = [&](const Mapping& mapping) {
    auto g = named_jit(f, {.mesh = mesh, .axis_resources = mapping});
    CHECK(difference(g(layer, x), expected, 1e-5) == "");
    return g.report().sent_bytes;
  };
  CHECK(run({{"batch", "data"}}) == 0);
  CHECK(run({{"out", "model"}}) == 0);
  CHECK(run({{"batch", "data"}, {"out", "model"}}) == 0);
  run({{"row", "data"}});
  run({{"channel", "model"}});
  run({{"row", "data"}, {"col", "model"}});
}

TEST_CASE("the code of the page on convolutions") {
  auto key = random::key(0);
  auto stem = nn::Conv::init({"row", "col"}, Channel, Out, 3, key, {.stride = 2, .padding = 1});
  auto pictures = random::normal(key, {Batch, Channel, Row, Col});
  auto features = stem(pictures);  // (batch, channel, row, col) -> (batch, out, row, col)

  const nn::PoolOptions halves{.stride = 2};
  auto smaller = nn::max_pool(features, {Axis("row", 2), Axis("col", 2)}, halves);
  auto average = nn::mean_pool(features, {Axis("row", 2), Axis("col", 2)}, halves);

  CHECK(features.axes() == Axes{Batch, Out, Row.resize(4), Col.resize(4)});
  CHECK(smaller.axes() == Axes{Batch, Out, Row.resize(2), Col.resize(2)});
  CHECK(average.axes() == smaller.axes());
  CHECK(min(smaller - average).item() >= 0);
}

TEST_CASE("vmap over weights and inputs of a Conv equals a loop") {
  const Axis Copies("copies", 3);
  auto layers = vmap([](const Key& key) { return nn::Conv::init({"row"}, Channel, Out, 3, key); },
                     Copies)(random::split(random::key(0), Copies));
  auto x = image();
  auto all = vmap([&](const nn::Conv& c) { return c(x); }, Copies)(layers);
  for (int k = 0; k < 3; ++k) {
    auto one = tree_map([&](const NamedArray& a) { return haliax::at(a, Copies, k); }, layers);
    CHECK(difference(haliax::at(all, Copies, k), one(x), 1e-5) == "");
  }
}

TEST_CASE("pools select values, count positions, and skip padding") {
  auto x = array({1.f, 5.f, 2.f, 4.f, 3.f}, {Axis("t", 5)});
  using Floats = std::vector<float>;
  const Axis Two("t", 2);
  CHECK(nn::max_pool(x, Two).floats() == Floats{5, 5, 4, 4});
  CHECK(nn::max_pool(x, Two, {.stride = 2}).floats() == Floats{5, 4});
  CHECK(nn::max_pool(x, Two, {.stride = 2, .use_ceil = true}).floats() == Floats{5, 4, 3});
  CHECK(nn::min_pool(x, Two, {.padding = 1}).floats() == Floats{1, 1, 2, 2, 3, 3});
  CHECK(nn::mean_pool(x, Two, {.stride = 2, .padding = 1}).floats() == Floats{1, 3.5, 3.5});
  CHECK(nn::mean_pool(x, Two, {.stride = 2, .padding = 1, .count_include_pad = true}).floats() ==
        Floats{0.5, 3.5, 3.5});
  CHECK(nn::max_pool(astype(x, DType::i32), Two).dtype() == DType::i32);
  CHECK(nn::mean_pool(astype(x, DType::i32), Two).dtype() == DType::f32);
}

TEST_CASE("convolutions and pools reject bad arguments") {
  auto x = image();
  auto message = [](auto f) { return message_of(f); };
  CHECK(has(message([&] { conv({.groups = 4}); }), "groups is 4; it must divide"));
  CHECK(has(message([&] { conv({.stride = 0}); }), "stride is 0"));
  CHECK(has(message([&] {
              conv({.dilation = {1, 2, 3}});
            }),
            "dilation lists 3 numbers, but there are 2 spatial axes"));
  CHECK(has(message([&] { nn::Conv::init({"row"}, Channel, Channel, 3, random::key(0)); }),
            "axis channel is both"));
  CHECK(has(message([&] {
              conv()(rename(x, {{"row", "rows"}}));
            }),
            "the spatial axis row is not in the input"));
  CHECK(has(message([&] {
              conv()(rename(x, {{"batch", "out"}}));
            }),
            "already has the output axis out"));
  CHECK(
      has(message([&] { conv()(haliax::at(x, Channel, 0)); }), "axis channel is not in the input"));
  CHECK(
      has(message([&] { conv({.dilation = 4})(x); }), "a window of 9 positions exceeds axis row"));
  CHECK(has(message([&] { conv({.padding = "some"}); }), "there is no padding some"));
  CHECK(has(message([&] { conv({.padding = {{1, -1}, {0, 0}}})(x); }), "padding is (1, -1)"));
  auto up = nn::ConvTranspose::init({"row"}, Channel, Out, 3, random::key(0), {.padding = "SAME"});
  CHECK(has(message([&] { up(x); }), "the padding cannot be SAME"));
  up.padding = 9;
  CHECK(has(message([&] { up(x); }), "reduce the padding"));
  CHECK(has(message([&] { nn::max_pool(x, Axis("rows", 2)); }),
            "the window axis rows is not in the input"));
  CHECK(has(message([&] { nn::max_pool(x, Axis("row", 9)); }), "exceeds its axis"));
  CHECK(has(message([&] { nn::max_pool(x, Axis("row", 2), {.stride = 0}); }), "stride is 0"));
}
