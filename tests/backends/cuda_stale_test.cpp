// A value may reside on the host and on a device at once. A donation that overwrites one copy drops
// the other.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "support/devices.h"

using namespace haliax;
using Doubles = std::vector<double>;

namespace {

const Axis N("n", 4);
const Doubles kOld{10, 11, 12, 13}, kNew{11, 12, 13, 14}, kNewer{12, 13, 14, 15};

NamedArray next(const NamedArray& x) { return x + 1.; }
NamedArray same(const NamedArray& x) { return x * 1.; }
NamedArray on_host() {
  return jit([] { return arange(N, {.dtype = DType::f32}) + 10.; }, {.backend = "cpu"})();
}

// One device, or two devices with half of the value each.
struct There {
  const char* backend;
  bool mesh;
  auto function(NamedArray (*f)(const NamedArray&), std::vector<int> donate = {}) const {
    JitOptions o{.donate = std::move(donate), .backend = backend};
    if (mesh) {
      o.mesh = Mesh{{{"data", 2}}};
      o.axis_resources = Mapping{{"n", "data"}};
    }

    return named_jit(f, o);
  }
};
template <class F> void everywhere(F check) {
  Devices two(2);
  for (const char* backend : {"separate-memory", "cuda-sim"})
    for (bool mesh : {false, true}) {
      CAPTURE(std::string(backend));
      CAPTURE(mesh);
      check(There{backend, mesh});
    }
}

}  // namespace

TEST_CASE("stale copy: the device overwrites a value that the host has a copy of") {
  everywhere([](const There& there) {
    auto x = there.function(next)(jit(same, {.backend = "cpu"})(on_host()));
    REQUIRE(x.doubles() == kNew);           // a copy on the host
    auto y = there.function(next, {0})(x);  // in the memory of x on the device
    CHECK(y.doubles() == kNewer);
    CHECK(jit(same, {.backend = "cpu"})(y).doubles() == kNewer);
    CHECK(there.function(same)(y).doubles() == kNewer);
  });
}

TEST_CASE("stale copy: the host overwrites a value that the device has a copy of") {
  everywhere([](const There& there) {
    auto x = on_host();
    REQUIRE(there.function(same)(x).doubles() == kOld);        // a copy on the device
    auto y = jit(next, {.donate = {0}, .backend = "cpu"})(x);  // in the memory of x on the host
    CHECK(there.function(same)(y).doubles() == kNew);
    CHECK(y.doubles() == kNew);
  });
}
