// Compares a model of examples/models with values that transformers computed (tests/golden/models):
// names of weights, logits, loss, gradients, training, and meshes.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "haliax/haliax.h"
#include "haliax/state_dict.h"
#include "support/golden_dir.h"

namespace haliax::testing {

// An argument of the loss, as the file stores it: all batches, then the axes of one batch.
struct RecordedInput {
  std::string name;
  Axes axes;
};
// A mesh, and the mappings of the parameters and of the computation.
struct ModelLayout {
  std::string name;
  Mesh mesh;
  Mapping parameters, inside;
  bool strict = false;  // all communication is expected
};

// A folder of tests/golden/models, with the model that computes its values.
template <class Model> struct RecordedModel {
  std::string name;  // name of the folder
  Model like;        // its structure
  std::vector<RecordedInput> inputs;
  Axes logits;
  NamedArray (*call)(const Model&, const Leaves& batch);
  NamedArray (*loss)(const Model&, const Leaves& batch);
  // End of the names of weights whose gradient is 0 in exact arithmetic.
  std::string no_gradient = {};

  std::string path(const char* file) const { return golden_dir() + "/models/" + name + "/" + file; }
  TensorFile cases() const { return read_safetensors(path("cases.safetensors")); }
  Model load() const {
    return from_state_dict(read_safetensors(path("model.safetensors")), like,
                           {.allow_unused = false, .convert = ConvertDtypes::none});
  }
  // Returns the inputs of all batches, each with the axis `batches` first.
  Leaves batches(const TensorFile& file, std::int64_t count) const {
    Leaves out;
    for (auto& input : inputs) {
      Axes axes{Axis("batches", count)};
      axes.insert(axes.end(), input.axes.begin(), input.axes.end());
      out.push_back(from_tensor(file.at("inputs." + input.name), axes));
    }
    return out;
  }
};
// A decoder of tokens, with recorded batches of 4 sequences of 16 tokens.
template <class Model>
RecordedModel<Model> recorded_decoder(const char* name, const Model& like, const Axis& Vocab) {
  const Axis Batch("batch", 4), Pos("pos", 16);
  return {.name = name,
          .like = like,
          .inputs = {{"input_ids", {Batch, Pos}}},
          .logits = {Batch, Pos, Vocab},
          .call = [](const Model& m, const Leaves& batch) { return m(batch[0]); },
          .loss = [](const Model& m, const Leaves& batch) { return m.loss(batch[0]); }};
}
inline Leaves nth_batch(const Leaves& batches, std::int64_t i) {
  Leaves out;
  for (auto& all : batches) out.push_back(at(all, "batches", i).eval());
  return out;
}

inline double largest(const std::vector<double>& values) {
  double out = 0;
  for (double v : values) out = std::max(out, std::abs(v));
  return out;
}
// Returns the largest difference; NaN if there is one.
inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double out = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    double d = std::abs(a[i] - b[i]);
    out = d <= out ? out : d;  // NaN is not less, so it stays
  }
  return out;
}
// Returns all elements, in the order of the file.
inline std::vector<double> values_of(Tensor t) {
  t.shape = {std::int64_t(t.data.size()) / bytes_of(t.dtype)};
  return from_tensor(t, Axis("values", t.shape[0])).doubles();
}

// Logits, loss and gradients of a batch.
template <class Model> using Computed = std::tuple<NamedArray, NamedArray, Model>;
template <class Model> auto computation(const RecordedModel<Model>& r, const Mapping& inside = {}) {
  return [call = r.call, loss = r.loss, inside](const Model& m, const Leaves& batch) {
    axis_mapping scope(inside);
    auto [l, gradients] = value_and_grad(loss)(m, batch);
    return Computed<Model>(call(m, batch), l, gradients);
  };
}

