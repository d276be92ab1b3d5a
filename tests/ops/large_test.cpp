// More than 2^31 elements: positions and counts are i64 where i32 is too small. Plans are always
// checked. Runs on 2.2 billion elements require HALIAX_LARGE=1, and 2 to 5 GB of memory (21 GB to
// roll by an array).
#include <doctest/doctest.h>

#include <cstdlib>

#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Big("big", 2200000000), Most("most", 2147483647), Row("row", 3);
NamedArray shape(const AxisSpec& axes, DType d) {
  return eval_shape([&] { return zeros(axes, d); });
}
bool is_large_run() { return std::getenv("HALIAX_LARGE") != nullptr; }

}  // namespace

TEST_CASE("large: positions and counts are i64 where i32 is too small, and i32 elsewhere") {
  auto bits = shape(Big, DType::boolean), bytes = shape({Row, Big}, DType::i8),
       fewer = shape(Most, DType::u8);
  CHECK(arange(Big).dtype() == DType::i64);
  CHECK(arange(Most).dtype() == DType::i32);
  CHECK(arange({Axis("a", 1 << 16), Axis("b", 1 << 15)}).dtype() == DType::i32);
  CHECK(arange({Axis("a", 1 << 16), Axis("b", (1 << 15) + 1)}).dtype() == DType::i64);
  CHECK(arange(Row, {.start = 3e9}).integers() ==
        std::vector<std::int64_t>{3000000000, 3000000001, 3000000002});
  CHECK(arange(Row, {.step = 2e9, .dtype = DType::f32}).doubles() ==
        std::vector<double>{0, 2e9, 4e9});
  CHECK(arange(Row, {.start = 3e9, .dtype = DType::u32}).integers()[2] == 3000000002);
  using ArgReduction = NamedArray (*)(Arr, std::optional<AxisSelector>);
  for (auto f : {ArgReduction(argmax), ArgReduction(argmin)}) {
    CHECK(f(bytes, Big).dtype() == DType::i64);
    CHECK(f(bytes, {}).dtype() == DType::i64);
    CHECK(f(bytes, Row).dtype() == DType::i32);
    CHECK(f(fewer, {}).dtype() == DType::i32);
  }
  CHECK(argsort(bytes, Big).dtype() == DType::i64);
  CHECK(argsort(bytes, Row).dtype() == DType::i32);
  CHECK(top_k(bytes, Big, 2).second.dtype() == DType::i64);
  CHECK(sum(bits).dtype() == DType::i64);
  CHECK(sum(bytes).dtype() == DType::i64);
  CHECK(sum(bytes, Row).dtype() == DType::i32);
  CHECK(sum(fewer).dtype() == DType::u32);
  CHECK(sum(shape(Big, DType::u16)).dtype() == DType::u64);
  CHECK(cumsum(bits, Big).dtype() == DType::i64);
  CHECK(cumsum(fewer, Most).dtype() == DType::u32);
  CHECK(prod(bits).dtype() == DType::i32);
  CHECK(argmax(flatten_axes(shape({Axis("a", 1 << 16), Axis("b", 1 << 16)}, DType::i8), {"a", "b"},
                            "flat"),
               "flat")
            .dtype() == DType::i64);
}

TEST_CASE("large: an explicit dtype that is too small raises") {
  auto bits = shape(Big, DType::boolean);
  raises([&] { return arange(Big, {.dtype = DType::i32}); },
         {"[arange] 0 to 2199999999 do not fit in i32", "large_test.cpp"});
  raises([&] { return arange(Row, {.start = -1, .dtype = DType::u8}); },
         {"[arange] -1 to 1 do not fit in u8"});
  raises([&] { return arange(Row, {.start = 2147483646, .dtype = DType::i32}); },
         {"2147483648 do not fit in i32"});
  raises([&] { return sum(bits, Big, {.dtype = DType::i32}); },
         {"[sum] the count of 2200000000 bools of (big=2200000000) may overflow i32", "i64"});
  CHECK(sum(bits, Big, {.dtype = DType::u32}).dtype() == DType::u32);
  CHECK(sum(bits, Big, {.dtype = DType::f32}).dtype() == DType::f32);
  CHECK(arange(Axis("n", 0), {.start = 300, .dtype = DType::u8}).size() == 0);
}

