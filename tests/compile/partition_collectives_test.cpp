// Communication of the library, rule by rule: bytes per device on a ring, and the number of
// collectives. Nothing runs here; other tests check values.
#include <doctest/doctest.h>

#include "haliax/jit.h"
#include "haliax/losses.h"
#include "haliax/nn.h"

using namespace haliax;

namespace {

const Mesh four{{{"data", 4}}};
const Axis Batch{"batch", 16}, Embed{"embed", 8}, Mlp{"mlp", 12}, Pos{"position", 24};
const Mapping batch{{"batch", "data"}}, embed{{"embed", "data"}}, mlp{{"mlp", "data"}},
    position{{"position", "data"}}, none;

double all_reduce(double bytes) { return 2 * bytes * 3 / 4; }
double all_gather(double bytes) { return bytes * 3 / 4; }
double reduce_scatter(double bytes) { return bytes * 3 / 4; }
double all_to_all(double bytes) { return bytes / 4 * 3 / 4; }

NamedArray shape(const AxisSpec& axes, DType d = DType::f32) {
  return eval_shape([&] { return zeros(axes, d); });
}
struct How {
  std::vector<std::optional<Mapping>> in;
  Mapping inside, out;
  bool regather = true;
};
template <class F, class... A> JitReport planned(const How& how, F f, const A&... args) {
  JitOptions o{.mesh = four,
               .axis_resources = how.inside,
               .out = Mappings(how.out),
               .regather = how.regather};
  o.in = Mappings(how.in);
  return named_jit(f, o).plan(args...);
}
void sends(const JitReport& r, double bytes, double calls) {
  CAPTURE(r.explain);
  CHECK(r.sent_bytes == bytes);
  CHECK(r.calls == calls);
}

}  // namespace

TEST_CASE("partition moves: a partial sum passes through linear ops, and merges with others") {
  auto f = [](const NamedArray& x, const NamedArray& y) {
    return mean(x * 2.) + sum(y) / 3. - mean(tanh(y));
  };
  sends(planned({{batch, batch}, batch, none}, f, shape({Batch, Embed}), shape(Batch)),
        all_reduce(4), 1);
  // a square is not linear
  auto ends = [](const NamedArray& x) { return square(sum(x, Batch)) + sum(x, Batch); };
  sends(planned({{batch}, batch, none}, ends, shape({Batch, Embed})), all_reduce(Embed.size * 4),
        1);
  auto lands = [](const NamedArray& x) {
    return tanh(sum(x, Batch));
  };  // on a result that requires it
  sends(planned({{batch}, batch, embed}, lands, shape({Batch, Embed})),
        reduce_scatter(Embed.size * 4), 1);
}

// The gradient of the keys is partial over devices, and reaches the matmul that shards positions
// only through the gradient of rotary: slices, elementwise ops and a concatenation.
TEST_CASE("partition moves: gradients of rotary keys are reduce-scattered along their positions") {
  const Axis Half("half", 4), Pair("pair", 2), Keys = Pos.alias("key_position");
  auto rotated = [&](const NamedArray& x) {
    auto angle = broadcast_axis(arange(Pos), Half) * power(10000., arange(Half) * -0.25);
    auto parts = unbind(unflatten_axis(x, Embed, {Pair, Half}), Pair);
    auto both = stack(Pair, {parts[0] * cos(angle) - parts[1] * sin(angle),
                             parts[1] * cos(angle) + parts[0] * sin(angle)});
    return flatten_axes(both, {"pair", "half"}, Embed);
  };
  auto f = [&](const NamedArray& x, const NamedArray& w) {
    auto loss = [&](const NamedArray& x) {
      auto y = dot(x, w, Mlp);
      return sum(square(tanh(dot(rotated(y), rename(rotated(y), Pos, Keys), Embed))));
    };
    return grad(loss)(x);
  };
  const double keys = double(Pos.size * Embed.size * 4);
  sends(planned({{position, none}, position, position}, f, shape({Pos, Mlp}), shape({Mlp, Embed})),
        all_gather(keys) + reduce_scatter(keys), 2);
}

TEST_CASE("partition moves: a weight is cast before it is gathered") {
  auto f = [](const NamedArray& w, const NamedArray& x) {
    return dot(x.astype(DType::bf16), w.astype(DType::bf16), Embed);
  };
  const Axis Many("batch", 1024);
  sends(planned({{embed, batch}, batch, batch}, f, shape({Embed, Mlp}), shape({Many, Embed})),
        all_gather(double(Embed.size * Mlp.size * 2)), 1);
}

