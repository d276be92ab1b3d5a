// One-hot code along a row: the cpu backend evaluates it at one element, the reference everywhere.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "haliax/haliax.h"

namespace {

using namespace haliax;

std::vector<double> values_on(const char* backend, const std::vector<NamedArray>& inputs,
                              NamedArray (*f)(const std::vector<NamedArray>&)) {
  return jit([f](const std::vector<NamedArray>& in) { return f(in); }, {.backend = backend})(inputs)
      .doubles();
}

using Function = NamedArray (*)(const std::vector<NamedArray>&);
// in: x (rows, columns), ids (rows), c (rows), shift ()
NamedArray hot(const std::vector<NamedArray>& in) {
  Axis Columns("columns", in[0].axis_size("columns"));
  return equal(broadcast_axis(in[1], Columns), arange(Columns) + in[3]);
}
NamedArray picked(const std::vector<NamedArray>& in) {
  return sum(where(hot(in), in[0], 0.), "columns");
}
NamedArray picked_of_softmax(const std::vector<NamedArray>& in) {
  return sum(where(hot(in), softmax(in[0], "columns"), 0.), "columns");
}
NamedArray poked(const std::vector<NamedArray>& in) {
  return where(hot(in), in[2], 0.) + in[0] * 2.;
}
NamedArray taken(const std::vector<NamedArray>& in) {
  return exp(in[0]) - where(hot(in), in[2], 0.);
}
NamedArray of_rows(const std::vector<NamedArray>& in) {
  return in[0] * in[2] + where(hot(in), -in[2], 0.);
}
NamedArray gradient(const std::vector<NamedArray>& in) {
  return softmax(in[0], "columns") * in[2] - where(hot(in), in[2], 0.);
}

}  // namespace

TEST_CASE("one hot: code that matters at one element of a row matches the reference") {
  const std::vector<std::pair<const char*, Function>> functions = {
      {"picked", picked},   {"picked_of_softmax", picked_of_softmax},
      {"poked", poked},     {"taken", taken},
      {"of_rows", of_rows}, {"gradient", gradient}};
  for (std::int64_t columns : {3, 64, 700, 4500})
    for (DType dtype : {DType::f32, DType::f64, DType::bf16})
      for (bool rows_first : {true, false}) {
        if (columns > 1000 && dtype != DType::f32) continue;  // the reference is slow
        Axis Rows("rows", 9), Columns("columns", columns);
        auto x = astype(
            random::normal(random::key(1), rows_first ? Axes{Rows, Columns} : Axes{Columns, Rows}),
            dtype);
        std::vector<std::int32_t> ids = {
            0,         -1, std::int32_t(columns),     std::int32_t(columns) - 1,
            1,         2,  std::int32_t(columns / 2), 1 << 30,
            -(1 << 30)};
        auto c = astype(random::normal(random::key(2), {Rows}), dtype);
        for (std::int32_t shift : {0, 2})
          for (auto& [of, f] : functions) {
            INFO(std::string(of), " columns ", columns, " ", std::string(name_of(dtype)),
                 " rows first ", rows_first, " shift ", shift);
            std::vector<NamedArray> in{
                x, array(ids, Rows), c,
                sum(array(std::vector<std::int32_t>{shift}, Axis("one", 1)), "one")};
            auto got = values_on("cpu", in, f), expected = values_on("reference", in, f);
            REQUIRE(got.size() == expected.size());
            double worst = 0;
            for (std::size_t i = 0; i < got.size(); ++i)
              worst = std::max(worst, std::abs(got[i] - expected[i]) / (1 + std::abs(expected[i])));
            CHECK(worst <= (dtype == DType::bf16 ? 1e-2 : 1e-6));
          }
      }
}

TEST_CASE("one hot: an update at one element leaves other readers of the row unchanged") {
  Axis Rows("rows", 9), Columns("columns", 700);
  auto x = random::normal(random::key(1), {Rows, Columns}),
       c = random::normal(random::key(2), {Rows});
  auto ids = array(std::vector<std::int32_t>{0, 699, 5, 7, 1, 2, 300, 64, 63}, Rows);
  auto both = [&](const char* backend) {
    auto f = [&](const NamedArray& x, const NamedArray& ids, const NamedArray& c) {
      auto y = tanh(x);
      return std::pair{y - where(equal(broadcast_axis(ids, Columns), arange(Columns)), c, 0.),
                       y * c};
    };
    auto [changed, read] = jit(f, {.backend = backend})(x, ids, c);
    return std::pair{changed.doubles(), read.doubles()};
  };
  auto got = both("cpu"), expected = both("reference");
  for (std::size_t i = 0; i < expected.first.size(); ++i) {
    CHECK(std::abs(got.first[i] - expected.first[i]) <= 1e-6);
    CHECK(std::abs(got.second[i] - expected.second[i]) <= 1e-6);
  }
}
