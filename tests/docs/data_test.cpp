// The code of docs/how-to/data.md, compiled and run.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include <unistd.h>

#include "haliax/data.h"
#include "haliax/haliax.h"

using namespace haliax;

namespace {

// A folder for the files of a test, removed at its end.
struct Files {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("haliax-docs-data-" + std::to_string(getpid()));
  Files() { std::filesystem::create_directories(path); }
  ~Files() { std::filesystem::remove_all(path); }
};

// Writes the tokens 0, 1, 2, ... as u16.
std::string write_tokens(const Files& files, const char* name, int count) {
  const std::string path = files.path / name;
  std::ofstream out(path, std::ios::binary);
  for (int i = 0; i < count; ++i) {
    const auto token = std::uint16_t(i);
    out.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
  return path;
}

}  // namespace

TEST_CASE("data: batches in the order of the file") {
  const Files files;
  const std::string train_bin = write_tokens(files, "train.bin", 40);
  const Axis Batch("batch", 2), Pos("position", 4);

  Tokens tokens({train_bin}, DType::u16);
  TokenLoader batches(tokens, Batch, Pos);
  auto first = batches.next();
  std::ostringstream out;
  out << first << "\n"
      << batches.examples() << " examples, position " << batches.position() << "\n";
  CHECK(out.str() ==
        "NamedArray(i32, (batch=2, position=4), [[0, 1, 2, 3], [4, 5, 6, 7]])\n"
        "10 examples, position 2\n");
}

TEST_CASE("data: shuffled epochs, overlapping windows, bytes") {
  const Files files;
  const std::string train_bin = write_tokens(files, "train.bin", 1000);
  const Tokens tokens({train_bin}, DType::u16);
  const Axis Batch("batch", 2), Pos("position", 4);

  TokenLoader shuffled(tokens, Batch, Pos, {.key = random::key(1), .vocab = 50257});
  auto epoch = [&] { return shuffled.epoch(); };
  CHECK(epoch() == 0);
  auto first = shuffled.next().integers();
  for (int k = 1; k < 125; ++k) shuffled.next();
  CHECK(epoch() == 1);
  CHECK(shuffled.next().integers() != first);

  TokenLoader windows(tokens, Batch, Pos, {.stride = 1});
  CHECK(windows.examples() == 997);

  Tokens bytes = Tokens::of_bytes("to be or not to be");
  CHECK(bytes.size() == 18);

  auto position = shuffled.position();
  TokenLoader resumed(tokens, Batch, Pos, {.key = random::key(1), .vocab = 50257});
  resumed.seek(position);
  CHECK(resumed.next().integers() == shuffled.next().integers());

  const Axis Larger("batch", 4);
  TokenLoader larger(tokens, Larger, Pos, {.key = random::key(1)});
  larger.seek(position);
  CHECK(larger.position() == position);

  const TokenLoader batches(tokens, Batch, Pos, {.vocab = 500});
  auto checked = batches;
  checked.seek(124);
  CHECK_THROWS_AS(checked.next(), Error);
  CHECK(checked.position() == 124);
}

TEST_CASE("data: a batch on a mesh is read shard by shard") {
  const Files files;
  const std::string train_bin = write_tokens(files, "train.bin", 1000);
  const Tokens tokens({train_bin}, DType::u16);
  const Axis Batch("batch", 8), Pos("position", 4);

  const Mesh mesh{{{"data", 4}}};
  TokenLoader batches(tokens, Batch, Pos,
                      {.mesh = mesh, .axis_resources = Mapping{{"batch", "data"}}});
  std::ostringstream out;
  out << *placement(batches.next()) << "\n";
  CHECK(out.str() == "{batch: data} on Mesh(data=4)\n");
  CHECK(batches.tokens_read() == 32);

  TokenLoader plain(tokens, Batch, Pos);
  batches.seek(0);
  CHECK(batches.next().integers() == plain.next().integers());
}

TEST_CASE("data: targets are the next tokens") {
  const Axis Batch("batch", 2), Pos("position", 4), Next("position", 5);
  auto ids = arange({Batch, Next});  // (batch, position=5)
  auto inputs = slice(ids, "position", 0, 4);
  auto targets = slice(ids, "position", 1, 4);
  CHECK(targets.integers() == std::vector<std::int64_t>{1, 2, 3, 4, 6, 7, 8, 9});
  CHECK(inputs.axes()[1] == Pos);
}