TEST_CASE("partition moves: loop-invariant values are gathered once, and sums are reduced once") {
  const Axis Many("batch", 1024), Micro("micro", 8);
  auto loss = [](const NamedArray& w, const NamedArray& x) {
    axis_mapping inside(batch);
    return mean(square(tanh(dot(x, w, Embed))));
  };
  auto f = [=](const NamedArray& w, const NamedArray& x) {
    auto body = [=](const NamedArray& sum, const NamedArray& x) { return sum + grad(loss)(w, x); };
    return fold(body, Micro)(zeros_like(w), x);
  };
  const double bytes = double(Embed.size * Mlp.size * 4);
  auto w = shape({Embed, Mlp}), x = shape({Micro, Many, Embed});
  sends(planned({{none, batch}, none, none}, f, w, x), all_reduce(bytes), 1);
  // The price is a full gradient on every device. Otherwise each device has a part, and reduces in
  // each iteration.
  sends(planned({{embed, batch}, embed, embed, false}, f, w, x),
        all_gather(bytes) + reduce_scatter(bytes), 2);
  sends(planned({{embed, batch}, embed, embed}, f, w, x),
        all_gather(bytes) + 8 * reduce_scatter(bytes), 9);
}

TEST_CASE("partition moves: a rematerialized layer repeats no sum over devices") {
  const Axis Layers("layers", 3);
  for (const char* policy : {"none", "carries"}) {
    CAPTURE(std::string(policy));
    auto loss = [=](const std::pair<NamedArray, NamedArray>& w, const NamedArray& x) {
      auto layer = [](const NamedArray& h, const NamedArray& up, const NamedArray& down) {
        return tanh(h + dot(nn::gelu(dot(tanh(h), up, Embed)), down, Mlp));
      };
      return mean(square(fold(layer, Layers, {.checkpoint = policy})(x, w.first, w.second)));
    };
    auto f = [=](const std::pair<NamedArray, NamedArray>& w, const NamedArray& x) {
      return grad(loss)(w, x);
    };
    auto w = std::pair{shape({Layers, Embed, Mlp}), shape({Layers, Mlp, Embed})};
    const double stream = double(Batch.size * Embed.size * 4);
    // One sum forward and one backward per layer, except the first layer, whose input needs no
    // gradient.
    auto r = planned({{mlp, none}, mlp, mlp}, f, w, shape({Batch, Embed}));
    CAPTURE(r.explain);
    CHECK(r.sent_bytes <= Layers.size * 2 * all_reduce(stream));
    CHECK(r.calls <= Layers.size * 2);
  }
}

TEST_CASE(
    "partition moves: a rematerialized chunk repeats no sum over devices, and saves no logits") {
  const Axis Chunk("chunk", 5), Tokens("tokens", 8), Vocab("vocab", 16);
  const Mapping vocab{{"vocab", "data"}};
  auto gradient = [=](const NamedArray& w, const NamedArray& x) {
    return grad([=](const NamedArray& w) {
      auto body = [=](const NamedArray& all, const NamedArray& x) {
        return all + sum(logsumexp(dot(x, w, Embed), Vocab));
      };
      // the backward pass starts after the end
      return square(fold(body, Chunk, {.checkpoint = "carries"})(zeros({}), x));
    })(w);
  };
  const auto w = shape({Embed, Vocab}), x = shape({Chunk, Tokens, Embed});
  const double iterations = 5;  // a maximum and a sum for each token
  sends(planned({{vocab, none}, vocab, vocab}, gradient, w, x),
        iterations * 2 * all_reduce(Tokens.size * 4), iterations * 2);
  // logits are sums, with twice the size of the tiled values
  auto sharded_embed = planned({{embed, embed}, embed, embed}, gradient, w, x);
  sends(sharded_embed, iterations * 2 * all_reduce(Tokens.size * Vocab.size * 4), iterations * 2);
}

