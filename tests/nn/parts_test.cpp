// Tests of parts of models: filters, training of some arrays, rates by path, fields that are maps
// or functions, and types that can be named. docs/how-to/fine-tuning.md quotes this file.
#include <doctest/doctest.h>

#include <functional>
#include <map>

#include "haliax/haliax.h"
#include "haliax/state_dict.h"
#include "support/raises.h"

using namespace haliax;

namespace {

using Strings = std::vector<std::string>;
std::string line(int of = __builtin_LINE()) { return "parts_test.cpp:" + std::to_string(of); }
// Returns the paths of the non-empty arrays.
template <class T> Strings there(const T& tree) {
  Strings out;
  for_each_leaf(tree, [&](const std::string& path, const NamedArray& a, bool) {
    if (!a.empty()) out.push_back(path);
  });
  return out;
}
template <class T> bool same_values(const T& a, const T& b) {
  auto x = flatten(a), y = flatten(b);
  for (std::size_t i = 0; i < x.size(); ++i)
    if (x[i].empty() != y[i].empty() || (!x[i].empty() && x[i].doubles() != y[i].doubles()))
      return false;
  return x.size() == y.size();
}

const Axis Batch("batch", 4), Embed("embed", 6), Rank("rank", 2), Out("out", 3);

// A weight that stays as it is, and what is learnt beside it.
struct LoraLinear {
  nn::Linear base;
  nn::Linear lora_a, lora_b;  // (in) -> (rank) -> (out)

  static LoraLinear init(const Axis& In, const Axis& To, const Key& key) {
    auto [k_base, k_a] = random::split<2>(key);
    auto down = nn::Linear::init(In, Rank, k_a, {.use_bias = false});
    auto up = nn::Linear::init(Rank, To, k_a, {.use_bias = false, .init_scale = 0});
    return {nn::Linear::init(In, To, k_base), down, up};
  }
  NamedArray operator()(const NamedArray& x) const { return base(x) + lora_b(lora_a(x)); }
};
struct Model {
  nn::LayerNorm norm;
  LoraLinear up, down;
  Frozen<NamedArray> shift;
  NamedArray ids;

  static Model init(const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    return {nn::LayerNorm::init(Embed),
            LoraLinear::init(Embed, Embed.alias("hidden"), k_up),
            LoraLinear::init(Embed.alias("hidden"), Out, k_down),
            {ones(Out)},
            arange(Out)};
  }
  NamedArray operator()(const NamedArray& x) const { return down(tanh(up(norm(x)))) + *shift; }
};
NamedArray loss(const Model& model, const NamedArray& x, const NamedArray& y) {
  return mean(square(model(x) - y));
}

const Strings adapters{"up.lora_a.weight", "up.lora_b.weight", "down.lora_a.weight",
                       "down.lora_b.weight"};

// A training run as a class, which has to name the types of its fields.
class Trainer {
 public:
  using Optimizer = optim::AdamW;
  using State = optim::State<Optimizer, Model>;
  using Step = Jitted<std::tuple<Model, State, NamedArray>(const Model&, const State&,
                                                           const NamedArray&, const NamedArray&)>;

  explicit Trainer(const Key& key)
      : model(Model::init(key)), state(optimizer.init(trainable(model, "lora"))),
        step(jit(
            [o = optimizer](const Model& m, const State& s, const NamedArray& x,
                            const NamedArray& y) {
              auto [l, grads] = value_and_grad(loss, "lora")(m, x, y);
              auto [updates, next] = o.update(grads, s, m);
              return std::tuple(optim::apply_updates(m, updates), next, l);
            },
            {.donate = {0, 1}})) {}

  Optimizer optimizer = optim::adamw({.learning_rate = 3e-2});
  Model model;
  State state;
  Step step;
};

}  // namespace

