// Common mistakes of C++ users: each one either works as written or raises an error.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>

#include "haliax/haliax.h"
#include "support/output.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis N("n", 3);

bool mentions(const std::string& message, std::initializer_list<std::string> words) {
  for (auto& w : words) {
    if (message.find(w) != message.npos) continue;
    MESSAGE(message << " does not say " << w);
    return false;
  }
  return true;
}
std::string line(int offset = 0, int of = __builtin_LINE()) {
  return "mistakes_test.cpp:" + std::to_string(of + offset);
}

}  // namespace

TEST_CASE("mistakes: a single element with a value converts to bool") {
  auto three = arange(N) + 1, one = sum(three);
  CHECK(bool(one == 6));
  CHECK_FALSE(bool(one == 5));
  CHECK(bool(zeros({Axis("k", 1)}) < 1.));
  CHECK(bool(all(three == three)));
  int taken = 0;
  if (one > 5. && mean(three) < 3.) ++taken;  // logical_and of two scalars
  if (!(one > 7.)) ++taken;
  if (isnan(log(-one.astype(DType::f32)))) ++taken;
  CHECK(taken == 3);
  NamedArray a = sum(three), b = sum(three) * 2;
  CHECK(std::max(a, b).item() == 12);
  CHECK((a < b ? a : b).item() == 6);
  CHECK(std::vector<NamedArray>{a, b} == std::vector<NamedArray>{a, b});
  CHECK_FALSE(std::vector<NamedArray>{a, b} == std::vector<NamedArray>{a, a});
  // In a gradient that is computed at once, arrays have values.
  CHECK(grad([](const NamedArray& x) { return x > 1. ? x * 3. : x; })(NamedArray(2.)).item() == 3);
}

TEST_CASE("mistakes: an array of several elements does not convert to bool") {
  auto x = arange(N), y = arange(N) + 1;
  CHECK(mentions(message_of([&] { return x > 1 ? x : y; }),
                 {"[bool]", "3 elements (n=3)", "all(x)", "any(x)", "where", line()}));
  CHECK(mentions(message_of([&] { return std::max(x, y); }), {"[bool]", "all(x)"}));
  CHECK(
      mentions(message_of([&] { return std::vector{x} == std::vector{y}; }), {"[bool]", "all(x)"}));
  CHECK(mentions(message_of([&] { return bool(zeros({Axis("n", 0)})); }),
                 {"[bool]", "0 elements (n=0)"}));
  CHECK(mentions(message_of([&] { return bool(NamedArray()); }),
                 {"[bool]", "empty NamedArray", "x.empty()"}));
  CHECK(NamedArray().empty());
  CHECK_FALSE(x.empty());
}

TEST_CASE("mistakes: a traced value does not convert to bool") {
  auto clipped = [](const NamedArray& v) {
    if (sum(v) > 1.) return v;
    return v * 0.;
  };
  auto where_line = line(-3);
  auto x = arange(Axes{N, Axis("k", 2)}, {.start = 1, .dtype = DType::f32});
  CHECK(mentions(message_of([&] { jit(clipped)(x); }),
                 {"[bool]", "traced", "where(condition, a, b)", where_line}));
  CHECK(mentions(
      message_of([&] { jit(grad([&](const NamedArray& v) { return sum(clipped(v)); }))(x); }),
      {"[bool]", where_line}));
  CHECK(mentions(message_of([&] { vmap(clipped, N)(x); }),
                 {"[bool]", "where(condition, a, b)", where_line}));
  CHECK(mentions(message_of([&] { haliax::map(clipped, N)(x); }), {"[bool]", where_line}));
  CHECK(mentions(message_of([&] { eval_shape(clipped, x); }), {"[bool]", where_line}));
  CHECK(clipped(x).floats() == x.floats());
  // Values that do not depend on arguments are available while tracing, too.
  CHECK(jit([](const NamedArray& v) { return sum(ones({N})) > 2. ? v : v * 0.; })(x).floats() ==
        x.floats());
}

