// The code of docs/concepts/numerics.md, compiled and run.
#include <doctest/doctest.h>

#include <cmath>
#include <iostream>

#include "docs/printed.h"
#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 8), Embed("embed", 4), N("n", 3);
const Axis In("embed", 4), Out("out", 2);

NamedArray loss(const nn::Linear& model, const NamedArray& x, const NamedArray& y) {
  return mean(square(model(x) - y));
}
template <class T> std::vector<std::vector<std::byte>> bytes_of(const T& tree) {
  std::vector<std::vector<std::byte>> out;
  for (auto& a : flatten(tree)) out.push_back(a.bytes());
  return out;
}

}  // namespace

TEST_CASE("numerics: scalars are weakly typed, and dtypes promote") {
  Printed out;
  auto weights = ones(Embed, DType::bf16);
  auto ids = arange(Embed);

  out.start();
  std::cout << (weights + 1.0).dtype() << "\n";              // a C++ scalar adopts the dtype
  std::cout << (weights + NamedArray(1.0)).dtype() << "\n";  // an f32 array promotes
  std::cout << (ids + 1).dtype() << " " << (ids + 0.5).dtype() << "\n";
  std::cout << (ids / 2).dtype() << " " << floor_divide(ids, 2).dtype() << "\n";
  CHECK(out.text() == "bf16\nf32\ni32 f32\nf32 i32");

  auto p = [](DType a, DType b) { return promote(a, b); };
  using enum DType;
  CHECK(p(i64, bf16) == bf16);
  CHECK(p(bf16, f16) == f32);
  CHECK(p(f32, f64) == f64);
  CHECK(p(i8, i32) == i32);
  CHECK(p(u8, u32) == u32);
  CHECK(p(u8, i8) == i16);
  CHECK(p(u16, i16) == i32);
  CHECK(p(u32, i32) == i64);
  CHECK(p(u64, i64) == f32);
  CHECK(p(u8, i32) == i32);
  CHECK(p(boolean, i8) == i8);
  CHECK(promote(boolean, bf16) == bf16);
  raises([&] { return zeros(N, DType::u8) + 300; }, {"[add]", "300", "u8"});
  CHECK(array(std::vector<double>{1, 2, 3}, N).dtype() == f64);
  CHECK(array({1, 2, 3}, N).dtype() == f32);
  CHECK(sum(ones(N, u8)).dtype() == u32);
  CHECK(sum(ones(N, boolean)).dtype() == i32);
  CHECK(mean(ids).dtype() == f32);
  CHECK(exp(ids).dtype() == f32);
  CHECK(argmax(weights, Embed).dtype() == i32);
  CHECK(dot(weights, weights, "embed").dtype() == bf16);
  CHECK(dot(weights, weights, "embed", {.preferred_element_type = f32}).dtype() == f32);
}

TEST_CASE("numerics: sums of 16-bit floats are rounded once") {
  Printed out;
  auto x = full(Axis("n", 4096), 0.001, DType::bf16);
  out.start();
  std::cout << sum(x).item() << " " << sum(x.astype(DType::f32)).item() << "\n";
  CHECK(out.text() == "4.09375 4.096");
  CHECK(sum(array({3e38, 3e38, -3e38}, N)).item() == doctest::Approx(3e38));
}

TEST_CASE("numerics: mixed precision by a policy") {
  Printed out;
  auto model = nn::Linear::init(In, Out, random::key(0));
  auto x = random::normal(random::key(1), {Batch, Embed});
  auto y = zeros({Batch, Out});

  Policy policy("p=f32,c=bf16,o=f32");
  auto mixed_loss = [=](const nn::Linear& m, const NamedArray& x, const NamedArray& y) {
    auto compute = policy.cast_to_compute(m);                                     // bf16 weights
    auto prediction = policy.cast_to_output(compute(policy.cast_to_compute(x)));  // f32
    return mean(square(prediction - y));                                          // an f32 loss
  };
  auto [l, grads] = value_and_grad(mixed_loss)(model, x, y);
  out.start();
  std::cout << l.dtype() << " " << grads.weight.dtype() << "\n";
  CHECK(out.text() == "f32 f32");
  CHECK(l.item() == doctest::Approx(loss(model, x, y).item()).epsilon(0.02));

  CHECK(Policy("bf16") == Policy("p=bf16,c=bf16,o=bf16"));
  CHECK(Policy("p=f32,c=bf16,r=f32").reduce == DType::f32);
  CHECK(Policy("half").param == DType::f16);
  raises([] { return Policy("p=f33"); }, {"[policy]", "f33"});
}

