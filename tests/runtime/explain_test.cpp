// Reports of programs on a mesh: collectives with their causes, memory by purpose, time, and the
// errors of strict mode.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "support/gpt2.h"
#include "support/raises.h"

using namespace haliax;
using testing::plan_training;

namespace {

const Mapping dp{{"batch", "data"}}, fs{{"embed", "data"}},
    tp{{"mlp", "model"}, {"heads", "model"}};
const Mesh data8{{{"data", 8}}}, model8{{{"model", 8}}};

const testing::Gpt2 small({.n_positions = 32, .n_embd = 64, .n_layer = 3, .n_head = 8}, 96, 16);
double bytes_of(const JitReport& r, const std::string& purpose) {
  for (auto& m : r.memory)
    if (m.purpose == purpose) return double(m.bytes);
  return 0;
}
// The reductions over devices in a program: the parameters whose gradients are reduced, and the
// number of other arrays.
struct Summed {
  std::multiset<std::string> gradients = {};
  int others = 0;
};
Summed summed(const JitReport& r) {
  const std::string gradient = "gradient of ";
  Summed out;
  for (auto& c : r.collectives) {
    if (c.kind != "all-reduce" && c.kind != "reduce-scatter") continue;
    std::size_t from = 0;
    for (int k = 0; k < c.arrays; ++k) {
      auto name = c.array.substr(from, c.array.find(", ", from) - from);
      from += name.size() + 2;
      if (name.starts_with(gradient))
        out.gradients.insert(name.substr(gradient.size()));
      else
        ++out.others;
    }
  }
  return out;
}
std::string joined(const std::multiset<std::string>& names) {
  std::string out;
  for (auto n = names.begin(); n != names.end(); n = names.upper_bound(*n)) out += *n + " ";
  return out;
}
void check_contains(const std::string& text, const std::string& what) {
  CAPTURE(text);
  CAPTURE(what);
  CHECK(text.find(what) != std::string::npos);
}

}  // namespace

TEST_CASE("explain: every collective has its array, its count and its cause") {
  auto r =
      plan_training(small, data8, fs, dp,
                    {.speed = {.flops = 1e12, .links = {{.bytes_per_s = 1e9, .latency_s = 1e-6}}}});
  REQUIRE(!r.collectives.empty());
  double bytes = 0, calls = 0, seconds = 0;
  bool seen = false;
  for (auto& c : r.collectives) {
    CAPTURE(c.array);
    bytes += c.bytes * c.turns;
    calls += c.turns;
    seconds += c.seconds;
    CHECK(c.over == "data");
    check_contains(c.where, "gpt2.h:");  // the model, or its training step
    auto steps = 7. * (c.kind == "all-reduce" ? 2 : 1);
    CHECK(c.seconds == doctest::Approx(c.turns * (c.bytes / 1e9 + steps * 1e-6)));
    if (c.kind != "all-gather") continue;
    CHECK(c.asked == "parameter");
    if (c.array.find("transformer.h.mlp.c_fc.weight") == std::string::npos) continue;
    seen = true;
    CHECK(c.axes.find("(embed=64, mlp=256)") != std::string::npos);
    CHECK(c.turns == 3);
    CHECK(c.loop == "layers");
    check_contains(c.where, "transformer.h.");
    check_contains(r.explain, c.where);
  }
  CHECK(seen);
  CHECK(bytes == r.sent_bytes);
  CHECK(calls == r.calls);
  CHECK(seconds == doctest::Approx(r.sending_s));
  CHECK(r.compute_s == r.flops / 1e12);
  // Six floating-point operations per matrix parameter and token, plus the scores of the attention,
  // on one of eight devices.
  CHECK(r.flops > 6. * 3 * 12 * 64 * 64 * 16 * 32 / 8);
  CHECK(r.flops < 1.5 * 6. * (3 * 12 * 64 * 64 + 96 * 64) * 16 * 32 / 8);
}

