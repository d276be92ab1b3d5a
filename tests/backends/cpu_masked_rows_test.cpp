// Rows are computed as far as positional masks show them, and match the full rows.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "backends/cpu/fused/fused.h"
#include "haliax/haliax.h"

using namespace haliax;
using program::Code;
using program::Fused;
using program::Instr;

namespace {

// some rows see all keys; the last elements do not fill a vector
const Axis Q("q", 530), K("k", 600);
using Mask = std::function<NamedArray(const NamedArray& q, const NamedArray& k)>;

// Compares f under a mask computed from positions with f under a mask that is an argument.
void same(const char* name, const Mask& mask,
          const std::function<Leaves(const NamedArray& seen, const NamedArray& x)>& f,
          const NamedArray& x) {
  CAPTURE(name);
  auto seen = [mask] { return mask(broadcast_axis(arange(Q), K), broadcast_axis(arange(K), Q)); };
  auto got = jit([=](const NamedArray& x) { return f(seen(), x); })(x);
  auto expected = jit(f)(seen().eval(), x);
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(all(isnan(got[i]) == isnan(expected[i])).item() == 1);
    auto far = where(isnan(expected[i]) | (got[i] == expected[i]), 0.f, abs(got[i] - expected[i]));
    CHECK(max(far).item() <=
          2e-6 * (1 + max(where(isfinite(expected[i]), abs(expected[i]), 0.f)).item()));
  }
}

// A softmax over the second of two dims, instruction by instruction. `hidden` is the value where
// the mask does not hold.
struct Softmax {
  Fused fused{{64, 600}, 1, {}};
  int exp = 0;
  int add(Instr i, bool inner = true) {
    i.inner = inner;
    fused.code.push_back(i);
    return int(fused.code.size()) - 1;
  }
  int load() {
    Instr i{.code = Code::load};
    i.view.strides = {600, 1};
    return add(i);
  }
  Softmax(bool shows_first, bool loads_hidden, Code top = Code::reduce_max,
          std::int64_t later = 0) {
    int q = add({.code = Code::iota, .dtype = DType::i32, .dim = 0}, false),
        k = add({.code = Code::iota, .dtype = DType::i32, .dim = 1});
    q = add(
        {.code = Code::add,
         .dtype = DType::i32,
         .args = {q, add({.code = Code::constant, .dtype = DType::i32, .integer = later}, false),
                  -1, -1}},
        false);
    int seen = add({.code = Code::less_equal,
                    .dtype = DType::boolean,
                    .args = {shows_first ? k : q, shows_first ? q : k, -1, -1}});
    int hidden = loads_hidden ? load() : add({.code = Code::constant, .number = -1e9}, false);
    int x = add({.code = Code::select, .args = {seen, load(), hidden, -1}});
    int most = add({.code = top, .args = {x, -1, -1, -1}}, false);
    exp = add({.code = Code::exp,
               .args = {add({.code = Code::sub, .args = {x, most, -1, -1}}), -1, -1, -1}});
    int sum = add({.code = Code::reduce_sum, .args = {exp, -1, -1, -1}}, false);
    Instr store{.code = Code::store,
                .args = {add({.code = Code::div, .args = {exp, sum, -1, -1}}), -1, -1, -1}};
    store.view.slot = 1;
    store.view.strides = {600, 1};
    add(store);
  }
};

}  // namespace

TEST_CASE("cpu masked rows: a mask that hides the end of a row is found") {
  Softmax causal(true, false);
  auto rows = cpu::masked_rows(causal.fused, 1);
  REQUIRE(rows);
  CHECK(rows->masks.size() == 1);
  CHECK(rows->masks[0].or_equal);
  CHECK(rows->zero == std::vector{causal.exp});
  auto plan = cpu::plan_fused(causal.fused, nullptr);
  CHECK(plan.row_masks.size() == 1);
  CHECK(plan.outer_box > 1);  // rows are grouped, up to the longest visible end
  CHECK(plan.filled.size() == 1);
  CHECK(!cpu::masked_rows(Softmax(false, false).fused, 1));  // the start of a row is hidden
  CHECK(!cpu::masked_rows(Softmax(true, true).fused, 1));    // hidden elements differ
  CHECK(!cpu::masked_rows(Softmax(true, false, Code::reduce_prod).fused, 1));
  CHECK(cpu::masked_rows(Softmax(true, false, Code::reduce_max, 1000).fused, 1));
  // the position may wrap around
  const auto far = std::numeric_limits<std::int32_t>::max();
  CHECK(!cpu::masked_rows(Softmax(true, false, Code::reduce_max, far).fused, 1));
}

