// Context parallelism: positions are sharded, and blocks of keys and values rotate around the ring.
// Values equal the results of one device; bytes communicated and memory are asserted.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <functional>

#include "examples/models/gpt2.h"
#include "haliax/haliax.h"
#include "haliax/profile.h"
#include "devices/communicator.h"
#include "support/nans.h"
#include "support/threads.h"

using namespace haliax;

namespace {

using Parts = std::array<NamedArray, 3>;  // queries, keys, values (heads, pos, d)
using Masked = std::function<NamedArray(const Axis& Pos, const Axis& KPos)>;

const Axis Heads{"heads", 2}, D{"d", 8};

Parts parts(const Axis& Pos, const Axis& heads = Heads, const Axis& d = D) {
  auto draw = [&](int seed) { return random::normal(random::key(seed), {heads, Pos, d}).eval(); };
  return {draw(1), draw(2), draw(3)};
}
NamedArray causal(const Axis& Pos, const Axis& KPos) { return nn::causal_mask(Pos, KPos); }
// Returns a scalar that depends on all values, the values, and the gradients of the scalar.
auto all_of(const Masked& mask) {
  return [=](const Parts& p) {
    auto loss = [&](const Parts& p) {
      auto Pos = p[0].resolve_axis("pos"), KPos = Pos.alias("key_pos");
      auto y = nn::dot_product_attention(KPos, "d", p[0], rename(p[1], Pos, KPos),
                                         rename(p[2], Pos, KPos), {.mask = mask(Pos, KPos)});
      return std::pair{sum(sin(y)), y};
    };
    auto [out, g] = value_and_grad(loss)(p);
    return Leaves{out.first, out.second, g[0], g[1], g[2]};
  };
}
JitOptions context_parallel(int devices, std::optional<std::int64_t> budget = 0) {
  return {.mesh = Mesh{{{"context", devices}}},
          .axis_resources = Mapping{{"pos", "context"}},
          .ring = true,
          .scores_budget = budget};
}
void agree(const Leaves& got, const Leaves& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t k = 0; k < expected.size(); ++k) {
    CAPTURE(k);
    CHECK(max(abs(got[k] - expected[k])).item() <= 1e-5 * (1 + max(abs(expected[k])).item()));
  }
}

}  // namespace

TEST_CASE("context: only keys, values and their gradients rotate around the ring") {
  const Axis Pos{"pos", 96};
  auto p = parts(Pos);
  for (int devices : {2, 3, 4}) {
    CAPTURE(devices);
    auto f = named_jit(all_of(causal), context_parallel(devices));
    agree(f(p), jit(all_of(causal), {.scores_budget = most_bytes})(p));
    const double block = double(Heads.size * D.size * 4 * Pos.size / devices);
    double keys = 0, gradients = 0;
    const auto report = f.report();
    for (auto& c : report.collectives) {
      if (c.kind != "ring" && c.kind != "reduce-scatter") continue;
      (c.kind == "ring" ? keys : gradients) += c.bytes * c.turns;
      CHECK(c.turns == doctest::Approx(devices - 1));
    }
    // Keys and values, forward and backward.
    CHECK(keys == doctest::Approx(4 * block * (devices - 1)));
    CHECK(gradients == doctest::Approx(2 * block * (devices - 1)));  // their gradients
  }
}

TEST_CASE(
    "context: keys of a long sequence rotate by default, "
    "since this communicates the fewest bytes") {
  const Axis Pos{"pos", 32768};
  const Parts p = parts(Pos);
  auto report = [&](bool ring) {
    JitOptions o = context_parallel(4, std::nullopt);
    o.ring = ring;
    return named_jit(all_of(causal), o).plan(p);
  };
  const auto requested = report(true), usual = report(false);
  CHECK(usual.sent_bytes == requested.sent_bytes);
  // Keys and values are in one message.
  for (auto& c : usual.collectives)
    CHECK(c.bytes <= double(2 * Heads.size * D.size * 4 * Pos.size / 4));
  auto rings = [](auto& c) { return c.kind == "ring"; };
  CHECK(std::count_if(usual.collectives.begin(), usual.collectives.end(), rings) == 2);
}

