// flatten_axes and unflatten_axis on meshes: all small sizes, with every sharding of the parts and
// the full axis over up to two mesh axes.
#include <doctest/doctest.h>

#include <algorithm>

#include "haliax/jit.h"
#include "haliax/ops.h"
#include "support/devices.h"

using namespace haliax;

namespace {

using MeshAxes = std::vector<std::string>;

std::vector<MeshAxes> shardings_of(const Mesh& mesh) {
  std::vector<MeshAxes> out{{}};
  for (auto& [a, n] : mesh.axes()) out.push_back({a});
  for (auto& [a, n] : mesh.axes())
    for (auto& [b, m] : mesh.axes())
      if (a != b) out.push_back({a, b});
  return out;
}
bool meet(const MeshAxes& a, const MeshAxes& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](auto& m) { return std::count(b.begin(), b.end(), m) > 0; });
}

struct Sizes {
  Axis a, b, flat;
};
std::vector<Sizes> all_sizes() {
  std::vector<Sizes> out;
  for (int a : {1, 2, 3, 4, 5})
    for (int b : {1, 2, 3, 5}) out.push_back({{"a", a}, {"b", b}, {"whole", a * b}});
  return out;
}

// Returns, in one program per mapping, the flattened parts and the unflattened axis of every size.
Leaves both_ways(const Leaves& x) {
  Leaves out;
  auto sizes = all_sizes();
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    auto& s = sizes[k];
    out.push_back(flatten_axes(x[2 * k], {"a", "b"}, s.flat));
    out.push_back(unflatten_axis(x[2 * k + 1], "whole", {s.a, s.b}));
  }
  return out;
}

// Returns the number of wrong results under this mapping; prints the first.
int wrong(const Mesh& mesh, const Mapping& m, const Leaves& x, const Leaves& expected) {
  auto got =
      named_jit(both_ways, {.mesh = mesh, .axis_resources = Mapping{}, .in = m, .out = m})(x);
  int count = 0;
  for (std::size_t k = 0; k < expected.size(); ++k) {
    if (got[k].bytes() == expected[k].bytes()) continue;
    if (count++) continue;
    auto how = to_string(x[k].axes()) + " becomes " + to_string(expected[k].axes());
    FAIL_CHECK(to_string(mesh) << " by " << to_string(m) << ": " << how << " with other values");
  }
  return count;
}

}  // namespace

TEST_CASE(
    "flatten_axes and unflatten_axis on meshes: "
    "every sharding of small arrays matches one device") {
  Devices twelve(12);
  Leaves x;
  for (auto& s : all_sizes()) {
    x.push_back(arange({s.a, s.b}, {.start = 1, .dtype = DType::f32}).eval());
    x.push_back(arange(s.flat, {.start = 1, .dtype = DType::f32}).eval());
  }
  auto expected = jit(both_ways)(x);
  int ways = 0, bad = 0;
  for (auto& mesh :
       {Mesh{{{"data", 2}}}, Mesh{{{"data", 3}}}, Mesh{{{"data", 4}}},
        Mesh{{{"data", 2}, {"model", 2}}}, Mesh{{{"data", 3}, {"model", 2}}},
        Mesh{{{"data", 2}, {"model", 3}}}, Mesh{{{"data", 2}, {"model", 3}, {"replica", 2}}}}) {
    auto shardings = shardings_of(mesh);
    for (auto& a : shardings)
      for (auto& b : shardings)
        for (auto& flat : shardings) {
          if (meet(a, b)) continue;
          bad += wrong(mesh, Mapping::of({{Name("a"), a}, {Name("b"), b}, {Name("whole"), flat}}),
                       x, expected);
          ways += int(expected.size());
        }
  }
  CHECK(ways == 22120);
  CHECK(bad == 0);
}
