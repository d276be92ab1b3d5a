// Mixtures of experts against a sum over all experts, and their errors.
#include <doctest/doctest.h>

#include <cmath>

#include "devices/communicator.h"
#include "haliax/haliax.h"
#include "support/near.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 3), Pos("pos", 5), Embed("embed", 8), Mlp("mlp", 6), Experts("expert", 4),
    Token("token", 7);

// Computes every expert for every token, and weights the results.
NamedArray dense(const nn::MoE& m, const NamedArray& x) {
  auto p = softmax(m.router(x), Experts);
  auto [values, ids] = top_k(p, Experts, m.experts_per_token, "choice");
  auto weights = m.normalize ? values / sum(values, "choice") : values;
  auto chosen = equal(broadcast_axis(ids, Experts), arange(Experts));
  auto share = sum(where(chosen, broadcast_axis(weights, Experts), 0.f), "choice");
  auto hidden = m.activation(dot(x, m.gate.weight, Embed)) * dot(x, m.up.weight, Embed);
  return dot(dot(hidden, m.down.weight, Mlp), share, Experts);
}
double largest(const NamedArray& a) { return max(abs(a)).item(); }
// Routes all tokens to the same experts.
nn::MoE skewed(nn::MoE m) {
  m.router.weight = m.router.weight * 0.f + arange(Experts).astype(DType::f32);
  return m;
}
double difference_of(const nn::MoE& m, const NamedArray& x) {
  auto loss = [&](const nn::MoE& each, auto f) { return sum(square(f(each, x))); };
  auto layer = [](const nn::MoE& each, const NamedArray& in) { return each(in); };
  auto expected = dense(m, x);
  double worst = largest(m(x) - rearrange(expected, {"..."})) / largest(expected);
  auto mine = grad([&](const nn::MoE& each) { return loss(each, layer); })(m);
  auto its = grad([&](const nn::MoE& each) { return loss(each, dense); })(m);
  auto a = flatten(mine), b = flatten(its);
  for (std::size_t k = 0; k < a.size(); ++k)
    worst = std::max(worst, largest(a[k] - b[k]) / std::max(1e-3, largest(b[k])));
  return worst;
}

}  // namespace

TEST_CASE("MoE is the weighted sum of the chosen experts, with gradients and skewed routing") {
  auto x = random::normal(random::key(1), {Batch, Pos, Embed});
  for (std::int64_t k : {1, 2, 4}) {
    auto m = nn::MoE::init(Experts, Embed, Mlp, random::key(0), {.experts_per_token = k});
    CHECK(difference_of(m, x) < 1e-5);
    CHECK(difference_of(skewed(m), abs(x)) < 1e-5);
  }
  auto m = nn::MoE::init(Experts, Embed, Mlp, random::key(0), {.normalize = false});
  CHECK(difference_of(m, x) < 1e-5);
  CHECK(m(x).axes() == Axes{Batch, Pos, Embed});
  auto one = haliax::at(haliax::at(x, Batch, 0), Pos, 0);
  CHECK(largest(m(one) - haliax::at(haliax::at(m(x), Batch, 0), Pos, 0)) < 1e-5);
}

TEST_CASE("a bias of the last layer of MoE is weighted as its results are") {
  auto x = random::normal(random::key(1), {Batch, Pos, Embed});
  for (bool normalize : {true, false}) {
    auto m = nn::MoE::init(Experts, Embed, Mlp, random::key(0), {.normalize = normalize});
    auto [weights, ids] = top_k(softmax(m.router(x), Experts), Experts, 2, "choice");
    auto share = normalize ? ones({Batch, Pos}) : sum(weights, "choice");
    auto expected = m(x) + broadcast_axis(share, Embed) * arange(Embed);
    m.down.bias = arange(Embed).astype(DType::f32);
    CHECK(largest(m(x) - expected) < 1e-5);
  }
}
TEST_CASE("the gradient of MoE does not compute the results of the experts") {
  auto m = nn::MoE::init(Experts, Embed, Mlp, random::key(0));
  auto x = random::normal(random::key(1), {Token, Embed}).eval();
  auto f = jit([](const nn::MoE& layer, const NamedArray& in, const NamedArray& cotangent) {
    using Both = std::pair<nn::MoE, NamedArray>;
    return vjp([](const Both& t) { return t.first(t.second); }, Both(layer, in)).second(cotangent);
  });
  f(m, x, x);
  const auto program = f.report().program;
  int contractions = 0;
  for (auto at = program.find("\nragged_"); at != program.npos;
       at = program.find("\nragged_", at + 1))
    ++contractions;
  // gate and up, and two for the gradient of each layer
  CHECK_MESSAGE(contractions == 8, program);
}