TEST_CASE("parts: a filter keeps only the arrays that it names") {
  auto m = Model::init(random::key(0));
  CHECK(there(filter(m, "lora")) == adapters);
  CHECK(there(filter(m, "up.base")) == Strings{"up.base.weight", "up.base.bias"});
  CHECK(there(filter(m, [](const std::string&, const NamedArray& a) {
          return a.ndim() == 0 || a.dtype() == DType::i32;
        })) == Strings{"ids"});
  CHECK(there(filter(m, [](std::string_view path, const NamedArray&) {
          return path.ends_with("bias");
        })).size() == 3);
  CHECK(there(filter(m, {})) == there(m));
  CHECK(there(filter(m, !LeafFilter("lora"))).size() == there(m).size() - adapters.size());
  // Without the frozen and the integer leaves.
  CHECK(there(trainable(m)).size() == there(m).size() - 2);
  CHECK(there(trainable(m, "lora")) == adapters);
  auto [mine, rest] = partition(m, "lora");
  CHECK(same_values(combine(mine, rest), m));
  CHECK(same_values(combine(rest, mine), m));
  raises([&] { return filter(m, "loar"); },
         {"[filter] there is no array with loar in its path", "paths are like norm.weight"});
  CHECK(has(message_of([&] { trainable(m, "nrom"); }), "did you mean norm?"));
  CHECK(has(message_of([&] { filter(m, "loar"); }), line()));
  CHECK(
      has(message_of([&] { combine(std::vector{ones(Out)}, std::vector<NamedArray>{}); }), line()));
  struct Stack {
    nn::Stacked<LoraLinear> blocks;
  };
  auto make = [](const Key& k) { return LoraLinear::init(Embed, Embed.alias("hidden"), k); };
  const Axis Layers("layers", 2);
  Stack s{nn::Stacked<LoraLinear>::init(Layers, make, random::split(random::key(0), Layers))};
  // A path as in error messages, or as tree_paths returns it.
  CHECK(there(filter(s, "blocks.lora_a")) == there(filter(s, "blocks.stacked.lora_a")));
}

TEST_CASE("parts: with LoRA, only adapters are trained and only adapters have optimizer state") {
  auto x = random::normal(random::key(1), {Batch, Embed}),
       y = random::normal(random::key(2), {Batch, Out});
  Trainer t(random::key(0));
  const auto before = tree_map([](const NamedArray& a) { return a + 0; }, t.model);
  eval(flatten(before));
  CHECK(there(std::get<0>(t.state).mu) == adapters);
  CHECK(there(grad(loss, "lora")(t.model, x, y)) == adapters);
  double first = 0, last = 0;
  for (int i = 0; i < 40; ++i) {
    NamedArray l;
    std::tie(t.model, t.state, l) = t.step(t.model, t.state, x, y);
    last = l.item();
    if (i == 0) first = last;
  }
  CHECK(last < 0.5 * first);
  CHECK(t.step.report().traces == 1);
  auto base = !LeafFilter("lora");
  CHECK(same_values(filter(t.model, base), filter(before, base)));
  CHECK_FALSE(same_values(filter(t.model, "up.lora_b"), filter(before, "up.lora_b")));
  CHECK(there(std::get<0>(t.state).nu) == adapters);

  // The same with a partition of the model, or with a masked optimizer: gradients that no value
  // depends on are not computed.
  auto [mine, rest] = partition(before, "lora");
  auto by_part = [rest = rest](const Model& part, const NamedArray& in, const NamedArray& out) {
    return loss(combine(part, rest), in, out);
  };
  CHECK(same_values(grad(by_part)(mine, x, y), grad(loss, "lora")(before, x, y)));
  raises([&] { return t.optimizer.update(grad(loss)(before, x, y), t.state, before).first; },
         {"[optim] array 0 (embed=6) has a gradient, but the state was created without it",
          "parts_test.cpp"});
  raises([&] { return value_and_grad(loss, "loar")(t.model, x, y); },
         {"[grad] there is no array with loar", "parts_test.cpp"});
}

