// The code of docs/concepts/lazy-evaluation.md, compiled and run.
#include <doctest/doctest.h>

#include <iostream>
#include <thread>

#include "docs/printed.h"
#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis N("n", 4);

}  // namespace

TEST_CASE("lazy evaluation: a value is computed when it is read") {
  Printed out;
  auto x = arange(N, {.dtype = DType::f32});
  auto y = exp(x * 0.);     // builds graph nodes
  auto z = sum(y * y);      // builds graph nodes
  double total = z.item();  // compiles and runs one program, which computes z and y
  CHECK(total == 4);

  out.start();
  std::cout << total << " " << y << "\n";  // y is cached: nothing runs again
  CHECK(out.text() == "4 NamedArray(f32, (n=4), [1, 1, 1, 1])");
}

TEST_CASE("lazy evaluation: eval computes several arrays as one program") {
  auto x = arange(N, {.dtype = DType::f32});
  NamedArray average = zeros(N), count = 0.;
  for (int step = 0; step < 3; ++step) {
    average = average * 0.9 + x * 0.1;
    count = count + 1.;
    std::vector<NamedArray> state{average, count};
    eval(state);  // both are values, and their graphs are released
  }
  CHECK(count.item() == 3);
  CHECK(average.floats()[1] == doctest::Approx(0.271));
}

TEST_CASE("lazy evaluation: a scalar in an array is not part of the program") {
  auto x = arange(N, {.dtype = DType::f32});
  double sum_of_all = 0;
  for (int i = 0; i < 3; ++i) {
    sum_of_all += sum(x * array({double(i)}, {})).item();  // one program, run three times
  }
  CHECK(sum_of_all == 18);
}

TEST_CASE("lazy evaluation: errors are raised where the op is written") {
  auto x = arange(N);
  raises([&] { return sum(x, "m"); }, {"[sum] axis m is not in (n=4)", "lazy_evaluation_test.cpp"});
  auto f = jit([](const NamedArray& v) { return v.sum().item() > 0 ? v : v * 2; });
  raises([&] { return f(x); }, {"inside jit", "lazy_evaluation_test.cpp"});
}

TEST_CASE("lazy evaluation: an array may be read by several threads") {
  auto y = sum(exp(arange(N, {.dtype = DType::f32})));
  double first = 0, second = 0;
  std::thread reader([&] { first = y.item(); });
  second = y.item();
  reader.join();
  CHECK(first == second);
}
