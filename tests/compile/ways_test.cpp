// Ops that run block by block along a sharded axis: values, gradients, and the bytes that they
// communicate.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "support/devices.h"
#include "support/near.h"

using namespace haliax;

namespace {

// Bytes communicated per device.
struct Sent {
  double value = 0, gradient = 0;
};
// Checks that f(x, others...) and its gradient by x match one device, with n sharded over `devices`
// devices. `theirs` shards the other arguments.
template <class F, class... A>
Sent sent(int devices, F f, const Mapping& out, const Mapping& theirs, const NamedArray& x,
          const A&... others) {
  const Mapping sharded{{"n", "data"}};
  auto on = [&](const Mapping& to) {
    std::vector<std::optional<Mapping>> in{sharded};
    (in.push_back((static_cast<void>(others), theirs)), ...);
    return JitOptions{.mesh = Mesh{{{"data", devices}}},
                      .axis_resources = Mapping{},
                      .in = Mappings::of_each(in),
                      .out = Mappings(to)};
  };
  auto slope = [=](const NamedArray& x, const A&... others) {
    return grad([&](const NamedArray& x) {
      auto y = f(x, others...);
      return sum(y * (arange(y.axes(), {.dtype = DType::f32}) + 1.f));
    })(x);
  };
  auto value = named_jit(f, on(out));
  CHECK(difference(value(x, others...), jit(f)(x, others...), 0) == "");
  auto gradient = named_jit(slope, on(sharded));
  CHECK(difference(gradient(x, others...), jit(slope)(x, others...), 0) == "");
  return {value.report().sent_bytes, gradient.report().sent_bytes};
}
// Many values are equal, and some are NaN.
NamedArray disorder(const Axis& n) {
  auto i = arange({n}, {.dtype = DType::i32}) * 7919 % 1000;
  return where(i == 13, std::nan(""), i.astype(DType::f32)).eval();
}
NamedArray table(const Axis& n, const Axis& m) {
  return arange({n, m}, {.start = 1, .dtype = DType::f32}).eval();
}

}  // namespace

TEST_CASE("blockwise: one position of a sharded axis is read from its device") {
  const Axis M("m", 6);
  for (int devices : {2, 4})
    for (int size : {8, 9, 5})
      for (int position : {0, 3, size - 1, -2}) {
        CAPTURE(devices);
        CAPTURE(size);
        CAPTURE(position);
        auto f = [=](const NamedArray& x) { return at(x, "n", position); };
        auto s = sent(devices, f, Mapping{}, Mapping{}, table(Axis("n", size), M));
        CHECK(s.value == M.size * 4 * 2. * (devices - 1) / devices);  // one row to all devices
        CHECK(s.gradient == 0);
      }
}

TEST_CASE(
    "blockwise: a slice with a dynamic start is read from the blocks, "
    "and its gradient is written to them") {
  const Axis M("m", 6);
  for (int devices : {2, 4})
    for (int size : {64, 65, 61})
      for (int start : {0, 2, size - 1, -7, 100}) {  // clamped, so that the slice fits
        CAPTURE(devices);
        CAPTURE(size);
        CAPTURE(start);
        const double row = M.size * 4 * 2. * (devices - 1) / devices;  // one row to all devices
        auto from = full({}, start, DType::i32).eval();
        auto x = table(Axis("n", size), M);
        auto f = [](const NamedArray& x, const NamedArray& start) {
          return slice(x, "n", start, 3);
        };
        auto s = sent(devices, f, Mapping{}, Mapping{}, x, from);
        CHECK(s.value == 3 * row);
        CHECK(s.gradient == 0);
        auto one = sent(
            devices, [](const NamedArray& x, const NamedArray& i) { return at(x, "n", i); },
            Mapping{}, Mapping{}, x, from);
        CHECK(one.value == row);
        CHECK(one.gradient == 0);
      }
}

