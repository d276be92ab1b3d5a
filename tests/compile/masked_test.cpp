// Blocks of attention that a mask hides are skipped, and all values stay equal.
#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <limits>
#include <vector>

#include "haliax/haliax.h"
#include "haliax/profile.h"
#include "compile/pipeline.h"
#include "program/devices.h"
#include "support/threads.h"

using namespace haliax;

namespace {

// Three blocks of 96 keys, and 12 more.
const Axis B{"b", 2}, H{"heads", 2}, Q{"q", 300}, K{"k", 300}, D{"d", 8};
using Parts = std::array<NamedArray, 3>;  // queries, keys, values
using Attention = std::function<NamedArray(const Parts&)>;

Parts parts() {
  auto draw = [](int seed, const Axis& pos) {
    return random::normal(random::key(seed), {B, H, pos, D}).eval();
  };
  return {draw(1, Q), draw(2, K), draw(3, K)};
}
NamedArray scores(const Parts& p) { return dot(p[0], p[1], "d") / 3.f; }
NamedArray attend(const Parts& p, const NamedArray& mask, float fill = -1e9f) {
  return dot(softmax(where(mask, scores(p), fill), "k"), p[2], "k");
}
// Returns the value, a scalar that depends on all of it, and the gradients.
Leaves all_of(const Attention& f, const Parts& p) {
  auto loss = [&](const Parts& p) {
    auto y = f(p);
    return std::pair{sum(sin(y)), y};
  };
  auto [out, g] = value_and_grad(loss)(p);
  return {out.first, out.second, g[0], g[1], g[2]};
}
auto compiled(const Attention& f, std::int64_t budget) {
  return jit([f](const Parts& p) { return all_of(f, p); }, {.scores_budget = budget});
}
// Returns the share of its flops that the tiled plan runs, in blocks and in parallel slots. Checks
// that all results match the materialized plan.
double share_made(const Attention& f, const Parts& p = parts()) {
  auto materialized = compiled(f, most_bytes), tiled = compiled(f, 0);
  auto expected = materialized(p), got = tiled(p);
  REQUIRE(tiled.report().chunked.size() > 0);
  for (std::size_t k = 0; k < expected.size(); ++k) {
    CAPTURE(k);
    auto none = isnan(expected[k]);
    CHECK(all(none == isnan(got[k])).item() == 1);
    auto far = where(none, 0.f, abs(got[k] - expected[k]));
    CHECK(max(far).item() <= 3e-6 * (1 + max(where(none, 0.f, abs(expected[k]))).item()));
  }
  double made = 0;
  for (auto& s : profile(tiled, p).steps) made += s.flops;
  return made / tiled.report().flops;
}
NamedArray position(const Axis& a) { return arange(a); }
NamedArray along_q(const NamedArray& x) { return broadcast_axis(x, K); }

}  // namespace

TEST_CASE("masked: blocks that a positional mask hides are not computed") {
  auto causal = nn::causal_mask(Q, K);
  const double of_causal = 780. / 900;  // 100 queries per iteration see 192, 288 and 300 keys
  CHECK(share_made([&](const Parts& p) { return attend(p, causal); }) ==
        doctest::Approx(of_causal));
  CHECK(share_made([&](const Parts& p) {
          return nn::dot_product_attention("k", "d", p[0], p[1], p[2], {.mask = causal});
        }) == doctest::Approx(of_causal));
  auto near = causal & (along_q(position(Q)) - position(K) < 20);  // a sliding window
  CHECK(share_made([&](const Parts& p) { return attend(p, near); }) == doctest::Approx(684. / 900));
  auto prefix = causal | (position(K) < 150);
  auto share = share_made([&](const Parts& p) { return attend(p, prefix); });
  CHECK(share > 0.8);
  CHECK(share < 0.97);
  CHECK(share_made([&](const Parts& p) {
          return attend(p, ~(position(K) > along_q(position(Q))));
        }) == doctest::Approx(of_causal));
  // Positions in groups, or at a fixed distance.
  auto group = [](const NamedArray& at) { return floor_divide(at, 100); };
  auto texts = share_made(
      [&](const Parts& p) { return attend(p, along_q(group(position(Q))) == group(position(K))); });
  CHECK(texts == doctest::Approx((192 + 192 + 108) / 900.));  // blocks of 96 keys
  CHECK(share_made([&](const Parts& p) {
          return attend(p, causal & (abs(along_q(position(Q)) - position(K)) * 3 < 60));
        }) == doctest::Approx(684. / 900));
  // A `where` inside another one.
  CHECK(share_made([&](const Parts& p) {
          auto s = where(position(K) >= 100, scores(p), -1e9f);
          return dot(softmax(where(causal, s, -1e9f), "k"), p[2], "k");
        }) < of_causal);
  CHECK(share_made([&](const Parts& p) {
          return attend(p, causal, -std::numeric_limits<float>::infinity());
        }) == doctest::Approx(of_causal));
}

