// Contractions as descriptions for cuBLASLt: the values that it reads back, the errors of the
// simulation, and the number of calls.
#include <doctest/doctest.h>

#include "backends/cuda/api.h"
#include "backends/cuda/nvidia/cublas.h"
#include "backends/cuda/sim/sim.h"
#include "program/measured.h"
#include "support/left_out.h"
#include "support/simulated.h"

namespace {

using namespace haliax;
using namespace haliax::program;
using namespace haliax::testing;

Dims random_sizes(Case& c, int most) {
  Dims out;
  for (std::int64_t i = c.random.below(most + 1); i > 0; --i) out.push_back(1 + c.random.below(9));
  return out;
}
std::vector<cuda::Product> products_of(const Step& s) {
  std::vector<cuda::Product> out;
  if (auto launches = cuda::products_of(s))
    for (auto& l : *launches)
      if (l.product) out.push_back(*l.product);
  return out;
}
// x (batch, m, k) and y (batch, k, n), row-major, one after the other; batch may have any strides.
Step step_of(Dims batch, std::int64_t m, std::int64_t n, std::int64_t k, Dims x_batch, Dims y_batch,
             Dims out_batch, DType in, DType out) {
  Step s{.kind = Kind::contract};
  auto view = [](int slot, DType d, Dims strides, Dims more) {
    strides.insert(strides.end(), more.begin(), more.end());
    return View{slot, d, 0, strides, {}};
  };
  s.contract = {batch,
                {m},
                {n},
                {k},
                view(0, in, x_batch, {k, 0, 1}),
                view(1, in, y_batch, {0, 1, n}),
                view(2, out, out_batch, {n, 1, 0}),
                false};
  s.scratch = 0;
  return s;
}

}  // namespace

TEST_CASE("cuda: cuBLASLt receives the same descriptions as the simulation") {
  if (!cuda::has_cublas()) left_out("what cuBLASLt is told", "not read back: no cuBLASLt here");
  int described = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    Case c(seed);
    constexpr DType dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};
    auto in = dtypes[seed % 4], out = seed % 3 == 0 && bytes_of(in) == 2 ? DType::f32 : in;
    random_contract(c, random_sizes(c, 2), random_sizes(c, 2), random_sizes(c, 2),
                    random_sizes(c, 2), in, out, c.random.coin(), c.random.coin());
    c.program.steps[0].scratch = 0;
    for (auto& p : products_of(c.program.steps[0])) {
      ++described;
      if (!cuda::has_cublas()) continue;
      CAPTURE(seed);
      cuda::CublasProduct there(p);
      auto read = there.description();
      read.accumulate = p.accumulate;  // passed with each call
      CHECK(read == p);
      CHECK(there.reduction_schemes() == 2);  // none, or in the compute dtype
    }
  }
  CHECK(described > 300);
}

TEST_CASE("cuda: a matmul with a false description is refused") {
  std::vector<float> x(64, 1), y(64, 1), out(64);
  constexpr int device = 41;  // used by no other test
  auto& api = cuda::simulated();
  const auto stream = api.make_stream(device);
  std::vector<std::byte> workspace(std::size_t(api.workspace()));
  auto multiply = [&](const cuda::Product& p, std::size_t at = 0) {
    cuda::inject_fault(device, "");
    api.multiply(stream, api.make_product(device, p, {}), x.data() + at, y.data(), out.data(),
                 workspace.data());
    api.wait(stream);
  };
  cuda::Product p;
  p.a = {DType::f32, 3, 4, 3, 0, 4, false};
  p.b = {DType::f32, 4, 5, 4, 0, 4, false};
  p.out = {DType::f32, 3, 5, 3, 0, 4, false};
  multiply(p);
  CHECK(out[14] == 4);
  CHECK(out[15] == 0);
  auto refused = [&](auto change, const char* why) {
    auto q = p;
    change(q);
    raises([&] { multiply(q, 1); }, {"[cuda] a matmul ", why});
  };
  refused([](auto& q) { q.a.ld = 2; }, "leading dimension");
  refused([](auto& q) { q.b.rows = 3; }, "sizes that do not match");
  refused([](auto& q) { q.a.transposed = true; }, "sizes that do not match");
  refused([](auto& q) { q.a.alignment = 256; }, "less aligned than specified");
  refused([](auto& q) { q.batch = 2; }, "a batch into one matrix");
}

