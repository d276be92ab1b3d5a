// The C++ column of docs/get-started/from-haliax.md, compiled and run. tests/docs_test.py checks
// that this file contains the code of the page.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <sstream>

#include <haliax/haliax.h>
#include <haliax/state_dict.h>

#include "haliax/conv.h"
#include "support/devices.h"
#include "support/near.h"
using namespace haliax;

namespace {

const Axis Batch("batch", 4), Pos("pos", 6), Mlp("mlp", 4), Vocab("vocab", 5), Layers("layers", 3);
const Axis Embed("embed", 64);

Names names(const NamedArray& a) {
  Names out;
  for (auto& axis : a.axes()) out.push_back(axis.name);
  return out;
}
bool same(const NamedArray& a, const NamedArray& b) { return difference(a, b, 1e-6) == ""; }

struct Block {
  nn::Linear up;
  static Block init(const Key& k) { return {nn::Linear::init(Embed, Embed.alias("out"), k)}; }
  NamedArray operator()(const NamedArray& x, const NamedArray& layer, const Key& k) const {
    return rename(up(x), "out", "embed") + layer + random::normal(k, Embed);
  }
};

}  // namespace

TEST_CASE("cheatsheet: arrays and ops") {
  auto KPos = Pos.alias("key_position");
  CHECK(KPos == Axis("key_position", 6));
  const std::vector<float> v(std::size_t(Batch.size * Embed.size), 1.f);
  CHECK(same(array(std::span<const float>(v), {Batch, Embed}), ones({Batch, Embed})));
  CHECK(array({1, 2}, Axis("x", 2)).integers() == std::vector<std::int64_t>{1, 2});
  CHECK(zeros({Batch, Embed}, DType::bf16).dtype() == DType::bf16);
  CHECK(arange(Pos, {.start = 1}).integers() == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6});

  const auto x = random::normal(random::key(0), {Batch, Pos, Embed}).eval(), y = tanh(x);
  CHECK(same(x + y, y + x));
  CHECK(same(x * 2, x + x));
  CHECK(all(x == x).item() == 1);
  const auto c = x > 0., mask = arange(Pos) < 3;
  {
    auto x = c, y = x > 1.;
    CHECK(same(x && y, x & y));
    CHECK(same(!x, ~x));
    auto loss = sum(x), best = loss + 1, a = NamedArray();
    bool better = false;
    if (loss < best) better = true;
    CHECK(better);
    CHECK(a.empty());
  }
  CHECK(same(where(c, exp(x), 0.) + where(c, 0., exp(x)), exp(x)));
  CHECK(names(where(c, x, 0.)) == names(x));
  CHECK(names(sum(x, Embed)) == Names{"batch", "pos"});
  CHECK(mean(x).item() == doctest::Approx(sum(x).item() / double(x.size())));
  CHECK(same(mean(x, Pos, {.where = mask}), mean(index(x, {{"pos", Slice{0, 3}}}), "pos")));
  {
    auto x = random::normal(random::key(1), {Axis("a", 2), Axis("b", 3), Axis("c", 4)});
    auto y = random::normal(random::key(2), {Axis("a", 2), Axis("b", 3)}), z = y;
    CHECK(names(max(x, {"a", "b"})) == Names{"c"});
    CHECK(std_dev(x).item() == doctest::Approx(std::sqrt(mean(square(x - mean(x))).item())));
    CHECK(same(dot({x, y, z}, {"a", "b"}, {.out_axes = Names{"c", ellipsis}}),
               sum(x * y * z, {"a", "b"})));
    CHECK(names(broadcast_axis(x, Batch)) == Names{"batch", "a", "b", "c"});
    CHECK(names(rearrange(x, {"b", ellipsis, "a"})) == Names{"b", "c", "a"});
    CHECK(names(rearrange(x, Names{"b", ellipsis, "a"})) == Names{"b", "c", "a"});
    CHECK(names(rearrange(x, {"c", Axis("a", 2), "b"})) == Names{"c", "a", "b"});
    CHECK(names(rearrange(y, {"b", "a"})) == Names{"b", "a"});
    CHECK(flatten_axes(x, {"a", "b"}, "ab").axes() == Axes{{"ab", 6}, {"c", 4}});
  }
  {
    auto y = random::normal(random::key(2), {Axis("a", 2), Axis("b", 3)}),
         x = rearrange(y, {"b", "a"});
    CHECK(same(rearrange(x, y.axes()), y));
  }
  {
    auto x = random::normal(random::key(1), {Axis("a", 4), Axis("h", 6)});
    CHECK(names(x.rename({{"a", "b"}})) == Names{"b", "h"});
    x = rename(x, "a", "batch");
    CHECK(rearrange(x, "... (h: a b) -> ... a b", {{"a", 2}}).axes() ==
          Axes{Batch, {"a", 2}, {"b", 3}});
    CHECK(x.rearrange("... (h: a b) -> ... a b", {{"a", Axis("name", 2)}}).axes() ==
          Axes{Batch, {"name", 2}, {"b", 3}});
    CHECK(x.rearrange("... (h: a b) -> ... a b", {{"a", "name"}, {"b", 3}}).axes() ==
          Axes{Batch, {"name", 2}, {"b", 3}});
    CHECK_THROWS_AS(x.rearrange("... (h: a b) -> ... a b", {{"a", 4}}), Error);
  }
  {
    auto x = random::normal(random::key(1), {{"b", 2}, {"s", 3}, {"d", 4}});
    auto w = random::normal(random::key(2), {{"d", 4}, {"h", 5}});
    CHECK(same(einsum("b s d, d h -> b s h", {x, w}), dot(x, w, "d")));
  }
  const auto w = random::normal(random::key(3), {Embed, Mlp});
  CHECK(names(dot(x, w, Embed)) == Names{"batch", "pos", "mlp"});
  CHECK(names(broadcast_axis(arange(Pos), Batch)) == Names{"batch", "pos"});
  {
    auto x = random::normal(random::key(1), {Batch, {"qkv", 3}});
    auto qkv = x.unbind("qkv");
    CHECK(qkv.size() == 3);
    CHECK(names(qkv[2]) == Names{"batch"});
  }
}

