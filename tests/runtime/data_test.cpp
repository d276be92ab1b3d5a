// Batches of tokens: their order, resuming, meshes, and invalid files.
#include <doctest/doctest.h>

#include <fstream>
#include <numeric>
#include <set>

#include "haliax/data.h"
#include "haliax/haliax.h"
#include "graph/node.h"
#include "devices/shards.h"
#include "io/permutation.h"
#include "io/process_group.h"
#include "support/folder.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 8), Pos("position", 4);
using Ids = std::vector<std::int64_t>;

template <class T> std::string write(const std::string& path, std::vector<T> tokens) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()),
             std::streamsize(tokens.size() * sizeof(T)));
  return path;
}
std::vector<std::uint16_t> counted(int n, int from = 0) {
  std::vector<std::uint16_t> out(std::size_t(n), 0);
  std::iota(out.begin(), out.end(), std::uint16_t(from));
  return out;
}
// Returns the first token of each example of the next `batches` batches.
Ids firsts(TokenLoader& loader, int batches) {
  Ids out;
  for (int i = 0; i < batches; ++i) {
    auto ids = loader.next().integers();
    for (std::size_t k = 0; k < ids.size(); k += std::size_t(Pos.size)) {
      for (std::size_t j = 1; j < std::size_t(Pos.size); ++j)
        CHECK(ids[k + j] == ids[k] + std::int64_t(j));
      out.push_back(ids[k]);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("data: permuted is a permutation that depends on the key") {
  for (std::int64_t n : {1, 2, 3, 4, 5, 16, 17, 1000, 4097}) {
    CAPTURE(n);
    std::set<std::int64_t> seen;
    std::int64_t stays = 0, same = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      auto to = permuted(i, n, 7);
      CHECK((to >= 0 && to < n));
      seen.insert(to);
      stays += to == i;
      same += to == permuted(i, n, 8);
    }
    CHECK(std::int64_t(seen.size()) == n);
    if (n >= 1000) CHECK(std::max(stays, same) < 10);  // 1 fixed position is expected on average
  }
  // Every pair of positions is equally likely.
  std::vector<int> first(8), pairs(64);
  for (std::uint64_t key = 0; key < 8000; ++key) {
    auto a = permuted(0, 8, key_of(1, key)), b = permuted(1, 8, key_of(1, key));
    ++first[std::size_t(a)];
    ++pairs[std::size_t(a * 8 + b)];
  }
  for (int count : first) CHECK(std::abs(count - 1000) < 150);
  for (int k = 0; k < 64; ++k) CHECK(std::abs(pairs[std::size_t(k)] - (k % 9 == 0 ? 0 : 143)) < 60);
  auto far = permuted(123456789012345, 200000000000000, 3);  // in constant time
  CHECK((far >= 0 && far < 200000000000000));
}

TEST_CASE(
    "data: each example occurs once per epoch, "
    "in another order each time, and a loader resumes at any position") {
  Folder folder(memory_folder());
  Tokens tokens({write(folder / "a.bin", counted(42)), write(folder / "b.bin", counted(3, 100)),
                 write(folder / "c.bin", counted(23, 200))});
  CHECK(tokens.size() == 68);
  TokenLoader plain(tokens, Batch, Pos);
  CHECK(plain.examples() == 15);  // 10, none and 5: no example spans two files
  CHECK(firsts(plain, 2) == Ids{0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 200, 204, 208, 212, 216, 0});
  CHECK(plain.epoch() == 1);

  TokenLoader loader(tokens, Batch, Pos, {.key = random::key(3)});
  const auto all = firsts(loader, 8);
  CHECK(loader.position() == 64);
  std::set<Ids> orders;
  for (int e = 0; e < 4; ++e) {
    Ids epoch(all.begin() + e * 15, all.begin() + (e + 1) * 15);
    orders.insert(epoch);
    CHECK(std::set<std::int64_t>(epoch.begin(), epoch.end()).size() == 15);
  }
  CHECK(orders.size() == 4);
  TokenLoader resumed(tokens, Batch, Pos, {.key = random::key(3)});
  for (std::int64_t at : {24, 8, 40, 3}) {
    resumed.seek(at);
    CHECK(firsts(resumed, 3) == Ids(all.begin() + at, all.begin() + at + 24));
  }
  TokenLoader other(tokens, Batch, Pos, {.key = random::key(4)});
  CHECK(firsts(other, 8) != all);
  TokenLoader windows(tokens, Batch, Pos, {.stride = 1});
  CHECK(windows.examples() == 39 + 20);
  CHECK(firsts(windows, 1) == Ids{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(TokenLoader(Tokens::of_bytes("abcd"), {"batch", 1}, Pos).next().integers() ==
        Ids{'a', 'b', 'c', 'd'});
}

TEST_CASE("data: batches are equal on every mesh, and only the rows of local devices are read") {
  auto tokens = Tokens::of_bytes([] {
    std::string text(4096, ' ');
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = char(i * 7 % 251);
    return text;
  }());
  TokenLoader one(tokens, Batch, Pos, {.key = random::key(3)});
  std::vector<Ids> wanted;
  for (int i = 0; i < 4; ++i) wanted.push_back(one.next().integers());
  Mesh four{{{"data", 2}, {"model", 2}}}, three{{{"data", 3}}};
  const Mapping by_batch{{"batch", "data"}};
  for (auto& mesh : {four, three}) {
    TokenLoader loader(tokens, Batch, Pos,
                       {.key = random::key(3), .mesh = mesh, .axis_resources = by_batch});
    for (int i = 0; i < 4; ++i) {
      loader.seek(i * 8);
      auto batch = loader.next();
      CHECK(placement(batch)->mesh == mesh);
      CHECK_FALSE(batch.node()->value->on_host());  // one block per device
      CHECK(batch.integers() == wanted[std::size_t(i)]);
    }
    CHECK(loader.tokens_read() == 4 * 32);
  }
  TokenLoader both(tokens, Batch, Pos,
                   {.key = random::key(3),
                    .mesh = four,
                    .axis_resources = Mapping{{"batch", "data"}, {"position", "model"}}});
  CHECK(both.next().integers() == wanted[0]);
  {
    use_mesh mesh(four);
    axis_mapping mapping(by_batch);
    TokenLoader here(tokens, Batch, Pos, {.key = random::key(3)});
    auto sums = named_jit([](const NamedArray& x) { return sum(x, "position"); });
    auto batch = here.next();
    CHECK(placement(batch)->mapping == by_batch);
    auto first = sums(batch).integers();
    CHECK(first[0] == wanted[0][0] + wanted[0][1] + wanted[0][2] + wanted[0][3]);
    CHECK(sums.report().split_bytes == 0);  // the blocks are already on their devices
  }
  // One of two processes reads half of the rows.
  ProcessGroup second;
  second.rank = 1;
  second.count = 2;
  second.rank_of = [](const Mesh&, int device) { return device / 2; };
  TokenLoader half(
      tokens, Batch, Pos,
      {.key = random::key(3), .mesh = four, .axis_resources = by_batch, .group = &second});
  auto batch = half.next();
  auto* s = dynamic_cast<const Shards*>(batch.node()->value->device_storage());
  REQUIRE(s != nullptr);
  CHECK(half.tokens_read() == 16);
  CHECK(s->first == 2);
  CHECK(s->blocks.size() == 2);
  auto* mine = reinterpret_cast<const std::int32_t*>(s->blocks[0]->data());
  CHECK(Ids(mine, mine + 16) == Ids(wanted[0].begin() + 16, wanted[0].end()));
}

TEST_CASE("data: .npy files and raw files of each integer width") {
  Folder folder(memory_folder());
  auto npy = [&](const char* name, DType dtype) {
    auto path = folder / name;
    write_npy(path, to_tensor(arange(Axis("n", 40)).astype(dtype)));
    return path;
  };
  for (auto dtype : {DType::u8, DType::u16, DType::u32, DType::i32, DType::i64}) {
    TokenLoader loader(Tokens({npy("x.npy", dtype)}), Batch, Pos);
    CHECK(loader.examples() == 10);
    CHECK(firsts(loader, 1) == Ids{0, 4, 8, 12, 16, 20, 24, 28});
  }
  TokenLoader wide(
      Tokens({write(folder / "wide.bin", std::vector<std::uint32_t>{70000, 70001, 70002, 70003})},
             DType::u32),
      {"batch", 1}, Pos);
  CHECK(wide.next().integers() == Ids{70000, 70001, 70002, 70003});
  raises([&] { Tokens({npy("f.npy", DType::f32)}); },
         {"[Tokens]", "f.npy: expected u8, u16", "data_test.cpp"});
  write_npy(folder / "two.npy", to_tensor(zeros({Batch, Pos}, DType::i32)));
  raises([&] { Tokens({folder / "two.npy"}); }, {"[Tokens]", "two.npy has 2 axes", "ravel"});
  std::filesystem::resize_file(folder / "two.npy", 150);
  raises([&] { Tokens({folder / "two.npy"}); }, {"[Tokens]", "two.npy is truncated"});
}

TEST_CASE("data: files that are too short, and tokens beyond the vocabulary, raise") {
  Folder folder(memory_folder());
  raises([&] { Tokens({folder / "none.bin"}); },
         {"[Tokens]", "none.bin cannot be opened: No such file", "data_test.cpp"});
  raises([&] { Tokens({folder.path.string()}); }, {"[Tokens]", "is not a regular file"});
  raises([&] { Tokens(std::vector<std::string>()); }, {"[Tokens] there are no paths"});
  raises([&] { Tokens({write<std::uint8_t>(folder / "empty.bin", {})}); },
         {"[Tokens]", "empty.bin is empty"});
  raises(
      [&] {
        Tokens({write<std::uint8_t>(folder / "odd.bin", {1, 2, 3})});
      },
      {"[Tokens]", "odd.bin has 3 bytes, not a multiple of the size of u16"});
  raises([&] { Tokens({folder / "odd.bin"}, DType::f32); },
         {"[Tokens] raw: expected u8, u16 or u32, got f32"});
  Tokens few({write(folder / "few.bin", counted(3))});
  raises([&] { TokenLoader(few, Batch, Pos); },
         {"[TokenLoader] an example requires 4 tokens, but the longest of 1 files has 3",
          "position=4", "data_test.cpp"});
  Tokens tokens({write(folder / "some.bin", counted(40))});
  raises([&] { TokenLoader(tokens, Batch, Pos, {.stride = -1}); }, {"[TokenLoader] stride is -1"});
  raises([&] { TokenLoader(tokens, Batch, Pos, {.key = random::split(random::key(0), Batch)}); },
         {"[TokenLoader] expected one key for the order"});
  TokenLoader loader(tokens, {"batch", 2}, Pos, {.vocab = 9});
  CHECK(loader.next().integers() == Ids{0, 1, 2, 3, 4, 5, 6, 7});
  for (int i = 0; i < 2; ++i)  // the position does not change
    raises([&] { loader.next(); }, {"[TokenLoader] token 9 of ",
                                    "some.bin is 9, but the vocabulary has 9", "data_test.cpp"});
  CHECK(loader.position() == 2);
  raises([&] { loader.seek(-1); }, {"[TokenLoader] position -1 is negative"});
  TokenLoader huge(
      Tokens({write(folder / "huge.bin", std::vector<std::uint32_t>{1, 2, 3, 1u << 31})},
             DType::u32),
      {"batch", 1}, Pos);
  raises([&] { huge.next(); }, {"token 3 of", "is 2147483648, but tokens are below 2147483648"});
}
