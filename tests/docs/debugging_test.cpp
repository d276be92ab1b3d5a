// The code of docs/how-to/debugging.md that is not in tests/runtime/debug_test.cpp, compiled and
// run.
#include <doctest/doctest.h>

#include <cmath>
#include <iostream>

#include "haliax/haliax.h"
#include "printed.h"

using namespace haliax;

namespace {

std::string lines;
struct Caught {
  Caught() {
    lines.clear();
    debug::set_output([](std::string_view line) { lines += std::string(line) + "\n"; });
  }
  ~Caught() { debug::set_output(nullptr); }
};

}  // namespace

TEST_CASE("debugging: print shows the values of each iteration") {
  Caught caught;
  const Axis Time("time", 3);

  auto total = jit([](const NamedArray& xs) {
    auto add = [](const NamedArray& sum, const NamedArray& x) {
      auto next = sum + x;
      debug::print("x is {}, the sum is {}", x, next);
      return next;
    };
    return fold(add, "time")(NamedArray(0.), xs);
  });
  total(array({1., 2., 4.}, Time));

  CHECK(lines == R"(x is NamedArray(f32, (), 1), the sum is NamedArray(f32, (), 1)
x is NamedArray(f32, (), 2), the sum is NamedArray(f32, (), 3)
x is NamedArray(f32, (), 4), the sum is NamedArray(f32, (), 7)
)");
}

TEST_CASE("debugging: report().why is the reason for a retrace") {
  const Axis Batch("batch", 8), Embed("embed", 4);

  Printed printed;

  auto scaled = jit([](const NamedArray& x, double factor) { return x * factor; });
  scaled(ones({Batch, Embed}), 0.5);
  scaled(ones({Batch, Embed}), 0.25);
  printed.start();
  std::cout << scaled.report().why;
  CHECK(printed.text() == "the static argument 1 is 0.25, not 0.5");
  CHECK(scaled.report().traces == 2);
}

TEST_CASE("debugging: visualize_sharding shows the shard of each device") {
  const Axis Batch("batch", 8), Embed("embed", 4);
  const Mesh mesh{{{"data", 4}}};
  Printed printed;
  printed.start();

  std::cout << visualize_sharding({Batch, Embed}, Mapping{{"batch", "data"}}, mesh);

  CHECK(printed.text() == R"((batch=8, embed=4) by {batch: data} on the mesh data=4
batch 0..1  0
batch 2..3  1
batch 4..5  2
batch 6..7  3
each device holds (batch=2, embed=4))");
}

TEST_CASE("debugging: the reference backend computes the same values") {
  const Axis Embed("embed", 4);
  auto x = arange(Embed) * 0.5;
  auto f = [](const NamedArray& x) { return sum(exp(x)); };

  auto fast = jit(f), slow = jit(f, {.backend = "reference"});
  double difference = std::abs(fast(x).item() - slow(x).item());

  CHECK(difference < 1e-5);
}