// With an added mask, only the scores of the value are computed in full: the compiler cannot prove
// that a row sees a key.
TEST_CASE("masked: masks of all forms skip blocks: hidden, added, scaled, computed from scalars") {
  const float least = -std::numeric_limits<float>::infinity();
  auto causal = nn::causal_mask(Q, K);
  auto numbers = tril(ones({Q, K}), Q, K);
  auto made = [&](auto masked) {
    return share_made(
        [&](const Parts& p) { return dot(softmax(masked(scores(p)), "k"), p[2], "k"); });
  };
  const double of_causal = 780. / 900;
  CHECK(made([&](auto s) { return where(!causal, least, s); }) == doctest::Approx(of_causal));
  CHECK(made([&](auto s) { return where(position(K) > along_q(position(Q)), -1e9f, s); }) ==
        doctest::Approx(of_causal));
  CHECK(made([&](auto s) { return where(numbers == 0.f, least, s); }) ==
        doctest::Approx(of_causal));
  CHECK(made([&](auto s) { return where(0.f < numbers, s, -1e9f); }) == doctest::Approx(of_causal));
  CHECK(made([&](auto s) { return where(causal.astype(DType::i32) != 1, -1e9f, s); }) ==
        doctest::Approx(of_causal));
  const double of_added = (1 + 5 * of_causal) / 6;  // one of six matmuls is full
  CHECK(made([&](auto s) { return s + where(causal, 0.f, -1e9f); }) == doctest::Approx(of_added));
  CHECK(made([&](auto s) { return s + where(causal, 0.f, least); }) == doctest::Approx(of_added));
  CHECK(made([&](auto s) { return s - 1e9f * (1.f - causal.astype(DType::f32)); }) ==
        doctest::Approx(of_added));
  CHECK(made([&](auto s) { return -(where(causal, 0.f, 1e9f) - s * 2.f); }) ==
        doctest::Approx(of_added));
  CHECK(made([&](auto s) {  // below a cap, and with a bias by distance
          return tanh(s) * 4.f + abs(along_q(position(Q)) - position(K)) * -0.1f +
                 where(causal, 0.f, -1e9f);
        }) == doctest::Approx(of_added));
  auto by_sigmoid = [&](auto masked) {
    return share_made(
        [&](const Parts& p) { return dot(nn::sigmoid(masked(scores(p))) / 300.f, p[2], "k"); });
  };
  CHECK(by_sigmoid([&](auto s) { return where(causal, s, -1e9f); }) == doctest::Approx(of_causal));
  CHECK(by_sigmoid([&](auto s) { return where(causal, s, least); }) == doctest::Approx(of_causal));
  CHECK(by_sigmoid([&](auto s) { return s + where(causal, 0.f, -1e9f); }) ==
        doctest::Approx(of_added));
  // The fill is not low enough, or not known to be: everything is computed.
  CHECK(made([&](auto s) { return s + where(causal, 0.f, -20.f); }) == doctest::Approx(1));
  CHECK(made([&](auto s) { return s * 1e9f + where(causal, 0.f, -1e9f); }) == doctest::Approx(1));
  CHECK(made([&](auto s) { return s * s * s + where(causal, 0.f, -1e9f); }) == doctest::Approx(1));
}
TEST_CASE("masked: rows that see nothing under an added mask match the unmasked rows") {
  auto late = nn::causal_mask(Q, K) & along_q(position(Q) >= 120);
  for (float low : {-1e9f, -1e30f})
    share_made([&](const Parts& p) {
      return dot(softmax(scores(p) + where(late, 0.f, low), "k"), p[2], "k");
    });
}
TEST_CASE("masked: the loop over keys ends where an added mask does") {
  const Axis Pos("q", 1152), Keys("k", 1152), Size("d", 8);
  auto draw = [&](int seed, const Axis& pos) {
    return random::normal(random::key(seed), {pos, Size}).eval();
  };
  Parts p{draw(1, Pos), draw(2, Keys), draw(3, Keys)};
  auto flops = [&](bool adds) {
    auto step = compiled(
        [=](const Parts& p) {
          auto mask = nn::causal_mask(Pos, Keys);
          auto s = dot(p[0], p[1], "d");
          return dot(softmax(adds ? s + where(mask, 0.f, -1e9f) : where(mask, s, -1e9f), "k"), p[2],
                     "k");
        },
        -1);
    auto expected = jit(
        [&](const Parts& p) {
          return dot(softmax(where(nn::causal_mask(Pos, Keys), dot(p[0], p[1], "d"), -1e9f), "k"),
                     p[2], "k");
        },
        {.scores_budget = most_bytes})(p);
    CHECK(max(abs(step(p)[1] - expected)).item() <= 1e-5);
    double sum = 0;
    for (auto& s : profile(step, p).steps) sum += s.flops;
    return sum / step.report().flops;
  };
  CHECK(flops(false) <= 0.68);
  CHECK(flops(true) <= 0.76);
}
TEST_CASE("masked: a device without queries runs iterations whose masks are slices of others") {
  const Axis Q7("q", 7), K7("k", 7);
  auto draw = [&](int seed, const Axis& pos) {
    return random::normal(random::key(seed), {pos, H, D}).eval();
  };
  Parts p{draw(1, Q7), draw(2, K7), draw(3, K7)};
  auto f = [&](const Parts& p) {
    auto mask = nn::causal_mask(Q7, K7) | (position(K7) < 4);
    auto keep_mask = random::bernoulli(random::key(3), {Q7, K7}, 0.8);
    auto layer = [&](const NamedArray& q) {
      return dot(where(keep_mask, softmax(where(mask, dot(q, p[1], "d"), -1e9f), "k"), 0.f) / 0.8f,
                 p[2], "k");
    };
    auto once = layer(p[0]);
    return layer(sin(once)) + once;
  };
  auto all = [&](const Parts& p) { return all_of(f, p); };
  auto expected = jit(all, {.scores_budget = most_bytes})(p);
  JitOptions on_mesh{.scores_budget = -1};
  on_mesh.mesh = Mesh{{{"data", 2}, {"model", 2}}};
  on_mesh.axis_resources = Mapping{{"q", "data"}};
  auto got = named_jit(all, on_mesh)(p);
  for (std::size_t k = 0; k < expected.size(); ++k)
    CHECK(max(abs(got[k] - expected[k])).item() <= 1e-5 * (1 + max(abs(expected[k])).item()));
}