TEST_CASE("MoE on a mesh equals one device, with experts or tokens sharded, and skewed routing") {
  auto x = abs(random::normal(random::key(1), {Batch.resize(4), Pos, Embed})).eval();
  auto m = nn::MoE::init(Experts, Embed, Mlp, random::key(0));
  const Mesh mesh{{{"data", 2}, {"model", 2}}};
  for (const nn::MoE& each : {m, skewed(m)}) {
    auto f = [](const nn::MoE& layer, const NamedArray& in) {
      return value_and_grad([&](const nn::MoE& l) { return sum(square(l(in))); })(layer);
    };
    auto [expected, expected_grads] = jit(f)(each, x);
    for (const Mapping& mapping :
         {Mapping{{"expert", "model"}}, Mapping{{"batch", "data"}},
          Mapping{{"batch", "data"}, {"expert", "model"}}, Mapping{{"mlp", "model"}}}) {
      auto [value, grads] = named_jit(f, {.mesh = mesh, .axis_resources = mapping})(each, x);
      CHECK(std::abs(value.item() / expected.item() - 1) < 1e-6);
      auto a = flatten(grads), b = flatten(expected_grads);
      for (std::size_t k = 0; k < a.size(); ++k)
        CHECK(largest(a[k] - b[k]) <= 1e-5 * std::max(1e-3, largest(b[k])));
    }
  }
}

TEST_CASE("MoE with sharded experts sends each row to the device of its expert, and back") {
  const Axis Batch("batch", 8), Pos("pos", 6), Experts("expert", 8);
  auto x = random::normal(random::key(1), {Batch, Pos, Embed}).eval();
  auto m = nn::MoE::init(Experts, Embed, Mlp, random::key(0));
  auto all_to_one = m;
  all_to_one.router.weight = all_to_one.router.weight * 0.f + arange(Experts).astype(DType::f32);
  struct Case {
    Mesh mesh;
    Mapping mapping;
    std::int64_t shards;   // number of blocks of tokens
    std::int64_t devices;  // devices that share the experts
  };
  const Case cases[] = {
      {{{{"expert", 2}}}, {{"expert", "expert"}, {"batch", "expert"}}, 2, 2},
      {{{{"expert", 4}}}, {{"expert", "expert"}, {"batch", "expert"}}, 4, 4},
      {{{{"data", 2}, {"model", 2}}}, {{"expert", "model"}, {"batch", "data"}}, 4, 2},
      {{{{"data", 2}, {"model", 4}}}, {{"expert", "model"}, {"batch", {"data", "model"}}}, 8, 4},
      {{{{"data", 2}, {"expert", 2}, {"model", 2}}},
       {{"expert", "expert"}, {"batch", {"data", "expert"}}, {"mlp", "model"}},
       4,
       2}};
  for (auto& [mesh, mapping, shards, devices] : cases)
    for (const nn::MoE& each : {m, all_to_one}) {
      auto f = [](const nn::MoE& layer, const NamedArray& in) { return layer(in); };
      auto run = named_jit(f, {.mesh = mesh, .axis_resources = mapping});
      CHECK(largest(run(each, x) - jit(f)(each, x)) <= 1e-6 * largest(jit(f)(each, x)));
      auto both = [&](const nn::MoE& layer, const NamedArray& in) {
        auto loss = [&](const std::pair<nn::MoE, NamedArray>& p) {
          return sum(sin(p.first(p.second)));
        };
        return value_and_grad(loss)(std::pair(layer, in));
      };
      auto expected = flatten(jit(both)(each, x)),
           got = flatten(named_jit(both, {.mesh = mesh, .axis_resources = mapping})(each, x));
      for (std::size_t k = 0; k < expected.size(); ++k)
        CHECK(largest(got[k] - expected[k]) <= 2e-6 * std::max(1e-2, largest(expected[k])));

      // pairs of a token and an expert on two devices
      auto ids = top_k(each.router(x), Experts, 2, "choice").second.integers();
      const auto local = std::int64_t(ids.size()) / shards;
      std::int64_t remote = 0;
      for (std::size_t k = 0; k < ids.size(); ++k)
        remote += ids[k] / (Experts.size / devices) != std::int64_t(k) / local % devices;
      const auto before = exchanged_bytes();
      run(each, x);
      const auto copies = mesh.devices() / shards;  // devices with the same tokens
      // and the counts: i32, by sender and expert
      const auto counts = shards * Experts.size * (devices - 1) / devices * 4;
      CHECK(exchanged_bytes() - before == copies * (2 * remote * Embed.size * 4 + counts));
      const auto report = run.report();
      CHECK(std::count_if(report.collectives.begin(), report.collectives.end(),
                          [](auto& c) { return c.kind == "all-to-all"; }) == 3);
    }
}