TEST_CASE("partition moves: gathered weights are not retained if that communicates more") {
  // Four tokens use large weights: the tokens move.
  const Axis Layers("layers", 3), Wide("mlp", 512), Few("batch", 4);
  struct Layer {
    NamedArray up, down;
  };
  auto gradient = [=](const Layer& l, const NamedArray& x) {
    return grad([=](const Layer& l) {
      auto layer = [=](const NamedArray& x, const Layer& l) {
        return x + dot(tanh(dot(x, l.up, Embed)), l.down, Wide);
      };
      return mean(square(fold(layer, Layers)(x, l)));
    })(l);
  };
  const Layer l{shape({Layers, Embed, Wide}), shape({Layers, Wide, Embed})};
  const How regathers{{embed, batch}, batch, embed}, keeps{{embed, batch}, batch, embed, false};
  const auto x = shape({Few, Embed}), more = shape({Few.resize(4096), Embed});
  CHECK(planned(keeps, gradient, l, x).sent_bytes == planned(regathers, gradient, l, x).sent_bytes);
  CHECK(planned(keeps, gradient, l, x).peak_bytes == planned(regathers, gradient, l, x).peak_bytes);
  const double weights = 3. * 2 * Embed.size * Wide.size * 4;
  // here the weights move
  sends(planned(keeps, gradient, l, more), all_gather(weights) + reduce_scatter(weights), 2);
  CHECK(planned(regathers, gradient, l, more).sent_bytes ==
        2 * all_gather(weights) + reduce_scatter(weights));
}

TEST_CASE(
    "partition moves: a value that two ops read moves for both, "
    "even if neither op justifies it alone") {
  const Axis Vocab("vocab", 16);
  auto loss = [](const NamedArray& w, const NamedArray& ids) {
    return mean(square(take(w, "vocab", ids)));
  };
  auto gradient = [=](const NamedArray& w, const NamedArray& ids) { return grad(loss)(w, ids); };
  const auto w = shape({Vocab, Embed});
  for (std::int64_t tokens : {4, 16, 48, 64, 1024}) {
    CAPTURE(tokens);
    const double ids = double(tokens) * 4, table = double(w.nbytes()),
                 rows = ids * double(Embed.size);
    const auto r = planned({{embed, batch}, batch, embed}, gradient, w,
                           shape(Axis("batch", tokens), DType::i32));
    CAPTURE(r.explain);
    CHECK(r.sent_bytes <= std::min(2 * all_gather(table), all_gather(ids) + 2 * all_to_all(rows)));
  }
}

TEST_CASE(
    "partition moves: along a sharded axis, only positions that cross block boundaries move") {
  const double row = double(Embed.size * 4), all = double(Pos.size) * row;
  auto one = [&](auto f, const How& how = {{position}, position, position}) {
    return planned(how, f, shape({Pos, Embed}));
  };
  sends(one([](const NamedArray& x) { return roll(x, 1, Pos); }), row, 1);
  // each device needs the part of another one
  sends(one([](const NamedArray& x) { return flip(x, Pos) * 2.; }), all / 4, 1);
  sends(one([](const NamedArray& x) { return cumsum(x, Pos); }), all_gather(4 * row), 1);
  sends(one([](const NamedArray& x) { return argmax(x, Pos); }, {{position}, position, none}),
        2 * all_reduce(row), 2);
  sends(one([](const NamedArray& x) { return sort(x, Pos); }, {{position}, position, embed}),
        all_to_all(all), 1);
  sends(one([](const NamedArray& x) { return sort(x, Embed); }), 0, 0);
  sends(one([](const NamedArray& x) { return softmax(x, Pos); }), 2 * all_reduce(row), 2);
  // 24 positions become 32: blocks of 6 become blocks of 8, and the last device has only padding.
  auto padded = one([](const NamedArray& x) { return pad(x, {{"position", {0, 8}}}); });
  CHECK(padded.calls == 1);
  CHECK(padded.sent_bytes == (2 + 4 + 6) * row / 4);
  auto shifted = one([](const NamedArray& x) {
    return concatenate("position", {slice(x, Pos, 1, 23), slice(x, Pos, 0, 1)});
  });
  sends(shifted, row, 1);
  // Forward and back, as in the gradient of a roll: no part is gathered for a concatenation.
  sends(one([](const NamedArray& x) { return roll(tanh(roll(x, 1, Pos)), -1, Pos); }), 2 * row, 2);
}