// Large matmuls skip blocks of 32 keys themselves, on machines whose kernels check flags. Cases: a
// sequence in parts, whose blocks are not contiguous; a sliding window; masks in data.
TEST_CASE("masked: a matmul of one iteration skips blocks itself") {
  const Axis Size("d", 32);
  auto draw = [&](int seed, const Axis& pos) {
    return random::normal(random::key(seed), {B, H, pos, Size}).eval();
  };
  const Parts p{draw(1, Q), draw(2, K), draw(3, K)};
  const bool checks_flags = cpu::make_cpu_device(0)->machine().mask_block > 0;
  auto causal = nn::causal_mask(Q, K), near = causal & (along_q(position(Q)) - position(K) < 20);
  auto made = [&](const NamedArray& mask) {
    return share_made([&](const Parts& p) { return attend(p, mask); }, p);
  };
  // keys that 100 queries of an iteration see
  CHECK(made(causal) == doctest::Approx((checks_flags ? 128 + 224 + 300 : 192 + 288 + 300) / 900.));
  CHECK(made(near) == doctest::Approx((checks_flags ? 128 + 160 + 140 : 684) / 900.));
  CHECK(made((floor_divide(arange(K), 50) == broadcast_axis(floor_divide(arange(Q), 100) * 2, K))
                 .eval()) < 0.8);
  auto disjoint = (arange(K) < 30 || arange(K) >= 260).eval();
  CHECK(made(broadcast_axis(disjoint, Q)) < (checks_flags ? 0.5 : 0.8));
}