TEST_CASE("mistakes: converting a donated array to bool raises with that reason") {
  auto f = jit([](const NamedArray& v) { return v + 1.; }, {.donate = {0}});
  auto x = array({1}, Axis("k", 1));
  f(x);
  CHECK(mentions(message_of([&] { return bool(x); }), {"donated"}));
}

TEST_CASE("mistakes: !, && and || are the logical ops") {
  auto x = arange(N, {.dtype = DType::f32});
  auto keep = x > 0.5, big = x > 1.5;
  using Values = std::vector<float>;
  CHECK(where(!keep, x, 9.).floats() == Values{0, 9, 9});
  CHECK(where(keep && big, x, 9.).floats() == Values{9, 9, 2});
  CHECK(where(!keep || big, x, 9.).floats() == Values{0, 9, 2});
  CHECK((!x).integers() == std::vector<std::int64_t>{1, 0, 0});
  for (bool flag : {false, true}) {
    CHECK((keep && flag).integers() == logical_and(keep, flag).integers());
    CHECK((flag && keep).integers() == logical_and(keep, flag).integers());
    CHECK((keep || flag).integers() == logical_or(keep, flag).integers());
    CHECK((flag || keep).integers() == logical_or(keep, flag).integers());
  }
  auto both = jit([](const NamedArray& v) { return where(!(v > 0.5) || v > 1.5, v, 9.); });
  CHECK(both(x).floats() == Values{0, 9, 2});
  auto other = ones({Axis("m", 2)}) > 0.;
  CHECK(mentions(message_of([&] { return keep && other; }), {"[logical_and]", "n", "m", line(-1)}));
  CHECK(mentions(message_of([&] { return !NamedArray(); }), {"[logical_not]", "empty"}));
}

TEST_CASE("mistakes: a range beyond its axis raises") {
  auto x = arange(Axis("pos", 5));
  auto part = [&](Slice s) { return index(x, {{"pos", s}}); };
  for (Slice s : {Slice{3, 20}, Slice{-6}, Slice{6}, Slice{0, -6}, Slice{0, 6, 2}, Slice{6, 0, -1},
                  Slice{20, {}, -1}})
    CHECK(mentions(message_of([&] { part(s); }), {"[index]", "pos=5", "outside"}));
  CHECK(mentions(message_of([&] {
                   index(x, {{"pos", Slice{3, 20}}});
                 }),
                 {"20 is outside of axis pos=5", line()}));
  CHECK(mentions(message_of([&] {
                   at_set(x, {{"pos", Slice{3, 20}}}, 1);
                 }),
                 {"[at_set]", "20 is outside"}));
  using Ids = std::vector<std::int64_t>;
  CHECK(part({3}).integers() == Ids{3, 4});
  CHECK(part({3, 5}).integers() == Ids{3, 4});
  CHECK(part({5, 5}).integers() == Ids{});
  CHECK(part({-5, -1}).integers() == Ids{0, 1, 2, 3});
  CHECK(part({{}, {}, -2}).integers() == Ids{4, 2, 0});
  CHECK(index(arange(Axis("pos", 0)), {{"pos", Slice{0, 0}}}).size() == 0);
}

// The next case runs this one in a process of its own, since a message that is printed once may
// have been printed already.
TEST_CASE("mistakes: f64 and f32 are mixed" * doctest::skip()) {
  std::vector<double> data{1, 2, 3};
  auto x = array(data, N), w = ones({N});
  (x * 2. + NamedArray(1.)).eval();  // scalars and f32 arrays without axes are promoted to f64
  std::fprintf(stderr, "now\n");
  (w * x).eval();
  (x + w).eval();
  std::fprintf(stderr, "line %d\n", __LINE__ - 2);
}
TEST_CASE("mistakes: mixing f64 with f32 warns once") {
  auto out = output_of_case("mistakes: f64 and f32 are mixed");
  auto at = out.find("haliax: warning: [multiply] f64 (n=3) and f32 (n=3) promote to f64");
  CAPTURE(out);
  REQUIRE(at != out.npos);
  CHECK(out.find("now\n") < at);
  CHECK(out.find("haliax: warning", at + 1) == out.npos);
  CHECK(mentions(out, {"astype(DType::f32)", "std::vector<double>", "mistakes_test.cpp:"}));
}
