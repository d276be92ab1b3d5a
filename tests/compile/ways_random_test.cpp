// Gathers and scatters by ids, with random shardings of everything, are bitwise identical to one
// device.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "haliax/haliax.h"
#include "support/devices.h"
#include "support/near.h"

using namespace haliax;

namespace {

struct Dice {
  std::mt19937_64 bits;
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + std::int64_t(bits() % std::uint64_t(high - low + 1));
  }
  bool chance() { return between(0, 1) == 1; }
  // Each name has one of the remaining mesh axes. No array has both n and b, so they may share one.
  Mapping mapping(const Mesh& mesh, const std::vector<const char*>& names) {
    std::vector<Mapping::Entry> entries;
    std::vector<std::string> left;
    for (auto& [axis, size] : mesh.axes()) left.push_back(axis);
    if (chance())
      for (auto name : {"n", "b"}) entries.emplace_back(Name(name), std::vector{left[0]});
    if (!entries.empty()) left.erase(left.begin());
    for (auto name : names) {
      bool known = std::any_of(entries.begin(), entries.end(),
                               [&](auto& e) { return e.axis == Name(name); });
      if (known || left.empty() || chance()) continue;
      entries.emplace_back(Name(name), std::vector{left.back()});
      left.pop_back();
    }
    return Mapping::of(entries);
  }
};

using Three = NamedArray (*)(const NamedArray& x, const NamedArray& ids, const NamedArray& u);
const Three ops[] = {
    [](auto& x, auto& i, auto&) { return take(x, "n", i); },
    [](auto& x, auto& i, auto& u) {
      return at_add(x, {{"n", Index(i)}}, u);
    },
    [](auto& x, auto& i, auto& u) {
      return at_set(x, {{"n", Index(i)}}, u);
    },
    [](auto& x, auto& i, auto& u) {
      return at_max(x + 1.f, {{"n", Index(i)}}, u);
    },
    [](auto& x, auto& i, auto& u) {
      return grad([&](const NamedArray& x) { return sum(take(x, "n", i) * u); })(x);
    },
    [](auto& x, auto& i, auto& u) {
      return grad([&](const NamedArray& u) {
        return sum(square(at_add(x, {{"n", Index(i)}}, u)));
      })(u);
    },
};

}  // namespace

TEST_CASE("blockwise: tables and ids of any size match, with any sharding") {
  const Devices many(12);
  Dice dice{std::mt19937_64(1)};
  int sent = 0;
  for (int trial = 0; trial < 90; ++trial) {
    const Mesh mesh =
        dice.chance()
            ? Mesh{{{"data", int(dice.between(2, 8))}}}
            : Mesh{{{"data", int(dice.between(2, 4))}, {"model", int(dice.between(2, 3))}}};
    const Axis N("n", dice.between(1500, 3000)), M("m", dice.between(1, 20)),
        K("k", dice.between(1, 3));
    // ids may have the name of the table's axis
    const Axis B(dice.between(0, 4) ? "b" : "n", dice.between(1, 3000));
    auto x = (arange({N, M, K}, {.dtype = DType::f32}) * 7.f % 13.f).eval();
    auto u = (arange({B, M, K}, {.dtype = DType::f32}) * 5.f % 11.f - 3.f).eval();
    auto ids = (arange(B, {.dtype = DType::i32}) * 37 % int(N.size + 9) - 4).eval();
    auto mapping = [&] { return dice.mapping(mesh, {"n", "b", "m", "k"}); };
    const JitOptions options{.mesh = mesh,
                             .axis_resources = dice.chance() ? Mapping{} : mapping(),
                             .in = Mappings::of_each({mapping(), mapping(), mapping()}),
                             .out = Mappings(mapping())};
    auto f = ops[std::size_t(trial) % std::size(ops)];
    auto step = named_jit(f, options);
    CAPTURE(trial);
    CHECK(difference(step(x, ids, u), jit(f)(x, ids, u), 0) == "");
    sent += step.report().sent_bytes > 0;
  }
  CHECK(sent > 60);
}
