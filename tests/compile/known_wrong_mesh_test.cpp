// Regression tests for meshes: plans with wrong values, plans that could not run, or plans that
// were refused without a reason.
#include <doctest/doctest.h>

#include <algorithm>

#include "haliax/haliax.h"
#include "support/near.h"
#include "ops/prim.h"
#include "support/devices.h"
#include "support/raises.h"

using namespace haliax;

namespace {

using MeshAxisNames = std::vector<std::string>;

bool same_bits(const NamedArray& a, const NamedArray& b) {
  auto x = a.bytes(), y = b.bytes();
  return a.axes() == b.axes() && std::equal(x.begin(), x.end(), y.begin(), y.end());
}
// Returns all ways to shard an axis over at most two mesh axes, in order.
std::vector<MeshAxisNames> axis_shardings(const Mesh& mesh) {
  std::vector<MeshAxisNames> out{{}};
  for (auto& [a, n] : mesh.axes()) out.push_back({a});
  for (auto& [a, n] : mesh.axes())
    for (auto& [b, m] : mesh.axes())
      if (a != b) out.push_back({a, b});
  return out;
}
Mapping mapping_of(std::initializer_list<std::pair<const char*, MeshAxisNames>> by) {
  std::vector<Mapping::Entry> entries;
  for (auto& [axis, mesh_axes] : by)
    if (!mesh_axes.empty()) entries.emplace_back(Name(axis), mesh_axes);
  return Mapping::of(entries);
}

}  // namespace

