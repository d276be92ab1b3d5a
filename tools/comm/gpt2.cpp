// Training steps of a small GPT-2 with each sharding strategy.
#include <map>

#include "blocks.h"
#include "haliax/optim.h"

namespace comm {
namespace {

using namespace haliax;

// The sharding of the residual stream. `gathers`: the inputs of the blocks are gathered explicitly.
struct Sequence {
  static constexpr bool is_static = true;
  std::optional<Mapping> at;
  bool gathers = false;
  friend bool operator==(const Sequence&, const Sequence&) = default;
  NamedArray sharded(const NamedArray& x) const { return at ? shard(x, *at) : x; }
  NamedArray full(const NamedArray& x) const { return at && gathers ? auto_sharded(x) : x; }
};
struct Block {
  nn::LayerNorm ln1;
  Attention attn;
  nn::LayerNorm ln2;
  Mlp mlp;
  static Block init(const Axes& a, const Key& key) {
    auto [k1, k2] = random::split<2>(key);
    return {nn::LayerNorm::init(a.E), Attention::init(a, k1), nn::LayerNorm::init(a.E),
            Mlp::init(a, k2)};
  }
  NamedArray operator()(const NamedArray& in, const Sequence& sp) const {
    auto x = in + sp.sharded(attn(sp.full(ln1(in))));
    return sp.sharded(x + sp.sharded(mlp(sp.full(ln2(x)))));
  }
};
struct Gpt2 {
  nn::Embedding wte, wpe;
  nn::Stacked<Block> blocks;
  nn::LayerNorm ln_f;
  static Gpt2 init(const Axes& a, const Key& key, bool checkpoint) {
    auto [k1, k2, k3] = random::split<3>(key);
    auto blocks = nn::Stacked<Block>::init(
        a.L, [&](const Key& k) { return Block::init(a, k); }, random::split(k3, a.L));
    blocks.gradient_checkpointing = checkpoint;
    return {nn::Embedding::init(a.V, a.E, k1), nn::Embedding::init(a.S, a.E, k2), std::move(blocks),
            nn::LayerNorm::init(a.E)};
  }
  // ids (batch, position) -> (batch, position, embed)
  NamedArray hidden(const NamedArray& ids, const Sequence& sp) const {
    auto x = auto_sharded(wte(ids) + wpe(arange(ids.resolve_axis("position"))));
    return ln_f(blocks.fold(sp.sharded(x), sp));
  }
};

enum class Loss : std::uint8_t { plain, chunk_position, chunk_position_pinned, chunk_vocab };

NamedArray plain_loss(const Gpt2& m, const NamedArray& ids, const Sequence& sp) {
  auto x = m.hidden(ids, sp);
  if (sp.at) x = auto_sharded(x);
  return nn::cross_entropy_loss(m.wte.unembed(x), m.wte.Vocab,
                                one_hot(roll(ids, -1, "position"), m.wte.Vocab));
}
// Splits an axis into 8 pieces: pieces of equal size in a loop, and a smaller last one after it.
struct Pieces {
  Axis all, count, piece;
  explicit Pieces(const Axis& a) : all(a), count("chunk", 1), piece(a.resize((a.size + 7) / 8)) {
    count.size = a.size / piece.size;
  }
  std::int64_t looped() const { return count.size * piece.size; }
  std::int64_t rest() const { return all.size - looped(); }
  NamedArray loop(const NamedArray& x) const {
    return unflatten_axis(slice(x, all, 0, looped()), all.name, {count, piece});
  }
  NamedArray last(const NamedArray& x) const { return slice(x, all, looped(), rest()); }
};
// The loss over pieces of the positions; the backward pass recomputes their logits.
NamedArray chunked_by_position(const Gpt2& m, const NamedArray& ids, bool pinned) {
  auto S = ids.resolve_axis("position"), V = m.wte.Vocab;
  const Pieces pieces(S);
  auto x = m.hidden(ids, {}), targets = roll(ids, -1, S);
  auto head = pinned ? auto_sharded(m.wte.weight) : m.wte.weight;
  auto body = [&](const NamedArray& sum, const NamedArray& x, const NamedArray& t) {
    return sum + haliax::sum(nn::cross_entropy_loss(dot(x, head, "embed"), V, one_hot(t, V),
                                                    {.reduction = nn::Reduction::none}));
  };
  auto total = fold(body, pieces.count, {.checkpoint = "carries"})(zeros({}), pieces.loop(x),
                                                                   pieces.loop(targets));
  if (pieces.rest()) total = body(total, pieces.last(x), pieces.last(targets));
  return total / double(ids.size());
}
// The loss over pieces of the vocabulary, with a running log-sum-exp.
NamedArray chunked_by_vocab(const Gpt2& m, const NamedArray& ids) {
  const Pieces pieces(m.wte.Vocab);
  auto x = m.hidden(ids, {}), targets = roll(ids, -1, "position");
  struct Running {
    NamedArray top, sum, target;
  };
  auto body = [&](const Running& r, const NamedArray& w, const NamedArray& i) {
    auto I = w.resolve_axis("vocab");
    auto logits = dot(x, w, "embed");
    auto top = maximum(r.top, max(logits, I));
    auto total = r.sum * exp(r.top - top) + sum(exp(logits - top), I);
    auto hit = (arange(I) + i * int(pieces.piece.size)) == broadcast_axis(targets, I);
    return Running{top, total, r.target + sum(where(hit, logits, 0.), I)};
  };
  auto zero = zeros({ids.resolve_axis("batch"), ids.resolve_axis("position")});
  auto r = fold(body, pieces.count, {.checkpoint = "carries"})(
      Running{auto_sharded(zero - 1e30), auto_sharded(zero), auto_sharded(zero)},
      pieces.loop(m.wte.weight), arange(pieces.count));
  if (pieces.rest()) r = body(r, pieces.last(m.wte.weight), full({}, int(pieces.count.size)));
  return mean(r.top + log(r.sum) - r.target);
}

struct Variant {
  const char* name;
  const Mesh& mesh;
  Mapping params, inside;
  double min;
  std::optional<double> min_regather = {};
  Loss loss = Loss::plain;
  bool bf16 = false, checkpoint = false;
  std::optional<Mapping> optimizer = {};
  Sequence sequence = {};
  int microbatches = 0;
};

auto training_step(const Variant& v) {
  return [=](const Gpt2& model, const auto& state, const NamedArray& ids) {
    auto loss = [=](const Gpt2& params, const NamedArray& ids) {
      axis_mapping scope(v.inside);
      auto m = v.bf16 ? tree_map([](const NamedArray& x) { return x.astype(DType::bf16); }, params)
                      : params;
      auto l = v.loss == Loss::plain ? plain_loss(m, ids, v.sequence)
               : v.loss == Loss::chunk_vocab
                   ? chunked_by_vocab(m, ids)
                   : chunked_by_position(m, ids, v.loss == Loss::chunk_position_pinned);
      return l.astype(DType::f32);
    };
    auto [l, grads] = value_and_grad(loss)(model, ids);
    // Accumulates both over pieces of the batch; each piece is part of a device's shard.
    if (v.microbatches) {
      Axis M("micro", v.microbatches), B = ids.resolve_axis("batch");
      using Sums = std::pair<NamedArray, Gpt2>;
      auto zero =
          Sums(zeros({}), tree_map([](const NamedArray& x) { return zeros_like(x); }, model));
      auto body = [=](const Sums& sums, const NamedArray& ids) {
        auto more = flatten(Sums(value_and_grad(loss)(model, ids)));
        auto all = flatten(sums);
        for (std::size_t k = 0; k < all.size(); ++k) all[k] = all[k] + more[k];
        return unflatten(sums, all);
      };
      auto sums = fold(body, M)(zero, unflatten_axis(ids, B, {B.resize(B.size / M.size), M}));
      auto mean = tree_map([=](const NamedArray& x) { return x / double(M.size); }, sums);
      l = mean.first;
      grads = mean.second;
    }
    auto [updates, next] = optim::adamw().update(grads, state, model);
    return std::tuple(l, optim::apply_updates(model, updates), next);
  };
}

template <class F, class Start>
std::vector<double> trained(const F& f, Start start, const Axes& a, int steps) {
  auto ids = random::randint(random::key(0), {a.B, a.S}, 0, int(a.V.size));
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    NamedArray l;
    std::tie(l, start.first, start.second) = f(start.first, start.second, ids);
    losses.push_back(l.item());
  }
  return losses;
}

Program gpt2(const Variant& v, const Axes& a) {
  auto init = [=] {
    auto m = Gpt2::init(a, random::key(0), v.checkpoint);
    return std::pair(m, optim::adamw().init(m));
  };
  const auto state = v.optimizer.value_or(v.params);
  JitOptions options{.donate = {0, 1}, .mesh = v.mesh, .axis_resources = v.params};
  options.in = Mappings({v.params, state, v.inside});
  options.out = Mappings({std::nullopt, v.params, state});
  auto step = training_step(v);
  Program p{.name = std::string("gpt2_") + v.name,
            .mesh = v.mesh,
            .min_bytes = v.min,
            .min_regather_bytes = v.min_regather,
            .regathers = v.checkpoint,
            .plan = {}};
  p.plan = [=](bool regather) {
    auto o = options;
    o.regather = regather || v.checkpoint;
    auto [m, st] = eval_shape(init);
    return named_jit(step, o).plan(m, st, shape({a.B, a.S}, DType::i32));
  };
  p.losses = [=](int steps) {
    auto f = named_jit(step, options);
    return trained(f, init(), a, steps);
  };
  p.unsharded = [=](int steps) {  // the simplest program that computes the same values
    static std::map<std::pair<int, bool>, std::vector<double>> known;
    auto& losses = known[{steps, v.bf16}];
    if (losses.empty()) {
      auto f = jit(
          training_step(
              {.name = "", .mesh = v.mesh, .params = {}, .inside = {}, .min = 0, .bf16 = v.bf16}),
          {.donate = {0, 1}});
      losses = trained(f, init(), a, steps);
    }
    return losses;
  };
  return p;
}

}  // namespace