TEST_CASE("explain: reductions of gradients are named by their parameters") {
  std::multiset<std::string> all;
  for (auto path : tree_paths(eval_shape([] { return small.init(); }))) {
    if (auto level = path.find(".stacked"); level != path.npos) path.erase(level, 8);
    all.insert(path);
  }
  // Parameters sharded along embed: a reduce-scatter if the parameter has the axis, otherwise an
  // all-reduce together with the loss.
  auto r = plan_training(small, data8, fs, dp);
  auto sums = summed(r);
  CHECK(joined(sums.gradients) == joined(all));
  CHECK(sums.others == 2);  // the loss, and the number of labels that count
  check_contains(r.explain, "  gradients of transformer.h.");
  // Replicated parameters: one all-reduce for all of them, after that of the number of labels.
  r = plan_training(small, data8, {}, dp);
  sums = summed(r);
  CHECK(joined(sums.gradients) == joined(all));
  CHECK(sums.others == 2);
  REQUIRE(r.collectives.size() == 2);
  check_contains(r.explain, "  gradient of ");
  // Reductions of activations are not gradients.
  CHECK(summed(plan_training(small, model8, tp, tp)).gradients.empty());
  // If devices share the update of a replicated parameter, they communicate the updated parameter.
  const auto optimizer = optim::adamw();
  auto zero1 = [=](const NamedArray& x, const nn::Linear& m, const auto& state) {
    auto grads = grad([&](const nn::Linear& m) { return sum(square(m(x))); })(m);
    auto [updates, next] = optimizer.update(grads, state, m);
    return std::pair(optim::apply_updates(m, updates), next);
  };
  const Axis Embed("embed", 64);
  const auto m = nn::Linear::init(Embed, Axis("mlp", 64), random::key(0));
  const auto in = Mappings::of_each({dp, {}, fs}), out = Mappings::of_each({{}, fs});
  r = named_jit(zero1, {.mesh = data8, .axis_resources = dp, .in = in, .out = out})
          .plan(zeros({Axis("batch", 64), Embed}), m, optimizer.init(m));
  check_contains(r.explain, "  gradient of weight (mlp=64, embed=64)");
  check_contains(r.explain, "  new weight (mlp=64, embed=64)");
}

namespace {

const Axis Many{"batch", 16}, In{"in", 8}, Out{"out", 12};
struct Net {
  NamedArray up, down, bias, scale, top;  // scale: a scalar
};
Net net() {
  return {zeros({In, Out}), zeros({Out, In}), zeros(Out), zeros({}),
          zeros({Out, Axis("classes", 4)})};
}
NamedArray net_loss(const Net& w, const NamedArray& x) {
  auto h = dot(x, w.up, In) + w.bias;
  auto center = mean(h, "batch");  // not a gradient, although the bias broadcasts over the batch
  auto y = nn::relu(h * w.scale + (w.bias - center));
  y = dot(dot(y, w.down, Out), w.up, In);  // uses `up` a second time
  return mean(square(dot(tanh(y), w.top, Out)));
}

}  // namespace