// A large matmul of an iteration skips blocks itself, a small one runs in a loop over larger
// blocks. Together they decide whether the iteration ends.
TEST_CASE("masked: matmuls of one iteration have blocks of two sizes") {
  const Axis Pos("q", 256), Keys("k", 640), Copies("b", 3);
  for (auto [size, out] : {std::pair{80, 24}, {24, 80}}) {
    const Axis Size("d", size), Out("e", out);
    auto draw = [&](int seed, const Axes& axes) {
      return random::normal(random::key(seed), axes).eval();
    };
    const Parts p{draw(1, {Copies, H, Pos, Size}), draw(2, {Copies, H, Keys, Size}),
                  draw(3, {Copies, H, Keys, Out})};
    auto all = [&](const Parts& p) {
      return all_of(
          [&](const Parts& p) {
            return dot(
                softmax(where(nn::causal_mask(Pos, Keys), dot(p[0], p[1], "d") * 0.1f, -1e9f), "k"),
                p[2], "k");
          },
          p);
    };
    auto got = jit(all, {.scores_budget = -1})(p), expected = jit(all, {.backend = "reference"})(p);
    for (std::size_t k = 0; k < expected.size(); ++k)
      CHECK(max(abs(got[k] - expected[k])).item() <= 1e-5 * (1 + max(abs(expected[k])).item()));
  }
}

TEST_CASE(
    "masked: a causal sequence of 4,096 positions runs little more than half of the matmuls") {
  const Axis Long("q", 4096), Keys("k", 4096), Size("d", 8);
  auto attend = [=](const Parts& p) {
    return nn::dot_product_attention("k", "d", p[0], p[1], p[2],
                                     {.mask = nn::causal_mask(Long, Keys)});
  };
  for (auto dtype : {DType::f32, DType::bf16}) {
    auto draw = [&](int seed, const Axis& pos) {
      return random::normal(random::key(seed), {pos, Size}, dtype).eval();
    };
    Parts p{draw(1, Long), draw(2, Keys), draw(3, Keys)};
    auto loss = jit([=](const Parts& p) {
      return grad([=](const Parts& p) { return sum(sin(attend(p))); })(p);
    });
    // gradients by the result itself, which is an intermediate
    auto both = jit([=](const Parts& p) {
      auto [y, pull] = vjp(attend, p);
      return std::pair(y, pull(y));
    });
    auto share = [&](auto& step) {
      double made = 0;
      for (auto& s : profile(step, p).steps) made += s.flops;
      CHECK(step.report().arena_bytes < 4 << 20);
      return made / step.report().flops;
    };
    CHECK(share(loss) <= 0.56);
    CHECK(share(loss) > 0.5);
    CHECK(share(both) <= 0.56);
  }
}

TEST_CASE("masked: masks in data skip blocks at run time: several sequences in a row, lengths") {
  auto segments = floor_divide(arange(K), 100);  // three sequences
  auto mine = rename(segments, {{"k", "q"}});
  auto same_text = [&](const NamedArray& of_q, const NamedArray& of_k) {
    return along_q(of_q) == of_k;
  };
  auto p = parts();
  auto data = segments.eval();
  auto data_q = mine.eval();
  CHECK(share_made([&](const Parts& p) {
          return attend(p, same_text(data_q, data) & nn::causal_mask(Q, K));
        }) < 0.7);
  auto length = full({}, 90, DType::i32).eval();
  CHECK(share_made([&](const Parts& p) { return attend(p, position(K) < length); }) < 0.5);
}

