// Programs of one matmul, layer, block, loss or embedding, most with their gradients.
#include "blocks.h"

namespace comm {
namespace {

using namespace haliax;
constexpr double f32 = 4;

// Returns the value and the gradients with respect to the block's parameters and its input.
template <class Block> auto block_gradients(const Mapping& inside) {
  return [=](const Block& block, const NamedArray& x) {
    auto loss = [=](const std::pair<Block, NamedArray>& args) {
      axis_mapping scope(inside);
      auto y = auto_sharded(args.second);
      return mean_square(y + args.first(y));
    };
    auto [l, g] = value_and_grad(loss)(std::pair(block, x));
    return std::tuple(l, g.first, g.second);
  };
}
template <class... A>
auto gradients_of(NamedArray (*loss)(const A&...)) {  // with respect to all arguments
  return [=](const A&... args) {
    auto packed = [=](const std::tuple<A...>& a) { return std::apply(loss, a); };
    auto [l, g] = value_and_grad(packed)(std::tuple<A...>(args...));
    return std::tuple_cat(std::tuple(l), g);
  };
}
// With respect to the head and x; ids have no gradient.
auto gradients_of_two(NamedArray (*loss)(const NamedArray&, const NamedArray&, const NamedArray&)) {
  return [=](const NamedArray& head, const NamedArray& x, const NamedArray& ids) {
    auto packed = [=](const std::pair<NamedArray, NamedArray>& p, const NamedArray& i) {
      return loss(p.first, p.second, i);
    };
    auto [l, g] = value_and_grad(packed)(std::pair(head, x), ids);
    return std::tuple(l, g.first, g.second);
  };
}

NamedArray norm_loss(const nn::LayerNorm& ln, const NamedArray& x) {
  return mean_square(auto_sharded(ln(x)));
}
NamedArray softmax_loss(const NamedArray& x) { return mean_square(softmax(x, "vocab")); }
NamedArray xent_onehot(const NamedArray& head, const NamedArray& x, const NamedArray& ids) {
  auto V = head.resolve_axis("vocab");
  return nn::cross_entropy_loss(dot(x, head, "embed"), V, one_hot(ids, V));
}
NamedArray xent_take(const NamedArray& head, const NamedArray& x, const NamedArray& ids) {
  auto logits = dot(x, head, "embed");
  return mean(logsumexp(logits, "vocab") - take(logits, "vocab", ids));
}
NamedArray tied(const NamedArray& w, const NamedArray& x, const NamedArray& ids) {
  return xent_onehot(w, auto_sharded(take(w, "vocab", ids)) + x, ids);
}
NamedArray embedding(const NamedArray& w, const NamedArray& ids) {
  return mean_square(auto_sharded(take(w, "vocab", ids)));
}

}  // namespace

void add_layers(std::vector<Program>& out, const Sizes& z) {
  const Axes a(z);
  const double b = double(z.batch), s = double(z.position), e = double(z.embed), f = double(z.mlp),
               h = double(z.heads), d = double(z.head_size), v = double(z.vocab);
  const double T = b * s, act = T * e * f32;
  auto &M8d = mesh_of("8d"), &M8m = mesh_of("8m"), &M42 = mesh_of("42"), &M24 = mesh_of("24");
  const Mapping none;
  const auto x = shape({a.B, a.S, a.E}), w = shape({a.E, a.F}), ids = shape({a.B, a.S}, DType::i32);
  const auto key = random::key(0);

  // ---- single matmuls ----
  auto matmul = [](const NamedArray& w, const NamedArray& x) {
    axis_mapping scope(dp);
    return value_and_grad([&](const NamedArray& w) { return mean_square(dot(x, w, "embed")); })(w);
  };
  const double W = e * f * f32;
  out.push_back(program("matmul_dp_fwd_bwd", M8d, {{none, dp}, {none, none}, none},
                        all_reduce(W, 8) + all_reduce(4, 8), matmul, w, x));
  out.push_back(program("matmul_fsdp_fwd_bwd", M8d, {{fs, dp}, {none, fs}, fs},
                        all_gather(W, 8) + reduce_scatter(W, 8) + all_reduce(4, 8), matmul, w, x));
  out.push_back(program("matmul_zero1_fwd_bwd", M8d, {{none, dp}, {none, fs}, fs},
                        reduce_scatter(W, 8) + all_reduce(4, 8), matmul, w, x));
  const Mapping em{{"embed", "model"}};
  out.push_back(program(
      "matmul_contract_fwd", M8m, {{em, em}, {none}, em}, all_reduce(T * f * f32, 8),
      [](const NamedArray& w, const NamedArray& x) { return dot(x, w, "embed"); }, w, x));

  // ---- MLP ----
  const auto mlp = eval_shape([&] { return Mlp::init(a, key); });
  auto mlp_case = [&](const char* name, const Mesh& mesh, const Mapping& params,
                      const Mapping& inside, double min) {
    out.push_back(program(name, mesh, {{params, inside}, {none, params, inside}, params}, min,
                          block_gradients<Mlp>(inside), mlp, x));
  };
  // Elements of parameters with an embed axis. The only other one is the bias over mlp.
  const double with_embed = 2 * e * f + e;
  mlp_case("mlp_dp", M8d, none, dp, all_reduce(f32 * (with_embed + f), 8) + all_reduce(4, 8));
  mlp_case("mlp_fsdp", M8d, fs, dp,
           2 * all_gather(f32 * with_embed, 8) + all_reduce(f32 * f, 8) + all_reduce(4, 8));
  mlp_case("mlp_tp", M8m, tp, tp, 2 * all_reduce(act, 8));
  struct Grid {
    const char* name;
    const Mesh& mesh;
    double g0, g1;
  };
  for (auto& g : {Grid{"42", M42, 4, 2}, Grid{"24", M24, 2, 4}}) {
    const double both = 2 * all_reduce(act / g.g0, g.g1);
    mlp_case((std::string("mlp_fsdp_tp_") + g.name).c_str(), g.mesh, fs + tp, dp + tp,
             both + 2 * all_gather(f32 * 2 * e * f / g.g1, g.g0) + 2 * all_gather(f32 * e, g.g0) +
                 all_reduce(f32 * f / g.g1, g.g0) + all_reduce(4, g.g0));
    mlp_case(
        (std::string("mlp_dp_tp_") + g.name).c_str(), g.mesh, tp, dp + tp,
        both + all_reduce(f32 * (2 * e * f / g.g1 + e + f / g.g1), g.g0) + all_reduce(4, g.g0));
  }

  // ---- attention ----
  const auto attention = eval_shape([&] { return Attention::init(a, key); });
  auto attention_case = [&](const char* name, const Mesh& mesh, const Mapping& params,
                            const Mapping& inside, double min) {
    out.push_back(program(name, mesh, {{params, inside}, {none, params, inside}, params}, min,
                          block_gradients<Attention>(inside), attention, x));
  };
  const double hd = h * d, weights = 4 * e * hd;
  attention_case("attn_tp", M8m, tp, tp, 2 * all_reduce(act, 8));
  attention_case("attn_dp", M8d, none, dp,
                 all_reduce(f32 * (weights + e + 3 * hd), 8) + all_reduce(4, 8));
  attention_case(
      "attn_fsdp", M8d, fs, dp,
      2 * all_gather(f32 * (weights + e), 8) + all_reduce(f32 * 3 * hd, 8) + all_reduce(4, 8));
  attention_case("attn_fsdp_tp_42", M42, fs + tp, dp + tp,
                 2 * all_reduce(act / 4, 2) + 2 * all_gather(f32 * (weights / 2 + e), 4) +
                     all_reduce(f32 * 3 * hd / 2, 4) + all_reduce(4, 4));

  // ---- norms, softmax, cross entropy ----
  const auto norm = eval_shape([&] { return nn::LayerNorm::init(a.E); });
  const Mapping pos{{"position", "data"}}, vm{{"vocab", "model"}};
  out.push_back(program("layernorm_sharded_axis", M8m, {{em, em}, {none, em, em}, em},
                        2 * all_reduce(2 * T * f32, 8) + all_reduce(4, 8), gradients_of(norm_loss),
                        norm, x));
  out.push_back(program("layernorm_seq_parallel", M8d, {{none, pos}, {none, none, pos}, pos},
                        all_reduce(2 * e * f32, 8) + all_reduce(4, 8), gradients_of(norm_loss),
                        norm, x));
  const auto logits = shape({a.B, a.S, a.V});
  out.push_back(program("softmax_sharded_axis", M8m, {{vm}, {none, vm}, vm},
                        3 * all_reduce(T * f32, 8) + all_reduce(4, 8), gradients_of(softmax_loss),
                        logits));
  const double xent = all_reduce(T * f32, 8) + all_reduce(2 * T * f32, 8) + all_reduce(act, 8);
  const auto head = shape({a.E, a.V}), table = shape({a.V, a.E});
  const How vocab_sharded{{vm, none, none}, {none, vm, none}, vm};
  out.push_back(program("xent_vocab_sharded_onehot", M8m, vocab_sharded, xent,
                        gradients_of_two(xent_onehot), head, x, ids));
  out.push_back(program("xent_vocab_sharded_take", M8m, vocab_sharded, xent,
                        gradients_of_two(xent_take), head, x, ids));

  // ---- embeddings ----
  auto embed = [](const NamedArray& w, const NamedArray& ids) {
    return value_and_grad(embedding)(w, ids);
  };
  const double table_bytes = v * e * f32;
  out.push_back(program("embedding_vocab_sharded", M8m, {{vm, none}, {none, vm}, vm},
                        all_reduce(act, 8), embed, table, ids));
  const Mapping vd{{"vocab", "data"}};
  // Alternatively the table, the rows and their gradients are resharded along embed. A table of 64
  // KiB or less is not worth the additional collectives.
  const Along parts{z.embed, in_blocks(z.embed), everywhere()};
  const double moved = s * 4 * lacking({{z.batch, everywhere(), in_blocks(z.batch)}, parts}) +
                       4 * lacking({{z.vocab, everywhere(), in_blocks(z.vocab)}, parts});
  const double in_parts =
      table_bytes > 64 * 1024 ? all_gather(T * 4, 8) + 2 * moved : all_gather(2 * table_bytes, 8);
  out.push_back(program("embedding_vocab_sharded_batch_dp", M8d, {{vd, dp}, {none, vd}, dp},
                        std::min({all_gather(T * 4, 8) + 2 * reduce_scatter(act, 8),
                                  2 * all_gather(table_bytes, 8), in_parts}) +
                            all_reduce(4, 8),
                        embed, table, ids));
  out.push_back(program(
      "embedding_embed_sharded_batch_dp", M8d, {{fs, dp}, {none, fs}, dp},
      std::min(2 * all_gather(table_bytes, 8),
               all_gather(T * 4, 8) + 2 * s * 4 *
                                          lacking({{z.batch, everywhere(), in_blocks(z.batch)},
                                                   {z.embed, in_blocks(z.embed), everywhere()}})) +
          all_reduce(4, 8),
      embed, table, ids));
  out.push_back(program("embedding_embed_sharded_tp", M8m, {{em, none}, {none, em}, em},
                        all_reduce(4, 8), embed, table, ids));
  out.push_back(program("tied_embeddings_vocab_tp", M8m, vocab_sharded, xent + all_reduce(act, 8),
                        gradients_of_two(tied), table, x, ids));
  out.push_back(program("tied_embeddings_fsdp", M8d, {{fs, dp, dp}, {none, fs, dp}, dp},
                        2 * all_gather(table_bytes, 8) + all_reduce(4, 8), gradients_of_two(tied),
                        table, x, ids));

  out.push_back(program(
      "causal_attention_seq_parallel", M8d, {{none, pos}, {pos}, pos},
      2 * all_gather(T * hd * f32, 8),
      [](const Attention& a, const NamedArray& x) { return auto_sharded(a(x)); }, attention, x));
  const auto fewer = shape({a.B.resize(z.batch * 3 / 4), a.S, a.E});
  out.push_back(program(
      "uneven_batch_12_over_8", M8d, {{none, none}, {dp}, dp}, 0,
      [](const NamedArray& w, const NamedArray& x) { return auto_sharded(dot(x, w, "embed")); }, w,
      fewer));
}

}  // namespace comm