TEST_CASE(
    "explain: gradients are recognized if they are returned, added to parameters, or accumulated") {
  const Mapping batch{{"batch", "data"}};
  const auto x = zeros({Many, In});
  auto loss = [&](const Net& w, const NamedArray& x) {
    axis_mapping inside(batch);
    return net_loss(w, x);
  };
  auto sgd = [](const NamedArray& w, const NamedArray& g) { return w - 0.1 * g; };
  for (auto& params : {Mapping{}, Mapping{{"in", "data"}}}) {
    auto check = [&](int others, auto step) {
      const JitOptions options{.mesh = Mesh{{{"data", 4}}},
                               .axis_resources = params,
                               .in = Mappings::of_each({params, batch})};
      const auto r = named_jit(step, options).plan(net(), x);
      CAPTURE(r.explain);
      const auto sums = summed(r);
      CHECK(joined(sums.gradients) == "bias down scale top up ");
      CHECK(sums.gradients.count("scale") == 1);
      CHECK(sums.others == others);
    };
    const int plain = 2;  // the loss and the mean
    check(plain, [&](const Net& w, const NamedArray& x) { return value_and_grad(loss)(w, x); });
    check(plain, [&](const Net& w, const NamedArray& x) {
      auto [l, g] = value_and_grad(loss)(w, x);
      return std::pair(l, tree_map(sgd, w, g));
    });
    // The results are not in a tree of parameters.
    check(plain, [&](const Net& w, const NamedArray& x) {
      auto [l, g] = value_and_grad(loss)(w, x);
      return std::pair(l, flatten(tree_map(sgd, w, g)));
    });
    // In another dtype, and with clipping by the norm of all gradients.
    check(plain + (params == Mapping{} ? 0 : 1), [&](const Net& w, const NamedArray& x) {
      auto narrow = [&](const Net& w, const NamedArray& x) {
        auto half = tree_map([](const NamedArray& a) { return a.astype(DType::bf16); }, w);
        return loss(half, x.astype(DType::bf16)).astype(DType::f32);
      };
      auto [l, g] = value_and_grad(narrow)(w, x);
      auto clipped = optim::ClipByGlobalNorm{1}.update(g, optim::Empty(), w).first;
      return std::pair(l, flatten(tree_map(sgd, w, clipped)));
    });
    // Accumulated over microbatches.
    check(plain, [&](const Net& w, const NamedArray& x) {
      const Axis Micro("micro", 2);
      using Sums = std::pair<NamedArray, Net>;
      auto body = [=](const Sums& sums, const NamedArray& x) {
        auto all = flatten(sums), more = flatten(Sums(value_and_grad(loss)(w, x)));
        for (std::size_t k = 0; k < all.size(); ++k) all[k] = all[k] + more[k];
        return unflatten(sums, all);
      };
      const Sums zero(zeros({}), tree_map([](const NamedArray& a) { return zeros_like(a); }, w));
      auto [l, g] = fold(body, Micro)(zero, unflatten_axis(x, Many, {Many.resize(8), Micro}));
      return std::pair(l, tree_map(sgd, w, g));
    });
  }
}

namespace {

struct Pair {
  NamedArray a, b;
};
struct Deep {
  Pair up, down;
};
const Axis Rows{"rows", 64}, Wide{"wide", 96}, Narrow{"narrow", 32};
const Mapping by_rows{{"rows", "data"}};
Pair pair_of() { return {zeros({Wide, Narrow}), zeros({Wide, Narrow})}; }
NamedArray layer(const NamedArray& w, const NamedArray& x) { return tanh(dot(x, w, Wide)); }
// Returns the report of a step with replicated arguments and a sharded array of rows (rows, wide).
template <class F, class... A> JitReport of_rows(F step, const A&... replicated) {
  std::vector<std::optional<Mapping>> in(sizeof...(A), Mapping{});
  in.push_back(by_rows);
  return named_jit(step, {.mesh = data8,
                          .axis_resources = by_rows,
                          .in = Mappings(in),
                          .out = Mappings(Mapping{})})
      .plan(replicated..., zeros({Rows, Wide}));
}
std::string arrays(const JitReport& r) {
  std::string out;
  for (auto& c : r.collectives) out += (out.empty() ? "" : ", ") + c.array;
  return out;
}

}  // namespace

TEST_CASE("explain: a reduction that serves several parameters names all of them") {
  auto step = [](auto weight) {
    return [=](const Pair& p, const NamedArray& x) {
      return grad([&](const Pair& q) { return mean(layer(weight(q), x)); })(p);
    };
  };
  auto of = [&](auto weight) { return arrays(of_rows(step(weight), pair_of())); };
  CHECK(of([](const Pair& p) { return p.a + p.b; }) == "gradient of a and b");
  CHECK(of([](const Pair& p) { return p.a - tanh(p.b) * 2.; }) == "gradient of a and b");
  CHECK(of([](const Pair& p) { return p.a * exp(p.b); }) == "gradient of a and b");
  // Two matmuls with the same rows and the same cotangent.
  auto two_matmuls = [](const Pair& p, const NamedArray& x) {
    return grad([&](const Pair& q) { return mean(tanh(dot(x, q.a, Wide) + dot(x, q.b, Wide))); })(
        p);
  };
  CHECK(arrays(of_rows(two_matmuls, pair_of())) == "gradient of a and b");
  // A parameter and an adapter whose outputs are added; neither of them is the operand of the
  // matmul.
  struct Adapted {
    NamedArray left, right;
  };
  const Axis Rank{"rank", 48};
  const Adapted adapter{zeros({Wide, Rank}), zeros({Rank, Narrow})};
  auto adapt = [&](const Adapted& p, const NamedArray& frozen, const NamedArray& x) {
    return grad(
        [&](const Adapted& q) { return mean(layer(frozen + dot(q.left, q.right, "rank"), x)); })(p);
  };
  CHECK(arrays(of_rows(adapt, adapter, zeros({Wide, Narrow}))) == "gradient of left and right");
  // Names the first of many.
  auto all = [](const Deep& p, const NamedArray& x) {
    return grad([&](const Deep& q) { return mean(layer(q.up.a + q.up.b + q.down.a, x)); })(p);
  };
  auto r = of_rows(all, Deep{pair_of(), pair_of()});
  CHECK(arrays(r) == "gradient of up.a and 2 more");
  check_contains(r.explain, "  gradient of up.a and 2 more (wide=96, narrow=32)  ");
}

