#include "programs.h"

namespace comm {

using namespace haliax;

void add_moves(std::vector<Program>& out, const Sizes& z) {
  const Axes a(z);
  const double b = double(z.batch), e = double(z.embed), T = b * double(z.position), act = T * e * 4;
  auto &M8d = mesh_of("8d"), &M8m = mesh_of("8m"), &M42 = mesh_of("42");
  const Mapping none, pos{{"position", "data"}}, vm{{"vocab", "model"}};
  const auto x = shape({a.B, a.S, a.E});

  // ---- other shardings ----
  auto reshard = [&](const char* name, const Mesh& mesh, const Mapping& from, const Mapping& to, double min) {
    out.push_back(program(
        name, mesh, {{from}, {to}, none}, min, [=](const NamedArray& x) { return shard(x, to); }, x));
  };
  reshard("reshard_axis_swap", M8d, dp, pos, all_gather(act / 8, 8));
  reshard("reshard_to_replicated", M8d, dp, none, all_gather(act, 8));
  reshard("reshard_mesh_axis_move_42", M42, {{"batch", "data"}, {"embed", "model"}}, {{"batch", "model"}, {"embed", "data"}},
          act / 8 * 7 / 8);
  reshard("reshard_tuple_to_single_42", M42, {{"batch", std::vector<std::string>{"data", "model"}}}, dp, all_gather(act / 4, 2));

  const Mapping flat{{"bp", "data"}};
  auto flatten = [&](const char* name, const Mapping& from, double min) {
    out.push_back(program(
        name, M8d, {{from}, {flat}, flat}, min,
        [=](const NamedArray& x) {
          return shard(flatten_axes(x, {"batch", "position"}, "bp"), flat);
        },
        x));
  };
  flatten("flatten_batch_pos_sharded_batch", dp, 0);
  flatten("flatten_batch_pos_sharded_pos", pos, all_gather(act / 8, 8));
  out.push_back(program(
      "unflatten_heads_tp", M8m, {{Mapping{{"hd", "model"}}}, {tp}, tp}, 0,
      [H = a.H, D = a.D](const NamedArray& x) {
        return shard(unflatten_axis(x, "hd", {H, D}), tp);
      },
      shape({a.B, a.S, Axis("hd", z.heads * z.head_size)})));

  // ---- along an axis that is cut ----
  auto along = [&](const char* name, double min, auto f) { out.push_back(program(name, M8d, {{pos}, {pos}, pos}, min, f, x)); };
  const double row = b * e * 4;
  along("roll_sharded_axis", row, [](const NamedArray& x) { return roll(x, -1, "position"); });
  along("shift_labels_concat", row, [](const NamedArray& x) {
    return concatenate("position",
                       {index(x, {{"position", Slice{.start = 1}}}), index(x, {{"position", Slice{.start = 0, .stop = 1}}})});
  });
  along("pad_sharded_axis", row * 7, [](const NamedArray& x) { return pad(x, {{"position", {0, 8}}}); });
  along("cumsum_sharded_axis", all_gather(row * 8, 8), [](const NamedArray& x) { return cumsum(x, "position"); });
  const auto logits = shape({a.B, a.S, a.V});
  out.push_back(program(
      "argmax_sharded_axis", M8m, {{vm}, {none}, vm}, all_reduce(T * 8, 8),
      [](const NamedArray& x) { return argmax(x, "vocab"); }, logits));
  out.push_back(program(
      "topk_sharded_axis", M8m, {{vm}, {none}, vm}, all_gather(T * 8 * 8 * 8, 8),
      [](const NamedArray& x) { return top_k(x, "vocab", 8).first; }, logits));
  out.push_back(program(
      "sort_sharded_batch", M8d, {{dp}, {dp}, dp}, 0, [](const NamedArray& x) { return sort(x, "embed"); }, x));

  // ---- random draws: each shard makes its own counters ----
  const Mapping drawn{{"mlp", "data"}, {"n", "data"}};
  auto draw = [&](const char* name, auto f) {
    out.push_back(program(
        name, M8d, {{none}, {drawn}, drawn}, 0, [=](const Key& k) { return shard(f(k), drawn); }, random::key(0)));
  };
  draw("rng_normal", [a](const Key& k) { return random::normal(k, {a.F, a.V}); });
  draw("rng_truncated_normal", [a](const Key& k) { return random::truncated_normal(k, {a.F, a.V}, -3., 3.); });
  draw("rng_permutation", [](const Key& k) { return random::permutation(k, arange(Axis("n", 4096)), "n"); });
  draw("rng_generate_sharded",
       [a](const Key& k) { return vmap([a](const Key& one) { return random::normal(one, a.V); }, a.F)(random::split(k, a.F)); });
}

}  // namespace comm