TEST_CASE("cheatsheet: indexing, nn and random") {
  auto x = random::normal(random::key(0), {Pos, Vocab}).eval();
  const auto ids = array({4, 0, 1, 1}, Batch).astype(DType::i32);
  CHECK(same(index(x, {{"pos", 3}}), sum(where(arange(Pos) == 3, x, 0.), "pos")));
  CHECK(same(index(x, {{"pos", Slice{1, 4}}}), slice(x, "pos", 1, 3)));
  CHECK(names(index(x, {{"vocab", ids}})) == Names{"pos", "batch"});
  CHECK(same(x[{"pos", 3}], index(x, {{"pos", 3}})));
  CHECK(same(x[{"pos", Slice{1, 4}}], index(x, {{"pos", Slice{1, 4}}})));
  CHECK(same(x[{"vocab", ids}], index(x, {{"vocab", ids}})));
  {
    const std::int64_t n = 2;
    auto mask = arange(Pos) % 5 == 0;  // positions 0 and 5
    CHECK(int(sum(mask).item()) == n);
    auto two = x[{"pos", std::vector{0, 2}}];
    CHECK(two.axes() == Axes{Pos.resize(2), Vocab});
    CHECK(same(two, x[{"pos", Slice{0, 3, 2}}]));
    CHECK(same(x[{"pos", nonzero(mask, Axis("pos", n))[0]}], x[{"pos", std::vector{0, -1}}]));
    CHECK(same(x.at({"pos", std::vector{0, 2}}).set(0.),
               where((arange(Pos) == 0) || (arange(Pos) == 2), 0., x)));
    CHECK(x[{"pos", std::vector<std::int64_t>{}}].axes() == Axes{Pos.resize(0), Vocab});
    // As in NumPy, a list and a position that are not neighbors come first.
    auto pairs = broadcast_axis(x, Axis("batch", 2));
    CHECK(names(pairs[{{"batch", 0}, {"vocab", std::vector{1, 3}}}]) == Names{"vocab", "pos"});
  }
  {
    auto KPos = Pos.alias("key_position");
    CHECK(x.rename({{Pos, KPos}}).axes() == Axes{KPos, Vocab});
    CHECK(rename(x, {{Pos, KPos}, {"vocab", "pos"}}).axes() == Axes{KPos, Vocab.alias("pos")});
    CHECK_THROWS_AS(x.rename({{"pos", KPos.resize(7)}}), Error);
    CHECK_THROWS_AS(x.rename({{Pos.resize(7), KPos}}), Error);
    CHECK(same(x.flatten("all"), ravel(x, "all")));
    CHECK(same(x.clip(0, std::nullopt), maximum(x, 0)));
    CHECK(same(x.slice({{"pos", 1}}, {{"pos", 2}}), slice(x, "pos", 1, 2)));
    CHECK(top_k(x, "vocab", 3, Axis("top", 3)).first.axes() == Axes{Pos, {"top", 3}});
    CHECK_THROWS_AS(top_k(x, "vocab", 3, Axis("top", 4)), Error);
  }
  {
    auto i = NamedArray(1).astype(DType::i32);
    CHECK(same(index(x, {{"pos", ds(i, 4)}}), slice(x, "pos", 1, 4)));
    CHECK(same(x[{"pos", dblock(i, 2)}], slice(x, "pos", 2, 2)));
    auto pairs = broadcast_axis(x, Axis("batch", 2));
    auto same_part = [&](const NamedArray& x) { return x[{{"batch", 0}, {"pos", ds(i, 4)}}]; };
    CHECK(same(same_part(pairs), slice(x, "pos", 1, 4)));
  }
  CHECK(same(take(x, "vocab", ids), index(x, {{"vocab", ids}})));
  auto u = ones(Vocab);
  CHECK(index(at_set(x, {{"pos", 3}}, u), {{"pos", 3}}).floats() == u.floats());
  CHECK(same(at_add(x, {{"pos", 3}}, u) - x, where(arange(Pos) == 3, 1., zeros_like(x))));
  CHECK(same(x.at({"pos", 3}).set(u), at_set(x, {{"pos", 3}}, u)));
  CHECK(same(x.at({"pos", 3}).add(u), at_add(x, {{"pos", 3}}, u)));
  const auto mask = arange(Pos) < 3;
  CHECK(same(x.sum("pos"), sum(x, "pos")));
  CHECK(same(x.mean("pos", {.where = mask}), mean(x, "pos", {.where = mask})));
  {
    auto y = x;
    auto x = y;
    x += y;
    CHECK(same(x, y * 2));
    struct Model {
      NamedArray w;
    } model{x};
    std::ostringstream out;
    out << x << model << summary(model);
    CHECK(out.str().find("f32 (pos=6, vocab=5)") != std::string::npos);
  }

  CHECK(same(sum(softmax(x, Vocab), Vocab), ones(Pos)));
  CHECK(all(nn::relu(x) >= nn::gelu(x) - 1.).item() == 1);
  CHECK(same(sum(one_hot(ids, Vocab) * arange(Vocab), Vocab), ids.astype(DType::f32)));
  const auto head = random::normal(random::key(2), {Vocab, Embed});
  {
    auto x = random::normal(random::key(3), {Batch, Embed});
    auto logits = dot(x, head, Embed);
    CHECK(nn::cross_entropy_loss(logits, Vocab, ids).item() ==
          doctest::Approx(nn::linear_cross_entropy(x, head, ids, Embed, Vocab).loss.item())
              .epsilon(1e-5));
  }
  auto KPos = Pos.alias("key_position");
  CHECK(sum(nn::causal_mask(Pos, KPos)).item() == 21);

  const auto key = random::key(4);
  CHECK(random::normal(key, {Batch, Embed}).axes() == Axes{Batch, Embed});
  const Axes axes{Pos, Embed};
  auto draw = [](const Key& k, const AxisSpec& rest) { return random::normal(k, rest); };
  CHECK(random::generate_sharded(draw, Embed)(key, axes).axes() == axes);
  auto [k1, k2] = random::split<2>(key);
  auto keys = random::split(key, Layers);
  CHECK(!same(random::normal(k1, Pos), random::normal(k2, Pos)));
  CHECK(names(vmap([](const Key& k) { return random::normal(k, Pos); }, Layers)(keys)) ==
        Names{"layers", "pos"});
}

