// Gathers and scatters by ids along the axis that chunked_reduce tiles, and axes that f renames:
// right, or refused by name.
#include <doctest/doctest.h>

#include <functional>

#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis N{"n", 6}, B{"b", 2}, I{"i", 3};
using F = std::function<NamedArray(const NamedArray&)>;

NamedArray ints(std::vector<std::int32_t> v, const Axis& a) { return array(v, {a}).eval(); }
// Checks that f on chunks of n matches f.
void same(const char* what, const F& f, const NamedArray& x, const Name& axis = "n") {
  CAPTURE(std::string(what));
  auto expected = f(x).doubles();
  for (int chunk : {1, 2, 4, 6})
    for (bool on_mesh : {false, true}) {
      CAPTURE(chunk);
      CAPTURE(on_mesh);
      auto chunked = [&](const NamedArray& x) {
        return chunked_reduce(axis, {.chunk = chunk}, f)(x);
      };
      JitOptions on;
      if (on_mesh) on = {.mesh = Mesh{{{"data", 2}}}, .axis_resources = Mapping{{axis, "data"}}};
      auto got = (on_mesh ? named_jit(chunked, on)(x) : jit(chunked)(x)).doubles();
      CHECK(got == expected);
    }
}
void refused(const char* what, const F& f, const NamedArray& x, const std::string& why) {
  CAPTURE(std::string(what));
  raises(
      [&] { jit([&](const NamedArray& x) { return chunked_reduce("n", {.chunk = 2}, f)(x); })(x); },
      {"[chunked_reduce]", why.c_str(), "n=6"});
}

}  // namespace

TEST_CASE("chunks: ids along the tiled axis need the full table, whatever computes it") {
  auto x = arange(N, {.start = 10, .dtype = DType::f32}).eval();
  auto ids = ints({5, 4, 3, 2, 1, 0}, N), start = at(ints({1, 0}, Axis("q", 2)), "q", 0).eval();
  const std::string all = "take requires all positions at once";
  refused(
      "roll by an array", [&](const NamedArray& x) { return roll(x, start, "n"); }, x,
      "roll requires all positions at once");
  refused(
      "captured ids", [&](const NamedArray& x) { return take(x, "n", ids); }, x, all);
  refused(
      "ids from positions", [&](const NamedArray& x) { return take(x, "n", 5 - arange(N)); }, x,
      all);
  refused(
      "its gradient",
      [&](const NamedArray& x) {
        return grad([&](const NamedArray& x) { return sum(take(x, "n", ids) * x, "n"); })(x);
      },
      x, all);
  refused(
      "written into the walked array",
      [&](const NamedArray& x) {
        return at_add(x, {{"n", Index(ids)}}, x * 100.);
      },
      x, "scatter requires all positions at once");
  // A table from outside is read in full, and updates along the axis are summed into one array.
  auto table = ints({3, 1, 4, 1, 5, 9}, N);
  same(
      "ids that are walked",
      [&](const NamedArray& x) {
        return take(table, "n", (x % 6.).astype(DType::i32)).astype(DType::f32) * x;
      },
      x);
  same(
      "updates that are walked",
      [&](const NamedArray& x) {
        return at_add(zeros(N), {{"n", Index((x % 3.).astype(DType::i32))}}, x);
      },
      x);
}

TEST_CASE("chunks: lookups and concatenations of positions alone are tiled") {
  auto x = arange(N, {.start = 10, .dtype = DType::f32}).eval();
  auto table = ints({3, 1, 4}, Axis("entry", 3));
  auto looked_up = [&](const NamedArray& x) {
    return take(table, "entry", arange(N) % 3).astype(DType::f32) * x;
  };
  same("a table by positions", looked_up, x);
  same(
      "its sum", [&](const NamedArray& x) { return sum(looked_up(x), "n"); }, x);
  auto parts = [&](const Axis& a) { return arange(a, {.start = 1, .dtype = DType::f32}); };
  same(
      "parts along the axis",
      [&](const NamedArray& x) {
        return concatenate("n", {parts(Axis("n", 4)), parts(Axis("n", 2))}) * x;
      },
      x);
}