TEST_CASE("blockwise: the gradient at one position of a sharded axis is computed by blocks") {
  const Axis N("n", 1000), M("m", 64);
  const Mapping sharded{{"n", "data"}};
  auto x = table(N, M);
  auto slope = [](const NamedArray& x) {
    return grad([&](const NamedArray& x) { return sum(square(at(x, "n", 7))); })(x);
  };
  auto f = named_jit(slope, JitOptions{.mesh = Mesh{{{"data", 4}}},
                                       .axis_resources = Mapping{},
                                       .in = Mappings(sharded),
                                       .out = Mappings(sharded)});
  CHECK(difference(f(x), jit(slope)(x), 0) == "");
  CHECK(f.report().arena_bytes < 1000);  // a row in addition to the result
}

TEST_CASE("blockwise: a roll by a dynamic amount moves parts of blocks") {
  const Axis M("m", 3);
  const Mapping sharded{{"n", "data"}};
  auto f = [](const NamedArray& x, const NamedArray& by) { return roll(x, by, "n"); };
  for (int devices : {2, 3, 4, 8})
    for (int size : {24000, 24001, 23999}) {
      CAPTURE(devices);
      CAPTURE(size);
      const bool even = size % devices == 0;
      const double others = double(devices - 1) / devices, all = 4. * size * others;
      const double part = 4. * ((size + devices - 1) / devices) * others;
      auto x = arange({Axis("n", size)}, {.dtype = DType::f32}).eval();
      for (int by : {0, 1, -7001, size - 1, 5 * size + 3000}) {
        CAPTURE(by);
        auto s = sent(devices, f, sharded, Mapping{}, x, full({}, by, DType::i32).eval());
        CHECK(s.value ==
              doctest::Approx(devices > 3 || (even && devices > 2) ? (even ? 2 : 3) * part : all));
        CHECK(s.gradient == 0);
      }
      if (devices < 8) continue;
      auto s = sent(devices, f, sharded, Mapping{}, table(Axis("n", size), M),
                    full({}, 777, DType::i32).eval());
      // uneven: the sharding moves to m and back
      CHECK(s.value == doctest::Approx(2 * M.size * part).epsilon(0.001));
    }
  auto s =
      sent(4, f, sharded, Mapping{}, table(Axis("n", 1000), M), full({}, 777, DType::i32).eval());
  CHECK(s.value == 9000);  // few bytes, in one collective
}

TEST_CASE("blockwise: an axis is sorted by blocks if that communicates less than the full axis") {
  const Mapping sharded{{"n", "data"}};
  auto f = [](const NamedArray& x) { return sort(x, "n"); };
  auto g = [](const NamedArray& x) { return argsort(x, "n"); };
  struct Case {
    int devices, size;
    double sort, argsort;
  };
  for (auto& c :
       {Case{2, 24000, 48000, 48000}, Case{3, 24000, 64000, 64000}, Case{4, 24000, 54000, 72000},
        Case{4, 24001, 54054, 72003}, Case{5, 23997, 46080, 76790.4}, Case{8, 24000, 31500, 57750},
        Case{8, 24001, 31682, 58002}}) {
    CAPTURE(c.devices);
    CAPTURE(c.size);
    auto x = disorder(Axis("n", c.size));
    CHECK(sent(c.devices, f, sharded, Mapping{}, x).value == doctest::Approx(c.sort));
    auto order = named_jit(g, {.mesh = Mesh{{{"data", c.devices}}},
                               .axis_resources = Mapping{},
                               .in = Mappings(sharded),
                               .out = Mappings(sharded)});
    CHECK(difference(order(x), jit(g)(x), 0) == "");
    CHECK(order.report().sent_bytes == doctest::Approx(c.argsort));
  }
  auto integers = [](const NamedArray& x) { return sort(x.astype(DType::i64) % 100, "n"); };
  CHECK(sent(4, integers, sharded, Mapping{},
             arange({Axis("n", 24001)}, {.dtype = DType::f32}).eval())
            .value < 144006);
}