// As in text generation: one query, and a cache of keys and values, of which some are valid.
TEST_CASE("masked: matmuls of one query skip keys that are not valid") {
  const Axis Heads{"heads", 8}, Keys{"k", 1000}, Size{"d", 32};
  for (auto type : {DType::f32, DType::bf16})
    for (bool keys_first : {false, true}) {
      auto draw = [&](int seed, const Axes& axes) {
        return random::normal(random::key(seed), axes).astype(type).eval();
      };
      auto cache = [&](int seed) {
        return draw(seed, keys_first ? Axes{Heads, Keys, Size} : Axes{Heads, Size, Keys});
      };
      auto attend = [&](float fill) {
        return [=](const NamedArray& q, const NamedArray& keys, const NamedArray& values,
                   const NamedArray& length) {
          auto weights = softmax(
              where(arange(Keys) < length, dot(q, keys, "d").astype(DType::f32), fill), "k");
          return dot(weights.astype(type), values, "k");
        };
      };
      auto q = draw(1, {Heads, Size}), keys = cache(2), values = cache(3);
      for (float fill : {-1e9f, -std::numeric_limits<float>::infinity()})
        for (int length : {1000, 1, 64, 65, 700, 0}) {
          CAPTURE(length);
          auto f = jit(attend(fill));
          auto n = full({}, length, DType::i32).eval();
          auto got = f(q, keys, values, n),
               expected = jit(attend(fill), {.backend = "reference"})(q, keys, values, n);
          CHECK(all(isnan(got) == isnan(expected)).item() == 1);
          auto far = where(isnan(expected), 0.f,
                           abs(got.astype(DType::f32) - expected.astype(DType::f32)));
          CHECK(max(far).item() < (type == DType::f32 ? 1e-5 : 1e-2));
          double made = 0;
          for (auto& s : profile(f, q, keys, values, n).steps) made += s.flops;
          // without keys, all have equal weight
          const int seen = std::min(1000, (length + 63) / 64 * 64),
                    weighed = length == 0 ? 1000 : seen;
          CHECK(made / f.report().flops == doctest::Approx((seen + weighed) / 2000.));
        }
    }
}

TEST_CASE("masked: blocks that may matter are computed") {
  auto causal = nn::causal_mask(Q, K);
  auto near_one = [&](const Attention& f) { CHECK(share_made(f) > 0.9); };
  near_one([&](const Parts& p) { return attend(p, causal, -3.f); });  // weights that count
  near_one([&](const Parts& p) {
    return dot(softmax(where(causal, scores(p), 0.f) * 2.f, "k"), p[2], "k");
  });
  // Rows that see nothing are the mean of all values.
  auto none = causal & along_q(position(Q) >= 100);
  share_made([&](const Parts& p) { return attend(p, none); });
  auto last = causal & along_q(position(Q) < 299);
  share_made([&](const Parts& p) { return attend(p, last); });
  // Scores that are as low as the fill of the mask.
  share_made([&](const Parts& p) {
    auto low = where(along_q(position(Q) % 7 == 0), -1e9f, scores(p));
    return dot(softmax(where(causal, low, -1e9f), "k"), p[2], "k");
  });
}

TEST_CASE("masked: NaN and inf in masked scores do not leak") {
  auto p = parts();
  p[1] = where(position(K) == 299, std::numeric_limits<float>::quiet_NaN(), p[1]).eval();
  p[1] = where(position(K) == 298, std::numeric_limits<float>::infinity(), p[1]).eval();
  auto causal = nn::causal_mask(Q, K) & (position(K) < 298);
  auto f = [&](const Parts& p) { return attend(p, causal); };
  auto and_sums = [&](const Parts& p) { return f(p) + sum(where(causal, scores(p), 0.f), "k"); };
  for (auto& attention : {Attention(f), Attention(and_sums)})
    for (int budget : {0, -1}) {
      auto got = compiled(attention, budget)(p);
      CHECK(isfinite(got[0]).item() == 1);
      CHECK(all(isfinite(got[1])).item() == 1);
    }
}

TEST_CASE("masked: sums of 16-bit floats are rounded once") {
  auto p = parts();
  for (auto& x : p) x = x.astype(DType::bf16).eval();
  auto wide = [](const NamedArray& x) { return x.astype(DType::f32); };
  auto f = [&](const Parts& p) { return attend(p, nn::causal_mask(Q, K)); };
  auto exact = f({wide(p[0]), wide(p[1]), wide(p[2])});
  auto error = [&](std::int64_t budget) {
    return mean(abs(wide(compiled(f, budget)(p)[1]) - exact)).item();
  };
  CHECK(error(0) <= 1.02 * error(most_bytes));
}

