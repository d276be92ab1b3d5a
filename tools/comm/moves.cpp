// Programs that reshard, rearrange, scan, sort or draw one array.
#include <algorithm>
#include <cmath>

#include "programs.h"

namespace comm {

using namespace haliax;
namespace {
constexpr double small = 64 * 1024;  // bytes whose transfer time is mostly latency
}
void add_moves(std::vector<Program>& out, const Sizes& z) {
  const Axes a(z);
  const double b = double(z.batch), e = double(z.embed), T = b * double(z.position),
               act = T * e * 4;
  auto &M8d = mesh_of("8d"), &M8m = mesh_of("8m"), &M42 = mesh_of("42");
  const Mapping none, pos{{"position", "data"}}, vm{{"vocab", "model"}};
  const auto x = shape({a.B, a.S, a.E});

  // ---- resharding ----
  auto reshard = [&](const char* name, const Mesh& mesh, const Mapping& from, const Mapping& to,
                     double min) {
    out.push_back(program(
        name, mesh, {{from}, {to}, none}, min, [=](const NamedArray& x) { return shard(x, to); },
        x));
  };
  auto data = [](auto device) { return device / 2; };  // the coordinates of the mesh 42
  auto model = [](auto device) { return device % 2; };
  const Holds b8 = in_blocks(z.batch), s8 = in_blocks(z.position), all = everywhere();
  const auto s = double(z.position);
  reshard("reshard_axis_swap", M8d, dp, pos,
          e * 4 * lacking({{z.batch, b8, all}, {z.position, all, s8}}));
  reshard("reshard_to_replicated", M8d, dp, none, all_gather(act, 8));
  reshard("reshard_mesh_axis_move_42", M42, {{"batch", "data"}, {"embed", "model"}},
          {{"batch", "model"}, {"embed", "data"}},
          s * 4 *
              lacking({{z.batch, in_blocks(z.batch, 4, data), in_blocks(z.batch, 2, model)},
                       {z.embed, in_blocks(z.embed, 2, model), in_blocks(z.embed, 4, data)}}));
  reshard("reshard_tuple_to_single_42", M42, {{"batch", std::vector<std::string>{"data", "model"}}},
          dp, s * e * 4 * lacking({{z.batch, b8, in_blocks(z.batch, 4, data)}}));

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
  auto sequence = [&](auto device, auto i) { return b8(device, i / z.position); };
  auto place = [&](auto device, auto i) { return s8(device, i % z.position); };
  flatten("flatten_batch_pos_sharded_batch", dp,
          e * 4 * lacking({{rows, sequence, in_blocks(rows)}}));
  flatten("flatten_batch_pos_sharded_pos", pos, e * 4 * lacking({{rows, place, in_blocks(rows)}}));
  const auto hd = z.heads * z.head_size;
  out.push_back(program(
      "unflatten_heads_tp", M8m, {{Mapping{{"hd", "model"}}}, {tp}, tp},
      T * 4 *
          lacking({{hd, in_blocks(hd),
                    [&, h8 = in_blocks(z.heads)](auto device, auto i) {
                      return h8(device, i / z.head_size);
                    }}}),
      [H = a.H, D = a.D](const NamedArray& x) {
        return shard(unflatten_axis(x, "hd", {H, D}), tp);
      },
      shape({a.B, a.S, Axis("hd", hd)})));

  // ---- along a sharded axis ----
  auto along = [&](const char* name, double min, auto f) {
    out.push_back(program(name, M8d, {{pos}, {pos}, pos}, min, f, x));
  };
  const double row = b * e * 4;
  const auto n = z.position, longer = n + 8;
  // the device that holds the shifted position
  auto next = [&](auto device, auto i) { return s8(device, (i + n - 1) % n); };
  const double shifted = row * lacking({{n, s8, next}});
  along("roll_sharded_axis", shifted, [](const NamedArray& x) { return roll(x, -1, "position"); });
  along("shift_labels_concat", shifted, [](const NamedArray& x) {
    return concatenate("position", {index(x, {{"position", Slice{.start = 1}}}),
                                    index(x, {{"position", Slice{.start = 0, .stop = 1}}})});
  });
  along("pad_sharded_axis", row * lacking({{n, s8, in_blocks(longer)}}), [](const NamedArray& x) {
    return pad(x, {{"position", {0, 8}}});
  });
  // Each device gathers the totals of all blocks. If the totals are not small, each device gathers
  // all totals of some columns and returns their sums. Blocks of one row are not longer than their
  // totals.
  const double totals = row * double(n <= 8 ? n : 8);
  along("cumsum_sharded_axis",
        totals <= small ? all_gather(totals, 8) : 2 * all_gather(totals / 8, 8),
        [](const NamedArray& x) { return cumsum(x, "position"); });
  // The devices gather the candidates of all blocks, or distribute the rows: the logits of a row
  // (or the first 8 of each block) go to one device, and its result to all. Small logits may be
  // gathered; otherwise all devices would repeat the same sort.
  const auto logits = shape({a.B, a.S, a.V});
  const double v = double(z.vocab), k = 8, candidates = std::min(v, k * 8);
  out.push_back(program(
      "argmax_sharded_axis", M8m, {{vm}, {none}, vm},
      std::min(all_reduce(T * 8, 8), all_gather(T * v * 4 / 8 + T * 4, 8)),
      [](const NamedArray& x) { return argmax(x, "vocab"); }, logits));
  out.push_back(program(
      "topk_sharded_axis", M8m, {{vm}, {none}, vm},
      std::min({all_gather(T * 8 * k * 8, 8),
                all_gather(T * v * 4 <= small ? T * v * 4 : INFINITY, 8),
                all_gather(T * candidates * 4 / 8 + T * k * 4, 8)}),
      [](const NamedArray& x) { return top_k(x, "vocab", 8).first; }, logits));
  out.push_back(program(
      "sort_sharded_batch", M8d, {{dp}, {dp}, dp}, 0,
      [](const NamedArray& x) { return sort(x, "embed"); }, x));

  // ---- random draws: each shard generates its own counters ----
  const Mapping drawn{{"mlp", "data"}, {"n", "data"}};
  auto draw = [&](const char* name, auto f) {
    out.push_back(program(
        name, M8d, {{none}, {drawn}, drawn}, 0, [=](const Key& k) { return shard(f(k), drawn); },
        random::key(0)));
  };
  draw("rng_normal", [a](const Key& k) { return random::normal(k, {a.F, a.V}); });
  draw("rng_truncated_normal", [a](const Key& k) {
    return random::truncated_normal(k, {a.F, a.V}, -3., 3.);
  });
  draw("rng_permutation",
       [](const Key& k) { return random::permutation(k, arange(Axis("n", 4096)), "n"); });
  draw("rng_generate_sharded", [a](const Key& k) {
    return vmap([a](const Key& one) { return random::normal(one, a.V); },
                a.F)(random::split(k, a.F));
  });
}

}  // namespace comm