TEST_CASE("cheatsheet: other functions of arrays") {
  auto [A, B] = make_axes("a", 2, "b", 3);
  const Axes axes{A, B};
  CHECK(concat_axes(A, B) == axes);
  CHECK(union_axes(A, axes) == axes);
  CHECK(intersect_axes(axes, B) == Axes{B});
  CHECK(replace_axis(axes, A, A.alias("c")) == Axes{A.alias("c"), B});
  CHECK(selects_axis("a", A));
  CHECK(!selects_axis(A.resize(9), A));
  const Axis K("k", 2), Counts("count", 4);
  const auto key = random::key(0);
  auto x = random::normal(key, axes).eval(), y = x, z = x;
  auto c = x > 0.;
  const auto d = DType::f32;
  CHECK(names(named(x, {"p", "q"})) == Names{"p", "q"});
  CHECK(x.shape()["a"] == 2);
  CHECK(x.axis_size({"a", "b"}) == std::vector<std::int64_t>{2, 3});
  CHECK(x.resolve_axis({"a", "b"}) == axes);
  CHECK(x.axis_indices("b") == std::optional<std::size_t>(1));
  CHECK(x.matches_axes("a ..."));
  CHECK(axis_name(axes) == unsize_axes(axes));
  CHECK(resolve_axis(axes, "a") == A);
  CHECK(without_axes(axes, A, true) == Axes{B});
  CHECK(flatten_axes(axes, {"a", "b"}, "ab") == Axes{{"ab", 6}});
  CHECK(broadcast_arrays({x, y}, false).size() == 2);
  CHECK(allclose(x, y));
  CHECK(all(isclose(x, y, {.atol = 0.1})).item() == 1);
  CHECK(array_equal(x, y));
  CHECK(array_equiv(x, y));
  CHECK(same(where(c, -1, K)[0], nonzero(c, K, -1)[0]));
  CHECK(nonzero(c, K).size() == 2);
  CHECK(same(ptp(x, "b"), max(x, "b") - min(x, "b")));
  auto ids = array({0, 2}, A).astype(DType::i32);
  CHECK(sum(bincount(ids, Counts)).item() == 2);
  CHECK(same(var(x, "b", {.dtype = d}), var(x, "b")));
  CHECK(same(cumsum(x, "b", d), cumsum(x, "b")));
  CHECK(linspace("n", {.start = 0, .stop = 1}).size() == 50);
  auto i = sum(arange(K));
  CHECK(same(arange(A, i), arange(A) + 1));
  CHECK(names(pad(x, {{B, {1, 1}}}, PadMode::edge)) == names(x));
  auto counts = array({1, 0, 3}, B).astype(DType::i32);
  CHECK(repeat(x, "b", counts, 4).axis_size("b") == 4);
  CHECK(same(roll(x, {1, 2}, {"a", "b"}), roll(roll(x, 1, "a"), 2, "b")));
  CHECK(same(slice(x, {{"a", 0}, {"b", i}}, {{"a", 1}, {"b", 2}}),
             slice(slice(x, "a", 0, 1), "b", 1, 2)));
  auto u = zeros(A);
  CHECK(sum(x.at({"b", ids}).set(u, IndexMode::clip)[{"b", ids}]).item() == 0);
  CHECK(same(x.at({"b", ids}).get(IndexMode::fill, 0), x[{"b", ids}]));
  const std::vector<NamedArray> arrays{x, y, z};
  CHECK(same(dot(arrays, "b"), x.dot(y, z, "b")));
  CHECK(same(dot(x, y, "b", {.preferred_element_type = DType::f32}), dot(x, y, "b")));
  CHECK(same(dot(x, y, "b", {.precision = Precision::highest}), dot(x, y, "b")));
  CHECK(random::maybe_rng_split<2>(key).size() == 2);
  CHECK(names(random::shaped_rng_split(key, {A, B}).words) == Names{"a", "b", key_word});
  CHECK(random::choice(key, K, x, "b", false).axes() == Axes{K, A});
  CHECK(same(one_hot(-1, B), where(arange(B) == 2, 1., zeros(B))));
  {
    auto f = [](const NamedArray& v) { return v * 2.; };
    CHECK(same(vmap(f, {"a", "b"})(x), x * 2.));
  }
  {
    auto w = ones(B);
    auto f = [](const NamedArray& v, const NamedArray& w) { return v * w; };
    CHECK(same(vmap([&](const NamedArray& x) { return f(x, w); }, "a")(x), x));
  }
}