TEST_CASE("MoE raises if the devices of the experts do not divide their number") {
  auto m = nn::MoE::init(Experts, Embed, Mlp, random::key(0));
  auto x = random::normal(random::key(1), {Batch, Pos, Embed});
  auto layer = [](const nn::MoE& l, const NamedArray& in) { return l(in); };
  const Mesh mesh{{{"data", 2}, {"model", 3}}};
  auto sharded = [&](const Mapping& mapping) {
    return message_of([&] { named_jit(layer, {.mesh = mesh, .axis_resources = mapping})(m, x); });
  };
  const auto message = sharded({{"expert", "model"}});
  CHECK(has(message, "[moe] the mapping shards expert=4 over the 3 devices of mesh axes model"));
  CHECK(has(message, "use a multiple of 3 experts"));
  CHECK(has(message, "moe_test.cpp"));
  CHECK(sharded({{"expert", "data"}}) == "");
}

TEST_CASE("ragged_dot has batch axes") {
  const Axis Rows("row", 7);
  auto x = random::normal(random::key(0), {Batch, Rows, Embed});
  auto w = random::normal(random::key(1), {Experts, Embed, Mlp});
  auto sizes = random::randint(random::key(2), {Batch, Experts}, 0, 2);
  auto y = ragged_dot(x, w, sizes, Embed);
  CHECK(y.axes() == Axes{Batch, Rows, Mlp});
  auto many = broadcast_axis(w, Batch);
  for (int b = 0; b < 3; ++b) {
    auto one = ragged_dot(haliax::at(x, Batch, b), w, haliax::at(sizes, Batch, b), Embed);
    CHECK(largest(haliax::at(y, Batch, b) - one) == 0);
    CHECK(largest(haliax::at(ragged_dot(x, many, sizes, Embed), Batch, b) - one) == 0);
  }
  CHECK(has(message_of([&] { ragged_dot(x, w, sum(sizes, Batch), Embed); }),
            "it must have one axis of rows"));
}

TEST_CASE("the code of the page on mixtures of experts") {
  auto key = random::key(0);
  auto x = random::normal(key, {Batch, Pos, Embed});
  auto moe = nn::MoE::init(Experts, Embed, Mlp, key, {.experts_per_token = 2});
  auto mixed = moe(x);  // (batch, pos, embed) -> (batch, pos, embed)

  auto tokens = random::normal(key, {Token, Embed});
  auto weights = random::normal(key, {Experts, Embed, Mlp});
  // rows 0 and 1, none, rows 2 to 4, rows 5 and 6
  auto counts = array(std::vector<std::int32_t>{2, 0, 3, 2}, Experts);
  auto hidden = ragged_dot(tokens, weights, counts, Embed);  // (token, embed) -> (token, mlp)

  const Mesh experts_mesh{{{"data", 2}, {"model", 2}}};
  auto layer = named_jit(
      [](const nn::MoE& l, const NamedArray& in) { return l(in); },
      {.mesh = experts_mesh, .axis_resources = Mapping{{"batch", "data"}, {"expert", "model"}}});

  CHECK(largest(layer(moe, x) - mixed) < 1e-5);
  CHECK(mixed.axes() == x.axes());
  CHECK(hidden.axes() == Axes{Token, Mlp});
}

TEST_CASE("ragged_dot: rows of no group are 0, groups may be empty, and bad sizes raise") {
  auto x = random::normal(random::key(0), {Token, Embed});
  auto w = random::normal(random::key(1), {Experts, Embed, Mlp});
  auto sizes = array(std::vector<std::int32_t>{2, 0, 3, 1}, Experts);
  auto y = ragged_dot(x, w, sizes, Embed);
  const int expert[] = {0, 0, 2, 2, 2, 3};
  for (int row = 0; row < 6; ++row)
    CHECK(largest(haliax::at(y, Token, row) -
                  dot(haliax::at(x, Token, row), haliax::at(w, Experts, expert[row]), Embed)) <
          1e-5);
  CHECK(largest(haliax::at(y, Token, 6)) == 0);
  CHECK(
      has(message_of([&] {
            ragged_dot(x, w, array(std::vector<std::int32_t>{2, -1, 3, 1}, Experts), Embed).eval();
          }),
          "group 1 has size -1"));
  CHECK(
      has(message_of([&] {
            ragged_dot(x, w, array(std::vector<std::int32_t>{2, 4, 3, 1}, Experts), Embed).eval();
          }),
          "group 2 has size 3, but only 1 of 7 rows are left; the sizes must not exceed the rows; "
          "moe_test.cpp:"));
  CHECK(has(message_of([&] { ragged_dot(x, w, sizes.astype(DType::f32), Embed); }),
            "group_sizes: expected integers, got f32"));
  CHECK(has(message_of([&] { ragged_dot(x, w, sizes, "mlp"); }), "axis mlp"));
  CHECK(has(message_of([&] {
              nn::MoE::init(Experts, Embed, Mlp, random::key(0), {.experts_per_token = 5});
            }),
            "experts_per_token is 5"));
}

