// Checkpoints that do not match the model. Each difference is an error, or an option allows it.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "haliax/state_dict.h"

using namespace haliax;

namespace {

const Axis Embed("embed", 2), Out("out", 3);
struct Block {
  nn::Linear proj;
};
struct Model {
  NamedArray table;
  nn::Stacked<Block> blocks;
};
Model model(std::int64_t layers, int seed) {
  Axis Layers("layers", layers);
  auto block = [](const Key& key) {
    return Block{nn::Linear::init(Embed, Out, key, {.use_bias = false})};
  };
  return {random::normal(random::key(seed), {Embed}),
          nn::Stacked<Block>::init(Layers, block, random::split(random::key(seed), Layers))};
}
using Strings = std::vector<std::string>;
std::string message_of(const TensorFile& file, const Model& like,
                       const StateOptions& options = {}) {
  try {
    from_state_dict(file, like, options);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
bool contains_all(const std::string& message, const Strings& words) {
  for (auto& w : words) {
    if (message.find(w) != message.npos) continue;
    MESSAGE(message << " does not say " << w);
    return false;
  }
  return true;
}
bool same(const NamedArray& a, const NamedArray& b) {
  return a.axes() == b.axes() && a.dtype() == b.dtype() && a.bytes() == b.bytes();
}
TensorFile without(TensorFile file, std::string_view name) {
  std::erase_if(file.tensors, [&](auto& t) { return t.name == name; });
  return file;
}

}  // namespace

TEST_CASE("state dicts: a matching checkpoint loads") {
  auto saved = model(3, 1), back = from_state_dict(to_state_dict(saved), model(3, 2));
  CHECK(same(back.table, saved.table));
  CHECK(same(back.blocks.stacked.proj.weight, saved.blocks.stacked.proj.weight));
}

TEST_CASE("state dicts: each kind of difference raises, and is returned on request") {
  auto saved = model(3, 1), like = model(3, 2);
  auto file = to_state_dict(saved);
  auto taken = [&](const TensorFile& f, StateMismatch& found) {
    return from_state_dict(f, like,
                           {.allow_missing = true, .allow_other_shape = true, .mismatch = &found});
  };
  {
    auto lacking = without(file, "table");
    CHECK(contains_all(message_of(lacking, like),
                       {"[from_state_dict] table is missing; {.allow_missing = true} accepts this;",
                        "dict_test.cpp:"}));
    StateMismatch found;
    auto m = taken(lacking, found);
    CHECK(found.missing == Strings{"table"});
    CHECK(same(m.table, like.table));
    CHECK(same(m.blocks.stacked.proj.weight, saved.blocks.stacked.proj.weight));
  }
  {
    auto more = file;
    more.tensors.push_back({"tabel", DType::f32, {1}, std::vector<std::byte>(4)});
    CHECK(same(from_state_dict(more, like).table, saved.table));
    CHECK(contains_all(
        message_of(more, like, {.allow_unused = false}),
        {"[from_state_dict] tabel is unexpected; {.allow_unused = true} accepts this"}));
    CHECK(contains_all(
        message_of(without(more, "table"), like),
        {"1 tensor does", "table is missing; did you mean tabel?", "tabel is unexpected"}));
    StateMismatch found;
    CHECK(same(taken(more, found).table, saved.table));
    CHECK(found.unused == Strings{"tabel"});
  }
  {
    auto other = file;
    for (auto& t : other.tensors)
      if (t.name == "table") t.shape = {1, 2};
    CHECK(contains_all(message_of(other, like),
                       {"[from_state_dict] table has shape (1, 2), but the model expects (2); "
                        "{.allow_other_shape = true} accepts this"}));
    StateMismatch found;
    CHECK(same(taken(other, found).table, like.table));
    CHECK(found.other_shape == Strings{"table"});
  }
  {
    auto narrow = saved;
    narrow.table = saved.table.astype(DType::bf16);
    auto other = to_state_dict(narrow);
    CHECK(contains_all(message_of(other, like, {.convert = ConvertDtypes::none}),
                       {"[from_state_dict] table is bf16, but the model expects f32; {.convert"}));
    auto counts = saved;
    counts.table = saved.table.astype(DType::i32);
    auto integers = to_state_dict(counts);
    CHECK(contains_all(message_of(integers, like), {"table is i32, but the model expects f32",
                                                    "{.convert = ConvertDtypes::all}"}));
    CHECK(same(from_state_dict(integers, like, {.convert = ConvertDtypes::all}).table,
               counts.table.astype(DType::f32)));
    StateMismatch found;
    CHECK(same(taken(other, found).table, narrow.table.astype(DType::f32)));
    CHECK(found.other_dtype == Strings{"table"});
  }
  StateMismatch found{.missing = {"of another call"}};
  taken(file, found);
  CHECK(found.empty());
}

TEST_CASE("state dicts: missing and surplus layers are named") {
  auto saved = model(3, 1);
  auto file = to_state_dict(saved);
  CHECK(contains_all(message_of(file, model(2, 2)),
                     {"the file has 3 layers blocks.{}, but the model has 2",
                      "blocks.2.proj.weight is unexpected", "{.allow_other_shape = true}"}));
  auto shorter = from_state_dict(file, model(2, 2), {.allow_other_shape = true});
  CHECK(same(at(shorter.blocks.stacked.proj.weight, "layers", 1),
             at(saved.blocks.stacked.proj.weight, "layers", 1)));
  auto longer = model(4, 2);
  CHECK(contains_all(
      message_of(file, longer),
      {"the file has 3 layers blocks.{}, but the model has 4", "blocks.3.proj.weight is missing"}));
  StateMismatch found;
  auto m = from_state_dict(file, longer, {.allow_missing = true, .mismatch = &found});
  CHECK(found.missing == Strings{"blocks.3.proj.weight"});
  auto layer = [](const Model& of, int i) {
    return at(of.blocks.stacked.proj.weight, "layers", i);
  };
  for (int i : {0, 1, 2}) CHECK(same(layer(m, i), layer(saved, i)));
  CHECK(same(layer(m, 3), layer(longer, 3)));
}

TEST_CASE("state dicts: stacked layers alone, and a part of a model, load") {
  const Axis Layers("layers", 2), In("in", 3), Out("out", 4);
  auto layer = [&](const Key& k) { return nn::Linear::init(In, Out, k); };
  auto layers = nn::Stacked<nn::Linear>::init(Layers, layer, random::split(random::key(0), Layers));
  auto file = to_state_dict(layers);
  REQUIRE(file.tensors.size() == 4);
  CHECK(file.tensors[1].name == "0.weight");
  CHECK(same(from_state_dict(file, layers).stacked.weight, layers.stacked.weight));
  std::vector<nn::Linear> two{layer(random::key(1)), layer(random::key(2))};
  auto part = to_state_dict(filter(two, "1.bias"));  // without empty arrays
  REQUIRE(part.tensors.size() == 1);
  CHECK(part.tensors[0].name == "1.bias");
  CHECK(from_state_dict(part, filter(two, "1.bias"))[0].weight.empty());
}

TEST_CASE("state dicts: the first ten differences are listed") {
  auto file = to_state_dict(model(1, 1));
  for (int i = 10; i < 25; ++i)
    file.tensors.push_back(
        {"extra" + std::to_string(i), DType::f32, {}, std::vector<std::byte>(4)});
  auto text = message_of(file, model(1, 2), {.allow_unused = false});
  CHECK(contains_all(text, {"15 tensors do not match", "extra10 is unexpected",
                            "extra19 is unexpected", "and 5 more", "{.allow_unused = true}"}));
  CHECK(text.find("extra20") == text.npos);
}