TEST_CASE("cheatsheet: modules and transforms") {
  struct Mlp {
    nn::Linear up;
  };
  const Axis In("in", 3), Out("out", 4);
  auto k = random::key(0);
  const Mlp mlp{nn::Linear::init(In, Out, k, {.use_bias = false})};
  CHECK(tree_paths(mlp) == std::vector<std::string>{"up.weight"});
  {
    const Axis Experts("experts", 2), Row("row", 6);
    auto x = random::normal(k, {In, Row});
    auto same = nn::Conv::init({"row"}, In, Out, 3, k, {.padding = 1});
    CHECK(same(x).axes() == Axes{Out, Row});
    CHECK(nn::Conv::init(Row, In, Out, 3, k, {.padding = 1})(x).axes() == Axes{Out, Row});
    auto half = nn::max_pool(x, Axis("row", 2), {.stride = 2});
    CHECK(half.axes() == Axes{In, Row.resize(3)});
    auto up = nn::MoELinear::init(Experts, In, Out, k);
    CHECK(up(rearrange(x, {"row", "in"}), array(std::vector<std::int32_t>{2, 4}, Experts)).axes() ==
          Axes{Row, Out});
  }

  auto keys = random::split(k, Layers);
  auto make = [](const Key& key) { return Block::init(key); };  // make(key) -> Block
  auto blocks = nn::Stacked<Block>::init(Layers, make, keys);
  auto x = random::normal(k, {Batch, Embed});
  CHECK(blocks.fold(x, arange(Layers), keys).axes() == x.axes());

  {
    auto f = [](const NamedArray& row, const Key& k) { return row + random::normal(k, Embed); };
    auto keys = random::split(k, Batch);
    CHECK(vmap(f, Batch)(x, keys).axes() == x.axes());
  }
  {
    auto f = [](const NamedArray& total, const NamedArray& x) { return total + x; };
    auto init = zeros(Embed), xs = random::normal(k, {Pos, Embed});
    CHECK(same(fold(f, Pos)(init, xs), sum(xs, Pos)));
    auto both = [=](const NamedArray& total, const NamedArray& x) {
      return std::pair{f(total, x), total};
    };
    CHECK(same(scan(both, Pos)(init, xs).second, cumsum(xs, Pos) - xs));
    CHECK(same(map([](const NamedArray& x) { return tanh(x); }, Pos)(xs), tanh(xs)));
  }
  {
    auto p = [](const std::string&, const NamedArray& leaf) { return leaf.ndim() > 1; };
    auto init = zeros(Embed), xs = random::normal(k, {Pos, Embed});
    auto f = [](const NamedArray& total, const NamedArray& x) {
      return std::pair(total + x, total);
    };
    CHECK(same(scan(f, Pos, {.is_scanned = p})(init, xs).first, sum(xs, Pos)));
    {
      auto f = [](const NamedArray& x) { return tanh(x); };
      CHECK(same(map(f, Pos, {.is_scanned = p})(xs), tanh(xs)));
    }
    auto square_of = [](const NamedArray& x) { return x * x; };
    auto rule = [](const auto& in, const auto& tangents) {
      auto& [x] = in;
      return std::pair(x * x, 2. * x * std::get<0>(tangents));
    };
    {
      auto f = square_of;
      auto squares = custom_jvp(f, rule);
      CHECK(same(grad([&](const NamedArray& x) { return sum(squares(x)); })(xs), 2. * xs));
    }
  }
  auto f = [](const NamedArray& x) { return sum(square(x)); };
  CHECK(same(grad(checkpoint(f))(x), 2. * x));
  CHECK(same(grad([](const NamedArray& x) { return sum(x * stop_gradient(x)); })(x), x));
  {
    auto model = mlp;
    auto x = ones(In);
    auto loss = [](const Mlp& m, const NamedArray& x) { return sum(m.up(x)); };
    auto [l, g] = value_and_grad(loss)(model, x);
    CHECK(same(g.up.weight, ones_like(g.up.weight)));
    CHECK(same(l, sum(model.up.weight)));

    auto optimizer = optim::adamw({.learning_rate = 1e-3});
    auto [updates, state] = optimizer.update(g, optimizer.init(model), model);
    CHECK(
        same(optim::apply_updates(model, updates).up.weight, model.up.weight + updates.up.weight));
    auto halved = optim::chain(optim::Scale{-0.5});
    CHECK(same(halved.update(g, halved.init(model), model).first.up.weight, -0.5 * g.up.weight));
    CHECK(Policy("p=f32,c=bf16").cast_to_compute(model).up.weight.dtype() == DType::bf16);
  }
  CHECK(same(jit(f)(x), f(x)));
  CHECK(eval_shape(f, x).axes().empty());
  {
    auto model = Block::init(random::key(8));
    auto file = to_state_dict(model);
    CHECK(same(from_state_dict(file, model).up.weight, model.up.weight));
    CHECK(same(from_state_dict(file, model, {.allow_missing = true}).up.weight, model.up.weight));
  }
  const auto loss = f(x);
  CHECK(loss.item() == doctest::Approx(double(x.floats().size()) * mean(square(x)).item()));
  CHECK(x.doubles()[0] == double(x.floats()[0]));
  {
    auto x = arange(Pos);
    CHECK(x.integers()[5] == 5);
  }
  {
    auto f = [](const NamedArray& xs) { return mean(square(xs)); };
    const Axis Pos("pos", 100);
    auto xs = random::normal(k, {Pos, Embed});
    CHECK(same(chunked_reduce(Pos, {.chunk = 64}, f)(xs), f(xs)));
  }
  auto step = [](const NamedArray& x) { return x * 2.; };
  auto given = (x + 0.).eval();
  CHECK(same([&](auto f) { return jit(f, {.donate = {0}}); }(step)(given), x * 2));
}

