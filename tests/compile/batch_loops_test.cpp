// Batched matmuls that read each other's results run as loops over the batch, with equal values for
// any number of devices and threads.
#include <doctest/doctest.h>

#include <random>

#include "base/thread_pool.h"
#include "compile/lower/rewrites.h"
#include "compile/pipeline.h"
#include "haliax/haliax.h"
#include "program/views.h"

using namespace haliax;

namespace {

int count(const std::vector<program::Step>& steps, program::Kind kind) {
  int n = 0;
  each_step(steps, [&](auto& s) { n += s.kind == kind; });
  return n;
}
int loops_in(const Nodes& roots) {
  int n = 0;
  for (auto& x : all_nodes(roots)) n += x->op == &kLoop;
  return n;
}
Nodes nodes_of(const std::vector<NamedArray>& all) {
  Nodes out;
  for (auto& x : all) out.push_back(x.node());
  return strip_wraps(out, false);
}
NamedArray draw(int seed, const Axes& axes) {
  return random::normal(random::key(seed), axes).eval();
}

struct Parts {
  NamedArray query, key, value, bias;
  HALIAX_FIELDS(query, key, value, bias)
};

// Random attention from a seed, and its gradients.
class Drawn {
 public:
  explicit Drawn(unsigned seed) : random_(seed) {
    for (auto name : {"b", "heads", "c"})
      if (batch.size() < 2 && (below(3) > 0 || name[0] == 'c'))
        batch.push_back(Axis(name, 2 + below(4)));
    Q = Axis("q", 6 + below(20));
    K = Axis("k", 6 + below(20));
    shared = below(3) == 0;
    mask = below(4);
    change = below(5);
    keeps = below(2);
    both = below(3) > 0;
  }
  std::vector<NamedArray> results() {
    auto of_keys = batch;
    if (shared) of_keys.pop_back();
    auto with = [&](Axes axes, const Axes& more) {
      axes.insert(axes.end(), more.begin(), more.end());
      return shuffled(axes);
    };
    Parts p{draw(1, with(batch, {Q, D})), draw(2, with(of_keys, {K, D})),
            draw(3, with(of_keys, {K, D})), draw(4, with(batch, {Q, K}))};
    std::vector<NamedArray> out;
    auto f = [&](const Parts& p) {
      auto weights = this->weights(p);
      if (keeps) out.push_back(weights);
      return dot(weights, p.value, K);
    };
    if (!both) {
      out.push_back(f(p));
      return out;
    }

    auto [y, pull] = vjp(f, p);
    auto g = pull(sin(y));
    return {y, g.query, g.key, g.value, g.bias};
  }
  double least_of_scores() const { return 4. * double(Q.size * K.size); }
  Axes batch;

 private:
  NamedArray weights(const Parts& p) const {
    auto s = dot(p.query, p.key, D);
    if (mask == 1) s = where(nn::causal_mask(Q, K), s, -1e9f);
    // a mask of constants, positions and the batch
    if (mask == 2)
      s = where(broadcast_axis(broadcast_axis(arange(batch[0]) * 3, Q), K) <
                    broadcast_axis(arange(Q), K) + arange(K),
                s, -1e9f);
    if (mask == 3) s = where(p.bias > 0.f, s, -1e9f);
    if (change == 1) s = s + p.bias;
    if (change == 2) s = s + dot(sin(p.query), p.key, D);  // a second matmul
    auto w = softmax(s, K);
    if (change == 3) w = where(random::bernoulli(random::key(3), {Q, K}, 0.8), w, 0.f) / 0.8f;
    if (change == 4) w = w * w;
    return w;
  }
  int below(int n) { return int(random_() % unsigned(n)); }
  Axes shuffled(Axes axes) {
    std::shuffle(axes.begin(), axes.end(), random_);
    return axes;
  }

  std::mt19937 random_;
  Axis Q{"q", 1}, K{"k", 1}, D{"d", 5};
  bool shared = false, keeps = false, both = false;
  int mask = 0, change = 0;
};

}  // namespace

