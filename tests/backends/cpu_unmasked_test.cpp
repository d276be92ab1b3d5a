// Steps omit positional masks in iterations in which the masks hold everywhere.
#include <doctest/doctest.h>

#include <array>

#include "backends/cpu/fused/masks.h"
#include "haliax/haliax.h"
#include "program/fused.h"
#include "program/views.h"
#include "runtime/run.h"

using namespace haliax;
using cpu::Unmasked;
using program::Code;
using program::Fused;
using program::Instr;

namespace {

constexpr std::int64_t rows = 64, columns = 96;

// A step over (queries, keys), assembled instruction by instruction.
struct Masked {
  Fused fused{{rows, columns}, 1, {}};
  int add(Instr i) {
    i.inner = true;
    fused.code.push_back(i);
    return int(fused.code.size()) - 1;
  }
  int position(int dim, int loop, std::int64_t each, DType d = DType::i32) {
    Instr i{.code = Code::iota, .dtype = d, .dim = dim};
    if (loop >= 0) i.view.terms.push_back({.loop = loop, .stride = each});
    return add(i);
  }
  int number(std::int64_t n, DType d = DType::i32) {
    return add({.code = Code::constant, .dtype = d, .integer = n});
  }
  int of(Code c, DType d, int a, int b, int e = -1) {
    return add({.code = c, .dtype = d, .args = {a, b, e, -1}});
  }
  int load() {
    Instr i{.code = Code::load};
    i.view.strides = {columns, 1};
    return add(i);
  }
  void store(int x) { add({.code = Code::store, .args = {x, -1, -1, -1}}); }
};
bool holds(Unmasked& u, std::array<std::int64_t, 2> indices) {
  cpu::Frame frame;
  frame.loops = indices.data();
  return u.holds(frame);
}
int selects(const Fused& f) {  // selects that stored values depend on
  const auto needed = program::needed_instructions(f);
  int count = 0;
  for (std::size_t i = 0; i < f.code.size(); ++i)
    count += needed[i] && f.code[i].code == Code::select;
  return count;
}

}  // namespace

TEST_CASE("cpu unmasked: ranges of positions show where a mask holds") {
  for (auto code : {Code::less, Code::less_equal}) {
    Masked m;
    auto k = m.position(1, 0, columns), q = m.position(0, 1, rows),
         later = m.of(Code::add, DType::i32, q, m.number(1));
    m.store(m.of(Code::select, DType::f32, m.of(code, DType::boolean, k, later), m.load(),
                 m.add({.code = Code::constant, .number = -1})));
    Unmasked u(m.fused);
    REQUIRE(u.exists());
    CHECK(selects(m.fused) == 1);
    CHECK(selects(u.fused()) == 0);
    for (std::int64_t x = 0; x < 8; ++x)
      for (std::int64_t y = 0; y < 8; ++y) {
        auto last_key = x * columns + columns - 1, first_query = y * rows + 1;
        CHECK(holds(u, {x, y}) ==
              (code == Code::less ? last_key < first_query : last_key <= first_query));
      }
  }
}
TEST_CASE("cpu unmasked: two masks at once, and a mask that is not positional") {
  for (bool known : {true, false}) {
    Masked m;
    auto k = m.position(1, 0, columns), q = m.position(0, 1, rows);
    auto causal = m.of(Code::less_equal, DType::boolean, k, q);
    auto recent =
        m.of(Code::less, DType::boolean, m.of(Code::sub, DType::i32, q, k), m.number(200));
    Instr ids{.code = Code::load, .dtype = DType::boolean};
    ids.view.dtype = DType::boolean;
    ids.view.strides = {0, 1};
    auto both = m.of(Code::bit_and, DType::boolean, causal, known ? recent : m.add(ids));
    m.store(m.of(Code::select, DType::f32, both, m.load(),
                 m.add({.code = Code::constant, .number = -1})));
    Unmasked u(m.fused);
    CHECK(selects(u.fused()) == (known ? 0 : 1));
    REQUIRE(u.exists() == known);
    if (!known) continue;
    CHECK(holds(u, {0, 2}));   // keys 0 to 95, queries 128 to 191
    CHECK(!holds(u, {0, 4}));  // queries 256 to 319: some keys are out of the window
    CHECK(!holds(u, {1, 2}));
  }
}
TEST_CASE(
    "cpu unmasked: positions that overflow their dtype, floats and small steps stay unchanged") {
  Masked m;
  auto k = m.position(1, 0, 100, DType::i8), q = m.position(0, 1, 0, DType::i8);
  m.store(m.of(Code::select, DType::f32, m.of(Code::less_equal, DType::boolean, q, k), m.load(),
               m.add({.code = Code::constant, .number = -1})));
  Unmasked u(m.fused);
  REQUIRE(u.exists());
  CHECK(!holds(u, {1, 0}));  // positions from 100 on wrap around
  m.fused.dims = {4, 8};
  CHECK(!Unmasked(m.fused).exists());
}
TEST_CASE("cpu unmasked: i32 positions hold up to the end of their range, u32 positions never") {
  for (auto dtype : {DType::i32, DType::u32}) {
    Masked m;
    auto k = m.position(1, 0, 1 << 30, dtype), q = m.position(0, 1, 0, dtype);
    m.store(m.of(Code::select, DType::f32, m.of(Code::less_equal, DType::boolean, q, k), m.load(),
                 m.add({.code = Code::constant, .number = -1})));
    Unmasked u(m.fused);
    REQUIRE(u.exists() == (dtype == DType::i32));
    if (!u.exists()) continue;
    CHECK(!holds(u, {0, 0}));
    CHECK(holds(u, {1, 0}));
    CHECK(!holds(u, {2, 0}));  // 2^31
  }
}

