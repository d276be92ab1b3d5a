// Round trips of safetensors files, and errors for truncated, damaged and unwritable files.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "haliax/error.h"
#include "haliax/io.h"
#include "support/folder.h"
#include "support/golden_dir.h"

using namespace haliax;
namespace fs = std::filesystem;

namespace {

template <class T>
Tensor tensor(std::string name, DType dtype, std::vector<std::int64_t> shape,
              std::vector<T> values) {
  Tensor t{std::move(name), dtype, std::move(shape),
           std::vector<std::byte>(values.size() * sizeof(T))};
  if (!values.empty()) std::memcpy(t.data.data(), values.data(), t.data.size());
  return t;
}

TensorFile small() {
  TensorFile file;
  file.tensors.push_back(tensor<std::uint8_t>("mask", DType::boolean, {3}, {1, 0, 1}));
  file.tensors.push_back(tensor<float>("h.0.weight", DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6}));
  file.tensors.push_back(tensor<std::int64_t>("step", DType::i64, {}, {-7}));
  file.tensors.push_back(tensor<std::uint16_t>("empty", DType::bf16, {4, 0}, {}));
  file.metadata = {{"format", "pt"}};
  return file;
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Returns a file with this header and this many bytes of data.
std::string file_with(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t n = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &n, 8);
  return out + header + std::string(data_bytes, '\1');
}