TEST_CASE("batch_loops: random attention in loops matches attention without loops") {
  int programs_with_loops = 0;
  for (unsigned seed = 1; seed <= 120; ++seed) {
    CAPTURE(seed);
    Drawn d(seed);
    auto plain = d.results();
    auto looped = batch_loops(nodes_of(plain), {d.least_of_scores() * (1 + seed % 3), 1, 1});
    programs_with_loops += loops_in(looped) > 0;
    for (std::size_t k = 0; k < plain.size(); ++k) {
      auto expected = plain[k].eval(), got = NamedArray(looped[k]).eval();
      REQUIRE(got.axes() == expected.axes());
      CHECK(max(abs(got - expected)).item() <= 1e-5 * std::max(1., max(abs(expected)).item()));
    }
  }
  CHECK(programs_with_loops > 80);
}
TEST_CASE(
    "batch_loops: loops cover as few axes as needed, "
    "and only iterations that fit, are many and are large") {
  const Axis B("b", 6), H("heads", 4), Q("q", 32), K("k", 32), D("d", 8);
  auto q = draw(1, {B, Q, H, D}), k = draw(2, {B, K, H, D}), v = draw(3, {B, K, H, D});
  auto y = dot(softmax(dot(q, k, D), K), v, K);  // 4 KiB and 8,192 multiplications per head
  auto loops = [&](double max_parallel_slot_bytes, std::int64_t min_iterations = 1,
                   double product = 1) {
    return loops_in(batch_loops(nodes_of({y}), {max_parallel_slot_bytes, min_iterations, product}));
  };
  CHECK(loops(24 * 4096) == 0);  // everything fits
  CHECK(loops(12 * 4096) == 1);  // over b: 4 heads fit into a third of the limit
  CHECK(loops(6 * 4096) == 2);   // over b and heads
  CHECK(loops(2048) == 2);
  CHECK(loops(2047) == 0);
  CHECK(loops(12 * 4096, 6) == 1);
  CHECK(loops(12 * 4096, 7) == 0);
  CHECK(loops(6 * 4096, 24, 8192) == 2);
  CHECK(loops(6 * 4096, 24, 8193) == 0);
  auto scores = dot(q, k, D);
  // no matmul reduces them
  CHECK(loops_in(batch_loops(nodes_of({softmax(scores, K)}), {4096, 1, 1})) == 0);
}
TEST_CASE(
    "batch_loops: saved and concatenated values are written directly into their final memory") {
  const Axis B("b", 6), H("heads", 4), Q("q", 32), K("k", 32), D("d", 8), E("e", 16),
      Three("three", 3), Layers("layers", 3);
  auto wqkv = draw(1, {Layers, E, Three, H, D}), wo = draw(2, {Layers, H, D, E}),
       x = draw(3, {B, Q, E});
  auto layer = [=](const NamedArray& x, const NamedArray& wqkv, const NamedArray& wo) {
    auto qkv = dot(x, wqkv, E).unbind(Three);
    auto weights =
        softmax(where(nn::causal_mask(Q, K), dot(qkv[0], rename(qkv[1], Q, K), D), -1e9f), K);
    return dot(dot(weights, rename(qkv[2], Q, K), K), wo, {"heads", "d"});
  };
  auto [y, pull] = vjp([=](const NamedArray& w) { return fold(layer, Layers)(x, w, wo); }, wqkv);
  auto g = pull(cos(y));
  auto steps_of = [&](const Nodes& roots) {
    Compilation c{roots, {}};
    run(c);
    return c.program->steps;
  };
  const Nodes plain = nodes_of({y, g}), looped = batch_loops(plain, {6 * 4096, 1, 1});
  CHECK(loops_in(looped) > loops_in(plain));
  const int copies = count(steps_of(plain), program::Kind::copy);
  CHECK(count(steps_of(looped), program::Kind::copy) <= copies + 1);
}
TEST_CASE("batch_loops: a loop whose results start other loops runs once") {
  const Axis B("b", 6), H("heads", 4), Q("q", 32), K("k", 32), D("d", 8), Layers("layers", 3);
  auto layer = [=](const NamedArray& x, const NamedArray& w) {
    auto q = x * w;
    return dot(softmax(dot(q, rename(q, Q, K), D), K), rename(x, Q, K), K);
  };
  auto x = draw(1, {B, H, Q, D}), w = draw(2, {Layers, D}), last = draw(3, {D});
  auto [y, pull] =
      vjp([=](const NamedArray& w) { return layer(fold(layer, Layers)(x, w), last); }, w);
  std::vector<Nodes> made;
  for (auto& n : all_nodes(batch_loops(nodes_of({y, pull(cos(y))}), {6 * 4096, 1, 1}))) {
    if (n->op != &kLoop) continue;
    auto values = values_of(loop_of(*n), 0);
    CHECK(std::find(made.begin(), made.end(), values) == made.end());
    made.push_back(values);
  }
  CHECK(made.size() > 6);
}
TEST_CASE(
    "batch_loops: devices issue their collectives in one order, "
    "though only some of them have loops") {
  // 12 and 11 iterations
  const Axis B("b", 23), Q("q", 256), K("k", 256), D("d", 16), From("from", 256);
  auto q = draw(1, {B, Q, D}), k = draw(2, {B, K, D}), v = draw(3, {B, K, D}),
       u = draw(4, {From, D});
  auto f = [=](const NamedArray& q, const NamedArray& u) {
    auto w = softmax(dot(q, k, D), K), y = dot(w, v, K);
    auto first = tanh(dot(y, y, {"b", "q"}));  // a sum over devices
    // the gradients of w and of u, which is gathered later
    return std::pair{first, sum(dot(w, rename(u, From, K), K) * first, {"b", "q"})};
  };
  auto [expected, more] = jit(f)(q, u);
  auto on_mesh = named_jit(f, {.mesh = Mesh{{{"data", 2}}},
                               .axis_resources = Mapping{{"b", "data"}, {"from", "data"}},
                               .out = Mapping{}});
  auto [got, rest] = on_mesh(q, u);
  CHECK(max(abs(got - expected)).item() <= 1e-5);
  CHECK(max(abs(rest - more)).item() <= 1e-5 * max(abs(more)).item());
}
TEST_CASE("batch_loops: results do not depend on the number of threads") {
  const Axis B("b", 2), H("heads", 12), Q("q", 256), K("k", 256), D("d", 32);
  auto q = draw(1, {B, Q, H, D}), k = draw(2, {B, K, H, D}), v = draw(3, {B, K, H, D});
  auto loss = [=](const NamedArray& q) { return sum(sin(dot(softmax(dot(q, k, D), K), v, K))); };
  const int usual = threads();
  std::vector<double> first;
  for (int n : {1, 2, 5, 7, 16}) {
    set_threads(n);
    auto g = jit(grad(loss))(q).doubles();
    if (first.empty()) first = g;
    CHECK(g == first);
  }
  set_threads(usual);
}
