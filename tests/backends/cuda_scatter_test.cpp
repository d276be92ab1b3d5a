// Scatters of many ids, in parts: bitwise identical to the reference for repeated ids, ids out of
// range and odd sizes. Planted faults are found, and the source code compiles for GPUs.
#include <doctest/doctest.h>

#include "backends/cuda/nvidia/nvrtc.h"
#include "backends/cuda/engine/sequence.h"
#include "support/left_out.h"
#include "support/simulated.h"

namespace {

using namespace haliax;
using namespace haliax::testing;

bool in_parts(const Case& c) {
  return has(cuda::launches_of(c.program.steps[0])[0].source, "part_of(");
}
// Ids from -2 to 2 times the size.
View drawn_ids(Case& c, DType d, const Dims& dims, Dims strides, std::int64_t size) {
  View v{c.slot(false, d, points(dims)), d, 0, std::move(strides), {}};
  auto& bytes = c.arguments.back();
  for (std::size_t at = 0; at < bytes.size(); at += std::size_t(bytes_of(d)))
    scalar::store(d, &bytes[at],
                  {0, c.random.below(4 * size) - (scalar::is_unsigned(d) ? 0 : 2 * size)});
  return v;
}
struct Sizes {
  std::int64_t batch, ids, columns, rows, more = 1;
};
struct How {
  DType ids = DType::i32;
  Case::Layout layout = Case::dense;  // layout of the updates
  bool clamps = false, own = false;   // own: each element of the batch has its own table
};
// Adds a scatter of updates (batch, columns, ids) into (rows, more, columns), by ids of (batch,
// ids). If `more` exceeds 1, two arrays of ids select the row.
void add_scatter(Case& c, DType d, Update update, const Sizes& n, const How& how = {}) {
  const auto row = n.columns + 1, table = n.rows * n.more * row;
  Scatter s;
  s.dims = {n.batch, n.columns, n.ids};
  s.updates = c.view(false, d, s.dims, how.layout);
  s.target = {
      c.slot(true, d, table * (how.own ? n.batch : 1)), d, 0, {how.own ? table : 0, 1, 0}, {}};
  s.indexed.push_back(
      {drawn_ids(c, how.ids, {n.batch, n.ids}, {n.ids, 0, 1}, n.rows), n.more * row, n.rows});
  if (n.more > 1)
    s.indexed.push_back(
        {drawn_ids(c, DType::i64, {n.batch, n.ids}, {1, 0, n.batch}, n.more), row, n.more});
  s.update = update;
  s.clamp = how.clamps;
  c.add(Kind::scatter).scatter = s;
}
auto reference_bits(const Case& c) { return c.run(*reference::make_reference_device()); }
auto simulated_bits(const Case& c, const char* words = "") {
  return c.run(*device_of(cuda::simulated(), words));
}

}  // namespace

TEST_CASE(
    "cuda scatter: parts are bitwise identical to the reference, "
    "with repeated ids and ids out of range") {
  constexpr DType ids[] = {DType::i32, DType::i64, DType::u8, DType::u64, DType::i16};
  for (unsigned seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    Case c(seed);
    const auto batch = 1 + c.random.below(5), many = 64 + c.random.below(200),
               columns = 1 + c.random.below(100);
    const Sizes n{batch, many, columns, 1 + c.random.below(9), 1 + c.random.below(3)};
    const auto dtype =
        seed % 3 ? (seed % 3 == 1 ? DType::f32 : DType::bf16) : all_dtypes[c.random.below(13)];
    const auto layout = Case::Layout(c.random.below(5));
    add_scatter(c, dtype, Update(seed % 5), n,
                {ids[c.random.below(5)], layout, c.random.coin(), c.random.coin()});
    REQUIRE(in_parts(c));
    CHECK(simulated_bits(c) == reference_bits(c));
  }
}
TEST_CASE(
    "cuda scatter: the number of parts suits the GPU, and is one for many elements or few ids") {
  auto blocks = [](const Sizes& n, bool parts) {
    Step s{.kind = Kind::scatter};  // not run
    s.scatter = {{n.ids, n.columns},
                 {0, DType::bf16, 0, {n.columns, 1}, {}},
                 {1, DType::bf16, 0, {0, 1}, {}},
                 {{{2, DType::i32, 0, {1, 0}, {}}, n.columns, n.rows}},
                 Update::add,
                 false};
    const auto l = cuda::launches_of(s)[0];
    CHECK(has(l.source, "part_of(") == parts);
    CHECK(l.waits == parts);
    return l.blocks;
  };
  CHECK(blocks({1, 65536, 768, 50257}, true) == 24 * 132 / 8);  // blocks of 8 warps
  CHECK(blocks({1, 65536, 1, 50257}, true) == 65536 / 32 / 8);
  CHECK(blocks({1, 100, 33, 50257}, true) == 1);  // 2 x 3
  CHECK(blocks({1, 63, 33, 50257}, false) == 1);
  CHECK(blocks({1, 65536, 1 << 20, 9}, false) == 4096);
}
TEST_CASE("cuda scatter: equal scatters in one launch are bitwise identical") {
  Case c(1);
  for (int k = 0; k < 3; ++k) add_scatter(c, DType::bf16, Update::add, {2, 300, 35 + 40 * k, 7});
  const auto before = cuda::simulation_counts().kernels;
  const auto got = simulated_bits(c);
  CHECK(cuda::simulation_counts().kernels - before == 1);
  CHECK(got == simulated_bits(c, "sync"));
  CHECK(got == reference_bits(c));
}
TEST_CASE("cuda scatter: planted faults are found") {
  using Faults = std::vector<std::pair<std::string, std::string>>;
  const Faults order{{"part_of(to", "part_of(q"}};  // duplicate ids in several parts
  const Faults all{{"part_of(to", "part_of(q"},
                   {"== part)", "== part + 1)"},
                   {"first_of(mine)", "(31 & (first_of(mine) + 1))"},
                   {"q < I(", "q + 9 < I("},
                   {"first += 32", "first += 31"},
                   {"from_lane(from, lane)", "from"},
                   {"if (there)", "if (true)"}};
  for (auto update : {Update::set, Update::add}) {
    Case c(5);
    add_scatter(c, DType::f32, update, {3, 333, 45, 9});
    const auto expected = reference_bits(c);
    CHECK(planted(c, [](auto text) { return text; }).first == expected);
    for (auto& [what, by] : update == Update::set ? order : all) {
      CAPTURE(what);
      const auto got =
          planted(c, [what = what, by = by](auto text) { return changed(text, what, by); });
      CHECK((got.first != expected || got.second != ""));
    }
  }
}
TEST_CASE("cuda scatter: kernels in parts compile for GPUs, without spills and without a stack") {
  if (!cuda::has_nvrtc()) {
    left_out("scatters in parts", "not compiled: no NVRTC here");
    return;
  }
  for (auto d : {DType::f32, DType::bf16, DType::i8, DType::f64})
    for (auto how : {Update::add, Update::set, Update::max}) {
      Case c(3);
      add_scatter(c, d, how, {3, 100, 45, 9, 3}, {.clamps = true});
      const auto text = cuda::named(cuda::launches_of(c.program.steps[0])[0].source).source;
      for (int sm : {80, 90, 100}) {
        const auto log = cuda::compile_for_gpu(cuda::prelude(false) + text + "}\n", sm).log;
        CAPTURE(log);
        CHECK(has(log, " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"));
      }
    }
}