TEST_CASE("partition regroup: an axis and its parts match, in any blocks, on any mesh") {
  const Devices many(12);
  int wrong = 0, tried = 0;
  auto check = [&](const Mesh& mesh, const Axis& a, const Axis& b, const Mapping& parts,
                   const Mapping& flat) {
    const Axis p("p", a.size * b.size);
    auto flattened = arange(p, {.start = 1, .dtype = DType::f32}),
         unflattened = arange({a, b}, {.start = 1, .dtype = DType::f32});
    auto joins = [&](const NamedArray& x) { return flatten_axes(x, {a, b}, p); };
    auto splits = [&](const NamedArray& x) { return unflatten_axis(x, p, {a, b}); };
    auto on = [&](const Mapping& in, const Mapping& out) {
      return JitOptions{
          .mesh = mesh, .axis_resources = Mapping{}, .in = Mappings(in), .out = Mappings(out)};
    };
    for (bool right : {same_bits(named_jit(joins, on(parts, flat))(unflattened), flattened),
                       same_bits(named_jit(splits, on(flat, parts))(flattened), unflattened)}) {
      ++tried;
      if (right || ++wrong > 3) continue;
      FAIL_CHECK(to_string(mesh), " ", to_string(a), " ", to_string(b), " ", to_string(parts), " ",
                 to_string(flat));
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
    for (auto& of_a : axis_shardings(mesh))
      for (auto& of_b : axis_shardings(mesh)) {
        if (std::find_first_of(of_a.begin(), of_a.end(), of_b.begin(), of_b.end()) != of_a.end())
          continue;
        for (auto& of_p : axis_shardings(mesh))
          for (int a : {1, 2, 3, 4, 5})
            for (int b : {1, 2, 3, 5})
              check(mesh, Axis("a", a), Axis("b", b), mapping_of({{"a", of_a}, {"b", of_b}}),
                    mapping_of({{"p", of_p}}));
      }
  CHECK(wrong == 0);
  CHECK(tried == 22120);
}

TEST_CASE("fit: an axis with another size, and a missing axis, raise") {
  auto x = prim::filled(1, DType::f32, {Axis("a", 3), Axis("b", 2)});
  auto y = prim::exp(x);
  CHECK(prim::fit(y, {Axis("c", 4), Axis("b", 2), Axis("a", 3)})->axes.size() == 3);
  raises(
      [&] {
        prim::fit(y, {Axis("a", 2), Axis("b", 2)});
      },
      {"[fit]", "axis a", "a=3, b=2", "a=2, b=2"});
  raises([&] { prim::fit(y, {Axis("a", 3)}); }, {"[fit]", "axis b"});
}

TEST_CASE(
    "partition loops: a value that only the last of uneven chunks computes from a carry is "
    "computed in its iteration") {
  const Axis Batch("batch", 4), Pos("pos", 6), Embed("embed", 4), Vocab("vocab", 257);
  auto x = random::normal(random::key(0), {Batch, Pos, Embed}),
       w = random::normal(random::key(1), {Vocab, Embed});
  const Mesh mesh{{{"data", 2}, {"model", 2}}};
  for (std::int64_t chunk : {16, 32})
    for (auto& out : {Mapping{{"pos", "data"}, {"batch", "model"}},
                      Mapping{{"pos", "model"}, {"batch", "data"}}}) {
      auto f = [&](const NamedArray& x, const NamedArray& w) {
        return chunked_reduce(
            "vocab", {.chunk = chunk}, [](const NamedArray& x, const NamedArray& w) {
              auto logits = dot(x, w, "embed");
              return std::tuple(logsumexp(logits, "vocab"), argmax(logits, AxisSelector("vocab")));
            })(x, w);
      };
      auto step = named_jit(f, {.mesh = mesh,
                                .axis_resources = Mapping{{"vocab", "data"}},
                                .in = Mappings(Mapping{}),
                                .out = Mappings::of_each({Mapping{}, out})});
      auto [lse, best] = step(x, w);
      auto [one_lse, one_best] = jit(f)(x, w);
      CHECK(difference(lse, one_lse, 1e-6) == "");
      CHECK(same_bits(best, one_best));
    }
}

TEST_CASE(
    "partition loops: all devices issue their collectives in one order, "
    "even if some have no part of a result") {
  const Devices many(12);
  const Axis Batch("batch", 2), Pos("pos", 7), Embed("embed", 16), Vocab("vocab", 53);
  auto x = random::normal(random::key(0), {Batch, Pos, Embed}),
       w = random::normal(random::key(1), {Embed, Vocab});
  auto f = [](const NamedArray& x, const NamedArray& w) {
    auto both = [](const NamedArray& x, const NamedArray& w) {
      return chunked_reduce("vocab", {.chunk = 10}, [](const NamedArray& x, const NamedArray& w) {
        auto logits = dot(x, w, "embed");
        return std::tuple(logsumexp(logits, "vocab"), argmax(logits, AxisSelector("vocab")));
      })(x, w);
    };
    auto d = grad([&](const std::pair<NamedArray, NamedArray>& xw) {
      return sum(square(std::get<0>(both(xw.first, xw.second))));
    });
    return std::tuple(both(x, w), d(std::pair(x, w)));
  };
  Mapping none, sharded{{"batch", {"model", "replica"}}, {"pos", "data"}};
  auto step = named_jit(
      [&](const NamedArray& x, const NamedArray& w) {
        auto [values, d] = f(x, w);
        return std::tuple(std::get<0>(values), std::get<1>(values), d.first, d.second);
      },
      {.mesh = Mesh{{{"data", 2}, {"model", 3}, {"replica", 2}}},
       .axis_resources = Mapping{{"vocab", "model"}, {"pos", "data"}},
       .in = Mappings(none),
       .out = Mappings::of_each({sharded, Mapping{{"pos", "data"}}, none, none})});
  auto [lse, best, dx, dw] = step(x, w);
  auto [values, d] = jit(f)(x, w);
  CHECK(difference(lse, std::get<0>(values), 1e-6) == "");
  CHECK(same_bits(best, std::get<1>(values)));
  CHECK(difference(dx, d.first, 1e-5) == "");
  CHECK(difference(dw, d.second, 1e-5) == "");
}

TEST_CASE("partition picks: ids out of range match one device") {
  const Axis A("a", 4), B("b", 3), K("k", 16);
  const Mesh mesh{{{"data", 2}}};
  auto x = arange({A, B}, {.start = 1, .dtype = DType::f32}).eval();
  auto ids = (arange(K, {.dtype = DType::i32}) - 10).eval(), two = full({}, 2, DType::i32).eval();
  auto none = zeros({Axis("n", 0), B}).eval();
  using Two = NamedArray (*)(const NamedArray&, const NamedArray&);
  auto check = [&](const std::string& what, Two f, const NamedArray& x, const NamedArray& ids) {
    for (const Mapping& m :
         {Mapping{{"a", "data"}}, Mapping{{"b", "data"}}, Mapping{{"n", "data"}}}) {
      CAPTURE(what);
      CHECK(difference(named_jit(f, {.mesh = mesh, .axis_resources = m})(x, ids), f(x, ids), 0) ==
            "");
    }
  };
  Two takes = [](const NamedArray& x, const NamedArray& i) { return take(x, "a", i); };
  check("fill", takes, x, ids);
  check("fill, bool", takes, (x > 3).eval(), ids);
  check("fill, u8", takes, x.astype(DType::u8).eval(), ids);
  check(
      "clamped along two axes, of which one is cut",
      [](const NamedArray& x, const NamedArray& i) {
        return index(x, {{Name("a"), Index(i)}, {Name("b"), Index(i)}});
      },
      x, ids);
  check(
      "added along two axes, of which one is cut",
      [](const NamedArray& x, const NamedArray& i) {
        return at_add(x, {{Name("a"), Index(i)}, {Name("b"), Index(i)}}, 1.f);
      },
      x, ids);
  check(
      "an axis of size 0", [](const NamedArray& x, const NamedArray& i) { return at(x, "n", i); },
      none, two);
  check(
      "an axis of size 0, taken",
      [](const NamedArray& x, const NamedArray& i) { return take(x, "n", i); }, none, two);
}

TEST_CASE("partition strict: communication of an op between its own blocks is allowed") {
  const Axis B("b", 8), N("n", 8192);
  const Mapping sharded{{"n", "data"}};
  for (int devices : {2, 4, 8})
    for (auto f : {+[](const NamedArray& x) { return cumsum(x, "n"); },
                   +[](const NamedArray& x) { return cumprod(x, "n"); }}) {
      auto r =
          named_jit(f,
                    {.mesh = Mesh{{{"data", devices}}}, .axis_resources = sharded, .strict = true})
              .plan(zeros({B, N}));
      REQUIRE(r.collectives.size() == 1);
      CHECK(r.collectives[0].asked == "blocks");
      CHECK(r.sent_bytes == (devices - 1) * B.size * 4);  // one sum per block
    }
  auto order = named_jit([](const NamedArray& x) { return sort(x, "n"); },
                         {.mesh = Mesh{{{"data", 2}}}, .axis_resources = sharded, .strict = true});
  raises([&] { order.plan(zeros({N})); }, {"[strict]", "sort gathers", "without a request"});
  auto requested =
      named_jit([](const NamedArray& x) { return sort(shard(x, Mapping{}), "n"); },
                {.mesh = Mesh{{{"data", 2}}}, .axis_resources = sharded, .strict = true});
  CHECK(requested.plan(zeros({N})).calls == 1);
}

TEST_CASE(
    "partition strict: a constraint allows its own gather, "
    "and its readers must request other ones") {
  const Axis B("batch", 8), E("embed", 64), H("mlp", 256);
  auto refused = [&](auto f) {
    JitOptions o{.mesh = Mesh{{{"data", 2}, {"model", 2}}},
                 .axis_resources = Mapping{{"batch", "data"}, {"mlp", "model"}},
                 .strict = true};
    return message_of([&] { named_jit(f, o).plan(zeros({B, E}), zeros({E, H})); });
  };
  using In = const NamedArray&;
  // a constraint shards dot
  auto sorted = refused([](In x, In w) { return sort(dot(x, w, "embed"), "mlp"); });
  CHECK(sorted.find("[strict] sort gathers dot") != sorted.npos);
  CHECK(refused([](In x, In w) { return sort(shard(dot(x, w, "embed"), Mapping{}), "mlp"); }) ==
        "");
}

TEST_CASE(
    "partition strict: gathers of ids and rows for a sharded "
    "table are allowed, a gather of the table is not") {
  const Axis N("n", 24000), T("n", 4000), M("m", 8), B("b", 4000), Few("b", 400);
  const Mapping sharded{{"n", "data"}, {"b", "data"}}, n{{"n", "data"}};
  auto table = zeros({T, M}), x = zeros({N});
  auto ids = zeros({B}, DType::i32), few = zeros({Few}, DType::i32), by = zeros({}, DType::i32);
  auto options = [](const Mapping& m, int devices) {
    return JitOptions{.mesh = Mesh{{{"data", devices}}}, .axis_resources = m, .strict = true};
  };
  auto pick = [](const NamedArray& x, const NamedArray& i) { return take(x, "n", i); };
  auto add = [](const NamedArray& x, const NamedArray& i, const NamedArray& u) {
    return at_add(x, {{"n", Index(i)}}, u);
  };
  auto check_gather = [](const JitReport& r, int bytes) {
    auto gather = std::find_if(r.collectives.begin(), r.collectives.end(),
                               [](auto& c) { return c.kind == "all-gather"; });
    REQUIRE(gather != r.collectives.end());
    CHECK(gather->asked == "blocks");
    CHECK(gather->bytes == doctest::Approx(bytes).epsilon(0.01));
  };
  for (int devices : {2, 3, 4}) {
    CAPTURE(devices);
    const auto o = options(sharded, devices);
    const double others = double(devices - 1) / devices;
    check_gather(named_jit(pick, o).plan(table, few), int(others * 400 * 4));
    // the sharding moves to m
    if (devices > 2) check_gather(named_jit(pick, o).plan(table, ids), int(others * 4000 * 4));
    check_gather(named_jit(add, o).plan(table, few, zeros({Few, M})), int(others * 400 * 9 * 4));
    // equally large
    raises(
        [&] {
          named_jit(add, o).plan(table, ids, zeros({B, M}));
        },
        {"[strict]", "gathers input (b=4000, m=8)"});
  }
  // A gather of the table itself raises, and the error has the name of the op in the user's code.
  auto turned = [](const NamedArray& x, const NamedArray& i) { return roll(x, i, "n"); };
  auto shuffled = [](const NamedArray& x) { return random::permutation(random::key(3), x, "n"); };
  raises([&] { named_jit(pick, options(sharded, 2)).plan(table, ids); },
         {"[strict] take gathers input (n=4000, m=8)"});
  raises([&] { named_jit(turned, options(n, 2)).plan(x, by); },
         {"[strict] roll gathers input (n=24000)", "without a request"});
  raises([&] { named_jit(shuffled, options(n, 2)).plan(x); },
         {"[strict] permutation gathers input (n=24000)", "without a request"});
  auto requested = [](const NamedArray& x, const NamedArray& i) {
    return roll(shard(x, Mapping{}), i, "n");
  };
  CHECK(named_jit(requested, options(n, 2)).plan(x, by).calls == 1);
}

TEST_CASE(
    "partition sums: reduce_dtype = f32 computes, "
    "communicates and adds 16-bit sums in f32, and rounds once") {
  const Axis B("b", 256), N("n", 256), M("m", 4);
  struct Case {
    const char* what;
    NamedArray (*f)(const NamedArray& x, const NamedArray& w);
    Mapping in, out;
  };
  const Mapping n{{"n", "data"}}, b{{"b", "data"}};
  const std::vector<Case> cases{
      {"a dot", [](const NamedArray& x, const NamedArray& w) { return dot(x, w, "n"); }, n, {}},
      {"a sum", [](const NamedArray& x, const NamedArray&) { return sum(x, "n"); }, n, {}},
      {"a sum that lands", [](const NamedArray& x, const NamedArray&) { return sum(x, "n"); }, n,
       b},
      {"a gradient that lands",
       [](const NamedArray& x, const NamedArray& w) {
         return grad([&](const NamedArray& w) { return sum(dot(x, w, "n").astype(DType::f32)); })(
             w);
       },
       b, n},
      {"a scatter",
       [](const NamedArray& x, const NamedArray& w) {
         auto ids = arange(Axis("n", 256), {.dtype = DType::i32}) % 2;
         return at_add(zeros({Axis("k", 2), Axis("b", 256)}, w.dtype()), {{Name("k"), Index(ids)}},
                       x);
       },
       n,
       {}}};
  for (DType d : {DType::bf16, DType::f16}) {
    // Integers: sums in f32 are exact in any order, and partial sums do not fit into the 16-bit
    // dtype.
    auto x = random::randint(random::key(1), {B, N}, 0, 120).astype(d).eval();
    auto w = random::randint(random::key(2), {N, M}, 0, 4).astype(d).eval();
    for (auto& c : cases) {
      CAPTURE(std::string(c.what));
      auto on_mesh = [&](std::optional<DType> reduce) {
        auto step = named_jit(c.f, {.mesh = Mesh{{{"data", 4}}},
                                    .axis_resources = c.in,
                                    .in = Mappings(c.in),
                                    .out = Mappings(c.out),
                                    .reduce_dtype = reduce});
        auto y = step(x, w).eval();
        return std::pair(y, step.report());
      };
      auto exact = c.f(x.astype(DType::f32), w.astype(DType::f32)).astype(d).eval();
      auto [y, wide] = on_mesh(DType::f32);
      CHECK(same_bits(y, exact));
      auto [rounded, narrow] = on_mesh({});
      CHECK_FALSE(same_bits(rounded, exact));  // each part was rounded, too
      CHECK(wide.sent_bytes == 2 * narrow.sent_bytes);
      CHECK(wide.calls == narrow.calls);
      auto [as_ever, same] = on_mesh(d);
      CHECK(same_bits(as_ever, rounded));
      CHECK(same.sent_bytes == narrow.sent_bytes);
    }
  }
  auto sums = [](const NamedArray& x) { return sum(x, "n"); };
  auto wider = named_jit(sums, {.mesh = Mesh{{{"data", 4}}},
                                .axis_resources = n,
                                .reduce_dtype = Policy("p=f32,c=bf16,r=f32").reduce});
  // f32 sums do not change
  CHECK(wider.plan(zeros({B, N}, DType::f32)).sent_bytes == 256 * 4 * 2 * 3 / 4);
  raises(
      [&] {
        named_jit(sums,
                  {.mesh = Mesh{{{"data", 4}}}, .axis_resources = n, .reduce_dtype = DType::f64})
            .plan(zeros({B, N}));
      },
      {"[named_jit]", "reduce_dtype: expected a float dtype", "f64"});
}

TEST_CASE("partition scatter: the target of updates by ids with the name of its axis counts once") {
  const Axis N("n", 6), B("b", 4);
  auto x = arange(N, {.start = 10, .dtype = DType::f32}).eval(),
       u = arange({B, N}, {.start = 1, .dtype = DType::f32}).eval();
  auto ids = ((arange({B, N}) * 5) % 6).eval();
  auto add = [](const NamedArray& x, const NamedArray& ids, const NamedArray& u) {
    return at_add(x, {{"n", Index(ids)}}, u);
  };
  for (auto& at : {Mapping{{"b", "data"}}, Mapping{{"n", "data"}}, Mapping{}}) {
    auto on_mesh = named_jit(add, {.mesh = Mesh{{{"data", 2}}},
                                   .axis_resources = Mapping{{"b", "data"}},
                                   .in = Mappings(at),
                                   .out = Mappings(Mapping())});
    CHECK(on_mesh(x, ids, u).floats() == add(x, ids, u).floats());
  }
}

TEST_CASE(
    "partition loops: a device without elements issues the collectives of all surrounding loops as "
    "often as the others") {
  const Axis M("m", 4), N("n", 4), B("b", 4);  // the third device has no element of b
  auto x = sin(arange({M, N, B}, {.dtype = DType::f64}) * 1.3).eval();
  auto running = [](const NamedArray& x) { return cumsum(x, "b"); };
  auto chunked = [&](const NamedArray& x) {
    return chunked_reduce({"m", "n"}, {.chunks = {1, 2}}, running)(x);
  };
  auto on_mesh =
      named_jit(chunked, {.mesh = Mesh{{{"data", 3}}}, .axis_resources = Mapping{{"b", "data"}}});
  CHECK(max(abs(on_mesh(x) - running(x))).item() < 1e-12);
}

TEST_CASE(
    "partition: a device without elements takes part "
    "in the collectives of a cond branch that runs") {
  const Devices four(4);
  const Axis n("n", 6);  // blocks of 2, 2, 2 and 0
  auto x = array({3., 1, 4, 1, 5, 9}, n).eval();
  auto f = [](const NamedArray& x) {
    auto two = [](const NamedArray& v) { return sum(index(v, {{"n", Slice{5, {}, -3}}})); };
    return cond(sum(x) > 5., two, [](const NamedArray& v) { return max(v); })(x);
  };
  auto step = named_jit(f, {.mesh = Mesh{{{"data", 4}}}, .axis_resources = Mapping{{"n", "data"}}});
  CHECK(step(x).item() == 13);
  CHECK(step((x - 10.).eval()).item() == -1);
}

TEST_CASE(
    "partition: the target of updates counts once, "
    "even if it is recomputed from a communicated value") {
  const Devices four(4);
  const Axis d("d", 1), n("n", 3), k("k", 2);
  auto flags = array({1., 0, 1}, {d, n}).astype(DType::boolean).eval();
  auto ids = array({0., 2, 1, 2, 2, 0}, {k, n}).astype(DType::i32).eval();
  auto f = [](const NamedArray& flags, const NamedArray& ids) {
    auto y = at_add(flags.astype(DType::f32), {{"n", Index(ids)}}, 1.);
    auto z = tile(rename(y, {{"d", "e"}}), {{"e", 2}});
    auto sums = map([](const NamedArray& v) { return cumsum(v, "e"); }, "n")(z);
    return std::tuple(y, sums, flags);  // keeps a second reader of the flags
  };
  auto step = named_jit(f, {.mesh = Mesh{{{"model", 2}, {"replica", 2}}},
                            .axis_resources = Mapping{{"k", "model"}},
                            .in = Mapping{{"k", "model"}, {"n", "replica"}},
                            .out = Mapping{}});
  auto expected = f(flags, ids);
  auto got = step(flags, ids);
  CHECK(difference(std::get<0>(got), std::get<0>(expected), 0) == "");
  CHECK(difference(std::get<1>(got), std::get<1>(expected), 0) == "");
}

TEST_CASE("partition: arrays without elements, and blocks of constants alone, match the plan") {
  const Devices four(4);
  // A block of padding alone is a constant, in parts or not.
  auto parts = [](const NamedArray& v) {
    return unflatten_axis(pad(v, {{"c", {1, 0}}}), "c", {Axis("p", 2), Axis("q", 1)});
  };
  for (int devices : {2, 3}) {
    JitOptions o{.mesh = Mesh{{{"data", devices}}}, .in = Mappings(Mapping{{"c", "data"}})};
    CHECK(difference(named_jit(parts, o)(ones(Axis("c", 1))), parts(ones(Axis("c", 1))), 0) == "");
  }
  // Loops without iterations, and their gradients.
  const Axis none("a", 0), b("b", 3);
  auto x = zeros(Axes{none, b});
  auto body = [](const NamedArray& c, const NamedArray& row) { return c * 0.9 + tanh(row); };
  auto folded = [&](const NamedArray& x) { return fold(body, none)(ones(b), x); };
  CHECK(difference(jit(folded)(x), ones(b), 0) == "");
  CHECK(jit([&](const NamedArray& x) {
          return grad([&](const NamedArray& x) { return sum(sin(folded(x))); })(x);
        })(x)
            .axes() == Axes{none, b});
  CHECK(jit([&](const NamedArray& x) {
          return map([](const NamedArray& row) { return tanh(row); }, AxisSelector("a"))(x);
        })(x)
            .size() == 0);
  // In one collective with other arrays, and with another mapping as an argument.
  const Axis c("c", 80);
  auto both = [](const NamedArray& a, const NamedArray& b) { return std::pair(a * 2., b * 2.); };
  JitOptions joined{.mesh = Mesh{{{"data", 2}}},
                    .axis_resources = Mapping{{"c", "data"}},
                    .out = Mappings(Mapping{}),
                    .overlap = true};
  CHECK(sum(named_jit(both, joined)(ones({c, Axis("e", 0)}), ones({c, Axis("d", 8)})).second)
            .item() == 1280);
  auto product = [](const NamedArray& v) {
    return grad([](const NamedArray& u) { return sum(sin(cumprod(tanh(u), "a"))); })(v);
  };
  JitOptions moved{.mesh = Mesh{{{"data", 2}, {"model", 2}}},
                   .axis_resources = Mapping{{"a", "model"}, {"c", "data"}},
                   .in = Mappings(Mapping{{"a", "data"}, {"c", "model"}})};
  CHECK(named_jit(product, moved)(ones({Axis("a", 4), Axis("c", 5), Axis("d", 0)})).size() == 0);
}