TEST_CASE("explain: equal paths of several arguments are distinguished by the argument") {
  const auto p = pair_of();
  auto rivals = [](const Pair& p, const Pair& q, const NamedArray& x) {
    auto of_p = grad([&](const Pair& p) { return mean(layer(p.a, x) * layer(q.a, x)); })(p);
    auto of_q = grad([&](const Pair& q) { return mean(layer(p.b, x) * layer(q.b, x)); })(q);
    return std::pair(of_q, of_p);
  };
  CHECK(arrays(of_rows(rivals, p, p)) == "gradient of argument 1: b, gradient of argument 0: a");
  // An all-gather, and the module path of its cause.
  struct Layered {
    nn::Linear up;
  };
  const Layered m{nn::Linear::init(Wide, Narrow, random::key(0))};
  auto both = [](const Layered& m, const Layered& n, const NamedArray& x) {
    return m.up(x) + n.up(x);
  };
  auto by_wide = Mapping{{"wide", "data"}};
  auto r = named_jit(both, {.mesh = data8,
                            .axis_resources = by_rows,
                            .in = Mappings::of_each({by_wide, by_wide, by_rows})})
               .plan(m, m, zeros({Rows, Wide}));
  CHECK(arrays(r) == "argument 1: up.weight, argument 0: up.weight");
  check_contains(r.explain,
                 "  argument 1: up.weight (narrow=32, wide=96) and 1 more  dot; explain_test.cpp:");
  check_contains(r.explain, ", in argument 1: up ");
  // Paths that differ need no argument number.
  auto one = [](const Pair& p, const Deep& q, const NamedArray& x) {
    return grad([&](const Pair& p) { return mean(layer(p.a, x) * layer(q.up.a, x)); })(p);
  };
  CHECK(arrays(of_rows(one, p, Deep{p, p})) == "gradient of a");
}