TEST_CASE("cpu masked rows: softmax and its gradient match under masks of many kinds") {
  const float none = std::numeric_limits<float>::infinity();
  // alone: only the softmax kernel computes the masked scores
  auto softmax_of = [](float fill, bool alone) {
    return [=](const NamedArray& seen, const NamedArray& x) {
      auto f = [&](const NamedArray& x) { return softmax(where(seen, x, fill), "k"); };
      if (alone) return Leaves{f(x)};
      auto slope = grad([&](const NamedArray& x) { return sum(sin(f(x)) * x); })(x);
      return Leaves{f(x), slope, max(where(seen, x, fill), "k"),
                    logsumexp(where(seen, x, fill), "k"), sum(where(seen, x, 0.f), "k")};
    };
  };
  auto x = random::normal(random::key(1), {Q, K}).eval();
  const std::pair<const char*, Mask> masks[] = {
      {"causal", [](auto& q, auto& k) { return k <= q; }},
      {"before", [](auto& q, auto& k) { return k < q; }},  // the first row sees nothing
      // each row sees less than the previous one
      {"backwards", [](auto& q, auto& k) { return k + q <= 500; }},
      {"backwards, too", [](auto& q, auto& k) { return k + q <= 501; }},
      {"late", [](auto& q, auto& k) { return k <= q - 100; }},
      {"early", [](auto& q, auto& k) { return k + 3 <= q + 80; }},
      {"all", [](auto& q, auto& k) { return k < q + 600; }},
      {"none", [](auto& q, auto& k) { return k < q - 600; }},
      {"window", [](auto& q, auto& k) { return (k <= q) & (q - k < 200); }},
      {"prefix", [](auto& q, auto& k) { return (k <= q) | (k < 300); }},
      {"one in three", [](auto& q, auto& k) { return (k <= q) & (k % 3 == 0); }},
      {"steps", [](auto& q, auto& k) { return 2 * k <= q; }},
      {"twice", [](auto& q, auto& k) { return k + k <= q + q + 7; }},
      {"later", [](auto& q, auto& k) { return k >= q; }},
  };
  for (auto& [name, mask] : masks)
    for (float fill : {-1e9f, -none, -5.f, 0.f}) {
      CAPTURE(fill);
      for (bool alone : {true, false}) same(name, mask, softmax_of(fill, alone), x);
    }
}

TEST_CASE("cpu masked rows: bf16, NaN in hidden elements, and two masks match the full rows") {
  auto x = random::normal(random::key(2), {Q, K}).eval();
  const Mask causal = [](auto& q, auto& k) { return k <= q; };
  auto weights = [](const NamedArray& seen, const NamedArray& x) {
    return Leaves{softmax(where(seen, x, -1e9f), "k")};
  };
  auto narrow = x.astype(DType::bf16).eval();
  same(
      "bf16", causal,
      [=](const NamedArray& seen, const NamedArray& x) {
        return Leaves{weights(seen, x)[0].astype(DType::f32)};
      },
      narrow);
  auto odd =
      where(broadcast_axis(arange(K), Q) > broadcast_axis(arange(Q), K), std::nanf(""), x).eval();
  same("nan", causal, weights, odd);
  // 0 times NaN is NaN
  same(
      "nan beside the mask", causal,
      [=](const NamedArray& seen, const NamedArray& x) {
        return Leaves{sum(softmax(where(seen, x, -1e9f), "k") * odd, "k"),
                      sum(where(seen, x, 0.f) * odd, "k")};
      },
      x);
  const auto least = std::numeric_limits<int>::min();  // the bit pattern of -0.f
  auto integers = (arange(K) * 3 + broadcast_axis(arange(Q), K)).astype(DType::i32).eval();
  same(
      "i32", causal,
      [=](const NamedArray& seen, const NamedArray& x) {
        return Leaves{sum((where(seen, x, least) * x).astype(DType::f32), "k"),
                      sum(where(seen, x, least).astype(DType::f32), "k")};
      },
      integers);
  for (int more : {0, 40, -40})
    same(
        "two", [=](auto& q, auto& k) { return k <= q + more; },
        [](const NamedArray& seen, const NamedArray& x) {
          auto causal = broadcast_axis(arange(K), Q) <= broadcast_axis(arange(Q), K);
          return Leaves{max(where(seen, x, -3.f) + where(causal, x - 50.f, -2.f), "k")};
        },
        x);
}

TEST_CASE("cpu masked rows: rows of several dims match, each with a mask of its own") {
  const Axis H("h", 3), Few("q", 37);
  auto x = random::normal(random::key(3), {H, Few, K}).eval();
  auto of = [&](const NamedArray& h, const NamedArray& q, const NamedArray& k) {
    auto times = [](int n, const NamedArray& x) {  // by additions, which masks consist of
      auto sum = x;
      while (--n > 0) sum = sum + x;
      return sum;
    };
    auto f = [&](const NamedArray& x) {
      return softmax(where(k <= times(3, q) + times(3, h) + 200, x, -1e9f), "k");
    };
    return Leaves{f(x), grad([&](const NamedArray& x) { return sum(f(x) * f(x)); })(x),
                  sum(where(k + times(3, h) <= times(3, q) + 50, x, 0.f), "k"),
                  // the same in each row
                  sum(where(k <= times(5, q) + h, sqrt(k.astype(DType::f32)), 0.f), "k")};
  };
  auto every = [&](const NamedArray& n) { return broadcast_to(n, {H, Few, K}); };
  auto got = jit([&](const NamedArray&) {
    return of(every(arange(H)), every(arange(Few)), every(arange(K)));
  })(x);
  auto expected = of(every(arange(H)).eval(), every(arange(Few)).eval(), every(arange(K)).eval());
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(max(abs(got[i] - expected[i])).item() <= 2e-6 * (1 + max(abs(expected[i])).item()));
  }
}