TEST_CASE("masked: results are bitwise identical for any number of threads") {
  auto p = parts();
  auto f = [&](const Parts& p) { return attend(p, nn::causal_mask(Q, K)); };
  std::vector<std::vector<float>> all;
  for (int threads : {1, 2, 5}) {
    const Threads some(threads);
    auto g = compiled(f, 0);
    std::vector<float> now;
    for (auto& x : g(p)) {
      auto values = x.floats();
      now.insert(now.end(), values.begin(), values.end());
    }
    all.push_back(std::move(now));
  }
  CHECK(all[0] == all[1]);
  CHECK(all[0] == all[2]);
}

// A third of the queries iterates over three tiles of keys. Later tiles are skipped entirely: in
// the gradient they add nothing to any sum, and in the value they leave the running maximum and
// sums unchanged.
TEST_CASE("masked: an iteration that sees nothing ends before its elementwise steps") {
  const Axis Pos("q", 1152), Keys("k", 1152), Size("d", 8);
  auto draw = [&](int seed, const Axis& pos) {
    return random::normal(random::key(seed), {pos, Size}).eval();
  };
  Parts p{draw(1, Pos), draw(2, Keys), draw(3, Keys)};
  auto bytes = [&](bool causal, bool gradient) {  // bytes of elementwise steps
    auto late = (arange(Pos) * (causal ? 1 : 0) + (causal ? 0 : 1200)).eval();
    auto step = jit(
        [=](const Parts& p, const NamedArray& late) {
          auto mask =
              causal ? nn::causal_mask(Pos, Keys) : broadcast_axis(arange(Keys), Pos) <= late;
          auto f = [=](const Parts& p) {
            return sum(sin(nn::dot_product_attention("k", "d", p[0], p[1], p[2], {.mask = mask})));
          };
          return gradient ? grad(f)(p) : Parts{f(p), p[1], p[2]};
        },
        {.scores_budget = -1});
    double sum = 0;
    for (auto& s : profile(step, p, late).steps)
      if (s.kind == "fused" && s.loops > 0) sum += s.read + s.written;
    return sum;
  };
  for (bool gradient : {false, true}) CHECK(bytes(true, gradient) < 0.78 * bytes(false, gradient));
}

// Hidden keys have weight until the first visible key. Visible keys of an iteration's queries
// therefore run first. Later keys count only if a query sees nothing.
TEST_CASE("masked: keys before all keys that a query sees are not computed") {
  const Axis Long("q", 4096), Keys("k", 4096), Size("d", 8);
  auto draw = [&](int seed, const Axis& pos) {
    return random::normal(random::key(seed), {pos, Size}).eval();
  };
  const Parts p{draw(1, Long), draw(2, Keys), draw(3, Keys)};
  const auto q = broadcast_axis(arange(Long), Keys), k = arange(Keys);
  const auto text = floor_divide(arange(Keys), 256).eval(),
             text_q = rename(text, {{"k", "q"}}).eval();
  auto forward = [&](const NamedArray& mask, std::int64_t budget) {
    return jit(
        [=](const Parts& p) {
          return dot(softmax(where(mask, dot(p[0], p[1], "d"), -1e9f), "k"), p[2], "k");
        },
        {.scores_budget = budget});
  };
  auto share = [&](const NamedArray& mask) {
    auto tiled = forward(mask, -1);
    CHECK(max(abs(tiled(p) - forward(mask, most_bytes)(p))).item() < 1e-5);
    double made = 0;
    for (auto& s : profile(tiled, p).steps) made += s.flops;
    return made / (2 * 2. * 4096 * 4096 * 8);
  };
  const auto window = (q >= k) & (q - k < 256),
             texts = (q >= k) & (broadcast_axis(text_q, Keys) == text);
  CHECK(share(window) < 0.17);
  CHECK(share(texts) < 0.12);
  CHECK(share(window & (q != 1000)) < 0.4);  // its iteration computes all keys
}