TEST_CASE("explain: a gradient is recognized for all uses of it") {
  const Deep deep{pair_of(), pair_of()};
  auto loss = [](const Deep& p, const NamedArray& x) {
    return mean(layer(p.up.a, x) * layer(p.up.b, x) * layer(p.down.a, x) * layer(p.down.b, x));
  };
  auto of = [&](auto step) { return arrays(of_rows(step, deep)); };
  // Some of the gradients, alone or with other results.
  CHECK(of([&](const Deep& p, const NamedArray& x) { return grad(loss)(p, x).down; }) ==
        "gradient of down.a, gradient of down.b");
  CHECK(of([&](const Deep& p, const NamedArray& x) { return grad(loss)(p, x).down.b; }) ==
        "gradient of down.b");
  struct Result {
    Pair gradients;
    NamedArray number;
  };
  CHECK(of([&](const Deep& p, const NamedArray& x) {
          return Result{grad(loss)(p, x).up, zeros({})};
        }) == "gradient of up.a, gradient of up.b");
  // With respect to some of the parameters.
  CHECK(of([&](const Deep& p, const NamedArray& x) {
          return grad([&](const Pair& down) { return loss(Deep{p.up, down}, x); })(p.down);
        }) == "gradient of down.a, gradient of down.b");
  CHECK(of([&](const Deep& p, const NamedArray& x) {  // with respect to an updated parameter
          auto of_up = [&](const NamedArray& a) { return mean(layer(a, x) * layer(p.down.b, x)); };
          auto next = p.up.a - 0.1 * grad(of_up)(p.up.a);
          return next - 0.1 * grad(of_up)(next);
        }) == "gradient of up.a, gradient of up.a");
  auto linear = [](const Deep& p, const NamedArray& x) {
    return grad([&](const Deep& q) { return sum(dot(x, q.up.a, Wide)); })(p).up;
  };
  CHECK(of(linear) == "gradient of up.a");
  // The use of the gradient is no hint: the gradient is added to another parameter, or only its
  // norm is returned.
  CHECK(of([&](const Deep& p, const NamedArray& x) {
          return p.down.a - 0.1 * grad(loss)(p, x).up.a;
        }) == "gradient of up.a");
  CHECK(of([&](const Deep& p, const NamedArray& x) {
          return sum(square(grad(loss)(p, x).up.b));
        }) == "gradient of up.b");
  // In a loop over layers, and per example.
  const Axis Layers{"layers", 4};
  auto stacked = [&](const Pair& p, const NamedArray& x) {
    auto step = [](const NamedArray& h, const NamedArray& w) {
      return layer(w, h).rename({{"narrow", "wide"}});
    };
    return grad([&](const NamedArray& a) { return mean(fold(step, Layers)(x, a)); })(p.a);
  };
  const Pair square_ones{zeros({Layers, Wide, Narrow.resize(96)}), zeros({})};
  CHECK(arrays(of_rows(stacked, square_ones)) == "gradient of a");
  auto mapped = [](const Deep& p, const NamedArray& x) {
    auto one = [](const Pair& q, const NamedArray& x) {
      return sum(tanh(dot(x, q.a, Wide) + q.b));
    };
    auto each = vmap([&](const NamedArray& x) { return grad(one)(p.down, x); }, "rows")(x);
    return Pair{mean(each.a, "rows"), mean(each.b, "rows")};
  };
  CHECK(arrays(of_rows(mapped, Deep{pair_of(), {zeros({Wide, Narrow}), zeros({Narrow})}})) ==
        "gradient of down.a, gradient of down.b");
  // A sum that no grad call produced is not a gradient, even if it is added to a parameter.
  CHECK(of([&](const Deep& p, const NamedArray& x) {
          return p.up.a + dot(x, layer(p.up.b, x), "rows");
        }) == "dot");
}

TEST_CASE("explain: the cause of a collective is the op that constrains its result") {
  auto cause = [](auto step) {
    auto r = of_rows(step, pair_of());
    REQUIRE(r.collectives.size() == 1);
    return r.collectives[0].cause;
  };
  auto product = [](const NamedArray& x) { return dot(x, x.rename({{"wide", "narrow"}}), "rows"); };
  CHECK(cause([&](const Pair&, const NamedArray& x) { return tanh(product(x)); }) == "dot");
  CHECK(cause([&](const Pair&, const NamedArray& x) {
          return tanh(einsum("{rows wide} -> wide", {x}));
        }) == "einsum");
  CHECK(cause([&](const Pair&, const NamedArray& x) {
          return tanh(auto_sharded(sum(x, "rows")));
        }) == "shard");
  CHECK(cause([&](const Pair&, const NamedArray& x) {
          return tanh(shard(sum(x, "rows"), Mapping{}));
        }) == "shard");
}

TEST_CASE("explain: memory by purpose adds up to the planned peak") {
  for (auto& [mesh, params, inside] :
       {std::tuple{data8, fs, dp}, {data8, dp, dp}, {model8, tp, tp}}) {
    auto r = plan_training(small, mesh, params, inside);
    std::int64_t sum = 0;
    for (auto& m : r.memory) sum += m.bytes;
    CHECK(sum == r.argument_bytes + r.peak_bytes);
    CHECK(bytes_of(r, "optimizer") == 2 * bytes_of(r, "parameters"));
    CHECK(bytes_of(r, "parameters") + bytes_of(r, "optimizer") + bytes_of(r, "inputs") ==
          double(r.argument_bytes));
    CHECK(bytes_of(r, "activations") > 0);
  }
}

