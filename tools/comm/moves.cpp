#include <algorithm>

#include "programs.h"

namespace comm {

using namespace haliax;
namespace {

std::int64_t block(std::int64_t i, std::int64_t size, std::int64_t count) { return i / ((size + count - 1) / count); }
// Of n positions, how many a device wants and has not, on average over 8. Where sizes do not divide, blocks of one sharding do
// not lie in those of another, and no ratio says how many move.
template <class Has, class Wants>
double lacking(std::int64_t n, Has has, Wants wants) {
  double all = 0;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t device = 0; device < 8; ++device) all += wants(device, i) && !has(device, i);
  return all / 8;
}

}  // namespace

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
  reshard("reshard_tuple_to_single_42", M42, {{"batch", std::vector<std::string>{"data", "model"}}}, dp,
          double(z.position) * e * 4 *
              lacking(
                  z.batch, [&](auto device, auto i) { return block(i, z.batch, 8) == device; },
                  [&](auto device, auto i) { return block(i, z.batch, 4) == device / 2; }));

  const Mapping flat{{"bp", "data"}};
  auto flatten = [&](const char* name, const Mapping& from, double min) {
    out.push_back(program(
        name, M8d, {{from}, {flat}, flat}, min,
        [=](const NamedArray& x) {
          return shard(flatten_axes(x, {"batch", "position"}, "bp"), flat);
        },
        x));
  };
  const auto rows = z.batch * z.position;
  auto row_wanted = [&](auto device, auto i) { return block(i, rows, 8) == device; };
  flatten("flatten_batch_pos_sharded_batch", dp,
          e * 4 *
              lacking(
                  rows, [&](auto device, auto i) { return block(i / z.position, z.batch, 8) == device; }, row_wanted));
  flatten("flatten_batch_pos_sharded_pos", pos,
          e * 4 *
              lacking(
                  rows, [&](auto device, auto i) { return block(i % z.position, z.position, 8) == device; }, row_wanted));
  const auto hd = z.heads * z.head_size;
  out.push_back(program(
      "unflatten_heads_tp", M8m, {{Mapping{{"hd", "model"}}}, {tp}, tp},
      T * 4 *
          lacking(
              hd, [&](auto device, auto i) { return block(i, hd, 8) == device; },
              [&](auto device, auto i) { return block(i / z.head_size, z.heads, 8) == device; }),
      [H = a.H, D = a.D](const NamedArray& x) {
        return shard(unflatten_axis(x, "hd", {H, D}), tp);
      },
      shape({a.B, a.S, Axis("hd", hd)})));

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
  // The devices send what they found in their blocks, or share the rows among them: each row's logits (or the first 8 of each
  // block) go to one device, and what it found to all.
  const auto logits = shape({a.B, a.S, a.V});
  const double v = double(z.vocab), k = 8, candidates = std::min(v, k * 8);
  out.push_back(program(
      "argmax_sharded_axis", M8m, {{vm}, {none}, vm}, std::min(all_reduce(T * 8, 8), all_gather(T * v * 4 / 8 + T * 4, 8)),
      [](const NamedArray& x) { return argmax(x, "vocab"); }, logits));
  out.push_back(program(
      "topk_sharded_axis", M8m, {{vm}, {none}, vm},
      std::min({all_gather(T * 8 * k * 8, 8), all_gather(T * v * 4, 8), all_gather(T * candidates * 4 / 8 + T * k * 4, 8)}),
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