TEST_CASE("cheatsheet: sharding") {
  Devices before(devices());
  set_devices(8);
  auto f = [](const NamedArray& x) { return tanh(x); };
  auto x = random::normal(random::key(0), {Batch, Embed}).eval();
  const Mesh mesh = Mesh{{{"data", -1}, {"model", 2}}};
  const Mapping m{{"batch", "data"}}, params{{"embed", "data"}}, compute = m;
  CHECK(same(named_jit(f, {.mesh = mesh, .axis_resources = m})(x), tanh(x)));
  auto separate =
      named_jit(f, {.donate = {0}, .mesh = mesh, .axis_resources = m, .in = params, .out = params});
  CHECK(same(separate((x + 0.).eval()), tanh(x)));
  CHECK(same(fsdp(f, params, compute, {.mesh = mesh})(x), tanh(x)));
  CHECK(to_string(Mapping{{"batch", {"replica", "data"}}, {"mlp", "model"}}) ==
        "{batch: replica+data, mlp: model}");
  CHECK(same(shard_map(f, {.mesh = mesh, .axis_resources = m})(x), tanh(x)));
  {
    auto sum_of = [](const NamedArray& x) { return psum(x, "data"); };
    CHECK(same(shard_map(sum_of, {.mesh = mesh, .axis_resources = Mapping{}})(x), 4. * x));
  }
  const auto tree = std::pair{x, x};
  CHECK(visualize_shardings(tree, m, mesh).find("batch") != std::string::npos);
  CHECK(visualize_sharding(x, "x.svg") != "");
  CHECK(std::remove("x.svg") == 0);
  {
    use_mesh scope(mesh);
    CHECK(same(shard(x), x));
    {
      axis_mapping scope(Mapping{{"batch", "data"}});
      CHECK(same(auto_sharded(x), x));
      CHECK(pspec_for_axis(x.axes()) == pspec_for_axis(x.axes(), m));
      CHECK(physical_axis_name(Batch) == std::vector<std::string>{"data"});
      CHECK(physical_axis_size(Batch) == 4);
      CHECK(round_axis_for_partitioning(Batch) == Axis("batch", 4));
    }
    mesh_context inner(mesh);
    auto placed = placement(shard(x, m));
    REQUIRE(placed);
    CHECK(placed->mapping == m);
  }
}