// Checks gradients by name. Each difference is at most `tolerance` times the largest element of the
// gradient.
template <class Model>
void check_gradients(const RecordedModel<Model>& r, const Model& got, const TensorFile& expected,
                     double tolerance) {
  double all = 0;
  std::size_t count = 0;
  for (auto& t : expected.tensors)
    if (t.name.starts_with("gradients.")) all = std::max(all, largest(values_of(t)));
  for (auto& t : to_state_dict(got).tensors) {
    CAPTURE(t.name);
    ++count;
    auto& other = expected.at("gradients." + t.name);
    CHECK(t.shape == other.shape);
    auto a = values_of(t), b = values_of(other);
    if (!r.no_gradient.empty() && t.name.ends_with(r.no_gradient))
      CHECK(largest(a) <= 1e-6 * all);
    else
      CHECK(largest_difference(a, b) <= tolerance * largest(b));
  }
  CHECK(count ==
        std::size_t(std::count_if(expected.tensors.begin(), expected.tensors.end(),
                                  [](auto& t) { return t.name.starts_with("gradients."); })));
}

// The weights load, and the same names and bytes are written.
template <class Model> void check_names(const RecordedModel<Model>& r) {
  const auto file = read_safetensors(r.path("model.safetensors"));
  const auto written = to_state_dict(r.load());
  REQUIRE(written.tensors.size() == file.tensors.size());
  for (std::size_t i = 0; i < file.tensors.size(); ++i) {
    auto &a = written.tensors[i], &b = file.at(a.name);
    CAPTURE(a.name);
    CHECK(a.shape == b.shape);
    CHECK(a.dtype == b.dtype);
    CHECK(a.data == b.data);
  }
}

// Logits, loss and gradients on one device.
template <class Model> void check_values(const RecordedModel<Model>& r) {
  const auto file = r.cases();
  const auto batch = nth_batch(r.batches(file, 4), 0);
  auto [logits, loss, gradients] = jit(computation(r))(r.load(), batch);
  Names order;
  for (auto& axis : r.logits) order.push_back(axis.name);
  auto expected = from_tensor(file.at("logits"), r.logits).doubles();
  CHECK(largest_difference(rearrange(logits, order).doubles(), expected) <=
        1e-5 * largest(expected));
  const double expected_loss = values_of(file.at("loss"))[0];
  CHECK(std::abs(loss.item() - expected_loss) <= 1e-6 * expected_loss);
  check_gradients(r, gradients, file, 1e-5);
}

// Steps of AdamW on the recorded batches, in turn.
template <class Model> void check_training(const RecordedModel<Model>& r) {
  const auto file = r.cases();
  const auto facts = nlohmann::json::parse(std::ifstream(r.path("cases.json")));
  const auto& options = facts["adamw"];
  const auto optimizer = optim::adamw({.learning_rate = options["lr"].get<double>(),
                                       .b1 = options["betas"][0].get<double>(),
                                       .b2 = options["betas"][1].get<double>(),
                                       .eps = options["eps"].get<double>(),
                                       .weight_decay = options["weight_decay"].get<double>()});
  const std::int64_t batches = facts["batches"];
  const auto all = r.batches(file, batches);
  auto model = r.load();
  auto state = optimizer.init(model);
  auto step = jit(
      [&, loss = r.loss](const Model& m, const decltype(state)& s, const Leaves& batch) {
        auto [l, gradients] = value_and_grad(loss)(m, batch);
        auto [updates, next] = optimizer.update(gradients, s, m);
        return std::tuple(optim::apply_updates(m, updates), next, l);
      },
      {.donate = {0, 1}});
  const auto expected = values_of(file.at("losses"));
  REQUIRE(std::int64_t(expected.size()) == facts["steps"].get<std::int64_t>());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    NamedArray l;
    std::tie(model, state, l) = step(model, state, nth_batch(all, std::int64_t(i) % batches));
    CHECK(std::abs(l.item() - expected[i]) <= 1e-5 * expected[i]);
  }
}

