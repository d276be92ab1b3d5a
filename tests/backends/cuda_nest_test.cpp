// Loops with parallel slots as one kernel each, on a simulated GPU. Attention that is tiled by
// queries matches the cpu, matmuls have any strides, planted faults are found, and the source code
// compiles for GPUs.
#include <doctest/doctest.h>

#include <set>

#include "backends/cuda/kernels/nest.h"
#include "backends/cuda/nvidia/nvrtc.h"
#include "backends/cuda/engine/sequence.h"
#include "haliax/haliax.h"
#include "support/left_out.h"
#include "support/raises.h"
#include "support/simulated.h"

namespace {

using namespace haliax;
using namespace haliax::testing;

const Axis B{"b", 2}, H{"heads", 3}, Q{"q", 150}, K{"k", 150}, D{"d", 8};
using Parts = std::array<NamedArray, 3>;
using Attention = std::function<NamedArray(const Parts&)>;

Parts parts(DType dtype, const Axis& d = D) {
  auto draw = [&](int seed, const Axes& axes) {
    return random::normal(random::key(seed), axes).astype(dtype).eval();
  };
  return {draw(1, {B, H, Q, d}), draw(2, {B, H, K, d}), draw(3, {B, H, K, d})};
}
// Returns the loss, the auxiliary result, and the gradients.
Leaves all_of(const Attention& f, const Parts& p) {
  auto [both, g] = value_and_grad([&](const Parts& p) {
    auto y = f(p).astype(DType::f32);
    return std::pair{sum(sin(y) * y), sum(y, "heads")};
  })(p);
  return {both.first, both.second, g[0], g[1], g[2]};
}
auto compiled(const Attention& f, const char* backend) {
  return jit([f](const Parts& p) { return all_of(f, p); },
             {.backend = backend, .scores_budget = 0});
}
void same(const char* what, const Attention& f, const Parts& p, double tolerance) {
  CAPTURE(std::string(what));
  const auto products = cuda::simulation_counts().products;
  auto got = compiled(f, "cuda-sim")(p), expected = compiled(f, "cpu")(p);
  CHECK(cuda::simulation_counts().products == products);  // all matmuls are parts of kernels
  REQUIRE(got.size() == expected.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    CAPTURE(k);
    auto x = got[k].astype(DType::f64), y = expected[k].astype(DType::f64);
    CHECK(max(abs(x - y)).item() <= tolerance * (1 + max(abs(y)).item()));
  }
}
NamedArray scores(const Parts& p) { return dot(p[0], p[1], "d") / 2.f; }
NamedArray causal(const Parts& p) {
  return nn::dot_product_attention("k", "d", p[0], p[1], p[2], {.mask = nn::causal_mask(Q, K)});
}

// ---- a handwritten Program: each iteration multiplies a block, in memory of its own ----
View at(int slot, DType d, Dims strides, int loop = -1, std::int64_t step = 0) {
  View v{slot, d, 0, std::move(strides), {}};
  if (loop >= 0) v.terms.push_back({.loop = loop, .stride = step});
  return v;
}
// out[t] = exp(x[t] y[t]) z, in f32 between; t: iterations. m, k, l, n are odd on purpose. far:
// additional bytes per iteration.
Case loop_case(DType d, std::int64_t far = 0) {
  constexpr std::int64_t trips = 5, m = 61, k = 37, l = 67, n = 33;
  Case c(7);
  const int x = c.slot(false, d, trips * m * k), y = c.slot(false, d, trips * k * l),
            z = c.slot(false, d, l * n), out = c.slot(true, DType::f32, trips * m * n);
  auto& p = c.program;
  auto per_iteration = [&](std::int64_t bytes, std::int64_t offset) {
    p.slots.push_back({.bytes = bytes, .offset = offset});
    return int(p.slots.size()) - 1;
  };
  const auto scores_bytes = aligned(m * l * 4), weights_bytes = aligned(m * l * bytes_of(d));
  const int scores = per_iteration(m * l * 4, 64),
            weights = per_iteration(m * l * bytes_of(d), 64 + scores_bytes + far);
  p.loops = 1;
  auto& step = c.add(Kind::loop);
  auto& loop = step.loop;
  loop.variable = 0;
  loop.trips = trips;
  loop.reverse = true;
  loop.parallel_slots = far ? 2 : 1;
  loop.parallel_slot_start = 64;
  loop.parallel_slot_bytes = scores_bytes + weights_bytes + far;
  p.arena_bytes = 64 + loop.parallel_slot_bytes * loop.parallel_slots;
  Step first{.kind = Kind::contract}, between{.kind = Kind::fused}, last{.kind = Kind::contract};
  first.contract = {{},
                    {m},
                    {l},
                    {k},
                    at(x, d, {1, 0, m}, 0, m * k),
                    at(y, d, {0, k, 1}, 0, k * l),
                    at(scores, DType::f32, {l, 1, 0}),
                    false};
  auto& f = between.fused;
  f.dims = {m, l};
  f.outer = 1;
  f.code = {load(at(scores, DType::f32, {l, 1}), true),
            op(Code::reduce_max, DType::f32, {0}),
            op(Code::sub, DType::f32, {0, 1}, true),
            op(Code::exp, DType::f32, {2}, true),
            op(Code::cast, d, {3}, true),
            store(at(weights, d, {l, 1}), 4, true)};
  last.contract = {{},
                   {m},
                   {n},
                   {l},
                   at(weights, d, {l, 0, 1}),
                   at(z, d, {0, 1, n}),
                   at(out, DType::f32, {n, 1, 0}, 0, m * n),
                   false};
  step.body = {first, between, last};
  return c;
}
}  // namespace