TEST_CASE(
    "chunks: updates continue from chunk to chunk, for every monoid, from their initial array") {
  const Axis V("v", 3);
  auto x = array({3, -1, 4, 1, -5, 9}, {N}).eval(), base = array({2, 0, -7}, {V}).eval();
  auto ids = [](const NamedArray& x) { return Index((abs(x) % 2.).astype(DType::i32)); };
  same(
      "added",
      [&](const NamedArray& x) {
        return at_add(base, {{"v", ids(x)}}, x);
      },
      x);
  same(
      "multiplied",
      [&](const NamedArray& x) {
        return at_mul(base, {{"v", ids(x)}}, x);
      },
      x);
  same(
      "multiplied onto zeros",
      [&](const NamedArray& x) {
        return at_mul(zeros(V), {{"v", ids(x)}}, x);
      },
      x);
  same(
      "the least",
      [&](const NamedArray& x) {
        return at_min(base, {{"v", ids(x)}}, x);
      },
      x);
  same(
      "the greatest",
      [&](const NamedArray& x) {
        return at_max(base, {{"v", ids(x)}}, x);
      },
      x);
  same(
      "the greatest of whole numbers",
      [&](const NamedArray& x) {
        return at_max(zeros(V, DType::i32) - 3, {{"v", ids(x)}}, x.astype(DType::i32))
            .astype(DType::f32);
      },
      x);
  same(
      "any",
      [&](const NamedArray& x) {
        return at_add(zeros(V, DType::boolean), {{"v", ids(x)}}, x > 3.).astype(DType::f32);
      },
      x);
  refused(
      "put there",
      [&](const NamedArray& x) {
        return at_set(base, {{"v", ids(x)}}, x);
      },
      x, "scatter requires all positions at once");
}

TEST_CASE("chunks: an argmax may index its own argument and other arrays") {
  auto x = array({3, 1, 4, 1, 5, 9}, {N}).eval(),
       table = array({10, 11, 12, 13, 14, 15}, {N}).eval();
  same(
      "of itself", [](const NamedArray& x) { return take(x, "n", argmax(x, "n")); }, x);
  same(
      "of a table", [&](const NamedArray& x) { return take(table, "n", argmin(x, "n")); }, x);
  same(
      "and used again", [](const NamedArray& x) { return x * take(x, "n", argmax(x, "n")); }, x);
}

TEST_CASE("chunks: ids along the tiled axis under another name pair positions") {
  auto x = arange(N, {.start = 10, .dtype = DType::f32}).eval(),
       table = arange(N, {.start = 1, .dtype = DType::f32}).eval();
  auto ids = [](const NamedArray& x) { return rename((x % 6.).astype(DType::i32), {{"n", "m"}}); };
  const std::string pairs = "pairs positions (n with m; outside of the function";
  refused(
      "picked", [&](const NamedArray& x) { return take(x, "n", ids(x)); }, x, pairs);
  refused(
      "picked by index",
      [&](const NamedArray& x) {
        return index(x, {{"n", Index(ids(x))}});
      },
      x, pairs);
  refused(
      "of a table that f captured", [&](const NamedArray& x) { return take(table, "n", ids(x)); },
      x, pairs);
  refused(
      "added to",
      [&](const NamedArray& x) {
        return at_add(x, {{"n", Index(ids(x))}}, 1.);
      },
      x, pairs);
}

