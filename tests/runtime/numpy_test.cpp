// Arrays from other libraries: NumPy files, DLPack and spans.
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "haliax/dlpack.h"
#include "haliax/haliax.h"
#include "haliax/view.h"
#include "support/folder.h"
#include "support/raises.h"

using namespace haliax;
namespace fs = std::filesystem;

namespace {

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
std::string spilled(const Folder& folder, const std::string& bytes) {
  auto path = folder / "file";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

// Returns a .npy file in NumPy's format.
std::string npy(const std::string& header, const std::string& data, int version = 1) {
  std::string out = "\x93NUMPY";
  out += char(version);
  out += char(0);
  out += char(header.size() & 255);
  out += char(header.size() >> 8);
  if (version > 1) out += std::string(2, '\0');
  return out + header + data;
}
std::string header(const std::string& descr, const std::string& shape, bool fortran = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") +
         ", 'shape': " + shape + ", }  \n";
}
template <class T> std::string raw(std::vector<T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <class T> std::vector<T> values_of(const Tensor& t) {
  std::vector<T> out(t.data.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), t.data.data(), t.data.size());
  return out;
}

// The output of np.savez_compressed(path, w=..., step=np.int64(-7)): a block with a dynamic Huffman
// code, and one with the fixed code. w: i8[400] of popcount(u32(i * 2654435761)) % 5.
const char* const kCompressed =
    "504b03042d000000080000002100b77b7d91ffffffffffffffff05001400772e6e7079010010001002000000000000"
    "04010000000000009d903b4ec4"
    "600c84fdaa3845ba80b4c5225171003a100d05158ad82090108b1244039c820bf38d730392c6ffd8f3b07f6feeae6f"
    "efdd3eed6b3cccebe3325e0ee3"
    "f7cbf9b81bc6a7e3f2b14c6f0fc7e5300bbf9a5ed7197c7d9ede67dea717fbfdee6c37fc0cfffe4eac32b2dcb3cacd"
    "3d22a9ca92daada2407800663a"
    "303d67d04a3c0f71a242dd5497df9386d101560bc85c9054f52a9a010d4b43084f479261af02849e61ca91f87a1283"
    "da300fe5c39f170a5dbadc7a12"
    "6345d422da40ced1334a67a6120d2821e76c50c9b40c2c96f4da82f3e3bf29ea20d1e993aaaa23a0cfb832ba9614bf"
    "da009e2b28c3385adb222281d6"
    "8bdcaea7d4dddcaeab5349bfaffb07504b03042d000000080000002100c8b83ce4ffffffffffffffff080014007374"
    "65702e6e707901001000880000"
    "000000000046000000000000009bec17ea1b10c9c850c650ad9e925a9c5ca46ea5a06e9369a1aea3a09e965f545294"
    "98179f5f94920a12774bcc294e"
    "058a17672416a402f91a9a3a0ab50a1401ae9fff210000504b01022d032d000000080000002100b77b7d9104010000"
    "10020000050000000000000000"
    "000000800100000000772e6e7079504b01022d032d000000080000002100c8b83ce446000000880000000800000000"
    "0000000000000080013b010000"
    "737465702e6e7079504b0506000000000200020069000000bb0100000000";
std::string compressed() {
  std::string out;
  for (auto* at = kCompressed; *at; at += 2)
    out += char(std::stoi(std::string(at, 2), nullptr, 16));
  return out;
}
using Shape = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("numpy: .npy files are read in each order and version") {
  Folder folder;
  auto read = [&](const std::string& bytes) { return read_npy(spilled(folder, bytes)); };
  auto t = read(npy(header("<f4", "(2, 3)"), raw<float>({1, 2, 3, 4, 5, 6})));
  CHECK((t.dtype == DType::f32 && t.shape == Shape{2, 3} &&
         values_of<float>(t) == std::vector<float>{1, 2, 3, 4, 5, 6}));
  t = read(npy(header("<i2", "(2, 3)", true), raw<std::int16_t>({1, 4, 2, 5, 3, 6}), 2));
  CHECK(values_of<std::int16_t>(t) == std::vector<std::int16_t>{1, 2, 3, 4, 5, 6});
  t = read(npy(header("<i4", "(2, 2, 2)", true), raw<std::int32_t>({0, 4, 2, 6, 1, 5, 3, 7}), 3));
  CHECK(values_of<std::int32_t>(t) == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7});
  t = read(npy(header(">u4", "(2,)"), std::string("\0\0\1\2\0\0\0\3", 8)));
  CHECK(values_of<std::uint32_t>(t) == std::vector<std::uint32_t>{258, 3});
  t = read(npy(header("|b1", "()"), std::string(1, char(7))));
  CHECK((t.shape.empty() && t.data == std::vector<std::byte>{std::byte{1}}));
  t = read(npy(header("<f8", "(4, 0)"), ""));
  CHECK((t.shape == Shape{4, 0} && t.data.empty()));
  t = read(
      npy("{'shape': (1L,), \"fortran_order\": False, 'descr': '=i8'}", raw<std::int64_t>({-5})));
  CHECK(values_of<std::int64_t>(t) == std::vector<std::int64_t>{-5});
}

TEST_CASE("numpy: files that are not .npy, or hold unsupported dtypes, raise") {
  Folder folder;
  auto refused = [&](const std::string& bytes, std::initializer_list<const char*> parts) {
    raises([&] { return read_npy(spilled(folder, bytes)); }, parts);
  };
  auto good = npy(header("<f4", "(2, 3)"), raw<float>({1, 2, 3, 4, 5, 6}));
  for (std::size_t n = 0; n < good.size(); ++n) refused(good.substr(0, n), {"[read_npy] "});
  refused(good + "x", {"has 1 bytes after its values"});
  refused("PK\3\4 and so on", {"is truncated or not a .npy file"});
  refused(npy(header("<f4", "(2, 3)"), "", 9), {"version 9"});
  refused(npy(header("|O", "(2,)"), ""), {"dtype |O", "astype"});
  refused(npy(header("<c8", "(2,)"), ""), {"dtype <c8"});
  refused(npy(header("<U5", "(2,)"), ""), {"dtype <U5"});
  refused(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", ""),
          {"structured dtype"});
  refused(npy(header("<f4", "(4611686018427387904, 8)"), ""), {"a shape that is too large"});
  refused(npy(header("<f4", "(99999999999999999999999,)"), ""), {"a shape that is too large"});
  refused(npy(header("<f4", "(1000000000000,)"), "abcd"),
          {"is truncated: its values require 4000000000000 bytes, but 4 follow"});
  for (auto* text :
       {"", "{", "{'descr': '<f4'}", "{'shape': (1,), 'fortran_order': 3, 'descr': '<f4'}",
        "{'shape': (-1,)", "{'shape': (1", "{'descr': '<f4", "[1, 2]",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x"})
    refused(npy(text, ""), {"a corrupt header"});
  refused(npy("{'descr': '<f4', 'colour': 'red'}", ""), {"unknown field colour"});
  raises([&] { return read_npy(folder / "none"); }, {"[read_npy]", "cannot be opened"});
  raises([&] { return read_npy(folder.path.string()); }, {"[read_npy]", "is not a regular file"});
}

TEST_CASE("numpy: written .npy and .npz files are read back unchanged") {
  Folder folder;
  const Axis Batch("batch", 2), Embed("embed", 3);
  auto x = arange({Batch, Embed}) * .5;
  write_npy(folder / "x.npy", to_tensor(x));
  auto bytes = slurp(folder / "x.npy");
  CHECK(bytes.substr(10, 58) == "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), ");
  CHECK((bytes.size() - 24) % 64 == 0);
  CHECK(from_tensor(read_npy(folder / "x.npy"), {Batch, Embed}).floats() == x.floats());
  raises(
      [&] {
        return from_tensor(read_npy(folder / "x.npy"), {Embed, Batch});
      },
      {"[from_tensor] the tensor has shape (2, 3)"});
  TensorFile file{{to_tensor(x, "x"), to_tensor(sum(x), "total"), to_tensor(x > 1., "large"),
                   to_tensor(zeros(Axis("none", 0)), "none")},
                  {}};
  write_npz(folder / "x.npz", file);
  auto back = read_npz(folder / "x.npz");
  CHECK(back.tensors.size() == 4);
  for (auto& t : file.tensors) {
    auto& b = back.at(t.name);
    CHECK((b.dtype == t.dtype && b.shape == t.shape && b.data == t.data));
  }
  auto narrow = to_tensor(x.astype(DType::bf16));
  raises(
      [&] {
        write_npy(folder / "x.npy", narrow);
        return 0;
      },
      {"[write_npy]", "bf16", "NumPy does not support"});
  raises(
      [&] {
        write_npz(folder / "x.npz", {{to_tensor(x, "a"), to_tensor(x, "a")}, {}});
        return 0;
      },
      {"a occurs twice"});
  raises(
      [&] {
        write_npz(folder / "x.npz", {{to_tensor(x)}, {}});
        return 0;
      },
      {"has no name"});
  CHECK(read_npz(folder / "x.npz").tensors.size() == 4);  // unchanged
}

TEST_CASE("numpy: files of np.savez_compressed are read") {
  Folder folder;
  auto file = read_npz(spilled(folder, compressed()));
  REQUIRE(file.tensors.size() == 2);
  CHECK(values_of<std::int64_t>(file.at("step")) == std::vector<std::int64_t>{-7});
  auto w = values_of<std::int8_t>(file.at("w"));
  REQUIRE(w.size() == 400);
  for (std::uint32_t i = 0; i < 400; ++i) CHECK(w[i] == std::popcount(i * 2654435761u) % 5);
}

TEST_CASE("numpy: damaged archives raise, for any damaged byte") {
  Folder folder;
  const Axis Embed("embed", 9);
  write_npz(folder / "x.npz",
            {{to_tensor(arange(Embed), "x"), to_tensor(arange(Embed) * .5, "y")}, {}});
  for (auto& good : {compressed(), slurp(folder / "x.npz")}) {
    for (std::size_t n = 0; n < good.size(); n += 3)
      CHECK(message_of([&] { return read_npz(spilled(folder, good.substr(0, n))); }) != "");
    int reported = 0;
    for (std::size_t k = 0; k < good.size(); ++k)
      for (int bit : {0, 3, 7}) {
        auto bad = good;
        bad[k] = char(bad[k] ^ (1 << bit));
        auto text = error_of([&] { return read_npz(spilled(folder, bad)); });
        reported += !text.empty();
        // Names, dates and similar fields have no effect.
        CHECK_MESSAGE((text.empty() || text.starts_with("[read_np")), text);
      }
    CHECK(reported > int(good.size()));
  }
}

TEST_CASE("dlpack: lends the memory of an array, and uses the memory of another library") {
  const Axis Batch("batch", 2), Embed("embed", 3);
  const float* memory = nullptr;
  DLManagedTensor* lent = nullptr;
  {
    auto x = arange({Batch, Embed}) * .5;
    lent = to_dlpack(x);
    memory = as_span<float>(x).data();
  }
  auto& t = lent->dl_tensor;
  CHECK((t.data == memory && t.ndim == 2 && t.shape[0] == 2 && t.shape[1] == 3 &&
         t.strides[0] == 3 && t.strides[1] == 1));
  CHECK((t.dtype.code == kDLFloat && t.dtype.bits == 32 && t.dtype.lanes == 1 &&
         t.device.device_type == kDLCPU));
  // A round trip copies nothing, and the memory lives as long as `back`.
  auto back = from_dlpack(lent, {Batch, Embed});
  CHECK(as_span<float>(back).data() == memory);
  CHECK(back.floats() == std::vector<float>{0, .5, 1, 1.5, 2, 2.5});
  auto donated = jit([](const NamedArray& a) { return a + 1.; }, {.donate = {0}});
  CHECK(donated(back).floats()[5] == 3.5);
  for (auto d : {DType::bf16, DType::f16, DType::u8, DType::i64, DType::boolean}) {
    auto y = from_dlpack(to_dlpack((arange(Embed) > 0).astype(d)), Embed);
    CHECK((y.dtype() == d && y.doubles() == std::vector<double>{0, 1, 1}));
  }
}

namespace {
int freed = 0;
// A tensor of another library, column-major or with a stride of two.
struct Foreign {
  std::vector<float> values{0, 1, 2, 3, 4, 5, 6, 7};
  std::int64_t shape[2]{2, 3}, strides[2]{1, 2};
  DLManagedTensor tensor{};
  Foreign() {
    tensor.dl_tensor = {values.data(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, strides, 4};
    tensor.deleter = [](DLManagedTensor*) { ++freed; };
  }
};
}  // namespace

TEST_CASE("dlpack: strides, offsets, writes and deleters of imported tensors, and invalid ones") {
  const Axis Batch("batch", 2), Embed("embed", 3);
  Foreign other;
  auto raised = [&](auto change, const AxisSpec& axes, std::initializer_list<const char*> parts) {
    Foreign bad;
    change(bad.tensor.dl_tensor);
    raises([&] { return from_dlpack(&bad.tensor, axes); }, parts);
  };
  freed = 0;
  auto same = [](DLTensor&) {};
  raised(same, {Embed, Batch}, {"[from_dlpack] the tensor has shape (2, 3)", "numpy_test.cpp"});
  raised(same, {Batch, Batch.alias("other"), Embed}, {"[from_dlpack] the tensor has shape (2, 3)"});
  raised(same, {Batch, Axis("batch", 3)}, {"batch"});
  raised([](DLTensor& t) { t.device.device_type = DLDeviceType(2); }, {Batch, Embed},
         {"a device of kind 2"});
  raised(
      [](DLTensor& t) {
        t.dtype = {5, 64, 1};
      },
      {Batch, Embed}, {"elements of kind 5 with 64 bits"});
  raised([](DLTensor& t) { t.dtype.lanes = 4; }, {Batch, Embed}, {"4 lanes"});
  raised([](DLTensor& t) { t.data = nullptr; }, {Batch, Embed}, {"no data"});
  raises([&] { return from_dlpack(nullptr, {Batch}); }, {"null"});
  CHECK(freed == 0);  // the caller still owns the tensors
  CHECK(from_dlpack(&other.tensor, {Batch, Embed}).floats() ==
        std::vector<float>{1, 3, 5, 2, 4, 6});
  CHECK(freed == 1);  // copied, and released
  {
    other.tensor.dl_tensor.strides = nullptr;
    auto x = from_dlpack(&other.tensor, {Batch, Embed});
    CHECK(x.floats() == std::vector<float>{1, 2, 3, 4, 5, 6});
    other.values[1] = 10;
    CHECK((x * 1.).floats()[0] == 10);
    auto written = jit([](const NamedArray& a) { return a * 2.; }, {.donate = {0}})(x);
    // The memory of another library is never written.
    CHECK((written.floats()[1] == 4 && other.values[2] == 2));
    CHECK(freed == 2);  // a donated array has no reader
    auto y = from_dlpack(&other.tensor, {Batch, Embed});
    CHECK(freed == 2);
  }
  CHECK(freed == 3);
}

TEST_CASE("spans: values of each element type round-trip") {
  const Axis Embed("embed", 3);
  const std::vector<std::int8_t> bytes{-1, 0, 1};
  auto x = from_span<std::int8_t>(bytes, Embed);
  CHECK((x.dtype() == DType::i8 && as_span<std::int8_t>(x)[0] == -1));
  const std::array<bool, 3> flags{true, false, true};
  CHECK(as_span<bool>(from_span<bool>(flags, Embed))[2]);
  CHECK(as_span<float>(sum(x * 1.)).size() == 1);
  raises([&] { return as_span<float>(x); }, {"expected f32, got i8", "numpy_test.cpp"});
}

TEST_CASE("interchange: a .npy file and DLPack return the same values") {
  Folder folder;
  const auto path = folder / "x.npy";
  const Axis Batch("batch", 2), Embed("embed", 3);
  auto x = arange({Batch, Embed}) * .5;
  write_npy(path, to_tensor(x));
  auto back = from_tensor(read_npy(path), {Batch, Embed});
  CHECK(back.floats() == x.floats());
  // in a Python extension: PyCapsule_New(lent, "dltensor", destructor)
  DLManagedTensor* lent = to_dlpack(x);
  // from a capsule: the pointer that PyCapsule_GetPointer returns
  auto taken = from_dlpack(lent, {Batch, Embed});
  CHECK(taken.floats() == x.floats());
}