TEST_CASE("cuda nest: attention of many kinds matches the cpu") {
  auto mask = nn::causal_mask(Q, K);
  same("causal", causal, parts(DType::f32), 4e-6);
  same("bf16", causal, parts(DType::bf16), 2e-2);
  same("f16, an odd size of heads", causal, parts(DType::f16, Axis("d", 7)), 4e-3);
  same(
      "bf16, scores in f32",
      [](const Parts& p) {
        return nn::dot_product_attention("k", "d", p[0], p[1], p[2],
                                         {.attention_dtype = DType::f32});
      },
      parts(DType::bf16), 2e-2);
  same(
      "soft cap",
      [](const Parts& p) { return dot(softmax(tanh(scores(p) / 3.f) * 3.f, "k"), p[2], "k"); },
      parts(DType::f32), 4e-6);
  same(
      "alibi",
      [](const Parts& p) {
        return nn::dot_product_attention("k", "d", p[0], p[1], p[2],
                                         {.bias = nn::alibi_attention_bias(H, K)});
      },
      parts(DType::f32), 4e-6);
  same(
      "dropout",
      [](const Parts& p) {
        auto keep = random::bernoulli(random::key(7), {B, H, Q, K}, 0.8);
        return dot(where(keep, softmax(scores(p), "k"), 0.f) / 0.8f, p[2], "k");
      },
      parts(DType::f32), 4e-6);
  same(
      "rows that see nothing",
      [](const Parts& p) {
        return dot(softmax(where(broadcast_axis(arange(Q) > 3, K), scores(p), -1e30f), "k"), p[2],
                   "k");
      },
      parts(DType::f32), 4e-6);
  same(
      "one key for all heads",
      [](const Parts& p) {
        return nn::dot_product_attention("k", "d", p[0], mean(p[1], "heads"), mean(p[2], "heads"));
      },
      parts(DType::f32), 4e-6);
  auto length = full({}, 40, DType::i32).eval();
  same(
      "a length that is known when it runs",
      [=](const Parts& p) {
        return nn::dot_product_attention("k", "d", p[0], p[1], p[2], {.mask = arange(K) < length});
      },
      parts(DType::f32), 4e-6);
}
TEST_CASE(
    "cuda nest: a step of attention has few launches, and is bitwise identical in every run") {
  auto f = compiled(causal, "cuda-sim");
  const auto p = parts(DType::bf16);
  const auto first = f(p);
  for (auto& x : first) x.eval();
  const auto before = cuda::simulation_counts();
  const auto repeated = f(p);
  CHECK(cuda::simulation_counts().kernels - before.kernels <= 8);
  for (std::size_t k = 0; k < first.size(); ++k) CHECK(all(first[k] == repeated[k]).item());
}
TEST_CASE("cuda nest: matmuls of any strides match, in shared memory and outside of it") {
  for (auto d : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32})
    for (std::int64_t far : {0, 300 << 10}) {
      CAPTURE(name_of(d));
      CAPTURE(far);
      const auto c = loop_case(d, far);
      const auto got = c.run(*cuda::make_simulated_device()),
                 expected = c.run(*reference::make_reference_device());
      CHECK(difference(DType::f32, got[0], expected[0],
                       d == DType::bf16  ? 1e-2
                       : d == DType::f16 ? 2e-3
                                         : 2e-5) == "");
    }
}