TEST_CASE("partition moves: top_k of a sharded axis communicates the fewest bytes") {
  const Axis Rows("rows", 64);
  const Mapping vocab{{"vocab", "data"}};
  auto greatest = [](const NamedArray& x) { return top_k(x, "vocab", 4).first; };
  auto both = [](const NamedArray& x) { return top_k(x * 2., "vocab", 4); };  // the positions, too
  // long blocks, a short last block, blocks with at most k elements
  for (int size : {64, 30, 18, 8, 6}) {
    CAPTURE(size);
    auto x = shape({Rows, Axis("vocab", size)});
    // Each row moves to one device, or each device selects within its block. Then the selected
    // values move to all devices.
    const double row = double(std::min(size, 4 * 4) * 4), found = double(Rows.size * 4 * 4);
    sends(planned({{vocab}, vocab, none}, greatest, x),
          all_to_all(double(Rows.size) * row) + all_gather(found), 2);
    auto pair = planned({{vocab}, vocab, none}, both, x);
    CAPTURE(pair.explain);
    CHECK(pair.sent_bytes <= 2 * (all_to_all(double(Rows.size) * row) + all_gather(found)));
  }
  for (int size : {64, 8}) {  // two reductions, or rows distributed among the devices
    const double rows = double(Rows.size), reductions = all_reduce(rows * 8);
    auto r = planned(
        {{vocab}, vocab, none}, [](const NamedArray& x) { return argmax(x, "vocab"); },
        shape({Rows, Axis("vocab", size)}));
    CAPTURE(r.explain);
    CHECK(r.sent_bytes == std::min(reductions, all_to_all(rows * size * 4) + all_gather(rows * 4)));
  }
}

TEST_CASE("partition moves: top_k of all positions of a sharded axis gathers it once") {
  const Axis Few("vocab", 4);
  const Mapping vocab{{"vocab", "data"}};
  auto all = [](const NamedArray& x) { return top_k(x, "vocab", 4).first; };
  sends(planned({{vocab}, vocab, none}, all, shape({Batch, Few})),
        all_gather(double(Batch.size * Few.size * 4)), 1);
}

TEST_CASE(
    "partition moves: the parts of an axis move once "
    "if their blocks are no blocks of the full axis") {
  const Mapping rows_mapping{{"rows", "data"}};
  // Returns the number of rows that a device needs and lacks, averaged over four devices. `had`
  // returns the owner of a row.
  auto lacking = [](std::int64_t rows, auto had, auto wanted) {
    double n = 0;
    for (std::int64_t i = 0; i < rows; ++i) n += had(i) != wanted(i);
    return n / 4;
  };
  for (auto [size, positions] :
       {std::pair(16, 24), {10, 24}, {6, 24}, {3, 24}, {16, 5}, {10, 5}, {6, 5}, {3, 5}}) {
    CAPTURE(size);
    CAPTURE(positions);
    const Axis Part("batch", size), Pos("position", positions);
    const auto rows = size * Pos.size;
    auto block = [](std::int64_t i, std::int64_t size) { return i / ((size + 3) / 4); };
    auto by_row = [&](auto i) { return block(i, rows); };
    auto by_batch = [&](auto i) { return block(i / Pos.size, size); };
    auto by_position = [&](auto i) { return block(i % Pos.size, Pos.size); };
    auto flat = [](const NamedArray& x) { return flatten_axes(x, {"batch", "position"}, "rows"); };
    auto parts = [=](const NamedArray& x) { return unflatten_axis(x, "rows", {Part, Pos}); };
    auto check = [](const JitReport& r, double bytes) {
      sends(r, bytes, bytes > 0);
      for (auto& c : r.collectives) CHECK(c.kind == "all-to-all");
    };
    const double row = double(Embed.size * 4);
    auto in_parts = shape({Part, Pos, Embed}), at_once = shape({Axis("rows", rows), Embed});
    check(planned({{batch}, rows_mapping, rows_mapping}, flat, in_parts),
          row * lacking(rows, by_batch, by_row));
    check(planned({{position}, rows_mapping, rows_mapping}, flat, in_parts),
          row * lacking(rows, by_position, by_row));
    check(planned({{rows_mapping}, batch, batch}, parts, at_once),
          row * lacking(rows, by_row, by_batch));
    check(planned({{rows_mapping}, position, position}, parts, at_once),
          row * lacking(rows, by_row, by_position));
  }
  // Uneven blocks, but nothing moves. Nothing is gathered if no mapping shards the parts.
  auto micro = [](const NamedArray& x) {
    return tanh(unflatten_axis(x, "batch", {Axis("batch", 3), Axis("micro", 2)}));
  };
  sends(planned({{batch}, batch, batch}, micro, shape({Axis("batch", 6), Embed})), 0, 0);
  auto folded = [](const NamedArray& x) {
    return sum(square(flatten_axes(x, {"batch", "embed"}, "rows")));
  };
  CHECK(planned({{batch}, none, none}, folded, shape({Axis("batch", 10), Embed})).sent_bytes <=
        10 * Embed.size * 4 / 2);
}