TEST_CASE("context: in strict mode keys rotate even if gathers would communicate fewer bytes") {
  const Axis Pos{"pos", 96}, KPos = Pos.alias("key_pos"), L{"layers", 2};
  auto layers = [=](const NamedArray& x, const NamedArray& w) {
    return fold(
        [=](const NamedArray& x, const NamedArray& w) {
          auto k = rename(x * w, Pos, KPos);
          return x + nn::dot_product_attention(KPos, "d", x, k, k, {.mask = causal(Pos, KPos)});
        },
        L)(x, w);
  };
  auto slope = [=](const NamedArray& x, const NamedArray& w) {
    return grad([=](const NamedArray& x) { return sum(sin(layers(x, w))); })(x);
  };
  auto o = context_parallel(4);
  o.ring = false;
  auto usual = named_jit(slope, o);
  o.strict = true;
  auto strict = named_jit(slope, o);
  auto x = parts(Pos)[0], w = random::normal(random::key(4), {L, D}).eval();
  agree({usual(x, w), strict(x, w)}, {jit(slope)(x, w), jit(slope)(x, w)});
  auto gathers = [](const JitReport& r) {
    return std::count_if(r.collectives.begin(), r.collectives.end(),
                         [](auto& c) { return c.kind == "all-gather"; });
  };
  CHECK(gathers(usual.report()) > 0);
  CHECK(gathers(strict.report()) == 0);
  CHECK(usual.report().sent_bytes < strict.report().sent_bytes);
}

TEST_CASE(
    "context: a ring that would need implicit gathers "
    "falls back to gathered keys, also in strict mode") {
  const Axis Pos{"pos", 16}, KPos = Pos.alias("key_pos"), Embed{"embed", 8};
  auto draw = [](int seed, const Axes& axes) {
    return random::normal(random::key(seed), axes).eval();
  };
  const Parts p{draw(1, {Pos, Embed}), draw(2, {Embed, Heads, D}), draw(3, {Embed, Heads, D})};
  auto f = [=](const Parts& p) {
    auto q = dot(p[0], p[1], Embed) * 0.3f, k = rename(dot(p[0], p[2], Embed) * 0.3f, Pos, KPos);
    return nn::dot_product_attention(KPos, D, q, k, sin(k), {.mask = nn::causal_mask(Pos, KPos)});
  };
  JitOptions o = context_parallel(3, 1000);
  o.mesh = Mesh{{{"context", 3}, {"model", 2}}};
  o.axis_resources = Mapping{{"pos", "context"}, {"heads", "model"}};
  for (bool ring : {false, true}) {
    o.ring = ring;
    o.strict = true;
    auto strict = named_jit(f, o);
    agree({strict(p)}, {jit(f)(p)});
    CHECK(strict.report().explain.find(
              "keys are gathered, because pos=16 is not divisible by 3 devices") !=
          std::string::npos);
  }
}

TEST_CASE(
    "context: with one head sharded over two devices, "
    "the device without a head takes part in the ring") {
  const Axis Pos{"pos", 12}, Batch{"batch", 2}, One{"heads", 1};
  auto p = parts(Pos, One);
  for (auto& x : p) x = (broadcast_axis(x, Batch) * (1 + arange(Batch).astype(DType::f32))).eval();
  auto o = context_parallel(3);
  o.mesh = Mesh{{{"context", 3}, {"model", 2}}};
  o.axis_resources = Mapping{{"pos", "context"}, {"heads", "model"}};
  agree(named_jit(all_of(causal), o)(p), jit(all_of(causal))(p));
}