TEST_CASE("explain: without a mesh the report has the memory of one device and no collectives") {
  const auto optimizer = optim::adamw();
  auto step = [=](const testing::Model& model, const auto& state, const NamedArray& ids) {
    auto [l, grads] = value_and_grad(testing::next_token_loss)(model, ids);
    auto [updates, next] = optimizer.update(grads, state, model);
    return std::tuple(l, optim::apply_updates(model, updates), next);
  };
  auto [model, state] = eval_shape([&] {
    auto m = small.init();
    return std::pair(m, optimizer.init(m));
  });
  const auto ids = eval_shape([] { return small.ids(); });
  auto check = [&](const auto& f) {
    const auto r = f.plan(model, state, ids);
    CHECK(explain(f) == r.explain);
    check_contains(r.explain, "on one device, no collectives\n\nmemory at the peak\nparameters ");
    for (auto* purpose : {"\noptimizer ", "\ninputs ", "\ngradients ", "\nactivations "})
      check_contains(r.explain, purpose);
    check_contains(
        r.explain,
        "158272 parameters x 16 bytes (values, gradients, optimizer): 2.53 MB on one device\n");
    std::int64_t sum = 0;
    for (auto& m : r.memory) sum += m.bytes;
    CHECK(sum == r.argument_bytes + r.peak_bytes);
  };
  const JitOptions options{.donate = {0, 1}};
  check(jit(step, options));
  check(named_jit(step, options));
  auto called = jit([](const NamedArray& x) { return x + 1.; });
  called(zeros({Axis("batch", 8)}));
  CHECK(explain(called) ==
        "on one device, no collectives\n\nmemory at the peak\ninputs              32 B\nresults    "
        "         32 B\n"
        "total               64 B\n");
}

TEST_CASE("explain: sixteen bytes per parameter are sharded over all devices") {
  const testing::Gpt2 xl({.n_positions = 1024,
                          .n_embd = 1600,
                          .n_layer = 48,
                          .n_head = 25,
                          .gradient_checkpointing = true},
                         50257, 8);
  auto r = plan_training(xl, data8, fs, dp);
  const double count = 1557611200;
  // Biases without the sharded axis are replicated. The gradient of the table is too until it is
  // reduced.
  const double biases = 48 * (3 + 4) * 1600 * 4, table = 50257. * 1600 * 4;
  CHECK(bytes_of(r, "parameters") == (4 * count + 7 * biases) / 8);
  CHECK(bytes_of(r, "optimizer") == 2 * bytes_of(r, "parameters"));
  CHECK(bytes_of(r, "gradients") >= bytes_of(r, "parameters"));
  CHECK(bytes_of(r, "gradients") <= 1.1 * bytes_of(r, "parameters") + table);
  check_contains(
      r.explain,
      "1.558 billion parameters x 16 bytes (values, gradients, optimizer): 24.9 GB on one device, "
      "3.12 GB on each of 8");
}

TEST_CASE("strict: an implicit all-gather raises with its op, its axis and its line") {
  Axis Batch{"batch", 8}, Embed{"embed", 16}, Mlp{"mlp", 32};
  auto x = zeros({Batch, Embed}), w = zeros({Embed, Mlp});
  auto options = [&](std::vector<std::optional<Mapping>> in, Mapping inside, bool strict) {
    return JitOptions{.mesh = Mesh{{{"model", 2}}},
                      .axis_resources = inside,
                      .in = Mappings(in),
                      .out = Mappings(inside),
                      .strict = strict};
  };
  const Mapping rows{{"batch", "model"}}, columns{{"mlp", "model"}};
  int line = 0;
  auto both_sharded = [&](const NamedArray& x, const NamedArray& w) {
    line = __LINE__ + 1;
    return dot(x, w, "embed");
  };
  // The columns of the result and the rows of x are sharded over the same mesh axis.
  auto text = error_of([&] {
    named_jit(both_sharded, options({rows, columns}, columns, true)).plan(x, w);
  });
  check_contains(text,
                 "[strict] dot gathers input (batch=8, embed=16) over model, "
                 "256 bytes communicated per device, without a request for it");
  check_contains(text, "explain_test.cpp:" + std::to_string(line));
  auto report = named_jit(both_sharded, options({rows, columns}, columns, false)).plan(x, w);
  REQUIRE(report.collectives.size() == 1);
  CHECK(report.collectives[0].asked == "");
  check_contains(report.explain, "none (unrequested)");
  // An explicit `shard` or the mapping of a result requests the gather.
  auto by_hand = [&](const NamedArray& x, const NamedArray& w) {
    return dot(shard(x, {}), w, "embed");
  };
  CHECK(named_jit(by_hand, options({rows, columns}, columns, true))
            .plan(x, w)
            .collectives.at(0)
            .asked == "constraint");
  auto same = [](const NamedArray& x) { return x + 1.; };
  CHECK(named_jit(same, options({rows}, {}, true)).plan(x).collectives.at(0).asked == "result");
}