TEST_CASE("chunks: several index arrays, one of them along the tiled axis, match") {
  auto x = arange({N, B}, {.start = 10, .dtype = DType::f32}).eval();
  auto ids = ints({5, 1, -4}, I), b = ints({0, 1, -1}, I), far = ints({5, 7, 2}, I),
       wide = ints({0, 1, 2}, I);
  auto pick = [&](const NamedArray& n, const NamedArray& b) {
    return [=](const NamedArray& x) { return index(x, {{"n", Index(n)}, {"b", Index(b)}}); };
  };
  same("picked", pick(ids, b), x);
  same(
      "some of them outside",
      [&](const NamedArray& x) { return where(isnan(pick(far, b)(x)), -1., pick(far, b)(x)); }, x);
  same(
      "of the other axis outside",
      [&](const NamedArray& x) {
        return where(isnan(pick(ids, wide)(x)), -1., pick(ids, wide)(x));
      },
      x);
  same(
      "added to",
      [&](const NamedArray& x) {
        return at_add(x, {{"n", Index(ids)}, {"b", Index(b)}}, 100.);
      },
      x);
  same(
      "set",
      [&](const NamedArray& x) {
        return at_set(x, {{"n", Index(ids)}, {"b", Index(b)}}, 7.);
      },
      x);
  same(
      "a gradient",
      [&](const NamedArray& x) {
        return grad([&](const NamedArray& x) { return sum(square(pick(ids, b)(x))); })(x);
      },
      x);
}

TEST_CASE("chunks: f may rename the tiled axis, and the caller uses the new name") {
  const Axis D{"d", 4};
  auto x = arange(D, {.start = 1, .dtype = DType::f64}).eval(),
       xb = arange({D, B}, {.start = 1, .dtype = DType::f64}).eval();
  auto shift = at(ints({1, 0}, Axis("q", 2)), "q", 0).eval();
  same(
      "renamed",
      [](const NamedArray& x) {
        return rename(x, {{"d", "u"}});
      },
      x, "d");
  same(
      "made of what is renamed",
      [](const NamedArray& x) {
        return exp(rename(x, {{"d", "u"}}));
      },
      x, "d");
  same(
      "folded under the new name",
      [](const NamedArray& x) {
        return sum(rename(x, {{"d", "u"}}), "u");
      },
      xb, "d");
  same(
      "two axes that change names",
      [](const NamedArray& x) {
        return rename(x, {{"d", "b"}, {"b", "d"}});
      },
      xb, "d");
  auto then = [&](const char* what, const F& after) {
    auto f = [](const NamedArray& x) { return rename(exp(x), {{"d", "u"}}); };
    CAPTURE(std::string(what));
    auto both = [&](const NamedArray& x) {
      return after(chunked_reduce("d", {.chunk = 2}, F(f))(x));
    };
    CHECK(jit(both)(x).doubles() == after(f(x)).doubles());
    auto loss = [&](auto f) {
      return [=](const NamedArray& x) { return sum(square(after(f(x)))); };
    };
    auto chunked = [&](const NamedArray& x) {
      return grad(
          loss([&](const NamedArray& x) { return chunked_reduce("d", {.chunk = 2}, F(f))(x); }))(x);
    };
    CHECK(max(abs(jit(chunked)(x) - grad(loss(f))(x))).item() < 1e-9);
  };
  then("flipped", [](const NamedArray& y) { return y * 2. + flip(y, "u"); });
  then("rolled", [&](const NamedArray& y) { return roll(y, shift, "u"); });
  then("sorted", [](const NamedArray& y) { return sort(y, "u"); });
}

TEST_CASE("chunks: in the body of a loop, ops that need earlier chunks are refused") {
  auto x = random::normal(random::key(3), {B, N}).eval();
  auto each = [](const F& f) {
    return [=](const NamedArray& x) {
      return map([&](const NamedArray& row) { return f(row); }, B)(x);
    };
  };
  refused("argmax", each([](const NamedArray& row) { return argmax(row, "n").astype(DType::f32); }),
          x, "argmax requires all positions at once");
  refused("cumsum", each([](const NamedArray& row) { return cumsum(row, "n"); }), x,
          "cumsum requires all positions at once");
}