TEST_CASE("large: programs over a large axis are planned and verified") {
  auto x = shape(Big, DType::i8), rows = shape({Axis("a", 50000), Axis("b", 50000)}, DType::i8);
  auto start = zeros(Axes{}, DType::i64);
  auto plans = [&](auto f, const NamedArray& v) {
    for (auto* backend : {"cpu", "reference"})
      CHECK(jit(f, {.backend = backend}).plan(v, start).peak_bytes >= 0);
  };
  using In = const NamedArray&;
  plans([](In v, In) { return argmax(v, Big) + argmin(v, {}); }, x);
  plans([](In v, In) { return argmax(v); }, rows);
  plans([](In v, In) { return top_k(v, Big, 2); }, x);
  plans([](In v, In) { return sum(v > 0) + sum(cumsum(v > 0, Big) > 5); }, x);
  plans([](In v, In s) { return sum(roll(v, s, Big)); }, x);
  plans([](In v, In s) { return sum(slice(v, Big, s, 5)); }, x);
  plans([](In v, In s) { return sum(updated_slice(v, {{"big", s}}, 1)); }, x);
  plans([](In v, In) { return sum(tril(v, "a", "b")) + trace(v, "a", "b"); }, rows);
  plans([](In v, In) { return sum(at_add(v, {{"big", Slice{0, {}, 1000000}}}, 1)); }, x);
  plans([](In v, In) { return mean(v, {}, {.where = v > 0}) + sum(arange(Big)) % 7; }, x);
  // Chunked and sharded: the loop index and the start of a block count as far.
  auto by_chunks = [](In v, In) {
    return chunked_reduce(Big, {.chunk = 1 << 20}, [](In w) {
      return std::tuple(sum(w > 0), argmax(w, Big), top_k(w, Big, 2).second,
                        sum(where(arange(Big) % 5 == 0, w, 0)));
    })(v);
  };
  plans(by_chunks, x);
  const Mesh mesh{{{"data", 3}}};
  auto sharded = named_jit(
      [=](In v) {
        return std::tuple(by_chunks(v, v), argmax(v, Big), sum(v > 0), top_k(v, Big, 2),
                          argsort(v, Big));
      },
      {.mesh = mesh, .axis_resources = Mapping{{"big", "data"}}});
  CHECK(sharded.plan(x).peak_bytes > 0);
  // Positions over two axes, each of which fits in i32.
  auto flat = named_jit([](In v) { return argmax(v); },
                        {.mesh = mesh, .axis_resources = Mapping{{"a", "data"}}, .strict = true});
  CHECK(flat.plan(rows).program.find("out0, 8 bytes") != std::string::npos);
}

// ---- on real elements ----
TEST_CASE("large: ops on 2.2 billion elements return exact positions and counts" *
          doctest::skip(!is_large_run())) {
  const auto far = Big.size - 3;
  auto x = (arange(Big) >= far).eval();  // (big), bool: the last three are true
  CHECK(sum(x).item() == 3);
  CHECK(sum(!x).item() == double(far));
  CHECK(mean(x.astype(DType::f32), {}, {.where = !x}).item() == 0);
  CHECK(argmax(x, {}).item() == double(far));
  using Ids = std::vector<std::int64_t>;
  auto start = array(Ids{far - 1}, Axis("k", 1));
  CHECK(slice(x, Big, sum(start), 2).integers() == Ids{0, 1});
  // positions out of range yield true
  CHECK(take(x, Big, array(Ids{0, far, -1, far + 3}, Axis("k", 4))).integers() == Ids{0, 1, 1, 1});
  CHECK(sum(at_set(x, {{"big", array(Ids{far - 1, 5}, Axis("k", 2))}}, true)).item() == 5);
  CHECK(argmax(roll(x, sum(start) + 1, Big), {}).item() == double(2 * far % Big.size));
  auto by_chunks = chunked_reduce(Big, {.chunk = 1 << 24}, [](const NamedArray& w) {
    return std::pair(sum(!w), argmax(w, Big));
  })(x);
  CHECK(by_chunks.first.item() == double(far));
  CHECK(by_chunks.second.item() == double(far));
  CHECK(sum(slice(arange(Big), Big, far, 3) - far).item() == 3);
  auto square = (arange({Axis("a", 50000), Axis("b", 50000)}) == 2499999998).eval();
  CHECK(argmax(ravel(square, "flat"), "flat").item() == 2499999998);
  CHECK(argmax(square, {}).item() == 2499999998);
}