TEST_CASE("blockwise: a permutation moves elements through a third device") {
  const Mapping sharded{{"n", "data"}};
  struct Case {
    int devices, size;
    double bytes;
  };
  for (auto& c : {Case{2, 24000, 48000}, Case{3, 24001, 42720}, Case{4, 24000, 36096},
                  Case{4, 23997, 36096}, Case{8, 24001, 21448}}) {
    CAPTURE(c.devices);
    CAPTURE(c.size);
    for (int seed : {0, 1}) {
      auto f = [=](const NamedArray& x) { return random::permutation(random::key(seed), x, "n"); };
      auto x = arange({Axis("n", c.size)}, {.dtype = DType::f32}).eval();
      CHECK(sent(c.devices, f, sharded, Mapping{}, x).value == doctest::Approx(c.bytes));
    }
  }
  for (int size : {20000, 24001}) {  // an order of the values; a shorter one, too
    auto f = [=](const NamedArray& x) {
      return take(x, "n", argsort(slice(x, "n", 0, size), "n"));
    };
    sent(4, f, sharded, Mapping{},
         (arange({Axis("n", 24001)}, {.dtype = DType::f32}) * 7919.f % 1000.f).eval());
  }
}

TEST_CASE(
    "blockwise: with sharded ids, each device reads "
    "its block for all devices, if that is less than the table") {
  const Axis M("m", 6);
  auto f = [](const NamedArray& x, const NamedArray& ids) { return take(x, "n", ids); };
  for (const char* name : {"b", "n"})  // ids may have the name of the axis
    for (int devices : {2, 4})
      for (int picked : {100, 101, 4000}) {
        CAPTURE(name);
        CAPTURE(devices);
        CAPTURE(picked);
        auto x = table(Axis("n", 1001), M);
        // some are out of range
        auto ids = (arange({Axis(name, picked)}, {.dtype = DType::i32}) * 37 % 1003).eval();
        auto s = sent(devices, f, Mapping{{name, "data"}}, Mapping{{name, "data"}}, x, ids);
        const double others = double(devices - 1) / devices,
                     requested = others * 4 * (picked + picked * M.size);
        // blocks of 101 are uneven
        CHECK(s.value == doctest::Approx(std::min(requested, others * 4 * x.size())).epsilon(0.02));
      }
}

TEST_CASE(
    "blockwise: the gradient of top_k is written in place, "
    "and communicates only top_k and its positions") {
  const Axis N("n", 2403);
  const Mapping sharded{{"n", "data"}};
  auto x = disorder(N);
  for (int devices : {2, 3, 4}) {
    CAPTURE(devices);
    auto slope = [](const NamedArray& x) {
      return grad([](const NamedArray& x) { return sum(square(top_k(x, "n", 100).first)); })(x);
    };
    auto f = named_jit(
        slope, {.mesh = Mesh{{{"data", devices}}}, .axis_resources = sharded, .strict = true});
    CHECK(difference(f(x), jit(slope)(x), 0) == "");
    // the largest values of each device, and their positions
    CHECK(f.report().sent_bytes == (devices - 1) * 100 * (4 + 4));
  }
}

TEST_CASE(
    "blockwise: if ids and their table have one sharding, "
    "the rows are sharded instead, if that is less") {
  const Axis N("n", 4001), B("b", 4003);
  auto pick = [](const NamedArray& x, const NamedArray& ids, const NamedArray&) {
    return take(x, "n", ids);
  };
  auto add = [](const NamedArray& x, const NamedArray& ids, const NamedArray& u) {
    return at_add(x, {{Name("n"), Index(ids)}}, u);
  };
  auto write = [](const NamedArray& x, const NamedArray& ids, const NamedArray& u) {
    return at_set(x, {{Name("n"), Index(ids)}}, u);
  };
  // most ids occur twice, and some count from the end
  auto ids = (arange(B, {.dtype = DType::i32}) * 37 % 4009 % 2005 - 4).eval();
  const Mapping sharded{{"b", "data"}};
  for (int devices : {2, 3, 4, 8})
    for (int width : {1, 8}) {  // width 1 cannot be sharded
      CAPTURE(devices);
      CAPTURE(width);
      const Axis M("m", width);
      auto x = (table(N, M) % 1024.f).eval(), u = arange({B, M}, {.dtype = DType::f32}).eval();
      const double others = double(devices - 1) / devices, requested = others * 4 * B.size,
                   rows = others * 4 * width * N.size;
      const double table_bytes = rows, all = others * 4 * width * B.size + requested,
                   moved = width > 1 ? rows / devices : 2 * table_bytes;
      auto bytes = [&](auto f) {
        return sent(devices, f, Mapping{{"n", "data"}, {"b", "data"}}, sharded, x, ids, u).value;
      };
      CHECK(bytes(pick) ==
            doctest::Approx(std::min(table_bytes, requested + 2 * moved)).epsilon(0.01));
      // the elements that each device requested
      auto all_have = sent(devices, pick, Mapping{}, Mapping{}, x, ids, u).value;
      CHECK(all_have ==
            doctest::Approx(all - requested + std::min(all - requested, moved)).epsilon(0.01));
      // the target of the updates does not move
      CHECK(bytes(add) ==
            doctest::Approx(std::min(table_bytes, requested + 2 * moved)).epsilon(0.01));
      CHECK(bytes(write) == doctest::Approx(std::min(all, requested + 3 * moved)).epsilon(0.01));
    }
}