TEST_CASE(
    "strict: an implicit all-gather of keys raises even if their gradient is reduce-scattered") {
  Axis Pos{"pos", 64}, Keys{"key_pos", 8}, D{"d", 4}, Parts{"parts", 16};
  auto q = zeros({Pos, D}), w = zeros({Keys, D, Parts}), x = zeros({Keys, Parts});
  // Each device has some queries and computes some keys, but needs all keys.
  const Mapping queries{{"pos", "data"}}, keys{{"key_pos", "data"}};
  auto slopes = [&](const NamedArray& q, const NamedArray& w, const NamedArray& x) {
    return grad([&](const NamedArray& w) { return sum(square(dot(q, dot(w, x, "parts"), "d"))); })(
        w);
  };
  auto options = [&](bool strict) {
    return JitOptions{.mesh = Mesh{{{"data", 2}}},
                      .in = Mappings::of_each({queries, keys, keys}),
                      .out = Mappings(keys),
                      .strict = strict};
  };
  auto sent = named_jit(slopes, options(false)).plan(q, w, x).collectives;
  REQUIRE(sent.size() == 2);
  CHECK(sent[1].kind == "reduce-scatter");  // for the gradient of the keys
  CHECK(sent[0].kind == "all-gather");
  CHECK(sent[0].asked == "");
  check_contains(error_of([&] { named_jit(slopes, options(true)).plan(q, w, x); }),
                 "[strict] dot gathers dot (key_pos=8, d=4) over data, "
                 "64 bytes communicated per device, without a request for it");
}

TEST_CASE("strict: a new name of sharded axes that the mapping lacks is reported") {
  const Axis Batch{"batch", 8}, Pos{"pos", 4}, In{"embed", 16}, Out{"mlp", 32};
  auto flat = [&](const NamedArray& x, const NamedArray& w) {
    auto y = tanh(dot(flatten_axes(x, {"batch", "pos"}, "tokens"), w, "embed"));
    return sum(unflatten_axis(y, "tokens", {Batch, Pos}));
  };
  auto planned = [&](const Mapping& inside, bool strict) {
    const Mapping rows{{"batch", "data"}};
    return named_jit(flat, {.mesh = Mesh{{{"data", 2}}},
                            .axis_resources = inside,
                            .in = Mappings::of_each({rows, Mapping{}}),
                            .out = Mapping{},
                            .strict = strict})
        .plan(zeros({Batch, Pos, In}), zeros({In, Out}));
  };
  const Mapping lacks{{"batch", "data"}}, full{{"batch", "data"}, {"tokens", "data"}};
  check_contains(planned(lacks, false).explain, "none (axis tokens is unmapped)");
  check_contains(
      error_of([&] { planned(lacks, true); }),
      "[strict] dot gathers dot (tokens=32, mlp=32) over data, 2048 bytes communicated "
      "per device, without a request for it; axis tokens is not in the mapping in scope; "
      "add tokens to it");
  CHECK(planned(full, true).sent_bytes == 4);  // the all-reduce of the sum
}

TEST_CASE("strict: a mapping may not name an axis that no array has") {
  Axis Batch{"batch", 8};
  auto x = zeros({Batch});
  auto f = [](const NamedArray& x) { return x + 1.; };
  auto options = JitOptions{.mesh = Mesh{{{"data", 2}}},
                            .axis_resources = Mapping{{"batch", "data"}, {"bach", "data"}}};
  CHECK(named_jit(f, options).plan(x).sent_bytes == 0);
  options.strict = true;
  check_contains(error_of([&] { named_jit(f, options).plan(x); }),
                 "[strict] the mapping {batch: data, bach: data} names axis bach, "
                 "which is not in any array; did you mean batch");
  auto scoped = [](const NamedArray& x) {
    axis_mapping inside(Mapping{{"hiden", "data"}});
    return x + 1.;
  };
  options.axis_resources = Mapping{{"batch", "data"}};
  check_contains(error_of([&] { named_jit(scoped, options).plan(x); }), "axis hiden");
}