TEST_CASE("partition moves: a part of a gathered value is not gathered again") {
  auto f = [](const NamedArray& w, const NamedArray& x) {
    return std::pair{dot(x, w, Embed), dot(tanh(x), slice(w, Mlp, 2, 5), Embed)};
  };
  const Axis Many("batch", 1024);
  sends(planned({{embed, batch}, batch, batch}, f, shape({Embed, Mlp}), shape({Many, Embed})),
        all_gather(double(Embed.size * Mlp.size * 4)), 1);
}

TEST_CASE("partition moves: an axis that vmap hides keeps its name for the mapping") {
  auto loss = [](const NamedArray& w, const NamedArray& x) {
    return mean(square(tanh(dot(x, w, Embed))));
  };
  auto at_once = [=](const NamedArray& w, const NamedArray& x) {
    axis_mapping inside(batch);
    return loss(w, x);
  };
  auto each = [=](const NamedArray& w, const NamedArray& x) {
    axis_mapping inside(batch);
    return mean(
        vmap([=](const NamedArray& w, const NamedArray& x) { return loss(w, x); }, Batch)(w, x));
  };
  const How how{{embed, batch}, embed, embed};
  auto w = shape({Embed, Mlp}), x = shape({Batch, Pos, Embed});
  auto a = planned(how, grad(at_once), w, x), b = planned(how, grad(each), w, x);
  CHECK(a.sent_bytes == all_gather(double(Embed.size * Mlp.size * 4)) * 2);
  CHECK(b.sent_bytes == a.sent_bytes);
  CHECK(b.calls == a.calls);
  CHECK(b.peak_bytes == a.peak_bytes);
}

TEST_CASE(
    "partition moves: random draws, positions and constants are computed where they are needed") {
  auto f = [](const NamedArray& x) {
    auto key = random::key(1);
    return x + random::normal(key, {Batch, Embed}) * arange(Batch).astype(DType::f32) +
           zeros({Batch, Embed});
  };
  sends(planned({{batch}, batch, batch}, f, shape({Batch, Embed})), 0, 0);
}

TEST_CASE("partition moves: chunks of a sharded axis need no weight that the mapping shards") {
  const Axis Vocab("vocab", 4096);
  auto loss = [=](const NamedArray& head, const NamedArray& x, const NamedArray& ids) {
    axis_mapping inside(Mapping{{"vocab", "data"}});
    return nn::linear_cross_entropy(x, head, ids, Embed, Vocab,
                                    {.walked = Pos, .chunks = {.chunk = 6}})
        .loss;
  };
  auto f = [=](const NamedArray& head, const NamedArray& x, const NamedArray& ids) {
    return value_and_grad(loss)(head, x, ids);
  };
  auto r =
      planned({{Mapping{{"vocab", "data"}}, position, position}, none, {{"vocab", "data"}}}, f,
              shape({Vocab, Embed}), shape({Batch, Pos, Embed}), shape({Batch, Pos}, DType::i32));
  CAPTURE(r.explain);
  CHECK(r.sent_bytes < all_gather(double(Vocab.size * Embed.size * 4)));
}

TEST_CASE(
    "moves: a weight that the backward pass of a checkpoint "
    "reads again is not gathered if it is replicated") {
  const Axis Micro{"micro", 3};
  struct Layers {
    std::vector<NamedArray> up, down;
  };
  auto step = [](bool checkpointed) {
    return [=](const Layers& p, const NamedArray& x) {
      auto loss = [=](const Layers& q, const NamedArray& h) {
        auto block = [](const NamedArray& h, const NamedArray& up, const NamedArray& down) {
          return h + dot(tanh(dot(h, up, "embed")), down, "mlp");
        };
        auto y = h;
        for (std::size_t i = 0; i < q.up.size(); ++i)
          y = checkpointed ? checkpoint(block)(y, q.up[i], q.down[i])
                           : block(y, q.up[i], q.down[i]);
        return mean(square(y)).scalar();
      };
      auto part = [=](const Layers& sum, const NamedArray& h) {
        auto g = grad([&](const Layers& q) { return loss(q, h); })(p);
        for (std::size_t i = 0; i < g.up.size(); ++i) {
          g.up[i] = g.up[i] + sum.up[i];
          g.down[i] = g.down[i] + sum.down[i];
        }

        return g;
      };
      Layers zero;
      for (auto& w : p.up) zero.up.push_back(zeros_like(w));
      for (auto& w : p.down) zero.down.push_back(zeros_like(w));
      return x.axes().size() == 3 ? fold(part, "micro")(zero, x) : part(zero, x);
    };
  };
  const double weights = 2 * 2 * 8 * 12 * 4;
  const Layers p{{shape({Embed, Mlp}), shape({Embed, Mlp})},
                 {shape({Mlp, Embed}), shape({Mlp, Embed})}};
  auto sent = [&](bool checkpointed, bool micro, bool regather) {
    JitOptions o{.mesh = four,
                 .axis_resources = batch,
                 .out = Mappings(embed),
                 .regather = regather,
                 .strict = true};
    o.in = Mappings::of_each({embed, batch});
    auto x = micro ? shape({Micro, Batch, Embed}) : shape({Batch, Embed});
    return named_jit(step(checkpointed), o).plan(p, x).sent_bytes;
  };
  CHECK(sent(true, false, true) == 2 * all_gather(weights) + reduce_scatter(weights));
  CHECK(sent(true, false, false) == all_gather(weights) + reduce_scatter(weights));
  for (bool regather : {true, false})
    CHECK(sent(true, true, regather) == sent(false, true, regather));
}