TEST_CASE("cuda: a contraction is one matmul if its strides allow it, and is packed otherwise") {
  // (batch pos, in) times a weight: one matmul.
  auto dense = step_of({}, 64, 48, 32, {}, {}, {}, DType::bf16, DType::bf16);
  auto all = products_of(dense);
  REQUIRE(all.size() == 1);
  CHECK(all[0].batch == 1);
  CHECK(cuda::product_scratch(dense.contract) == 0);
  // Scores of 4 x 3 heads, with separate dims for heads and batch: 12 matrices, in as many calls as
  // there are heads, or sequences.
  auto heads = step_of({4, 3}, 16, 16, 8, {16 * 24, 8}, {16 * 24, 8}, {3 * 256, 256}, DType::bf16,
                       DType::bf16);
  heads.contract.a.strides[2] = 24;
  heads.contract.b.strides[3] = 24;
  heads.contract.b.strides[4] = 1;
  all = products_of(heads);
  REQUIRE(all.size() == 3);
  CHECK(all[0].batch == 4);
  CHECK(cuda::product_scratch(heads.contract) == 0);
  // Every other element of x: packed.
  auto gaps = step_of({}, 64, 48, 32, {}, {}, {}, DType::f32, DType::f32);
  gaps.contract.a.strides = {64, 0, 2};
  CHECK(cuda::product_scratch(gaps.contract) == 64 * 32 * 4);
  CHECK(cuda::products_of(gaps)->size() == 2);
  // Integers use the library's own kernel.
  CHECK_FALSE(cuda::products_of(step_of({}, 4, 4, 4, {}, {}, {}, DType::i32, DType::i32)));
}

TEST_CASE("cuda: a matmul that would be accumulated in parts is packed if that moves fewer bytes") {
  // (vocab, token) times (token, embed). Tokens are positions of several sequences, which are not
  // contiguous in one operand: a matmul for each sequence, or a copy.
  const std::int64_t sequences = 4, all_positions = 110;
  auto step = [&](std::int64_t vocab, std::int64_t embed, std::int64_t positions) {
    Step s{.kind = Kind::contract};
    s.contract = {{},
                  {vocab},
                  {embed},
                  {sequences, positions},
                  {0, DType::bf16, 0, {1, 0, positions * vocab, vocab}, {}},
                  {1, DType::bf16, 0, {0, 1, all_positions * embed, embed}, {}},
                  {2, DType::f32, 0, {embed, 1, 0, 0}, {}},
                  false};
    s.scratch_bytes = cuda::product_scratch(s.contract);
    s.scratch = 0;
    return s;
  };
  auto packed = step(400, 24, 5);
  CHECK(packed.scratch_bytes == aligned(sequences * 5 * 24 * 2));
  CHECK(products_of(packed).size() == 1);
  packed.scratch = -1;
  packed.scratch_bytes = 0;  // without scratch, as in a nest
  CHECK(products_of(packed).size() == std::size_t(sequences));
  // a result that is smaller than the copy
  CHECK(step(64, 64, 100).scratch_bytes == 0);
  CHECK(products_of(step(64, 64, 100)).size() == std::size_t(sequences));

  Case c(5);
  c.slot(false, DType::bf16, sequences * 5 * 400);
  c.slot(false, DType::bf16, sequences * all_positions * 24);
  c.slot(true, DType::f32, 400 * 24);
  c.program.steps = {step(400, 24, 5)};
  c.program.arena_bytes = c.program.steps[0].scratch_bytes;
  const auto got = c.run(*cuda::make_simulated_device()),
             expected = c.run(*reference::make_reference_device());
  CHECK(difference(DType::f32, got[0], expected[0], 2e-6) == "");
}