TEST_CASE("parts: a masked optimizer and groups with their own rates update only their arrays") {
  auto m = Model::init(random::key(0));
  auto x = random::normal(random::key(1), {Batch, Embed}), y = zeros({Batch, Out});
  auto g = grad(loss)(m, x, y);

  auto masked = optim::masked(optim::scale(-0.5), "lora");  // other arrays pass unchanged
  auto u = masked.update(g, masked.init(m), m).first;
  CHECK(same_values(filter(u, "lora"),
                    tree_map([](const NamedArray& a) { return a * -0.5; }, filter(g, "lora"))));
  CHECK(same_values(filter(u, "base"), filter(g, "base")));
  auto adam = optim::masked(optim::scale_by_adam(), "lora");
  CHECK(there(adam.init(m).mu) == adapters);
  CHECK(there(adam.update(g, adam.init(m), m).second.nu) == adapters);
  auto wrong = optim::masked(optim::scale(1), "loar");
  CHECK(has(message_of([&] { (void)wrong.init(m); }), "there is no array with loar"));
  CHECK(has(message_of([&] { (void)wrong.init(m); }), line()));
  CHECK(has(message_of([&] { (void)optim::chain(wrong, optim::sgd()).init(m); }), line()));
  CHECK(has(message_of([&] { (void)optim::groups(optim::group("loar", optim::sgd())).init(m); }),
            line()));
  CHECK(has(message_of(
                [&] { (void)optim::adamw({.mask = "loar"}).update(g, optim::adamw().init(m), m); }),
            line()));

  auto groups =
      optim::groups(optim::group("lora", optim::adamw({.learning_rate = 0.1, .weight_decay = 0})),
                    optim::group("norm", optim::sgd({.learning_rate = 2})));
  auto state = groups.init(m);
  CHECK(there(std::get<0>(std::get<0>(state)).mu) == adapters);
  CHECK(there(std::get<0>(std::get<1>(state))) == Strings{"norm.weight", "norm.bias"});
  auto [updates, next] = groups.update(g, state, m);
  auto alone = optim::adamw({.learning_rate = 0.1, .weight_decay = 0});
  auto part = filter(m, "lora");
  CHECK(same_values(filter(updates, "lora"),
                    alone.update(filter(g, "lora"), alone.init(part), part).first));
  CHECK(same_values(filter(updates, "norm"),
                    tree_map([](const NamedArray& a) { return a * -2; }, filter(g, "norm"))));
  // Arrays in no group have no updates.
  CHECK(there(updates) == there(combine(filter(m, "lora"), filter(m, "norm"))));
  auto after = optim::apply_updates(m, updates);
  CHECK(same_values(filter(after, "base"), filter(m, "base")));

  // The first matching group wins; {} matches the remaining arrays.
  auto all =
      optim::groups(optim::group("lora_a", optim::scale(3)), optim::group({}, optim::scale(5)));
  auto scaled = all.update(g, all.init(m), m).first;
  CHECK(same_values(filter(scaled, "lora_a"),
                    tree_map([](const NamedArray& a) { return a * 3; }, filter(g, "lora_a"))));
  CHECK(same_values(filter(scaled, "lora_b"),
                    tree_map([](const NamedArray& a) { return a * 5; }, filter(g, "lora_b"))));
  auto decay = optim::add_decayed_weights(0.5, "base.weight").update(g, {}, m).first;
  CHECK(same_values(filter(decay, "bias"), filter(g, "bias")));
  CHECK_FALSE(same_values(filter(decay, "base.weight"), filter(g, "base.weight")));
}

TEST_CASE("parts: tree_map skips empty leaves, and names the tree that lacks an array") {
  auto m = Model::init(random::key(0));
  auto part = filter(m, "lora");
  int calls = 0;
  auto twice = tree_map(
      [&](const NamedArray& a) {
        ++calls;
        return a * 2.;
      },
      part);
  CHECK(calls == 4);
  CHECK(there(twice) == adapters);
  // Arrays that one tree lacks stay unchanged.
  auto sum = tree_map([](const NamedArray& a, const NamedArray& b) { return a + b; }, m, part);
  CHECK(same_values(filter(sum, "lora"), twice));
  CHECK(same_values(filter(sum, "base"), filter(m, "base")));
  auto three = tree_map([](auto& a, auto& b, auto& c, auto& d) { return a + b + c + d; }, part,
                        part, part, part);
  CHECK(same_values(three, tree_map([](const NamedArray& a) { return a * 4; }, part)));
  nn::Linear with = m.up.base, without = with;
  without.bias.reset();
  auto first = [](const NamedArray& a, const NamedArray&) { return a; };
  raises([&] { return tree_map(first, with, without); },
         {"[tree_map] the first tree has 2 arrays and another 1; only one of them has bias",
          "parts_test.cpp"});
  CHECK(has(message_of([&] { tree_map(first, with, without); }), line()));
  CHECK(has(message_of([&] { unflatten(with, Leaves(3)); }), line()));
}

