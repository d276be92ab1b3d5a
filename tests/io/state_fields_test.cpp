// The layout of modules in checkpoints: names of their own, arrays that are split or transposed,
// and trees that are computed from the fields.
#include <doctest/doctest.h>

#include <cstring>

#include "haliax/haliax.h"
#include "haliax/state_dict.h"
#include "io/checks.h"

using namespace haliax;

namespace {

const Axis Expert("expert", 3), Embed("embed", 4), Mlp("mlp", 5), Head("head", 2), Size("size", 6);

struct Experts {
  NamedArray up;    // (expert, embed, mlp)
  NamedArray beta;  // ()
  nn::Linear out;
  void state_fields(StateFields& fields) {
    fields.array("experts.{}.w1.weight", up,
                 {.split = {"expert"}, .dims = std::vector<Names>{{"mlp"}, {"embed"}}});
    fields.array("beta", beta, {.dims = std::vector<Names>{{}}});
    fields.field("out_proj", out);
  }
  static Experts init(const Key& key) {
    auto [a, b, c] = random::split<3>(key);
    return {random::normal(a, {Expert, Embed, Mlp}), random::normal(b, {}),
            nn::Linear::init(Mlp, Embed, c)};
  }
};
struct Fused {
  NamedArray q, k;  // (embed), (mlp)
  void state_fields(StateFields& fields) {
    const Axis both("out", Embed.size + Mlp.size);
    fields.converted("qk", concatenate(both, {rename(q, "embed", "out"), rename(k, "mlp", "out")}),
                     [this](const NamedArray& qk) {
                       auto parts = split(qk, "out", {Embed, Mlp});
                       q = parts[0];
                       k = parts[1];
                     });
  }
  static Fused init(const Key& key) {
    auto [a, b] = random::split<2>(key);
    return {random::normal(a, {Embed}), random::normal(b, {Mlp})};
  }
};
struct Block {
  Experts moe;
  Fused fused;
  nn::LayerNorm norm;
  static StateNames state_names() { return {{"moe", "block_sparse_moe"}, {"norm", "ln_1"}}; }
  static Block init(const Key& key) {
    auto [a, b] = random::split<2>(key);
    return {Experts::init(a), Fused::init(b), nn::LayerNorm::init({Head, Size})};
  }
};
struct Body {
  nn::Stacked<Block> blocks;
  nn::Embedding norm;  // not renamed by the names of Block
  static StateNames state_names() { return {{"blocks", "h"}}; }
  static Body init(const Axis& Layers, const Key& key) {
    auto [a, b] = random::split<2>(key);
    return {nn::Stacked<Block>::init(Layers, Block::init, random::split(a, Layers)),
            nn::Embedding::init(Axis("vocab", 7), Embed, b)};
  }
};
const Axis Layers("layers", 2);

using Dims = std::vector<std::int64_t>;
std::vector<float> floats_of(const Tensor& t) {
  std::vector<float> out(t.data.size() / sizeof(float));
  std::memcpy(out.data(), t.data.data(), t.data.size());
  return out;
}

}  // namespace

TEST_CASE("state fields: split and transposed arrays, scalars of shape (1), fused matrices") {
  const auto body = Body::init(Layers, random::key(0));
  const auto file = to_state_dict(body);
  const auto& block = body.blocks.stacked;
  for (int layer : {0, 1})
    for (int expert : {0, 1, 2}) {
      auto& t = file.at("h." + std::to_string(layer) + ".block_sparse_moe.experts." +
                        std::to_string(expert) + ".w1.weight");
      CHECK(t.shape == Dims{5, 4});
      auto wanted = at(at(block.moe.up, "layers", layer), "expert", expert);
      CHECK(floats_of(t) == rearrange(wanted, {"mlp", "embed"}).floats());
    }
  CHECK(file.at("h.1.block_sparse_moe.beta").shape == Dims{1});
  CHECK(file.at("h.1.block_sparse_moe.out_proj.weight").shape == Dims{4, 5});
  CHECK(file.at("h.0.fused.qk").shape == Dims{9});
  CHECK(file.at("h.0.ln_1.weight").shape == Dims{12});
  CHECK(file.find("norm.weight") != nullptr);
  CHECK(file.tensors.size() == 2 * (3 + 1 + 2 + 1 + 2) + 1);

  CHECK(same_trees(from_state_dict(file, Body::init(Layers, random::key(1))), body));
}

TEST_CASE("state fields: a list of names precedes the names of a module") {
  const auto file = to_state_dict(Body::init(Layers, random::key(0)), {{"blocks", "layers"}});
  CHECK(file.find("layers.0.ln_1.bias") != nullptr);
  CHECK(file.find("h.0.ln_1.bias") == nullptr);
}