TEST_CASE("strict: GPT-2 trains with every plain strategy") {
  const Mesh grid{{{"data", 2}, {"model", 4}}};
  const JitOptions strict{.strict = true};
  const Mapping both{{"embed", "data"}, {"mlp", "model"}, {"heads", "model"}},
      inside{{"batch", "data"}, {"mlp", "model"}, {"heads", "model"}};
  CHECK_NOTHROW(plan_training(small, data8, dp, dp, strict));
  CHECK_NOTHROW(plan_training(small, data8, fs, dp, strict));
  CHECK_NOTHROW(plan_training(small, model8, tp, tp, strict));
  CHECK_NOTHROW(plan_training(small, grid, both, inside, strict));
}

TEST_CASE("strict: activations are not gathered even if they are smaller than a weight") {
  const Axis Batch{"batch", 8}, Embed{"embed", 64}, Mlp{"mlp", 256};
  struct Weights {
    NamedArray up, down;
  };
  auto step = [](const Weights& w, const NamedArray& x) {
    return grad([&](const Weights& v) {
      return sum(square(dot(nn::relu(dot(x, v.up, "embed")), v.down, "mlp")));
    })(w);
  };
  const Weights w{zeros({Embed, Mlp}), zeros({Mlp, Embed})};
  auto plan = [&](bool strict) {
    return named_jit(step, {.mesh = data8,
                            .axis_resources = dp,
                            .in = Mappings::of_each({fs, dp}),
                            .out = Mappings(fs),
                            .strict = strict})
        .plan(w, zeros({Batch, Embed}));
  };
  auto unasked = [](const JitReport& r) {
    return std::any_of(r.collectives.begin(), r.collectives.end(),
                       [](auto& c) { return c.kind == "all-gather" && c.asked.empty(); });
  };
  JitReport free = plan(false), bound;
  CHECK(unasked(free));
  REQUIRE_NOTHROW(bound = plan(true));
  CHECK(!unasked(bound));
  CHECK(bound.sent_bytes > free.sent_bytes);
}

TEST_CASE("explain: a gradient that is reduced in a wider dtype is named by its parameter") {
  const Axis Batch("batch", 8), In("in", 4), Out("out", 4);
  struct Model {
    NamedArray w;
  };
  auto loss = [&](const Model& m, const NamedArray& x) {
    return mean(square(dot(x, m.w, In)).astype(DType::f32));
  };
  for (std::optional<DType> reduce : {std::optional<DType>(), std::optional<DType>(DType::f32)}) {
    auto step = named_jit([&](const Model& m, const NamedArray& x) { return grad(loss)(m, x); },
                          {.mesh = Mesh{{{"data", 2}}},
                           .axis_resources = dp,
                           .in = Mappings(dp),
                           .out = Mappings(Mapping()),
                           .reduce_dtype = reduce});
    auto r = step.plan(Model{ones({In, Out}, DType::bf16)}, ones({Batch, In}, DType::bf16));
    CHECK(summed(r).gradients == std::multiset<std::string>{"w"});
  }
}

TEST_CASE("strict: a split axis is gathered only as far as the result is replicated") {
  const Axis P("p", 384), A("a", 6), B("b", 64);
  auto plan = [&](const Mapping& out, bool strict) {
    auto split = [&](const NamedArray& x) { return unflatten_axis(x, "p", {A, B}); };
    return named_jit(split, {.mesh = Mesh{{{"data", 2}, {"model", 2}}},
                             .in = Mappings(Mapping{{"p", {"data", "model"}}}),
                             .out = Mappings(out),
                             .strict = strict})
        .plan(zeros({P}));
  };
  for (bool strict : {false, true}) {
    CHECK(plan({{"a", "data"}}, strict).sent_bytes == 384);  // p over model
    // Blocks of p do not match blocks of b: each device receives the elements that it lacks.
    CHECK(plan({{"b", "model"}}, strict).sent_bytes == 512);
    CHECK(plan(Mapping(), strict).sent_bytes ==
          384 * 4 * 3 / 4);  // the full array, in one collective
    CHECK(plan(Mapping(), strict).calls == 1);
  }
}
