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
// f (x, others...) and its gradient by x are those of one device, with x cut along n among so many devices, and others by `theirs`.
template <class F, class... A>
Sent sent(int devices, F f, const Mapping& out, const Mapping& theirs, const NamedArray& x, const A&... others) {
  const Mapping cut{{"n", "data"}};
  auto on = [&](const Mapping& to) {
    std::vector<std::optional<Mapping>> in{cut};
    (in.push_back((static_cast<void>(others), theirs)), ...);
    return JitOptions{
        .mesh = Mesh{{{"data", devices}}}, .axis_resources = Mapping{}, .in = Mappings::of_each(in), .out = Mappings(to)};
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
        auto s = sent(devices, f, Mapping{}, Mapping{}, table(Axis("n", size), M));
        CHECK(s.value == M.size * 4 * 2. * (devices - 1) / devices);  // a row that all have
        CHECK(s.gradient == 0);
      }
}

TEST_CASE("ways: a slice from a start that is not known is picked from the blocks, and its gradient is placed in them") {
  const Axis M("m", 6);
  for (int devices : {2, 4})
    for (int size : {64, 65, 61})
      for (int start : {0, 2, size - 1, -7, 100}) {  // clamped, so that the slice fits
        CAPTURE(devices);
        CAPTURE(size);
        CAPTURE(start);
        const double row = M.size * 4 * 2. * (devices - 1) / devices;  // that all have
        auto from = full({}, start, DType::i32).eval();
        auto x = table(Axis("n", size), M);
        auto f = [](const NamedArray& x, const NamedArray& start) { return slice(x, "n", start, 3); };
        auto s = sent(devices, f, Mapping{}, Mapping{}, x, from);
        CHECK(s.value == 3 * row);
        CHECK(s.gradient == 0);
        auto one = sent(
            devices, [](const NamedArray& x, const NamedArray& i) { return at(x, "n", i); }, Mapping{}, Mapping{}, x, from);
        CHECK(one.value == row);
        CHECK(one.gradient == 0);
      }
}

TEST_CASE("ways: what is written into a cut axis is written where it lies") {
  const Axis M("m", 6);
  const Mapping cut{{"n", "data"}};
  using Two = NamedArray (*)(const NamedArray&, const NamedArray&);
  const Two writes[] = {
      [](const NamedArray& x, const NamedArray& u) { return at_set(x, {{Name("n"), Slice{1, 4}}}, u); },
      [](const NamedArray& x, const NamedArray& u) { return at_set(x, {{Name("n"), Slice{0, 5, 2}}}, u); },
      [](const NamedArray& x, const NamedArray& u) { return at_add(x, {{Name("n"), Slice{1, 4}}}, u); },
      [](const NamedArray& x, const NamedArray& u) { return at_set(x, {{Name("n"), Slice{2, 5}}, {Name("m"), Slice{0, 6}}}, u); },
      [](const NamedArray& x, const NamedArray& u) { return updated_slice(x, {{Name("n"), full({}, 2, DType::i32)}}, u); },
  };
  for (int devices : {2, 4})
    for (int size : {8, 9, 5}) {
      auto x = table(Axis("n", size), M), u = (-table(Axis("n", 3), M)).eval();
      for (auto write : writes) {
        CAPTURE(devices);
        CAPTURE(size);
        auto s = sent(devices, write, cut, Mapping{}, x, u);
        CHECK(s.value == 0);
        CHECK(s.gradient == 0);
      }
      for (int start : {0, 2, -1, 100}) {
        auto s = sent(
            devices,
            [](const NamedArray& x, const NamedArray& u, const NamedArray& start) {
              return updated_slice(x, {{Name("n"), start}}, u);
            },
            cut, Mapping{}, x, u, full({}, start, DType::i32).eval());
        CHECK(s.value == 0);
        CHECK(s.gradient == 0);
      }
    }
}