TEST_CASE(
    "moves: a loop over microbatches leaves the work "
    "of each to the devices that the mapping names") {
  const Axis Rows{"batch", 64}, Wide{"embed", 32}, Deep{"mlp", 128}, Layer{"layers", 2};
  struct Stack {
    NamedArray up, down;
  };
  // micro is the outer axis, so the sharding of the batch could move to it. With as many
  // microbatches as devices, one per device, no collective would be needed.
  for (bool layers : {true, false})
    for (std::int64_t count : {3, 4}) {
      CAPTURE(layers);
      CAPTURE(count);
      auto step = [=](const Stack& p, const NamedArray& x) {
        auto block = [](const NamedArray& h, const NamedArray& up, const NamedArray& down) {
          return h + dot(tanh(dot(h, up, "embed")), down, "mlp");
        };
        auto loss = [=](const Stack& q, const NamedArray& h) {
          return mean(square(layers ? fold(block, Layer)(h, q.up, q.down) : block(h, q.up, q.down)))
              .scalar();
        };
        auto part = [=](const Stack& sum, const NamedArray& h) {
          auto g = grad([&](const Stack& q) { return loss(q, h); })(p);
          return Stack{sum.up + g.up, sum.down + g.down};
        };
        return fold(part, "micro")(Stack{zeros_like(p.up), zeros_like(p.down)}, x);
      };
      auto axes = [&](Axes a) {
        if (layers) a.insert(a.begin(), Layer);
        return eval_shape([=] { return zeros(a); });
      };
      const Stack p{axes({Wide, Deep}), axes({Deep, Wide})};
      const auto flat = eval_shape([=] { return zeros({Rows.resize(64 * count), Wide}); });
      auto run = [=](const Stack& q, const NamedArray& x) {
        return step(q, unflatten_axis(x, "batch", {Axis("micro", count), Rows}));
      };
      const Mapping batch{{"batch", "data"}};
      auto r = named_jit(run, {.mesh = Mesh{{{"data", 4}}},
                               .axis_resources = batch,
                               .in = Mappings::of_each({Mapping{}, batch})})
                   .plan(p, flat);
      // A device saves its quarter of the rows of a microbatch's hidden layer.
      const std::int64_t hidden = 64 / 4 * Deep.size * 4 * (layers ? Layer.size : 1),
                         weights = 2 * 32 * 128 * 4 * (layers ? 2 : 1);
      CHECK(r.peak_bytes < 3 * weights + 3 * hidden + 64 * count * 32 * 4);
    }
}

TEST_CASE(
    "partition moves: an array without elements is never communicated, whatever its shardings") {
  const Axis Rows("rows", 0), Columns("columns", 8);
  const Mesh mesh{{{"data", 2}, {"model", 2}}};
  const Mapping before{{"columns", std::vector<std::string>{"model", "data"}}},
      after{{"columns", "data"}, {"rows", "model"}};
  auto turned = [](const NamedArray& x) { return roll(x, 1, "columns"); };
  auto r = named_jit(turned, {.mesh = mesh,
                              .axis_resources = Mapping{},
                              .in = Mappings(before),
                              .out = Mappings(after)})
               .plan(shape({Rows, Columns}));
  sends(r, 0, 0);
}