TEST_CASE("state fields: a Stacked inside of a Stacked is one tensor per pair of layers") {
  struct Outer {
    nn::Stacked<nn::Linear> inner;
  };
  const Axis Inner("inner", 3);
  auto one = [](const Key& k) { return nn::Linear::init(Embed, Mlp, k); };
  auto group = [&](const Key& k) {
    return Outer{nn::Stacked<nn::Linear>::init(Inner, one, random::split(k, Inner))};
  };
  auto make = [&](int seed) {
    return nn::Stacked<Outer>::init(Layers, group, random::split(random::key(seed), Layers));
  };
  const auto model = make(0);
  const auto file = to_state_dict(model);
  CHECK(file.tensors.size() == 2 * 3 * 2);
  CHECK(floats_of(file.at("1.inner.2.weight")) ==
        at(at(model.stacked.inner.stacked.weight, "layers", 1), "inner", 2).floats());
  CHECK(same_trees(from_state_dict(file, make(1)), model));
}

TEST_CASE("state fields: shards are read from split and transposed tensors") {
  const auto body = Body::init(Layers, random::key(0));
  const auto file = to_state_dict(body);
  const Mesh mesh({{"data", 4}});
  for (const char* axis : {"expert", "embed", "mlp", "layers", "head", "vocab"}) {
    CAPTURE(axis);
    use_mesh on(mesh);
    axis_mapping scope({{axis, "data"}});
    auto loaded = from_state_dict(file, Body::init(Layers, random::key(1)));
    CHECK(placement(loaded.blocks.stacked.moe.up) != nullptr);
    CHECK(same_trees(loaded, body));
  }
}

TEST_CASE("state dicts: 16-bit floats are converted while they are read") {
  auto body = Body::init(Layers, random::key(0));
  for (auto dtype : {DType::bf16, DType::f16, DType::f64}) {
    auto other = tree_map([&](const NamedArray& a) { return a.astype(dtype); }, body);
    StateMismatch found;
    auto loaded = from_state_dict(to_state_dict(other), body, {.mismatch = &found});
    CHECK(found.other_dtype.size() == 19);
    CHECK(same_trees(loaded,
                     tree_map([](const NamedArray& a) { return a.astype(DType::f32); }, other)));
    auto back = from_state_dict(to_state_dict(body), other);
    CHECK(same_trees(back, tree_map([&](const NamedArray& a) { return a.astype(dtype); }, body)));
  }
}

TEST_CASE("state dicts: prefixes, filters and the layout of the arrays") {
  struct Model {
    nn::Linear up;
    nn::LayerNorm norm;
  };
  auto make = [](int seed) {
    return Model{nn::Linear::init({Head, Size}, {Embed, Mlp}, random::key(seed)),
                 nn::LayerNorm::init({Head, Size})};
  };
  const auto model = make(0);
  auto file = to_state_dict(model, {}, {.prefix = "m"});
  CHECK(file.at("m.up.weight").shape == Dims{20, 12});
  file.tensors.push_back({"other", DType::f32, {}, std::vector<std::byte>(4)});
  StateMismatch found;
  CHECK(same_trees(from_state_dict(file, make(1), {.mismatch = &found, .prefix = "m"}), model));
  CHECK(found.empty());

  auto raw = to_torch_compatible_state_dict(model, {}, {.flatten = false});
  CHECK(raw.at("up.weight").shape == Dims{4, 5, 2, 6});
  CHECK(raw.at("norm.bias").shape == Dims{2, 6});
  CHECK(same_trees(from_torch_compatible_state_dict(raw, make(1), {.unflatten = false}), model));
  CHECK(has(message([&] { from_state_dict(raw, make(1)); }),
            "up.weight has shape (4, 5, 2, 6), but the model expects (20, 12)"));

  auto biases = to_state_dict(
      model, {}, {.filter = [](const std::string& path, auto&) { return path.ends_with("bias"); }});
  CHECK(biases.tensors.size() == 2);

  CHECK(with_prefix("a", "b") == "a.b");
  CHECK(with_prefix("", "b") == "b");
  CHECK(with_prefix("a", "") == "a");

  auto flat = flatten_modules_for_export(model);
  CHECK(flat.up.weight.axes() == Axes{Axis("__OUT__", 20), Axis("__IN__", 12)});
  CHECK(flat.norm.weight->axes() == Axes{Axis("__OUT", 12)});
  CHECK(same_trees(from_state_dict(to_state_dict(model), flat), flat));
  CHECK(same_trees(unflatten_modules_from_export(flat, make(1)), model));
}

TEST_CASE("state fields: axes that do not match the array raise") {
  struct Wrong {
    NamedArray w;
    std::vector<Names> dims;
    void state_fields(StateFields& fields) { fields.array("w", w, {.dims = dims}); }
  };
  auto w = zeros({Embed, Mlp});
  CHECK(has(message([&] {
              to_state_dict(Wrong{w, {{"embed"}}});
            }),
            "[state_fields] w: `StoredAs` lacks axis mlp of (embed=4, mlp=5)"));
  CHECK(has(message([&] {
              to_state_dict(Wrong{w, {{"embed"}, {"mpl"}}});
            }),
            "axis mpl is not in (embed=4, mlp=5); did you mean mlp?"));
  CHECK(has(message([&] {
              to_state_dict(Wrong{w, {{"embed", "mlp"}, {"mlp"}}});
            }),
            "axis mlp occurs twice"));
}