// With materialized scores, too, matmuls skip blocks of queries and keys, on machines whose kernels
// check flags. Nonzero weights are found at run time, and everything is computed.
TEST_CASE("masked: matmuls of full arrays skip blocks, forward and backward") {
  std::int64_t keys = 230;
  SUBCASE("the last block of keys is partial") {}
  SUBCASE("all blocks of keys are full") { keys = 256; }
  const Axis Pos("q", 200), Keys("k", keys), Groups("group", 2), Size("d", 32);
  auto draw = [&](int seed, const Axes& axes) {
    return random::normal(random::key(seed), axes).eval();
  };
  auto f = [&](const Parts& p, const NamedArray& mask, float fill) {
    return all_of(
        [&](const Parts& p) { return dot(softmax(where(mask, scores(p), fill), "k"), p[2], "k"); },
        p);
  };
  const auto q = broadcast_axis(arange(Pos), Keys);
  const float least = -std::numeric_limits<float>::infinity();
  auto flags_of = [](const Leaves& results) {
    Nodes roots;
    for (auto& r : results) roots.push_back(r.node());
    auto device = cpu::make_cpu_device(0);
    Compilation c{roots, {}};
    c.options.device = device.get();
    run(c);
    int flags = 0;
    for (auto& s : c.program->steps)
      flags += s.kind == program::Kind::contract && s.contract.block_mask.flags.slot >= 0;
    return flags;
  };
  const auto machine = cpu::make_cpu_device(0)->machine();
  const bool checks_flags = machine.mask_block > 0;
  struct Kind {
    NamedArray mask;
    float fill;
    int flags;
  };
  for (auto& [mask, fill, flags] :
       {Kind{nn::causal_mask(Pos, Keys), -1e9f, 6}, Kind{nn::causal_mask(Pos, Keys), least, 6},
        Kind{q - arange(Keys) < 20, -1e9f, 6}, Kind{q < 60 && arange(Keys) <= q, -1e9f, 6},
        Kind{q < 60 && arange(Keys) <= q, least, 6}, Kind{arange(Keys) <= q, -4.f, 6}}) {
    CAPTURE(fill);
    Parts p{draw(1, {B, H, Pos, Size}), draw(2, {B, H, Keys, Size}), draw(3, {B, H, Keys, Size})};
    CHECK(flags_of(f(p, mask, fill)) == (checks_flags ? flags : 0));
    auto got = jit([&](const Parts& p) { return f(p, mask, fill); })(p);
    auto expected =
        jit([&](const Parts& p) { return f(p, mask, fill); }, {.backend = "reference"})(p);
    for (std::size_t k = 0; k < expected.size(); ++k) {
      CAPTURE(k);
      auto none = isnan(expected[k]);
      CHECK(all(none == isnan(got[k])).item() == 1);
      // The loss is a sum of thousands of values of both signs, so its error is relative to the sum
      // of their magnitudes.
      const auto size = [](const NamedArray& x) { return where(isnan(x), 0.f, abs(x)); };
      const auto scale =
          max(size(expected[k])).item() + (k == 0 ? 1e-3 * sum(size(expected[1])).item() : 0);
      CHECK(max(size(got[k] - expected[k])).item() <= 1e-5 * (1 + scale));
    }
  }
  // bf16, on machines whose kernel with flags computes bf16 matmuls: about as far from f32 as the
  // full computation.
  Parts wide, narrow;
  for (int k = 0; k < 3; ++k) {
    narrow[k] = draw(k + 1, {B, H, k ? Keys : Pos, Size}).astype(DType::bf16).eval();
    wide[k] = narrow[k].astype(DType::f32).eval();
  }
  auto causal = [&](const Parts& p) { return f(p, nn::causal_mask(Pos, Keys), -1e9f); };
  CHECK(flags_of(causal(narrow)) == (machine.mask_block_bf16 > 0 ? 6 : 0));
  auto exact = jit(causal, {.backend = "reference"})(wide),
       full_result = jit(causal, {.backend = "reference"})(narrow);
  auto got = jit(causal)(narrow);
  for (std::size_t k = 1; k < exact.size(); ++k) {
    CAPTURE(k);
    auto error = [&](const Leaves& r) {
      return mean(abs(r[k].astype(DType::f32) - exact[k])).item();
    };
    CHECK(error(got) <= 1.1 * error(full_result));
  }
  // Grouped queries have two axes, which no flags follow.
  Parts grouped{draw(1, {B, H, Groups, Pos, Size}), draw(2, {B, H, Keys, Size}),
                draw(3, {B, H, Keys, Size})};
  CHECK(flags_of(f(grouped, nn::causal_mask(Pos, Keys), -1e9f)) == 0);
}

