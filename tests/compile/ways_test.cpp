// Ways by blocks along an axis that is cut: values, gradients, and the bytes that are sent for them.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "support/devices.h"
#include "support/near.h"

using namespace haliax;

namespace {

// What is sent, per device.
struct Sent {
  double value = 0, gradient = 0;
};
// f (x, others...) and its gradient by x, with x cut along n on a mesh of so many devices, are those of one device.
template <class F, class... A>
Sent sent(int devices, F f, const Mapping& out, const NamedArray& x, const A&... others) {
  const Mapping cut{{"n", "data"}};
  auto on = [&](const Mapping& to) {
    return JitOptions{.mesh = Mesh{{{"data", devices}}}, .axis_resources = Mapping{}, .in = Mappings(cut), .out = Mappings(to)};
  };
  auto slope = [=](const NamedArray& x, const A&... others) {
    return grad([&](const NamedArray& x) {
      auto y = f(x, others...);
      return sum(y * (arange(y.axes(), {.dtype = DType::f32}) + 1.f));
    })(x);
  };
  auto value = named_jit(f, on(out));
  CHECK(difference(value(x, others...), jit(f)(x, others...), 0) == "");
  auto gradient = named_jit(slope, on(cut));
  CHECK(difference(gradient(x, others...), jit(slope)(x, others...), 0) == "");
  return {value.report().sent_bytes, gradient.report().sent_bytes};
}
NamedArray table(const Axis& n, const Axis& m) { return arange({n, m}, {.start = 1, .dtype = DType::f32}).eval(); }

}  // namespace

TEST_CASE("ways: one position of a cut axis comes from the device that holds it") {
  const Axis M("m", 6);
  for (int devices : {2, 4})
    for (int size : {8, 9, 5})
      for (int position : {0, 3, size - 1, -2}) {
        CAPTURE(devices);
        CAPTURE(size);
        CAPTURE(position);
        auto f = [=](const NamedArray& x) { return at(x, "n", position); };
        auto s = sent(devices, f, Mapping{}, table(Axis("n", size), M));
        CHECK(s.value == M.size * 4 * 2. * (devices - 1) / devices);  // a row that all have
        CHECK(s.gradient == 0);
      }
}