TEST_CASE("numerics: NaN rules") {
  Printed out;
  auto x = array({1, std::nan(""), 3}, N);
  out.start();
  std::cout << max(x).item() << " " << argmax(x).item() << " " << sort(x, "n") << "\n";
  std::cout << maximum(x, 2.) << " " << fmax(x, 2.) << "\n";
  CHECK(out.text() ==
        "nan 1 NamedArray(f32, (n=3), [1, 3, nan])\n"
        "NamedArray(f32, (n=3), [2, nan, 3]) NamedArray(f32, (n=3), [2, 2, 3])");
  CHECK(std::isnan(min(x).item()));
  CHECK(argmin(x).item() == 1);
  CHECK((x == x).floats() == std::vector<float>{1, 0, 1});
  CHECK(x.astype(DType::i32).integers() == std::vector<std::int64_t>{1, 0, 3});
  CHECK(array({1e10, -1e10, 0}, N).astype(DType::i32).integers()[0] == 2147483647);
  auto ids = array({0, 5, 1}, N).astype(DType::i32);
  CHECK(std::isnan(take(ones(Embed), "embed", ids).floats()[1]));
  CHECK(mean(x, "n", {.where = x < 0.}).dtype() == DType::f32);
  CHECK(std::isnan(mean(x, "n", {.where = x < 0.}).item()));
  CHECK(std::isnan(sum(array({0, 0, 0}, N) * (1. / zeros(N))).item()));
}

TEST_CASE("numerics: the gradient of where needs finite operands") {
  Printed out;
  auto x = array({0, 2}, Axis("n", 2));
  auto naive = [](const NamedArray& x) { return sum(where(x > 0., log(x), 0.)); };
  auto safe = [](const NamedArray& x) {
    auto positive = where(x > 0., x, 1.);  // log reads no zero
    return sum(where(x > 0., log(positive), 0.));
  };
  out.start();
  std::cout << grad(naive)(x) << "\n";
  std::cout << grad(safe)(x) << "\n";
  CHECK(out.text() ==
        "NamedArray(f32, (n=2), [nan, 0.5])\n"
        "NamedArray(f32, (n=2), [0, 0.5])");
  CHECK(grad([](const NamedArray& v) { return max(v); })(array({2, 2, 1}, N)).floats() ==
        std::vector<float>{0.5, 0.5, 0});
}

TEST_CASE(
    "numerics: bitwise identical for any thread count, "
    "from run to run, and for draws on every mesh") {
  const Axis Rows("rows", 200), Columns("columns", 300);
  auto f = [=](const NamedArray& x, const NamedArray& w) {
    return std::tuple(sum(x), dot(x, w, "columns"), softmax(x, "columns"));
  };
  auto x = random::normal(random::key(1), {Rows, Columns}),
       w = random::normal(random::key(2), Columns);
  std::vector<std::vector<std::byte>> first;
  for (int threads : {1, 2, 3, 3}) {
    set_threads(threads);
    auto now = bytes_of(jit(f)(x, w));
    if (first.empty()) first = now;
    CHECK(now == first);
  }
  set_threads(0);

  auto draw = [=] { return random::normal(random::key(0), {Rows, Columns}); };
  for (int devices : {2, 3}) {
    auto sharded = named_jit(
        draw, {.mesh = Mesh{{{"data", devices}}}, .axis_resources = Mapping{{"columns", "data"}}});
    CHECK(sharded().bytes() == draw().bytes());
    CHECK(sharded.report().sent_bytes == 0);

    auto on_mesh = [&] {
      return bytes_of(named_jit(f, {.mesh = Mesh{{{"data", devices}}},
                                    .axis_resources = Mapping{{"columns", "data"}}})(x, w));
    };
    CHECK(on_mesh() == on_mesh());
  }
}