TEST_CASE(
    "blockwise: ids with the name of the indexed "
    "axis communicate as much as ids with another name") {
  const Axis N("n", 4001);
  const Mapping sharded{{"n", "data"}, {"b", "data"}};
  using Two = NamedArray (*)(const NamedArray&, const NamedArray&);
  const Two picks[] = {
      [](const NamedArray& x, const NamedArray& ids) { return take(x, "n", ids); },
      [](const NamedArray& x, const NamedArray& ids) { return take(x, "n", (ids + 7) % 4001); }};
  for (int devices : {2, 3, 4, 8})
    for (int width : {1, 8})                 // width 1 cannot be sharded
      for (int picked : {4001, 4003, 9000})  // as many as positions, and more
        for (bool ids_sharded : {true, false})
          for (auto pick : picks) {
            CAPTURE(devices);
            CAPTURE(width);
            CAPTURE(picked);
            CAPTURE(ids_sharded);
            auto x = (table(N, Axis("m", width)) % 1024.f).eval();
            auto bytes = [&](const char* name, const Mapping& out) {
              // some are out of range
              auto ids =
                  (arange({Axis(name, picked)}, {.dtype = DType::i32}) * 37 % 4009 - 4).eval();
              return sent(devices, pick, out, ids_sharded ? sharded : Mapping{}, x, ids).value;
            };
            for (auto& out : {sharded, Mapping{}}) CHECK(bytes("n", out) <= bytes("b", out) + 1);
            // instead of 0.75 for a gather of the full table
            if (devices == 4 && width == 8 && picked < 4100 && ids_sharded)
              CHECK(bytes("n", sharded) == doctest::Approx(0.469 * 4 * x.size()).epsilon(0.01));
          }
}

TEST_CASE(
    "blockwise: a take by ids with the name of the axis communicates no more in its gradient") {
  const Axis N("n", 4001), M("m", 8);
  const Mapping sharded{{"n", "data"}, {"b", "data"}};
  auto x = (table(N, M) % 7.f - 3.f).eval();
  auto both = [](const NamedArray& x, const NamedArray& ids) {
    auto slope = grad([&](const NamedArray& x) { return sum(square(take(x, "n", ids))); })(x);
    return sum(take(x, "n", ids)) + slope;
  };
  auto bytes = [&](int devices, const char* name) {
    auto ids = (arange({Axis(name, 4001)}, {.dtype = DType::i32}) * 37 % 4001).eval();
    return sent(devices, both, sharded, sharded, x, ids).value;
  };
  for (int devices : {2, 4, 8}) CHECK(bytes(devices, "n") <= bytes(devices, "b"));
}