TEST_CASE("cuda nest: planted faults are found") {
  const auto c = loop_case(DType::f32);
  const auto right = planted(c, [](auto text) { return text; });
  CHECK(right.second == "");
  // after the weights
  const auto hasty = planted(c, [&](auto text) { return changed(text, "__syncthreads();", ""); });
  CHECK((hasty.first != right.first || hasty.second != ""));
  const auto far = planted(c, [](auto text) {  // the pass that stores the weights
    return changed(text, "j < I(", "j <= I(", 1);
  });
  CHECK(has(far.second, "past the end of its shared memory"));
}
TEST_CASE("cuda nest: loops that are unsuitable for one kernel are refused") {
  auto c = loop_case(DType::f32);
  auto& loop = c.program.steps[0];
  CHECK(cuda::nest_parallel_slots(loop, 5, 60 << 10) == 1);
  CHECK(cuda::nest_parallel_slots(loop, 5, 300 << 10) == 5);
  CHECK(cuda::nest_parallel_slots(loop, 1000, 300 << 10) == 132);
  CHECK(cuda::nest_parallel_slots(loop, 1000, 64 << 20) == 0);  // too much memory of its own
  CHECK(cuda::nest_parallel_slots(loop, 1, 60 << 10) == 0);
  auto large = loop;
  large.body[0].contract.k = {1 << 20};  // a separate kernel uses the full GPU
  CHECK(cuda::nest_parallel_slots(large, 2, 60 << 10) == 0);
  auto prints = loop;
  prints.body.push_back({.kind = Kind::host});
  CHECK(cuda::nest_parallel_slots(prints, 5, 60 << 10) == 0);
  auto moves = loop;
  moves.body = {loop.body[1]};  // no matmul
  CHECK(cuda::nest_parallel_slots(moves, 5, 60 << 10) == 0);
}
TEST_CASE("cuda nest: kernels compile for GPUs, without spills and stack") {
  if (!cuda::has_nvrtc()) {
    left_out("nests", "not compiled: no NVRTC here");
    return;
  }
  const std::string clean = " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
  for (auto d : {DType::f32, DType::bf16, DType::f16})
    for (int sm : {80, 90, 100}) {
      CAPTURE(name_of(d));
      CAPTURE(sm);
      const auto c = loop_case(d, 300 << 10);
      const auto text =
          cuda::named(
              cuda::nest_launch(c.program.steps[0], c.program, cuda::shared_limit_of(sm)).source)
              .source;
      const auto log = cuda::compile_for_gpu(cuda::prelude(false) + text + "}\n", sm).log;
      CAPTURE(log);
      auto rest = log;  // compiler messages about each function
      for (std::size_t at = 0; (at = rest.find(clean, at)) != rest.npos;)
        rest.erase(at, clean.size());
      CHECK(rest.size() < log.size());
      CHECK_FALSE(has(rest, "bytes stack frame"));
    }
}
