// The output of std::cout and fmt for arrays, axes, meshes, keys, models and states.
#include <doctest/doctest.h>

#include <fmt/ranges.h>

#include <sstream>

#include "haliax/fmt.h"
#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace printed {  // a separate namespace, as for models of users

struct Head {
  nn::Linear out;
  Frozen<NamedArray> mask;
};
struct Model {
  nn::LayerNorm norm;
  std::vector<Head> heads;
  NamedArray scale;
};
const Axis Embed("embed", 4), Vocab("vocab", 300);
Model model() {
  return {nn::LayerNorm::init(Embed, {.use_bias = false}),
          {{nn::Linear::init(Embed, Vocab, random::key(0), {.use_bias = false}),
            {ones(Vocab, DType::boolean)}}},
          zeros({})};
}

}  // namespace printed

namespace {

template <class T> std::string shown(const T& x) {
  std::ostringstream out;
  out << x;
  return out.str();
}
std::string line(int of = __builtin_LINE()) { return "printing_test.cpp:" + std::to_string(of); }
const Axis N("n", 3);

}  // namespace

TEST_CASE("printing: small objects print as their to_string") {
  CHECK(shown(N) == "n=3");
  CHECK(shown(N.name) == "n");
  CHECK(shown(Axes{N, Axis("m", 2)}) == "(n=3, m=2)");
  CHECK(shown(AxisSpec{N}) == "(n=3)");
  CHECK(shown(DType::bf16) == "bf16");
  CHECK(shown(Mesh{{{"data", 4}, {"model", 2}}}) == "Mesh(data=4, model=2)");
  CHECK(shown(Mapping{{"batch", "data"}}) == "{batch: data}");
  CHECK(shown(pspec_for_axis({N, Axis("m", 2)}, Mapping{{"n", "data"}})) == "P(data, None)");
  CHECK(shown(random::key(42)) == "Key(0, 42)");
  CHECK(shown(random::split(random::key(0), N)) == "Key((n=3))");
  CHECK(shown(Key()) == "Key()");
  CHECK(shown(Names{"a", "b"}) == "(a, b)");
  CHECK(shown(AxisSelector("a")) == "a");
  CHECK(shown(AxisSelector(N)) == "n=3");
  CHECK(shown(AxisSelection{"a", N}) == "(a, n=3)");
  CHECK(shown(AxisSelection()) == "all");
  CHECK(shown(Mappings(Mapping{{"n", "data"}})) == "{n: data}");
  CHECK(shown(Mappings::of_each({Mapping{{"n", "data"}}, {}})) == "[{n: data}, none]");
  CHECK(shown(Placement{Mesh{{{"data", 4}}}, Mapping{{"n", "data"}}}) ==
        "{n: data} on Mesh(data=4)");
  CHECK(shown(Policy("p=f32,c=bf16,o=f32,r=f32")) == "p=f32,c=bf16,o=f32,r=f32");
  CHECK(shown(Policy("bf16")) == "p=bf16,c=bf16,o=bf16");
  CHECK(shown(Arr(arange(N))) == "NamedArray(i32, (n=3), [0, 1, 2])");
  CHECK(shown(Arr(0.5)) + shown(Arr(2)) + shown(Arr(true)) == "0.52true");
  CHECK(fmt::format("{} {} {} {}", Axes{N}, Mesh{{{"data", 4}}}, Mapping{{"n", "data"}},
                    random::key(1)) == "(n=3) data=4 {n: data} Key(0, 1)");
  std::ostringstream left;  // a stream is not an array to shift
  left << 1 << " " << true << " " << (arange(N) << 1);
  CHECK(left.str() == "1 1 NamedArray(i32, (n=3), [0, 2, 4])");
}

TEST_CASE("printing: an array that fits a line stays on one, others have one line per row") {
  CHECK(shown(arange(N) * 1.5) == "NamedArray(f32, (n=3), [0, 1.5, 3])");
  CHECK(shown(arange({Axis("a", 2), Axis("b", 20)}) * 10) ==
        "NamedArray(i32, (a=2, b=20),\n"
        "  [[  0,  10,  20,  30,  40,  50,  60,  70,  80,  90, 100, 110, 120, 130, 140, 150, 160, "
        "170, 180, 190],\n"
        "   [200, 210, 220, 230, 240, 250, 260, 270, 280, 290, 300, 310, 320, 330, 340, 350, 360, "
        "370, 380, 390]])");
  auto text = shown(arange(Axis("a", 1000)));
  CHECK(has(text, " 500,"));
  for (std::size_t from = 0, to = 0; to != text.npos; from = to + 1) {
    to = text.find('\n', from);
    CHECK(std::min(to, text.size()) - from <= 110);
  }
}