TEST_CASE("blockwise: updates of a table by sharded ids match one device") {
  const Axis N("n", 4001), B("b", 4003), M("m", 8);
  auto x = (table(N, M) % 7.f - 3.f).eval(),
       u = (arange({B, M}, {.dtype = DType::f32}) % 5.f - 2.f).eval();
  auto ids = (arange(B, {.dtype = DType::i32}) * 37 % 2005).eval();
  using Three = NamedArray (*)(const NamedArray&, const NamedArray&, const NamedArray&);
  const Mapping sharded{{"n", "data"}, {"b", "data"}};
  for (Three fold : {Three([](auto&x, auto&i, auto&u) {
                       return at_max(x, {{Name("n"), Index(i)}}, u);
                     }),
                     Three([](auto&x, auto&i, auto&u) {
                       return at_min(x, {{Name("n"), Index(i)}}, u);
                     }),
                     Three([](auto&x, auto&i, auto&u) {
                       return at_mul(x, {{Name("n"), Index(i)}}, u);
                     }),
                     Three([](auto&x, auto&i, auto&u) {
                       return at_max(x > 2.f, {{Name("n"), Index(i)}}, u > 1.f);
                     })}) {
    auto f = named_jit(
        fold,
        {.mesh = Mesh{{{"data", 8}}}, .axis_resources = Mapping{}, .in = sharded, .out = sharded});
    CHECK(difference(f(x, ids, u), jit(fold)(x, ids, u), 0) == "");
    CHECK(f.report().sent_bytes < 60000);  // instead of 126,000 for a gather of all rows
    // a mapping that keeps b sharded
    auto g = named_jit(fold, {.mesh = Mesh{{{"data", 8}}}, .axis_resources = sharded});
    CHECK(difference(g(x, ids, u), jit(fold)(x, ids, u), 0) == "");
    // The table stays in place, and parts of its sum are reduced into it.
    CHECK(g.report().sent_bytes < 120000);
  }
}

TEST_CASE("blockwise: a chunk clamps ids outside of the tiled axis as the full array does") {
  auto x = arange({Axis("n", 10), Axis("m", 3)}, {.start = 1, .dtype = DType::f32}).eval();
  // -31, -11, 9, 29, 49
  auto ids = (arange({Axis("i", 5)}, {.dtype = DType::i32}) * 20 - 31).eval();
  auto f = [&](const NamedArray& x) { return sum(square(index(x, {{Name("n"), ids}}))); };
  for (int chunk : {3, 4, 10}) {
    CAPTURE(chunk);
    auto in_chunks = [&](const NamedArray& x) {
      return chunked_reduce("n", {.chunk = chunk}, f)(x);
    };
    CHECK(difference(in_chunks(x), f(x), 1e-6) == "");
    CHECK(difference(jit(grad(in_chunks))(x), jit(grad(f))(x), 1e-6) == "");
  }
}

TEST_CASE("blockwise: updates of a sharded axis are written in place") {
  const Axis M("m", 6);
  const Mapping sharded{{"n", "data"}};
  using Two = NamedArray (*)(const NamedArray&, const NamedArray&);
  const Two writes[] = {
      [](const NamedArray& x, const NamedArray& u) {
        return at_set(x, {{Name("n"), Slice{1, 4}}}, u);
      },
      [](const NamedArray& x, const NamedArray& u) {
        return at_set(x, {{Name("n"), Slice{0, 5, 2}}}, u);
      },
      [](const NamedArray& x, const NamedArray& u) {
        return at_add(x, {{Name("n"), Slice{1, 4}}}, u);
      },
      [](const NamedArray& x, const NamedArray& u) {
        return at_set(x, {{Name("n"), Slice{2, 5}}, {Name("m"), Slice{0, 6}}}, u);
      },
      [](const NamedArray& x, const NamedArray& u) {
        return updated_slice(x, {{Name("n"), full({}, 2, DType::i32)}}, u);
      },
  };
  for (int devices : {2, 4})
    for (int size : {8, 9, 5}) {
      auto x = table(Axis("n", size), M), u = (-table(Axis("n", 3), M)).eval();
      for (auto write : writes) {
        CAPTURE(devices);
        CAPTURE(size);
        auto s = sent(devices, write, sharded, Mapping{}, x, u);
        CHECK(s.value == 0);
        CHECK(s.gradient == 0);
      }
      for (int start : {0, 2, -1, 100}) {
        auto s = sent(
            devices,
            [](const NamedArray& x, const NamedArray& u, const NamedArray& start) {
              return updated_slice(x, {{Name("n"), start}}, u);
            },
            sharded, Mapping{}, x, u, full({}, start, DType::i32).eval());
        CHECK(s.value == 0);
        CHECK(s.gradient == 0);
      }
    }
}