// A random draw has the sharding of the mapping, and f32 scores convert a bf16 block only after it
// arrives. Neither materializes a full block of scores.
TEST_CASE("context: dropout, and f32 scores of bf16 queries, use at most twice the memory") {
  enum class Kind { plain, drops, widens };
  auto slopes = [](Kind kind) {
    return [=](const Parts& p) {
      auto loss = [=](const Parts& p) {
        auto Pos = p[0].resolve_axis("pos"), KPos = Pos.alias("key_pos");
        auto q = p[0], k = rename(p[1], Pos, KPos), v = rename(p[2], Pos, KPos);
        if (kind == Kind::widens) {
          q = q.astype(DType::bf16).astype(DType::f32);
          k = k.astype(DType::bf16).astype(DType::f32);
        }

        auto weights = softmax(where(causal(Pos, KPos), dot(q, k, "d"), -1e9f), KPos);
        if (kind == Kind::drops)
          weights =
              where(random::uniform(random::key(5), weights.axes()) < 0.8f, weights / 0.8f, 0.f);
        return sum(sin(dot(weights, v, KPos)));
      };
      auto [value, g] = value_and_grad(loss)(p);
      return Leaves{value, g[0], g[1], g[2]};
    };
  };
  const Axis Short{"pos", 96}, Long{"pos", 8192};
  const auto narrow = [](Parts p) {
    for (auto& x : p) x = x.astype(DType::bf16).eval();
    return p;
  };
  const Threads two(2);
  std::int64_t plain = 0;
  for (auto kind : {Kind::plain, Kind::drops, Kind::widens}) {
    CAPTURE(int(kind));
    auto p = parts(Short);
    agree(named_jit(slopes(kind), context_parallel(4))(p),
          jit(slopes(kind), {.scores_budget = most_bytes})(p));
    auto bytes = named_jit(slopes(kind), context_parallel(4, std::nullopt))
                     .plan(kind == Kind::widens ? narrow(parts(Long)) : parts(Long))
                     .arena_bytes;
    if (kind == Kind::plain) plain = bytes;
    CHECK(bytes <= 2 * plain);
    CHECK(bytes < Heads.size * Long.size / 4 * Long.size / 4 * 4);  // a full block of scores
  }
}

TEST_CASE("context: blocks that a mask hides are neither sent nor waited for") {
  const Axis Pos{"pos", 96};
  const int devices = 4;
  auto p = parts(Pos);
  auto window = [](auto& Pos, auto& KPos) {
    return causal(Pos, KPos) & (broadcast_axis(arange(Pos), KPos) - arange(KPos) < 7);
  };
  auto blocks_sent = [&](const Masked& mask) {
    auto f = named_jit(all_of(mask), context_parallel(devices));
    agree(f(p), jit(all_of(mask), {.scores_budget = most_bytes})(p));
    for (auto& c : f.report().collectives)
      CHECK(c.at_most == (c.kind == "ring" || c.kind == "reduce-scatter"));
    CHECK(f.report().explain.find("at most") != std::string::npos);
    const auto before = exchanged_bytes();
    f(p);
    return double(exchanged_bytes() - before) /
           double(Heads.size * D.size * 4 * Pos.size / devices);
  };
  // In the forward pass, the first block is requested before the mask of its iteration is
  // evaluated. Each block is keys and values; the backward pass also sends the gradients of both
  // back.
  const int all = devices * (devices - 1), first = devices;
  CHECK(blocks_sent([](auto& Pos, auto& KPos) {
          return ones({Pos, KPos}, DType::boolean);
        }) == 6 * all);
  // Each device except the first one sees the previous block.
  CHECK(blocks_sent(window) == 2 * first + 4 * (devices - 1));
  CHECK(blocks_sent(causal) ==
        2 * (first + 3) + 4 * 6);  // devices see 0, 1, 2 and 3 previous blocks
  // Rows of the first device that see no key weigh all keys equally, so the device needs all
  // blocks.
  auto blind = [](auto& Pos, auto& KPos) {
    return causal(Pos, KPos) & (broadcast_axis(arange(Pos), KPos) > 5);
  };
  CHECK(blocks_sent(blind) == 2 * (first + 3 + 2) + 4 * (6 + 3));
}