TEST_CASE("ragged_dot in bf16 equals a dot per group, for groups of any size and both gradients") {
  const Axis Row("row", 500), In("in", 131), Out("out", 200), Group("group", 5);
  const std::vector<std::int64_t> sizes{1, 0, 33, 400, 60};  // 6 rows belong to no group
  auto x = random::normal(random::key(1), {Row, In}, DType::bf16).eval(),
       w = random::normal(random::key(2), {Group, In, Out}, DType::bf16).eval(),
       g = random::normal(random::key(3), {Row, Out}, DType::bf16).eval();
  auto f = [&](const std::pair<NamedArray, NamedArray>& of) {
    return ragged_dot(of.first, of.second, array(sizes, Group), In);
  };
  // The same sums in f32: weights of the group of each row, as a one-hot contraction.
  auto dense_of = [&](const std::pair<NamedArray, NamedArray>& of) {
    std::vector<std::int64_t> group;
    for (std::size_t k = 0; k < sizes.size(); ++k)
      group.insert(group.end(), std::size_t(sizes[k]), std::int64_t(k));
    group.resize(std::size_t(Row.size), Group.size);
    auto chosen = equal(broadcast_axis(array(group, Row), Group), astype(arange(Group), DType::i64))
                      .astype(DType::f32);
    return dot(chosen, dot(of.first, of.second, In), Group);
  };
  auto wide = [](const NamedArray& a) { return a.astype(DType::f32); };
  auto close = [](const NamedArray& a, const NamedArray& b) {
    return largest(a.astype(DType::f32) - b) < 0.006 * largest(b);
  };
  auto [y, back] = vjp(f, std::pair(x, w));
  auto [expected, expected_back] = vjp(dense_of, std::pair(wide(x), wide(w)));
  CHECK(close(y, expected));
  auto [x_grad, w_grad] = back(g);
  auto [x_expected, w_expected] = expected_back(wide(g));
  CHECK(close(x_grad, x_expected));
  CHECK(close(w_grad, w_expected));
}

TEST_CASE("ragged_dot and its gradients are bitwise equal for any number of threads") {
  const Axis Row("row", 700), In("in", 130), Out("out", 1000), Group("group", 4);
  auto sizes = array(std::vector<std::int64_t>{0, 500, 30, 150}, Group);
  for (DType dtype : {DType::f32, DType::bf16}) {
    auto x = random::normal(random::key(1), {Row, In}, dtype).eval(),
         w = random::normal(random::key(2), {Group, In, Out}, dtype).eval(),
         g = random::normal(random::key(3), {Row, Out}, dtype).eval();
    auto f = [&](const std::pair<NamedArray, NamedArray>& of) {
      return ragged_dot(of.first, of.second, sizes, In);
    };
    auto values = [&](int count) {
      set_threads(count);
      auto [y, back] = vjp(f, std::pair(x, w));
      auto [x_grad, w_grad] = back(g);
      std::vector<double> out;
      for (auto& a : {y, x_grad, w_grad}) {
        auto more = a.doubles();
        out.insert(out.end(), more.begin(), more.end());
      }
      return out;
    };
    auto one = values(1), three = values(3);
    set_threads(0);  // the default
    CHECK(one == three);
    auto expected = dot(haliax::at(x, Row, 500), haliax::at(w, Group, 2), In).astype(DType::f32);
    auto [y, back] = vjp(f, std::pair(x, w));
    CHECK(largest(haliax::at(y, Row, 500).astype(DType::f32) - expected) <
          0.006 * largest(expected));
  }
}

TEST_CASE("MoELinear multiplies sorted rows by the weight of their expert, in both orders") {
  auto x = random::normal(random::key(0), {Token, Embed});
  auto sizes = array(std::vector<std::int32_t>{2, 0, 3, 2}, Experts);
  auto plain = nn::MoELinear::init(Experts, Embed, Mlp, random::key(1));
  CHECK(plain.weight.axes() == Axes{Experts, Embed, Mlp});
  CHECK(plain.bias->axes() == Axes{Mlp});
  auto turned = nn::MoELinear::init(Experts, Embed, Mlp, random::key(1),
                                    {.use_bias = false, .out_first = true});
  CHECK(turned.weight.axes() == Axes{Experts, Mlp, Embed});
  turned.weight = rearrange(plain.weight, {Experts, Mlp, Embed});
  CHECK(largest(plain(x, sizes) - turned(x, sizes)) < 1e-6);
}