// Only the scores show whether a query sees a key, so the iteration continues, and computes exp of
// the scores once.
TEST_CASE("masked: a loop over full rows of scores computes their softmax in one step") {
  const Axis Pos("q", 1152), Keys("k", 1152), Heads("heads", 8), Size("d", 64);
  auto draw = [&](int seed, const Axis& pos) {
    return random::normal(random::key(seed), {Heads, pos, Size}).eval();
  };
  Parts p{draw(1, Pos), draw(2, Keys), draw(3, Keys)};
  auto step = jit([&](const Parts& p) {
    return nn::dot_product_attention("k", "d", p[0], p[1], p[2],
                                     {.mask = nn::causal_mask(Pos, Keys)});
  });
  double steps = 0;  // steps that compute exp of scores
  for (auto& s : profile(step, p).steps) {
    if (s.loops == 0 || s.holds.find("exp") == std::string::npos ||
        s.shape.find("1152") == std::string::npos)
      continue;
    steps += s.calls;
  }
  REQUIRE(step.report().chunked.size() > 0);
  CHECK(steps == 8 * 1152 / 64);  // one per head and 64 queries
}

// An iteration without visible keys changes rows that have seen nothing so far: all scores have
// equal weight, or are NaN, and a `where` after the softmax may discard them.
TEST_CASE("masked: an iteration that sees nothing runs if it changes the carry") {
  const Axis Pos("q", 1152), Keys("k", 1152), Size("d", 8);
  auto draw = [&](int seed, const Axis& pos) {
    return random::normal(random::key(seed), {pos, Size}).eval();
  };
  Parts p{draw(1, Pos), draw(2, Keys), draw(3, Keys)};
  using Mask = std::function<NamedArray(const NamedArray& query, const NamedArray& key)>;
  // no keys for some queries; late keys
  const std::vector<Mask> masks{
      [](auto& q, auto& k) { return q < 400 && k <= q; }, [](auto& q, auto& k) { return k > q; },
      [](auto& q, auto& k) { return q - k > 600; }, [](auto&, auto& k) { return k == 800; }};
  for (bool masks_weights : {false, true})
    for (float fill : {-1e9f, -std::numeric_limits<float>::infinity(), -3.f, 5.f})
      for (std::size_t k = 0; k < masks.size(); ++k) {
        CAPTURE(masks_weights);
        CAPTURE(fill);
        CAPTURE(k);
        auto f = [&, fill, masks_weights](const Parts& p) {
          auto mask =
              masks[k](broadcast_axis(arange(Pos), Keys), broadcast_axis(arange(Keys), Pos));
          auto weights = softmax(where(mask, dot(p[0], p[1], "d"), fill), "k");
          return dot(masks_weights ? where(mask, weights, 0.f) : weights, p[2], "k");
        };
        auto tiled = compiled(f, -1)(p), materialized = compiled(f, most_bytes)(p);
        for (std::size_t i = 0; i < materialized.size(); ++i) {
          CAPTURE(i);
          auto none = isnan(materialized[i]);
          CHECK(all(none == isnan(tiled[i])).item() == 1);
          CHECK(max(where(none, 0.f, abs(tiled[i] - materialized[i]))).item() <=
                4e-5 * (1 + max(where(none, 0.f, abs(materialized[i]))).item()));
        }
      }
}
TEST_CASE("masked: a `where` after the softmax skips the same iterations") {
  const Axis Pos("q", 1152), Keys("k", 1152), Size("d", 8);
  auto draw = [&](int seed, const Axis& pos) {
    return random::normal(random::key(seed), {pos, Size}).eval();
  };
  Parts p{draw(1, Pos), draw(2, Keys), draw(3, Keys)};
  auto made = [&](bool masks_weights) {
    auto step = compiled(
        [=](const Parts& p) {
          auto mask =
              nn::causal_mask(Pos, Keys) & (broadcast_axis(arange(Pos), Keys) - arange(Keys) < 200);
          auto weights = softmax(
              where(mask, dot(p[0], p[1], "d"), -std::numeric_limits<float>::infinity()), "k");
          return dot(masks_weights ? where(mask, weights, 0.f) : weights, p[2], "k");
        },
        -1);
    double flops = 0;
    for (auto& s : profile(step, p).steps) flops += s.flops;
    return flops / step.report().flops;
  };
  CHECK(made(true) == doctest::Approx(made(false)));
  CHECK(made(true) < 0.6);
}