void add_gpt2(std::vector<Program>& out, const Sizes& z) {
  const Axes a(z);
  const double e = double(z.embed), f = double(z.mlp), hd = double(z.heads * z.head_size),
               v = double(z.vocab), s = double(z.position), l = double(z.layers);
  const double T = double(z.batch) * s, act = T * e * 4;
  // The parameters by their axes: `count` elements have these axes.
  struct Leaf {
    bool embed, mlp, heads, vocab;
    double count;
  };
  const std::vector<Leaf> leaves{{true, false, false, true, v * e},
                                 {true, false, false, false, s * e + 2 * e + l * (4 * e + e + e)},
                                 {true, false, true, false, 4 * e * hd * l},
                                 {false, false, true, false, 3 * hd * l},
                                 {true, true, false, false, 2 * e * f * l},
                                 {false, true, false, false, f * l}};
  double all = 0;
  for (auto& x : leaves) all += x.count;
  // Over `data`: leaves with embed are gathered and their gradients scattered, or all gradients are
  // all-reduced. Leaves that are sharded over `model` are smaller.
  auto parameters = [&](bool fsdp, bool model, bool vocab, double g0, double g1, double width = 4,
                        int regather = 0) {
    double t = 0;
    for (auto& x : leaves) {
      bool sharded = model && (x.mlp || x.heads || (vocab && x.vocab));
      double n = x.count * width / (sharded ? g1 : 1);
      t += x.embed && fsdp ? (2 + regather) * all_gather(n, g0) : all_reduce(n, g0);
    }
    return t;
  };
  auto regathered_layers = [&](double width, double g, double m) {
    return all_gather((4 * e * hd + 2 * e * f) * l * width / m + 6 * e * l * width, g);
  };
  const double loss = all_reduce(4, 8), once = parameters(true, false, false, 8, 1) + loss,
               half = parameters(true, false, false, 8, 1, 2) + loss;
  // Samples alternate between the two microbatches. With fewer samples per microbatch than devices,
  // the sharding of a microbatch differs from that of the batch.
  const auto half_batch = in_blocks(z.batch / 2);
  const double split = s * 4 * lacking({{z.batch, in_blocks(z.batch), [&](auto device, auto i) {
                                           return half_batch(device, i / 2);
                                         }}});
  auto &M8d = mesh_of("8d"), &M8m = mesh_of("8m"), &M42 = mesh_of("42"), &M24 = mesh_of("24");
  const Mapping none, vm{{"vocab", "model"}}, seq{{"position", "model"}};
  auto add = [&](const Variant& variant) { out.push_back(gpt2(variant, a)); };

  add({.name = "dp",
       .mesh = M8d,
       .params = none,
       .inside = dp,
       .min = all_reduce(all * 4, 8) + loss});
  add({.name = "zero1",
       .mesh = M8d,
       .params = none,
       .inside = dp,
       .min = all_reduce(all * 4, 8) + loss,
       .optimizer = fs});
  add({.name = "fsdp",
       .mesh = M8d,
       .params = fs,
       .inside = dp,
       .min = once,
       .min_regather = once + regathered_layers(4, 8, 1)});
  add({.name = "fsdp_ckpt",
       .mesh = M8d,
       .params = fs,
       .inside = dp,
       .min = parameters(true, false, false, 8, 1, 4, 1) + loss -
              all_gather((v + s) * e * 4 + 2 * e * 4, 8),
       .checkpoint = true});
  add({.name = "fsdp_bf16",
       .mesh = M8d,
       .params = fs,
       .inside = dp,
       .min = half,
       .min_regather = half + regathered_layers(2, 8, 1),
       .bf16 = true});
  add({.name = "dp_accum2",
       .mesh = M8d,
       .params = none,
       .inside = dp,
       .min = all_reduce(all * 4, 8) + loss + split,
       .microbatches = 2});
  add({.name = "fsdp_accum2",
       .mesh = M8d,
       .params = fs,
       .inside = dp,
       .min = once + split,
       .min_regather = 2 * (once + regathered_layers(4, 8, 1)) + split,
       .microbatches = 2});
  add({.name = "fsdp_bf16_ckpt",
       .mesh = M8d,
       .params = fs,
       .inside = dp,
       .min =
           parameters(true, false, false, 8, 1, 2, 1) + loss - all_gather((v + s + 2) * e * 2, 8),
       .bf16 = true,
       .checkpoint = true});
  const double blocks = 4 * l * all_reduce(act, 8),
               vocab = 2 * all_reduce(act, 8) + all_reduce(3 * T * 4, 8);
  add({.name = "tp", .mesh = M8m, .params = tp, .inside = tp, .min = blocks});
  add({.name = "tp_vocab",
       .mesh = M8m,
       .params = tp + vm,
       .inside = tp + vm,
       .min = blocks + vocab});
  add({.name = "tp_ckpt",
       .mesh = M8m,
       .params = tp,
       .inside = tp,
       .min = blocks,
       .checkpoint = true});
  add({.name = "tp_seq",
       .mesh = M8m,
       .params = tp,
       .inside = tp,
       .min = blocks,
       .sequence = {seq, true}});
  struct Grid {
    const char *dp, *fsdp, *vocab;
    const Mesh& mesh;
    double g0, g1;
  };
  for (auto& g : {Grid{"dp_tp_42", "fsdp_tp_42", "fsdp_tp_vocab_42", M42, 4, 2},
                  Grid{"dp_tp_24", "fsdp_tp_24", "fsdp_tp_vocab_24", M24, 2, 4}}) {
    const double in_blocks = 4 * l * all_reduce(act / g.g0, g.g1), scalar = all_reduce(4, g.g0);
    const double fsdp = in_blocks + parameters(true, true, false, g.g0, g.g1) + scalar;
    add({.name = g.dp,
         .mesh = g.mesh,
         .params = tp,
         .inside = dp + tp,
         .min = in_blocks + parameters(false, true, false, g.g0, g.g1) + scalar});
    add({.name = g.fsdp,
         .mesh = g.mesh,
         .params = fs + tp,
         .inside = dp + tp,
         .min = fsdp,
         .min_regather = fsdp + regathered_layers(4, g.g0, g.g1)});
    add({.name = g.vocab,
         .mesh = g.mesh,
         .params = fs + tp + vm,
         .inside = dp + tp + vm,
         .min = (4 * l + 2) * all_reduce(act / g.g0, g.g1) + all_reduce(3 * T / g.g0 * 4, g.g1) +
                parameters(true, true, true, g.g0, g.g1) + scalar});
  }
  add({.name = "fsdp_chunk_pos",
       .mesh = M8d,
       .params = fs,
       .inside = dp,
       .min = once,
       .loss = Loss::chunk_position});
  add({.name = "fsdp_chunk_pos_pinned",
       .mesh = M8d,
       .params = fs,
       .inside = dp,
       .min = once,
       .loss = Loss::chunk_position_pinned});
  add({.name = "tp_seq_nofull",
       .mesh = M8m,
       .params = tp,
       .inside = tp,
       .min = blocks,
       .sequence = {seq, false}});
  add({.name = "fsdp_chunk_vocab",
       .mesh = M8d,
       .params = fs,
       .inside = dp,
       .min = once,
       .loss = Loss::chunk_vocab});
  add({.name = "tp_vocab_chunk_pos",
       .mesh = M8m,
       .params = tp + vm,
       .inside = tp + vm,
       .min = blocks + vocab,
       .loss = Loss::chunk_position});
  const std::vector<std::string> both{"data", "model"};
  add({.name = "hsdp_tuple_42",
       .mesh = M42,
       .params = {{"embed", both}},
       .inside = {{"batch", both}},
       .min = once});
}

}  // namespace comm