TEST_CASE(
    "printing: an array of more than 1000 elements "
    "shows the first and last three along each axis") {
  CHECK(shown(arange(Axis("a", 1001))) ==
        "NamedArray(i32, (a=1001), [0, 1, 2, ..., 998, 999, 1000])");
  CHECK(shown(arange({Axis("a", 2), Axis("b", 7), Axis("c", 100)})) ==
        "NamedArray(i32, (a=2, b=7, c=100),\n"
        "  [[[   0,    1,    2, ...,   97,   98,   99],\n"
        "    [ 100,  101,  102, ...,  197,  198,  199],\n"
        "    [ 200,  201,  202, ...,  297,  298,  299],\n"
        "    ...,\n"
        "    [ 400,  401,  402, ...,  497,  498,  499],\n"
        "    [ 500,  501,  502, ...,  597,  598,  599],\n"
        "    [ 600,  601,  602, ...,  697,  698,  699]],\n"
        "   [[ 700,  701,  702, ...,  797,  798,  799],\n"
        "    [ 800,  801,  802, ...,  897,  898,  899],\n"
        "    [ 900,  901,  902, ...,  997,  998,  999],\n"
        "    ...,\n"
        "    [1100, 1101, 1102, ..., 1197, 1198, 1199],\n"
        "    [1200, 1201, 1202, ..., 1297, 1298, 1299],\n"
        "    [1300, 1301, 1302, ..., 1397, 1398, 1399]]])");
}

TEST_CASE("printing: an array without a value prints as a tracer") {
  auto x = ones({N, Axis("m", 2)});
  std::string text, key;
  auto show = [&](const NamedArray& v) {
    text = shown(v * 2.);
    return v;
  };
  auto f = jit(show);
  auto at = line(__LINE__ - 1);
  f(x);
  CHECK(text == "NamedArray(f32, (n=3, m=2), traced by jit (" + at + "))");
  vmap(show, N)(x);
  CHECK(has(text, "NamedArray(f32, (m=2), traced by vmap over n (printing_test.cpp:"));
  haliax::map(show, N)(x);
  CHECK(has(text, "(m=2), traced by scan (printing_test.cpp:"));
  grad([&](const NamedArray& v) { return sum(show(v)); })(x);  // values are available
  CHECK(text == "NamedArray(f32, (n=3, m=2), [[2, 2], [2, 2], [2, 2]])");
  CHECK(shown(eval_shape(show, x)) == "NamedArray(f32, (n=3, m=2))");
  jit([&](const Key& k) {
    key = shown(k);
    return k;
  })(random::key(0));
  CHECK(has(key, "Key(traced by jit (printing_test.cpp:"));
  auto given = ones(N).eval();
  jit([](const NamedArray& v) { return v + 1.; }, {.donate = {0}})(given);
  CHECK(shown(given) == "NamedArray(f32, (n=3), donated)");
  CHECK(shown(given * 2.) == "NamedArray(f32, (n=3), computed from a donated array)");
  // Printing evaluates, so an array that cannot be computed raises.
  ::setenv("HALIAX_NANS", "1", 1);
  CHECK_THROWS_WITH_AS(shown(log(ones(N) - 2.)),
                       doctest::Contains("[log] produces NaN from finite values"), Error);
  ::unsetenv("HALIAX_NANS");
  // A value that does not depend on arguments is printed; printing it does not change the program.
  auto quiet = jit([](const NamedArray& v) { return v + arange(Axis("n", 3)) * 2.; });
  auto loud = jit([&](const NamedArray& v) {
    auto steps = arange(Axis("n", 3)) * 2.;
    text = shown(steps);
    return v + steps;
  });
  CHECK(quiet(ones(N)).floats() == loud(ones(N)).floats());
  CHECK(text == "NamedArray(f32, (n=3), [0, 2, 4])");
  CHECK(quiet.report().program.size() == loud.report().program.size());
}

TEST_CASE("printing: models and states have one line per array") {
  auto m = printed::model();
  const std::string tree =
      "norm.weight         f32 (embed=4)             4               16 B\n"
      "heads.0.out.weight  f32 (vocab=300, embed=4)  1,200           4.7 KiB\n"
      "heads.0.mask        bool (vocab=300)          300             300 B    frozen\n"
      "scale               f32 ()                    1               4 B\n"
      "4 arrays                                      1,505 elements  5.0 KiB";
  CHECK(tree_to_string(m) == tree);
  CHECK(shown(m) == tree);
  CHECK(fmt::format("{}", m) == tree);
  CHECK(fmt::format("{}", std::vector{ones(N), zeros(N)}).size() > 40);  // formatted as a range
  auto state = optim::adamw().init(m);
  auto text = shown(state);
  CHECK(has(text, "0.count "));
  CHECK(has(text, "0.mu.heads.0.out.weight  f32 (vocab=300, embed=4)"));
  CHECK(has(text, "0.mu.heads.0.mask        empty"));
  CHECK(shown(std::get<0>(state)).find("mu.norm.weight") != std::string::npos);
  CHECK(has(shown(std::vector{ones(N)}), "0        f32 (n=3)  3           12 B"));
  CHECK(shown(m.norm) == shown(nn::LayerNorm::init(printed::Embed, {.use_bias = false})));
}

TEST_CASE("printing: summary counts by module") {
  auto m = printed::model();
  CHECK(summary(m) ==
        "module     arrays  parameters  bytes    frozen\n"
        "(all)      4       1,505       5.0 KiB  300\n"
        "  norm     1       4           16 B\n"
        "  heads    2       1,500       5.0 KiB  300\n"
        "    0      2       1,500       5.0 KiB  300\n"
        "      out  1       1,200       4.7 KiB");
  CHECK(summary(m, 1) ==
        "module   arrays  parameters  bytes    frozen\n"
        "(all)    4       1,505       5.0 KiB  300\n"
        "  norm   1       4           16 B\n"
        "  heads  2       1,500       5.0 KiB  300");
  CHECK(summary(m.norm) == "module  arrays  parameters  bytes\n(all)   1       4           16 B");
}