TEST_CASE("context: bf16 blocks rotate as bf16, and their gradients as f32 that is rounded once") {
  const Axis Pos{"pos", 96};
  auto p = parts(Pos);
  for (auto& x : p) x = astype(x, DType::bf16).eval();
  const int devices = 4;
  auto f = named_jit(all_of(causal), context_parallel(devices));
  auto got = f(p), expected = jit(all_of(causal), {.scores_budget = most_bytes})(p);
  for (std::size_t k = 0; k < expected.size(); ++k)
    CHECK(max(abs(got[k] - expected[k])).item() <= 1e-2 * (1 + max(abs(expected[k])).item()));
  const double block = double(Heads.size * D.size * 2 * Pos.size / devices);
  double keys = 0, gradients = 0;
  const auto report = f.report();
  for (auto& c : report.collectives) {
    if (c.kind == "all-reduce") continue;  // reduces the loss
    CHECK(c.at_most);
    CHECK((c.kind == "ring" || c.kind == "reduce-scatter"));
    (c.kind == "ring" ? keys : gradients) += c.bytes * c.turns;
  }
  CHECK(keys == doctest::Approx(4 * block * (devices - 1)));
  CHECK(gradients == doctest::Approx(2 * 2 * block * (devices - 1)));
}

TEST_CASE("context: a shard with a prime number of positions is one chunk") {
  const auto report =
      named_jit(all_of(causal), context_parallel(3)).plan(parts(Axis{"pos", 3 * 683}));
  auto queries = std::find_if(report.chunked.begin(), report.chunked.end(),
                              [](auto& c) { return c.axis == "pos"; });
  REQUIRE(queries != report.chunked.end());
  CHECK(queries->chunk == 683);
}

TEST_CASE("context: masked blocks introduce no NaN") {
  const Axis Pos{"pos", 24};
  auto p = parts(Pos);
  const Masked masks[] = {
      causal,
      [](auto& Pos, auto& KPos) { return broadcast_axis(arange(Pos), KPos) < arange(KPos); },
      // Only the last device sees its own keys.
      [](auto& Pos, auto& KPos) { return broadcast_axis(arange(KPos) > 18, Pos); },
      [](auto& Pos, auto& KPos) {
        return (arange(KPos) < 3) & (broadcast_axis(arange(Pos), KPos) > 2);
      }};
  for (auto& mask : masks) {
    auto expected = jit(all_of(mask), {.scores_budget = most_bytes})(p);
    test::Nans nans;
    for (int devices : {1, 2, 4}) {
      CAPTURE(devices);
      agree(named_jit(all_of(mask), context_parallel(devices))(p), expected);
    }
  }
}

TEST_CASE("context: memory depends only on the positions per device") {
  std::vector<std::int64_t> arenas;
  for (int devices : {4, 6, 8}) {
    auto f = named_jit(all_of(causal), context_parallel(devices));
    f.plan(parts(Axis("pos", 64 * devices)));
    arenas.push_back(f.report().arena_bytes);
  }
  CHECK(arenas[0] == arenas[1]);
  CHECK(arenas[1] == arenas[2]);
}

TEST_CASE("context: blocks that would be large for all heads are sent head by head") {
  const Axis Pos{"pos", 1536}, Many{"heads", 12}, Wide{"d", 64};
  auto p = parts(Pos, Many, Wide);
  auto f = named_jit(all_of(causal), context_parallel(2, {}));
  agree(f(p), jit(all_of(causal))(p));
  const auto report = f.report();
  int rings = 0;
  for (auto& c : report.collectives) {
    if (c.kind != "ring") continue;
    ++rings;
    CHECK(c.loop == "heads, key_pos, context");
    CHECK(c.turns == doctest::Approx(12));
    CHECK(c.bytes == 2 * 4 * double(Pos.size / 2 * Wide.size));
  }
  CHECK(rings == 2);
  CHECK(report.arena_bytes < 8 << 20);
}

TEST_CASE("context: all kinds of masks work with sharded heads too") {
  const Axis Pos{"pos", 72};
  auto p = parts(Pos);
  auto position = [](const Axis& Pos, const Axis& KPos) {
    return broadcast_axis(arange(Pos), KPos);
  };
  const Masked masks[] = {
      [](auto& Pos, auto& KPos) {
        return ones({Pos, KPos}, DType::boolean);
      },
      [&](auto& Pos, auto& KPos) {
        return causal(Pos, KPos) & (position(Pos, KPos) - arange(KPos) < 7);
      },
      [&](auto& Pos, auto& KPos) {
        return floor_divide(position(Pos, KPos), 20) == floor_divide(arange(KPos), 20);
      },
      // Some queries see no key.
      [&](auto& Pos, auto& KPos) { return causal(Pos, KPos) & (position(Pos, KPos) > 5); },
  };
  for (auto& mask : masks) {
    JitOptions o = context_parallel(2);
    o.mesh = Mesh{{{"context", 2}, {"model", 2}}};
    o.axis_resources = Mapping{{"pos", "context"}, {"heads", "model"}};
    agree(named_jit(all_of(mask), o)(p), jit(all_of(mask), {.scores_budget = most_bytes})(p));
  }
}