// Returns the error of reading these bytes, or "" for a valid file. Checks that a file that is read
// is consistent.
std::string complaint(const std::string& path, const std::string& bytes) {
  spill(path, bytes);
  try {
    for (const Tensor& t : read_safetensors(path).tensors) {
      std::int64_t wanted = bytes_of(t.dtype);
      for (std::int64_t size : t.shape) wanted *= size;
      CHECK(std::int64_t(t.data.size()) == wanted);
    }
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string write_complaint(const std::string& path, const TensorFile& file) {
  try {
    write_safetensors(path, file);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("safetensors: written files are read back unchanged") {
  Folder folder;
  const std::string path = folder / "a.safetensors";
  const TensorFile wrote = small();
  write_safetensors(path, wrote);
  CHECK(folder.files() == 1);  // no temporary file remains

  const TensorFile read = read_safetensors(path);
  REQUIRE(read.tensors.size() == wrote.tensors.size());
  for (const Tensor& t : wrote.tensors) {
    const Tensor& back = read.at(t.name);
    CHECK(back.dtype == t.dtype);
    CHECK(back.shape == t.shape);
    CHECK(back.data == t.data);
  }
  CHECK(read.metadata == wrote.metadata);
  CHECK(read.find("absent") == nullptr);
  CHECK_THROWS_WITH_AS(
      read.at("h.0.wight"),
      doctest::Contains(
          "[read_safetensors] there is no tensor h.0.wight; did you mean h.0.weight?; safetensors"),
      Error);

  // Writing again produces the same bytes, for any order of the tensors.
  const std::string second = folder / "b.safetensors";
  write_safetensors(second, read);
  CHECK(slurp(second) == slurp(path));
}

TEST_CASE("safetensors: every dtype has its name and size") {
  Folder folder;
  TensorFile file;
  for (int d = 0; d <= int(DType::boolean); ++d) {
    const DType dtype{std::uint8_t(d)};
    file.tensors.push_back({std::string(name_of(dtype)),
                            dtype,
                            {2},
                            std::vector<std::byte>(2 * std::size_t(bytes_of(dtype)))});
  }
  write_safetensors(folder / "a", file);
  const TensorFile read = read_safetensors(folder / "a");
  CHECK(read.tensors.size() == 13);
  for (const Tensor& t : read.tensors) CHECK(name_of(t.dtype) == t.name);
}

TEST_CASE("safetensors: a checkpoint in Hugging Face's layout survives a round trip") {
  Folder folder;
  const TensorFile gpt2 = read_safetensors(golden_dir() + "/gpt2-tied-initial.safetensors");
  REQUIRE(gpt2.tensors.size() > 20);
  write_safetensors(folder / "copy", gpt2);
  const TensorFile copy = read_safetensors(folder / "copy");
  REQUIRE(copy.tensors.size() == gpt2.tensors.size());
  for (std::size_t i = 0; i < gpt2.tensors.size(); ++i) {
    CHECK(copy.tensors[i].name == gpt2.tensors[i].name);
    CHECK(copy.tensors[i].shape == gpt2.tensors[i].shape);
    CHECK(copy.tensors[i].data == gpt2.tensors[i].data);
  }
}

TEST_CASE("safetensors: a file that is truncated at any byte raises") {
  Folder folder;
  write_safetensors(folder / "whole", small());
  const std::string complete = slurp(folder / "whole"), truncated = folder / "cut";
  CHECK(complaint(truncated, complete) == "");
  for (std::size_t n = 0; n < complete.size(); ++n) {
    CAPTURE(n);
    CHECK(complaint(truncated, complete.substr(0, n)) != "");
  }
  CHECK(mentions(complaint(truncated, complete + "x"), "after the last tensor"));
}

TEST_CASE("safetensors: a damaged file raises or reads consistently") {
  Folder folder;
  write_safetensors(folder / "whole", small());
  const std::string complete = slurp(folder / "whole"), broken = folder / "broken";
  int refused = 0;
  for (std::size_t i = 0; i < complete.size(); ++i) {  // each single bit
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = complete;
      bytes[i] = char(bytes[i] ^ (1 << bit));
      refused += complaint(broken, bytes) != "";
    }
  }
  CHECK(refused > int(complete.size()));
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {  // several bytes, from the characters of a header
    std::string bytes = complete;
    for (int n = 0; n < 1 + round % 6; ++n)
      bytes[random() % bytes.size()] = "0123456789{}[]\",:-e.\0\xff"[random() % 23];
    complaint(broken, bytes);
  }
}

TEST_CASE("safetensors: an invalid header raises with the name of the tensor") {
  Folder folder;
  const auto header_complaint = [&](const std::string& header, std::size_t data_bytes) {
    return complaint(folder / "x", file_with(header, data_bytes));
  };
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return R"({"wte": {"dtype": ")" + dtype + R"(", "shape": )" + shape + R"(, "data_offsets": )" +
           offsets + "}}";
  };
  const std::string wte = ": tensor wte ";
  CHECK(header_complaint(one("F32", "[2, 2]", "[0, 16]"), 16) == "");
  CHECK(header_complaint("{}", 0) == "");

  CHECK(mentions(header_complaint(one("F32", "[2, 2]", "[0, 16]"), 15),
                 wte + "ends at byte 16 of the data, but there are only 15"));
  CHECK(mentions(header_complaint(one("F32", "[2, 3]", "[0, 16]"), 16),
                 wte + "has 16 bytes of data, but its shape and dtype F32 require 24"));
  CHECK(mentions(header_complaint(one("F8_E4M3", "[4]", "[0, 4]"), 4),
                 wte + "has dtype F8_E4M3, which is not supported"));
  CHECK(mentions(header_complaint(one("F32", "[-1]", "[0, 4]"), 4), wte + "has a shape"));
  CHECK(mentions(header_complaint(one("F32", "[1.0]", "[0, 4]"), 4), wte + "has a shape"));
  CHECK(mentions(header_complaint(one("F32", "4", "[0, 4]"), 4), wte + "has a shape"));
  CHECK(mentions(header_complaint(one("F32", "[4294967296, 4294967296, 4]", "[0, 0]"), 0),
                 wte + "has a shape that is too large"));
  CHECK(mentions(header_complaint(one("F32", "[18446744073709551615]", "[0, 0]"), 0),
                 wte + "has a shape"));
  CHECK(mentions(header_complaint(one("F32", "[9223372036854775807]", "[0, 0]"), 0),
                 wte + "has a shape that is too large"));
  CHECK(mentions(header_complaint(one("F32", "[1]", "[4, 0]"), 4), wte + "has data_offsets"));
  CHECK(mentions(header_complaint(one("F32", "[1]", "[0, 4, 8]"), 4), wte + "has data_offsets"));
  CHECK(
      mentions(header_complaint(one("F32", "[1]", "[4, 8]"), 8), wte + "leaves a gap of 4 bytes"));
  CHECK(mentions(header_complaint(R"({"wte": 3})", 0), wte + "must have exactly the fields"));
  CHECK(mentions(header_complaint(R"({"wte": {"dtype": "F32"}})", 0),
                 wte + "must have exactly the fields"));
  CHECK(
      mentions(header_complaint(R"({"wte": {"dtype": 1, "shape": [], "data_offsets": [0, 4]}})", 4),
               wte + "must have exactly the fields"));
  CHECK(mentions(header_complaint(R"({"a\n\u0007b": 3})", 0), "tensor a??b must have"));

  const std::string part = R"({"dtype": "I8", "shape": [4], "data_offsets": )";
  CHECK(
      mentions(header_complaint(R"({"a": )" + part + R"([0, 4]}, "wte": )" + part + "[2, 6]}}", 6),
               wte + "overlaps tensor a"));
  CHECK(mentions(
      header_complaint(R"({"wte": )" + part + R"([0, 4]}, "wte": )" + part + "[4, 8]}}", 8),
      wte + "is in the header twice"));

  CHECK(mentions(header_complaint("[1, 2]", 0), "not a JSON object"));
  CHECK(mentions(header_complaint("", 0), "not a JSON object"));
  CHECK(mentions(header_complaint("{\"a\": \"\xff\"}", 0), "not a JSON object"));
  CHECK(mentions(header_complaint(std::string(1000000, '['), 0), "nested too deeply"));
  CHECK(mentions(header_complaint(R"({"__metadata__": {"n": 1}})", 0), "__metadata__"));
  CHECK(mentions(complaint(folder / "x", std::string(8, '\xff') + "{}"), "specifies a header"));
  std::string bools = file_with(one("BOOL", "[1]", "[0, 1]"), 1);
  bools.back() = 2;
  CHECK(mentions(complaint(folder / "x", bools), wte + "holds a bool that is not 0 or 1"));
}

TEST_CASE("safetensors: a file that cannot be opened is named") {
  Folder folder;
  CHECK_THROWS_WITH_AS(
      read_safetensors("/nowhere/at.all"),
      doctest::Contains(
          "] /nowhere/at.all cannot be opened: No such file or directory; safetensors_test.cpp:"),
      Error);
  const std::string path = folder.path.string();
  CHECK_THROWS_WITH_AS(
      read_safetensors(path),
      doctest::Contains(("] " + path + " is not a regular file; safetensors_test.cpp:").c_str()),
      Error);
  CHECK(mentions(write_complaint("/nowhere/at.all", small()), "cannot be opened: No such file"));
}

TEST_CASE("safetensors: a failed write retains the old file and leaves no other file") {
  Folder folder;
  const std::string path = folder / "model.safetensors";
  write_safetensors(path, small());
  const std::string before = slurp(path);

  TensorFile bad = small();
  bad.tensors[1].shape = {2, 4};
  CHECK(mentions(write_complaint(path, bad), "tensor h.0.weight has 24 bytes of data"));
  bad = small();
  bad.tensors[1].name = "step";
  CHECK(mentions(write_complaint(path, bad), "tensor step occurs twice"));
  bad = small();
  bad.tensors[1].name = "__metadata__";
  CHECK(mentions(write_complaint(path, bad), "reserves"));
  bad = small();
  bad.tensors[1].name = "\xff";
  CHECK(mentions(write_complaint(path, bad), "not UTF-8"));

  // The disk is full halfway through the data.
  TensorFile large = small();
  large.tensors.push_back(
      tensor<float>("large", DType::f32, {4096}, std::vector<float>(4096, 1.5f)));
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit tight{8192, old.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &tight);
  const std::string full = write_complaint(path, large);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  CHECK(mentions(full, "cannot be written: File too large"));

  CHECK(slurp(path) == before);
  CHECK(folder.files() == 1);
}
