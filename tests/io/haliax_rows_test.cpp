// The C++ column of the rows on state dicts in docs/get-started/from-haliax.md.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "haliax/state_dict.h"
#include "support/folder.h"

using namespace haliax;

namespace {

const Axis In("in", 2), Out("out", 3);

// A model whose linear layer is stored under another name, transposed.
struct Renamed {
  nn::Linear up;
  static StateNames state_names() { return {{"up", "w1"}}; }
};
struct Transposed {
  NamedArray weight;  // (out, in)
  void state_fields(StateFields& fields) {
    fields.array("weight", weight, {.dims = std::vector<Names>{{"in"}, {"out"}}});
  }
};
nn::Linear linear() { return nn::Linear::init(In, Out, random::key(0)); }

}  // namespace

TEST_CASE("coming from Haliax: rows on state dicts") {
  auto model = linear();
  auto f = [](const std::string& path, const NamedArray&) { return path == "weight"; };
  auto plain = to_state_dict(model, {}, {.flatten = false});
  auto prefixed = to_state_dict(model, {}, {.prefix = "m", .flatten = false});
  CHECK(plain.find("weight"));
  CHECK(prefixed.find("m.weight"));
  auto file = to_torch_compatible_state_dict(model, {}, {.prefix = "m", .filter = f});
  CHECK(file.tensors.size() == 1);
  file = to_torch_compatible_state_dict(model, {}, {.prefix = "m"});
  auto loaded = from_torch_compatible_state_dict(file, model, {.prefix = "m"});
  CHECK(array_equal(loaded.weight, model.weight));
  file = to_state_dict(model);
  std::erase_if(file.tensors, [](auto& t) { return t.name == "bias"; });
  CHECK(array_equal(from_state_dict(file, model, {.allow_missing = true}).weight, model.weight));
  {
    Folder folder;
    const std::string path = folder / "model.safetensors";
    const TensorFile sd = to_state_dict(model);
    write_safetensors(path, sd);
    CHECK(read_safetensors(path).at("weight").data == sd.at("weight").data);
    save_state_dict(sd, path);
    CHECK(load_state_dict(path).at("bias").data == sd.at("bias").data);
  }
  const nn::Linear wide = nn::Linear::init({In, Out}, Out.alias("o"), random::key(0));
  CHECK(to_numpy_state_dict(wide, {}, {.prefix = "m"}).at("m.weight").shape ==
        std::vector<std::int64_t>{3, 2, 3});
  CHECK(to_numpy_state_dict(model, {}, {.prefix = "m"}).find("m.bias"));
  const std::string prefix = "m", leaf = "weight";
  CHECK(with_prefix(prefix, leaf) == "m.weight");
  auto tree = flatten_modules_for_export(model);
  CHECK(array_equal(unflatten_modules_from_export(tree, model).weight, model.weight));
  CHECK(to_state_dict(Renamed{linear()}).find("w1.weight"));
  CHECK(to_state_dict(Transposed{model.weight}).at("weight").shape ==
        std::vector<std::int64_t>{2, 3});
}
