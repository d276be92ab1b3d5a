// Stencils: sums of shifted views with constant weights. The cpu backend computes them by blocks of
// rows, the reference backend element by element.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "haliax/conv.h"
#include "haliax/haliax.h"

using namespace haliax;

namespace {

struct Image {
  std::int64_t batch, channels, rows, columns;
};

// Returns the largest difference between the backends of a depthwise convolution plus `bias`.
double worst(const Image& size, const nn::PerAxis& kernel, nn::ConvOptions options, DType dtype) {
  const Axis Batch("batch", size.batch), Channel("channel", size.channels), Row("row", size.rows),
      Col("col", size.columns);
  options.groups = size.channels;
  auto layer = tree_map([&](const NamedArray& a) { return a.astype(dtype).eval(); },
                        nn::Conv::init({"row", "col"}, Channel, Channel.alias("out"), kernel,
                                       random::key(0), options));
  auto x = random::normal(random::key(1), {Batch, Channel, Row, Col}, dtype).eval();
  auto on = [&](const char* backend) {
    auto f = [](const nn::Conv& c, const NamedArray& in) { return c(in); };
    return jit(f, {.backend = backend})(layer, x).doubles();
  };
  auto got = on("cpu"), expected = on("reference");
  REQUIRE(got.size() == expected.size());
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    most = std::max(most, std::abs(got[i] - expected[i]));
  return most;
}

}  // namespace

TEST_CASE("stencils of any number of rows and columns match the reference") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (std::int64_t rows : {1, 2, 3, 4, 7, 9})
      for (std::int64_t columns : {3, 8, 14, 17, 40, 71, 150}) {
        INFO(std::string(name_of(dtype)), " rows ", rows, " columns ", columns);
        const double limit = dtype == DType::f32 ? 1e-5 : 0.04;
        CHECK(worst({3, 50, rows, columns}, {3, 5}, {.padding = "SAME"}, dtype) < limit);
      }
}

TEST_CASE("stencils with strides, dilations and no bias match the reference") {
  const Image image{2, 24, 19, 33};
  CHECK(worst(image, 3, {.stride = {2, 1}, .padding = 1}, DType::f32) < 1e-5);
  CHECK(worst(image, 3, {.stride = 2, .padding = 1}, DType::f32) < 1e-5);
  CHECK(worst(image, 3, {.padding = 2, .dilation = 2}, DType::f32) < 1e-5);
  CHECK(worst(image, {5, 3}, {.stride = {3, 1}, .dilation = {2, 3}}, DType::f32) < 1e-5);
  CHECK(worst(image, {1, 7}, {.use_bias = false}, DType::f32) < 1e-5);
  CHECK(worst(image, {7, 1}, {.use_bias = false}, DType::bf16) < 0.04);
}

TEST_CASE("a stencil over one axis reuses weights along the batch") {
  const Axis Batch("batch", 6), T("t", 300), K("k", 5);
  auto x = random::normal(random::key(1), {Batch, T}).eval(),
       w = random::normal(random::key(2), {K}).eval(),
       c = random::normal(random::key(3), {}).eval();
  auto f = [](const NamedArray& in, const NamedArray& weight, const NamedArray& start) {
    NamedArray total = broadcast_axis(start, Axis("t", 296));
    for (std::int64_t k = 0; k < 5; ++k)
      total = total + slice(in, "t", k, 296) * haliax::at(weight, "k", k);
    return total;
  };
  auto on = [&](const char* backend) { return jit(f, {.backend = backend})(x, w, c).doubles(); };
  auto got = on("cpu"), expected = on("reference");
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) < 1e-5);
}