TEST_CASE(
    "cuda: the bare library call computes the contraction, and the clock raises for events that "
    "have not finished") {
  Case c(3);
  const std::int64_t m = 5, n = 7, k = 6;
  auto s = step_of({}, m, n, k, {}, {}, {}, DType::bf16, DType::bf16);
  c.slot(false, DType::bf16, m * k);
  c.slot(false, DType::bf16, k * n);
  c.slot(true, DType::bf16, m * n);
  c.program.steps = {s};
  const auto device = cuda::make_simulated_device();
  const auto expected = c.run(*device)[0];
  auto& measured = dynamic_cast<Measured&>(*device);
  const auto x = put(*device, c.arguments[0]), y = put(*device, c.arguments[1]),
             out = put(*device, c.results[0]);
  const auto all = measured.library_products(s, {x.get(), y.get(), out.get()}, 0);
  REQUIRE(all.size() == 1);
  CHECK(get(*device, out, expected.size()) != expected);
  const auto from = measured.now(0);
  all[0]();
  const auto to = measured.now(0);
  CHECK(measured.seconds(from, to) > 0);
  CHECK(get(*device, out, expected.size()) == expected);
  CHECK(measured.seconds(to, from) < 0);
  auto& api = cuda::simulated();
  const std::shared_ptr<void> event(api.make_event(0), api.end_event);
  CHECK(has(error_of([&] { return api.seconds(event.get(), event.get()); }),
            "the time of an unfinished event is queried"));
  // unsupported by cuBLASLt
  s.contract.a.dtype = s.contract.b.dtype = s.contract.out.dtype = DType::i32;
  CHECK(measured.library_products(s, {x.get(), y.get(), out.get()}, 0).empty());
}

TEST_CASE("cuda: rows of large arrays that matmuls write or read are aligned for their kernels") {
  const Axis Token("token", 700), Embed("embed", 24), Vocab("vocab", 1001);
  auto draw = [](int seed, const Axes& axes) {
    return random::normal(random::key(seed), axes, DType::bf16).eval();
  };
  const auto x = draw(1, {Token, Embed}), w = draw(2, {Vocab, Embed});
  auto f = [](const NamedArray& x, const NamedArray& w) {
    return grad([](const std::pair<NamedArray, NamedArray>& p) {
      return sum(sin(dot(softmax(dot(p.first, p.second, "embed"), "vocab").astype(DType::bf16),
                         p.second, "vocab")));
    })(std::pair(x, w));
  };
  auto there = jit(f, {.backend = "cuda-sim", .scores_budget = most_bytes});
  auto here = jit(f, {.backend = "cpu", .scores_budget = most_bytes});
  const auto got = there(x, w), expected = here(x, w);
  auto far = [](const NamedArray& a, const NamedArray& b) {
    return max(abs(a.astype(DType::f32) - b.astype(DType::f32))).item();
  };
  CHECK(far(got.first, expected.first) < 0.05);
  CHECK(far(got.second, expected.second) < 0.3);
  // 2,016 bytes per row: a multiple of 16
  CHECK(there.report().program.find("[1008 1]") != std::string::npos);
  CHECK(here.report().program.find("[1008 1]") == std::string::npos);
}

TEST_CASE(
    "cuda: the rest of a size over a multiple of 16 "
    "bytes is a matmul of its own, if rows are aligned") {
  Step s;
  s.kind = Kind::contract;
  auto& c = s.contract;
  c.m = {700};
  c.n = {1001};
  c.k = {24};
  c.a = {0, DType::bf16, 0, {24, 0, 1}, {}};
  c.b = {1, DType::bf16, 0, {0, 24, 1}, {}};
  c.out = {2, DType::bf16, 0, {1008, 1, 0}, {}};
  const auto all = products_of(s);
  REQUIRE(all.size() == 2);
  CHECK(all[0].out.rows == 1000);  // in columns
  CHECK(all[1].out.rows == 1);
  c.out.strides[0] = 1001;
  CHECK(products_of(s).size() == 1);
}