// Iterations have 384 queries and keys.
TEST_CASE("cpu unmasked: tiled attention matches the full attention") {
  const Axis Pos("q", 1152), Keys("k", 1152), Size("d", 8);
  auto draw = [&](int seed, const Axis& pos) {
    return random::normal(random::key(seed), {pos, Size}).eval();
  };
  using Three = std::array<NamedArray, 3>;
  const Three in{draw(1, Pos), draw(2, Keys), draw(3, Keys)};
  using Mask = NamedArray (*)(const NamedArray& q, const NamedArray& k);
  for (Mask mask : {Mask([](auto&q, auto&k) { return k <= q; }),
                    Mask([](auto&q, auto&k) { return k < q - 3 && q - k < 700; }),
                    Mask([](auto&q, auto&k) { return k < 500 || k <= q; }),
                    Mask([](auto&q, auto&k) { return !(k > q + 384); })}) {
    auto all = [&](std::int64_t budget) {
      return jit(
          [=](const Three& t) {
            auto f = [=](const Three& t) {
              auto seen =
                  mask(broadcast_axis(arange(Pos), Keys), broadcast_axis(arange(Keys), Pos));
              auto y = dot(softmax(where(seen, dot(t[0], t[1], "d"), -1e9f), "k"), t[2], "k");
              return sum(y * sin(y));
            };
            auto [value, g] = value_and_grad(f)(t);
            return std::vector<NamedArray>{value, g[0], g[1], g[2]};
          },
          {.scores_budget = budget})(in);
    };
    auto tiled = all(-1), materialized = all(most_bytes);
    for (std::size_t i = 0; i < materialized.size(); ++i)
      CHECK(max(abs(tiled[i] - materialized[i])).item() <=
            4e-5 * (1 + max(abs(materialized[i])).item()));
  }
}

// The position of an outer loop has a known range, too, and is not stored in memory.
TEST_CASE(
    "cpu unmasked: tiles of a long causal sequence skip the mask where all keys are visible") {
  const Axis Heads("heads", 2), Pos("q", 8192), Keys("k", 8192), Size("d", 64);
  using Three = std::array<NamedArray, 3>;
  auto of = [&](const Axis& pos) { return random::normal(random::key(1), {Heads, pos, Size}); };
  auto gradients = grad([&](const Three& t) {
    return sum(sin(nn::dot_product_attention(Keys, Size, t[0], t[1], t[2],
                                             {.mask = nn::causal_mask(Pos, Keys)})));
  })(Three{of(Pos), of(Keys), of(Keys)});
  Nodes roots;
  for (auto& g : gradients) roots.push_back(g.node());
  const auto compiled = compile(roots, "cpu");
  int tiles = 0, masked = 0;
  each_step(compiled.program->steps, [&](auto& s) {
    if (s.kind != program::Kind::fused) return;
    const auto& code = s.fused.code;
    const bool compares = std::any_of(
        code.begin(), code.end(), [](auto& i) { return i.code == Code::less_equal && i.inner; });
    const bool is_tile = compares && program::points(s.fused.dims) >= 4096;
    tiles += is_tile;
    masked += is_tile && !Unmasked(s.fused).exists();
  });
  CHECK(tiles >= 2);  // one in the forward loop, and one in the gradient
  CHECK(masked == 0);
}