TEST_CASE("context: zigzag order balances the work of the devices") {
  const Axis Pos{"pos", 2048};
  const int devices = 2;
  auto order = nn::zigzag(Pos, devices);
  CHECK(sort(order, "pos").doubles() == arange(Pos).doubles());
  auto at = order.doubles();
  CHECK(at[0] == 0);
  CHECK(at[512] == 2048 - 512);  // the first device has the first and the last of four parts
  CHECK(at[1024] == 512);

  // With positions in this order, the mask compares positions. The results are the results for the
  // sequence, in this order.
  auto mask = [&](const Axis& Pos, const Axis& KPos) {
    return broadcast_axis(order, KPos) >= rename(order, Pos, KPos);
  };
  auto p = parts(Pos);
  Parts reordered;
  for (std::size_t k = 0; k < p.size(); ++k) reordered[k] = take(p[k], "pos", order);
  auto f = named_jit(all_of(mask), context_parallel(devices, 8 << 20));
  auto got = f(reordered), expected = jit(all_of(causal))(p);
  for (std::size_t k = 1; k < expected.size(); ++k) expected[k] = take(expected[k], "pos", order);
  agree(got, expected);

  double made = 0;
  for (auto& s : profile(f, reordered).steps) made += s.flops;
  CHECK(made / (devices * f.report().flops) <
        0.6);  // relative to the matmuls of all positions with all positions
}

TEST_CASE("context: a GPT-2 with sharded positions has the losses of one device") {
  const Axis Batch{"batch", 4};
  const models::GPT2Config config{.vocab_size = 24,
                                  .n_positions = 16,
                                  .n_embd = 16,
                                  .n_layer = 2,
                                  .n_head = 4,
                                  .n_inner = 32,
                                  .gradient_checkpointing = ScanCheckpoint(true)};
  const auto ids =
      random::randint(random::key(1), {Batch, config.Pos()}, 0, int(config.vocab_size));
  auto step = [&](const models::GPT2LMHeadModel& m, const NamedArray& ids) {
    auto loss = [&](const models::GPT2LMHeadModel& m) {
      return nn::next_token_loss("pos", "vocab", m(ids, random::key(2)), ids);
    };
    auto [l, g] = value_and_grad(loss)(m);
    return std::pair{
        l, tree_map([](const NamedArray& w, const NamedArray& g) { return w - 0.1f * g; }, m, g)};
  };
  auto losses = [&](auto f) {
    auto m = models::GPT2LMHeadModel::init(config, random::key(0));
    std::vector<double> out;
    for (int i = 0; i < 5; ++i) {
      auto [l, next] = f(m, ids);
      out.push_back(double(l.item()));
      m = next;
    }
    return out;
  };
  auto expected = losses(jit(step));
  for (auto& [mesh, mapping] : {std::pair{Mesh{{{"context", 4}}}, Mapping{{"pos", "context"}}},
                                std::pair{Mesh{{{"data", 2}, {"context", 2}}},
                                          Mapping{{"batch", "data"}, {"pos", "context"}}}}) {
    JitOptions o{.mesh = mesh, .axis_resources = mapping, .ring = true, .scores_budget = 0};
    auto f = named_jit(step, o);
    auto got = losses(f);
    for (std::size_t i = 0; i < expected.size(); ++i)
      CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-5));
    auto sent = f.report().collectives;
    CHECK(std::any_of(sent.begin(), sent.end(), [](auto& c) { return c.kind == "ring"; }));
    CHECK(std::none_of(sent.begin(), sent.end(), [](auto& c) {
      return c.kind == "all-gather" && c.axes.find("key_pos") != c.axes.npos;
    }));
  }
}