// Logits, loss and gradients on meshes equal those of one device.
template <class Model>
void check_layouts(const RecordedModel<Model>& r, const std::vector<ModelLayout>& layouts) {
  const auto file = r.cases();
  const auto batch = nth_batch(r.batches(file, 4), 0);
  const auto model = r.load();
  auto [logits, loss, gradients] = jit(computation(r))(model, batch);
  TensorFile expected = to_state_dict(gradients);
  for (auto& t : expected.tensors) t.name = "gradients." + t.name;
  for (auto& layout : layouts) {
    CAPTURE(layout.name);
    auto f = named_jit(computation(r, layout.inside),
                       {.mesh = layout.mesh,
                        .axis_resources = layout.parameters,
                        .in = Mappings::of_each({layout.parameters, layout.inside}),
                        .out = Mappings::of_each({layout.inside, Mapping{}, layout.parameters}),
                        .strict = layout.strict});
    auto [others, other_loss, other_gradients] = f(model, batch);
    CHECK(f.report().sent_bytes > 0);
    CHECK(largest_difference(others.doubles(), logits.doubles()) <=
          1e-5 * largest(logits.doubles()));
    CHECK(std::abs(other_loss.item() - loss.item()) <= 1e-5 * loss.item());
    check_gradients(r, other_gradients, expected, 1e-5);
  }
}

// The meshes of every model: examples and weights (FSDP) along `data`, the mapped axes along
// `tensor`, positions along `context`. Keys of short sequences are gathered.
inline std::vector<ModelLayout> model_layouts(const std::vector<std::string>& tensor_axes,
                                              const std::string& position_axis,
                                              bool strict = true) {
  std::vector<Mapping::Entry> parameters{{"embed", "data"}}, inside{{"batch", "data"}};
  for (auto& axis : tensor_axes) {
    parameters.emplace_back(axis, "tensor");
    inside.emplace_back(axis, "tensor");
  }
  return {
      {"data=2", Mesh{{{"data", 2}}}, {{"embed", "data"}}, {{"batch", "data"}}, strict},
      {"data=2, tensor=2", Mesh{{{"data", 2}, {"tensor", 2}}}, Mapping::of(parameters),
       Mapping::of(inside), strict},
      {"context=2", Mesh{{{"context", 2}}}, {{"embed", "context"}}, {{position_axis, "context"}}}};
}

// Checks that logits with a cache equal those of the whole sequence. `first` positions are in the
// first call, padded by two positions that do not count; then there is one call per position.
// `call(model, ids, cache, count)` extends the cache.
template <class Model, class Cache, class Call>
void check_cache(const Model& model, const NamedArray& ids, const NamedArray& logits, Cache cache,
                 const Call& call) {
  const std::int64_t first = 5, all = ids.resolve_axis("pos").size;
  const double limit = 1e-5 * largest(logits.doubles());
  auto step = jit([call](const Model& m, const NamedArray& some, const Cache& c,
                         const NamedArray& count) { return call(m, some, c, count); },
                  {.donate = {2}});
  auto near = [&](const NamedArray& got, std::int64_t from) {
    const std::int64_t size = got.resolve_axis("pos").size;
    auto a = got.doubles(), b = slice(logits, "pos", from, size).doubles();
    CHECK(largest_difference(a, b) <= limit);
  };
  NamedArray got;
  std::tie(got, cache) =
      step(model, slice(ids, "pos", 0, first + 2), cache, full({}, first, DType::i32));
  near(slice(got, "pos", 0, first), 0);
  for (std::int64_t i = first; i < all; ++i) {
    CAPTURE(i);
    std::tie(got, cache) = step(model, slice(ids, "pos", i, 1), cache, full({}, 1, DType::i32));
    near(got, i);
  }
}

// Checks the cache of a decoder; `make_cache(model, Batch)` returns an empty one.
template <class Model, class MakeCache>
void check_decoder_cache(const RecordedModel<Model>& r, const MakeCache& make_cache) {
  const auto model = r.load();
  const auto ids = nth_batch(r.batches(r.cases(), 4), 0)[0];
  check_cache(model, ids, model(ids), make_cache(model, ids.resolve_axis("batch")),
              [](const Model& m, const NamedArray& some, const nn::KVCache& cache,
                 const NamedArray& count) { return m(some, cache, count); });
}

}  // namespace haliax::testing
