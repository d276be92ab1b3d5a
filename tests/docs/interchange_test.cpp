// The code of docs/how-to/interchange.md that is not in tests/runtime/numpy_test.cpp, compiled and
// run.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "haliax/dlpack.h"
#include "haliax/eigen.h"
#include "haliax/fmt.h"
#include "haliax/haliax.h"
#include "haliax/state_dict.h"
#include "haliax/view.h"
#include "printed.h"

using namespace haliax;

namespace {

struct Folder {
  std::string path;
  Folder() {
    auto name = (std::filesystem::temp_directory_path() / "haliax-interchange-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

const Axis Batch("batch", 2), Embed("embed", 3);

}  // namespace

TEST_CASE("interchange: vectors and spans") {
  Printed printed;
  printed.start();

  const std::vector<float> values{0, 1, 2, 3, 4, 5};
  auto x = array(values, {Batch, Embed});           // a copy
  std::span<const float> view = as_span<float>(x);  // no copy: valid while x lives
  std::cout << x << "\n" << view[4];

  CHECK(printed.text() == R"(NamedArray(f32, (batch=2, embed=3), [[0, 1, 2], [3, 4, 5]])
4)");
}

TEST_CASE("interchange: .npz and safetensors") {
  Folder folder;
  auto x = arange({Batch, Embed}) * .5;
  const auto npz = folder.path + "/x.npz", safetensors = folder.path + "/x.safetensors";

  write_npz(npz, {{to_tensor(x, "x"), to_tensor(sum(x), "total")}, {}});
  auto total = from_tensor(read_npz(npz).at("total"), {});

  auto model = nn::Linear::init(Embed, Axis("out", 2), random::key(0));
  write_safetensors(safetensors, to_state_dict(model));
  auto loaded = from_state_dict(read_safetensors(safetensors), model);

  CHECK(total.item() == 7.5);
  CHECK(loaded.weight.floats() == model.weight.floats());
  CHECK(loaded.bias.value().floats() == model.bias.value().floats());
}

TEST_CASE("interchange: Eigen") {
  Printed printed;
  printed.start();

  auto x = arange({Batch, Embed}) * .5;
  auto matrix = as_matrix<float>(x, "embed", "batch");  // no copy; rows are embed
  Eigen::MatrixXf product = matrix * matrix.transpose();
  auto y = from_eigen(product, Embed, Embed.alias("embed2"));  // a copy
  std::cout << y;

  CHECK(
      printed.text() ==
      "NamedArray(f32, (embed=3, embed2=3), [[2.25, 3, 3.75], [3, 4.25, 5.5], [3.75, 5.5, 7.25]])");
}

TEST_CASE("interchange: fmt") {
  auto x = arange({Batch, Embed}) * .5;

  auto text = fmt::format("{} has {:>12}", x.axes(), sum(x).item());

  CHECK(text == "(batch=2, embed=3) has          7.5");
  CHECK(fmt::format("{}", Batch) == "batch=2");
}

TEST_CASE("interchange: DLPack shares memory in both directions") {
  auto x = (arange({Batch, Embed}) * .5).eval();

  DLManagedTensor* lent = to_dlpack(x);            // no copy: the memory of x
  auto taken = from_dlpack(lent, {Batch, Embed});  // no copy: the memory of the tensor

  CHECK(as_span<float>(taken).data() == as_span<float>(x).data());
}
