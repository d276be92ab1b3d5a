// What was once wrong on meshes: plans that gave other numbers, could not run, or were refused without a reason.
#include <doctest/doctest.h>

#include <algorithm>

#include "haliax/haliax.h"
#include "ops/prim.h"
#include "support/devices.h"
#include "support/raises.h"

using namespace haliax;

namespace {

using Cuts = std::vector<std::string>;

bool same_bits(const NamedArray& a, const NamedArray& b) {
  auto x = a.bytes(), y = b.bytes();
  return a.axes() == b.axes() && std::equal(x.begin(), x.end(), y.begin(), y.end());
}
// All ways to cut an axis by at most two axes of the mesh, in order.
std::vector<Cuts> cuts_of(const Mesh& mesh) {
  std::vector<Cuts> out{{}};
  for (auto& [a, n] : mesh.axes()) out.push_back({a});
  for (auto& [a, n] : mesh.axes())
    for (auto& [b, m] : mesh.axes())
      if (a != b) out.push_back({a, b});
  return out;
}
Mapping mapping_of(std::initializer_list<std::pair<const char*, Cuts>> by) {
  std::vector<Mapping::Entry> entries;
  for (auto& [axis, cuts] : by)
    if (!cuts.empty()) entries.emplace_back(Name(axis), cuts);
  return Mapping::of(entries);
}

}  // namespace

TEST_CASE("partition regroup: an axis and its parts, in any blocks, on any mesh") {
  const Devices many(12);
  int wrong = 0, tried = 0;
  auto check = [&](const Mesh& mesh, const Axis& a, const Axis& b, const Mapping& parts, const Mapping& flat) {
    const Axis p("p", a.size * b.size);
    auto whole = arange(p, {.start = 1, .dtype = DType::f32}), apart = arange({a, b}, {.start = 1, .dtype = DType::f32});
    auto joins = [&](const NamedArray& x) { return flatten_axes(x, {a, b}, p); };
    auto splits = [&](const NamedArray& x) { return unflatten_axis(x, p, {a, b}); };
    auto on = [&](const Mapping& in, const Mapping& out) {
      return JitOptions{.mesh = mesh, .axis_resources = Mapping{}, .in = Mappings(in), .out = Mappings(out)};
    };
    for (bool right : {same_bits(named_jit(joins, on(parts, flat))(apart), whole),
                       same_bits(named_jit(splits, on(flat, parts))(whole), apart)}) {
      ++tried;
      if (right || ++wrong > 3) continue;
      FAIL_CHECK(to_string(mesh), " ", to_string(a), " ", to_string(b), " ", to_string(parts), " ", to_string(flat));
    }
  };
  const std::vector<Mesh> meshes{{{{"data", 2}}},
                                 {{{"data", 3}}},
                                 {{{"data", 4}}},
                                 {{{"data", 2}, {"model", 2}}},
                                 {{{"data", 3}, {"model", 2}}},
                                 {{{"data", 2}, {"model", 3}}},
                                 {{{"data", 2}, {"model", 3}, {"replica", 2}}}};
  for (auto& mesh : meshes)
    for (auto& of_a : cuts_of(mesh))
      for (auto& of_b : cuts_of(mesh)) {
        if (std::find_first_of(of_a.begin(), of_a.end(), of_b.begin(), of_b.end()) != of_a.end()) continue;
        for (auto& of_p : cuts_of(mesh))
          for (int a : {1, 2, 3, 4, 5})
            for (int b : {1, 2, 3, 5})
              check(mesh, Axis("a", a), Axis("b", b), mapping_of({{"a", of_a}, {"b", of_b}}), mapping_of({{"p", of_p}}));
      }
  CHECK(wrong == 0);
  CHECK(tried == 22120);
}

TEST_CASE("fit: an axis of another size, or one that is lost, is refused") {
  auto x = prim::filled(1, DType::f32, {Axis("a", 3), Axis("b", 2)});
  auto y = prim::exp(x);
  CHECK(prim::fit(y, {Axis("c", 4), Axis("b", 2), Axis("a", 3)})->axes.size() == 3);
  raises([&] { prim::fit(y, {Axis("a", 2), Axis("b", 2)}); }, {"[fit]", "axis a", "a=3, b=2", "a=2, b=2"});
  raises([&] { prim::fit(y, {Axis("a", 3)}); }, {"[fit]", "axis b"});
}