namespace {

struct Experts {
  std::map<std::string, nn::Linear> by_name;
  std::function<NamedArray(const NamedArray&)> activation;
  StaticFunction<NamedArray(const NamedArray&)> scaled;
};
NamedArray relu_of(const NamedArray& x) { return nn::relu(x); }
Experts experts() {
  Experts e{{}, relu_of, [by = 2.](const NamedArray& x) { return x * by; }};
  for (std::string name : {"code", "art"})
    e.by_name[name] = nn::Linear::init(Embed, Out, random::key(std::int64_t(name.size())));
  return e;
}

}  // namespace

TEST_CASE("parts: maps and functions are fields of a jit argument") {
  auto e = experts();
  auto x = ones(Embed);
  const Strings paths{"by_name.art.weight", "by_name.art.bias", "by_name.code.weight",
                      "by_name.code.bias"};
  CHECK(tree_paths(e) == paths);
  auto apply = [](const Experts& m, const NamedArray& v) {
    return sum(m.scaled(m.activation(m.by_name.at("art")(v))));
  };
  CHECK(there(grad(apply)(e, x)) == paths);
  auto f = jit(apply);
  CHECK(f(e, x).item() == doctest::Approx(apply(e, x).item()));
  f(e, x);
  f(tree_map([](const NamedArray& a) { return a * 2.; }, e), x);
  // Copies of a StaticFunction are equal; pointers to one function are equal too.
  CHECK(f.report().traces == 1);
  auto other = e;
  other.scaled = [](const NamedArray& v) { return v * 5.; };
  CHECK(f(other, x).item() == doctest::Approx(2.5 * f(e, x).item()));
  CHECK(f.report().traces == 2);
  other.activation = nullptr;
  CHECK(f.report().traces == 2);
  auto keys = e;
  keys.by_name["law"] = e.by_name["art"];
  f(keys, x);
  CHECK(f.report().traces == 3);  // the names of a map are part of the structure
  auto renamed = e;
  renamed.by_name.erase("code");
  renamed.by_name["bode"] = e.by_name["code"];
  f(renamed, x);
  CHECK(f.report().traces == 4);

  // A std::function with captures works unless jit has to compare it; the error names the fix.
  auto captures = e;
  captures.activation = [by = 3.](const NamedArray& v) { return v * by; };
  CHECK(there(grad(apply)(captures, x)) == paths);
  auto message = message_of([&] { f(captures, x); });
  CHECK(has(message, "[jit] the std::function activation cannot be compared between calls"));
  CHECK(has(message, "StaticFunction"));
  CHECK(f(e, x).ndim() == 0);  // without jit it works
  CHECK(
      has(message_of([&] { StaticFunction<NamedArray(const NamedArray&)>()(x); }), "it is empty"));

  auto file = to_state_dict(e);
  CHECK(file.find("by_name.code.bias") != nullptr);
  auto loaded = from_state_dict(file, tree_map([](const NamedArray& a) { return a * 0.; }, e));
  CHECK(same_values(loaded, e));
}

TEST_CASE("parts: a Jitted is named by its signature, and copies share their traces") {
  using Sum = Jitted<NamedArray(const NamedArray&, const NamedArray&)>;
  Sum add;
  CHECK_FALSE(bool(add));
  raises([&] { return add(1., 2.); }, {"[jit] this Jitted is empty"});
  add = jit([](const NamedArray& a, const NamedArray& b) { return a + b; });
  CHECK(add(ones(Out), ones(Out)).floats() == std::vector<float>{2, 2, 2});
  CHECK(add(ones(Out), ones(Out)).floats() == std::vector<float>{2, 2, 2});
  CHECK(add.report().traces == 1);
  CHECK(add.compile(ones(Embed), ones(Embed)).traces == 2);
  CHECK(add.plan(ones(Embed), ones(Out.alias("embed").resize(6))).argument_bytes > 0);
  Sum copy = add;
  CHECK(copy.report().traces == add.report().traces);  // copies share one function
  set_devices(2);
  Sum sharded =
      named_jit([](const NamedArray& a, const NamedArray& b) { return a + b; },
                {.mesh = Mesh{{{"data", 2}}}, .axis_resources = Mapping{{"embed", "data"}}});
  CHECK(sharded(ones(Embed), ones(Embed)).floats() == std::vector<float>(6, 2));
  CHECK(has(explain(sharded), "data"));
  set_devices(8);
}
