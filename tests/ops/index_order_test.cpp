// The position of the axes of an indexed part: as in Haliax, for every mix of positions, ranges,
// windows and index arrays.
#include <doctest/doctest.h>

#include <map>
#include <span>
#include <sstream>

#include "haliax/haliax.h"

using namespace haliax;

namespace {

const std::map<char, std::int64_t> sizes{{'a', 3}, {'b', 4}, {'c', 5}, {'d', 6},
                                         {'s', 4}, {'t', 2}, {'u', 4}};
Axes axes_of(std::string_view names) {
  Axes out;
  for (char c : names) out.push_back({Name(std::string(1, c)), sizes.at(c)});
  return out;
}
std::string text_of(const Axes& axes) {
  std::string s;
  for (auto& a : axes) s += a.name.text();
  return s;
}

// Results of Haliax 1.4 (jax 0.10): the axes of the array, [axis:index, in the order of the call]
// -> the axes of the result.
// - p: position 1
// - r: 1:3
// - wN: ds(1, N); a position out of range yields 0
// - iAXES: an integer array with these axes; s and u have size 4, t has size 2
const char* const cases[] = {
    "ab[a:its b:w3] -> bts",
    "ab[a:iu] -> ub",
    "ab[a:w2] -> ab",
    "ab[a:p b:is] -> s",
    "ab[b:it a:w2] -> at",
    "ab[b:w2 a:its] -> bts",
    "ab[a:w2 b:it] -> ta",
    "ab[b:it a:r] -> at",
    "ab[a:p b:r] -> b",
    "ab[b:w2 a:w2] -> ab",
    "ab[a:r b:w3] -> ab",
    "ab[b:iu a:w2] -> au",
    "ab[a:r b:w2] -> ab",
    "ab[a:w3] -> ab",
    "ab[b:r a:it] -> tb",
    "ab[a:w3 b:p] -> a",
    "ab[b:its a:w3] -> ats",
    "ab[b:is a:its] -> ts",
    "ab[a:w3 b:is] -> as",
    "ab[b:is a:ist] -> st",
    "ab[b:ist a:ist] -> st",
    "ab[b:w3] -> ab",
    "ab[b:it a:is] -> ts",
    "ab[a:iu b:it] -> tu",
    "ab[b:its a:it] -> ts",
    "ab[a:ist] -> stb",
    "ab[a:w2 b:ist] -> ast",
    "abc[a:iu c:iu b:is] -> su",
    "abc[c:is a:p b:its] -> ts",
    "abc[a:it c:w2 b:p] -> ct",
    "abc[b:is a:r c:w3] -> acs",
    "abc[b:is c:w3 a:w3] -> acs",
    "abc[b:w3 c:ist a:r] -> abst",
    "abc[c:iu a:p b:its] -> uts",
    "abc[a:w2 c:is b:its] -> ats",
    "abc[b:r a:it] -> tbc",
    "abc[b:is c:w2 a:ist] -> cst",
    "abc[a:it c:r b:p] -> tc",
    "abc[c:it a:r] -> abt",
    "abc[a:ist b:its c:r] -> stc",
    "abc[a:ist c:ist b:is] -> st",
    "abc[c:r b:it a:ist] -> stc",
    "abc[c:ist a:iu b:r] -> ustb",
    "abc[a:p b:ist c:w3] -> cst",
    "abc[b:is a:p c:its] -> ts",
    "abc[a:w3 b:is c:iu] -> aus",
    "abc[c:w3 a:ist b:w3] -> bcst",
    "abc[a:its c:ist] -> tsb",
    "abc[a:is c:ist b:w3] -> bst",
    "abc[a:is b:w3 c:is] -> bs",
    "abc[a:is c:ist b:r] -> stb",
    "abc[b:r c:iu a:iu] -> ub",
    "abc[b:ist a:is c:w3] -> cst",
    "abc[a:it b:r c:its] -> tsb",
    "abc[a:w3 b:its c:iu] -> auts",
    "abc[b:w2 c:r] -> abc",
    "abc[b:r a:its c:w2] -> ctsb",
    "abc[b:ist c:w2] -> acst",
    "abc[c:is b:p a:r] -> as",
    "abc[a:w2 b:iu] -> auc",
    "abc[b:it c:its a:is] -> ts",
    "abc[a:w2 b:is] -> asc",
    "abc[a:w3 b:it c:p] -> ta",
    "abc[c:its b:iu] -> auts",
    "abc[a:w3 c:iu b:iu] -> au",
    "abc[a:is c:it b:r] -> tsb",
    "abc[a:ist b:r c:r] -> stbc",
    "abc[b:ist c:w2 a:its] -> cst",
    "abc[c:it a:is] -> tsb",
    "abc[c:iu b:its a:its] -> uts",
    "abc[c:it a:its b:it] -> ts",
    "abc[a:ist b:w3 c:ist] -> bst",
    "abc[c:w3 a:w3 b:ist] -> acst",
    "abc[c:ist a:is b:w3] -> bst",
    "abc[a:ist c:p] -> stb",
    "abc[b:w3 a:w2] -> abc",
    "abc[b:ist c:iu] -> aust",
    "abc[b:ist a:w2] -> astc",
    "abc[a:w3 c:w3 b:r] -> cab",
    "abc[b:ist a:its c:iu] -> ust",
    "abc[c:w3 b:r] -> abc",
    "abc[c:iu b:w3 a:its] -> buts",
    "abc[b:is c:its a:is] -> ts",
    "abc[c:iu b:w3] -> abu",
    "abc[a:iu b:w2] -> buc",
    "abc[a:its c:ist b:its] -> ts",
    "abc[c:w3 a:it b:w2] -> btc",
    "abc[a:w3 c:it] -> tab",
    "abc[c:r b:w3 a:ist] -> bstc",
    "abc[b:ist a:iu c:is] -> ust",
    "abc[b:its c:iu a:it] -> uts",
    "abc[b:w3 c:p a:w2] -> ab",
    "abc[a:is c:p b:it] -> ts",
    "abc[b:p c:p] -> a",
    "abc[b:r c:it a:its] -> tsb",
    "abc[b:w2 a:its] -> btsc",
    "abc[b:p c:w3 a:it] -> tc",
    "abc[c:r b:its a:it] -> tsc",
    "abc[a:p c:its b:is] -> ts",
    "abc[b:is a:is] -> sc",
    "abc[c:iu a:r b:its] -> auts",
    "abc[c:iu b:p a:w3] -> au",
    "abc[c:r b:iu a:w3] -> auc",
    "abc[b:it c:r a:ist] -> stc",
    "abc[b:p a:is c:its] -> ts",
    "abc[a:p b:p c:iu] -> u",
    "abc[a:w2 c:ist b:it] -> ast",
    "abc[a:p b:iu] -> uc",
    "abc[b:r c:it] -> abt",
    "abc[b:p c:ist a:p] -> st",
    "abc[c:is b:it a:its] -> ts",
    "abc[a:is c:is b:its] -> ts",
    "abc[a:r b:is c:w3] -> acs",
    "abc[b:iu a:is] -> suc",
    "abc[b:it c:p a:r] -> at",
    "abcd[d:w2 c:w2 b:r] -> abcd",
    "abcd[a:is d:ist c:it] -> stb",
    "abcd[d:p c:ist a:is b:ist] -> st",
    "abcd[a:p d:ist c:it b:is] -> st",
    "abcd[c:r d:w3 a:p b:w3] -> bdc",
    "abcd[b:is d:is c:is] -> as",
    "abcd[a:ist d:p b:ist c:r] -> stc",
    "abcd[b:r d:w2 a:w2] -> adbc",
    "abcd[d:is b:its a:p c:it] -> ts",
    "abcd[d:ist c:p a:is b:w3] -> bst",
    "abcd[d:it a:w2 c:its] -> atsb",
    "abcd[c:it b:ist d:r] -> astd",
    "abcd[c:w2 d:ist b:p a:p] -> cst",
    "abcd[c:ist d:it a:w2] -> astb",
    "abcd[b:ist c:w3 a:it] -> cstd",
    "abcd[c:w2 d:iu a:iu b:it] -> tcu",
    "abcd[b:p d:r c:iu a:p] -> ud",
    "abcd[a:its d:iu c:ist] -> utsb",
    "abcd[d:r c:iu b:it a:its] -> utsd",
    "abcd[d:r a:w2 b:iu c:p] -> aud",
    "abcd[d:r a:w3 c:is b:it] -> tasd",
    "abcd[c:p a:ist d:it b:w2] -> bst",
    "abcd[d:w2 a:ist b:w2] -> bdstc",
    "abcd[c:is d:it b:it a:p] -> ts",
    "abcd[d:r c:ist a:its] -> stbd",
    "abcd[c:p a:it d:it b:w3] -> tb",
    "abcd[a:w3 b:r c:r d:w3] -> dabc",
    "abcd[c:p d:iu a:w3] -> aub",
    "abcd[b:r d:it c:is] -> abts",
    "abcd[d:r b:iu a:w2 c:it] -> taud",
    "abcd[d:its a:is c:r] -> tsbc",
    "abcd[a:w3 c:its d:r b:iu] -> autsd",
    "abcd[c:is b:p a:it d:is] -> ts",
    "abcd[b:it d:ist c:r a:its] -> stc",
    "abcd[b:ist c:ist d:its a:iu] -> ust",
    "abcd[c:w2 a:it] -> tcbd",
    "abcd[c:it d:ist a:ist b:is] -> st",
    "abcd[d:iu b:w3 a:w2 c:iu] -> abu",
    "abcd[a:is b:w2 d:its] -> btsc",
    "abcd[b:r c:w2 a:r d:ist] -> abcst",
    "abcd[a:r c:p d:w3 b:it] -> atd",
    "abcd[c:its a:ist d:p b:iu] -> uts",
    "abcd[c:its a:p d:its b:iu] -> uts",
    "abcd[a:is c:its d:w3] -> dtsb",
    "abcd[b:it d:its c:ist a:iu] -> uts",
    "abcd[a:it c:its b:is] -> tsd",
    "abcd[c:p a:p d:is] -> sb",
    "abcd[b:w2 c:p a:w3] -> bad",
    "abcd[c:its a:is d:iu b:its] -> uts",
    "abcd[c:is a:p b:w2 d:iu] -> bus",
    "abcd[a:it d:iu c:r b:it] -> tuc",
    "abcd[b:is d:iu a:it c:p] -> tus",
    "abcd[b:w3 c:w3 d:w3 a:w2] -> adcb",
    "abcd[c:w2 a:it b:r d:p] -> tcb",
    "abcd[a:it c:iu d:its b:ist] -> uts",
    "abcd[c:its a:w3 d:is b:p] -> ats",
    "abcd[c:w3 a:r d:its b:p] -> acts",
    "abcd[c:p b:its d:is a:is] -> ts",
    "abcd[a:r c:p d:is b:iu] -> aus",
    "abcd[b:its c:ist d:p a:w2] -> ats",
    "abcd[b:p a:p d:r c:is] -> sd",
    "abcd[c:is d:r b:ist a:its] -> std",
    "abcd[d:is b:w2 a:p c:w2] -> cbs",
    "abcd[c:it a:p b:w2 d:iu] -> btu",
    "abcd[d:r c:is b:its a:p] -> tsd",
    "abcd[c:ist b:p d:w3 a:is] -> dst",
    "abcd[a:is c:is d:it b:w2] -> bts",
    "abcd[c:p a:p b:its d:w3] -> dts",
    "abcd[b:it a:iu d:w2] -> dtuc",
    "abcd[c:w3 a:p b:r d:p] -> cb",
    "abcd[c:w2 a:iu b:it d:p] -> tcu",
    "abcd[c:r d:is a:p] -> sbc",
    "abcd[b:ist c:it d:iu a:iu] -> ust",
    "abcd[d:ist b:ist a:w2] -> astc",
    "abcd[a:iu d:r] -> ubcd",
    "abcd[c:its a:its b:its] -> tsd",
    "abcd[c:it a:it b:it] -> td",
    "abcd[d:p b:w2 a:w3 c:it] -> tba",
    "abcd[a:it c:w3 b:w2 d:r] -> btcd",
    "abcd[c:r b:p d:ist] -> stac",
    "abcd[d:w2 b:it c:r] -> tdac",
    "abcd[b:its c:ist a:is d:r] -> tsd",
    "abcd[a:is b:its] -> tscd",
    "abcd[c:is d:is a:w3 b:r] -> asb",
    "abcd[c:p b:iu d:w3 a:iu] -> du",
    "abcd[b:w3 c:is a:is d:ist] -> bst",
    "abcd[c:iu a:w3] -> aubd",
    "abcd[a:ist] -> stbcd",
    "abcd[b:its d:w3 c:w2 a:iu] -> cduts",
    "abcd[b:it c:is] -> atsd",
};

// Index arrays that share axes with the array (Haliax 1.4): batched gathers.
const char* const paired_cases[] = {
    "abc[c:is a:ib] -> bs",
    "abc[a:ibsc] -> bsc",
    "abcd[a:is b:id] -> sdc",
    "ab[a:ibt] -> bt",
    "abcd[b:icd a:p] -> cd",
    "abcd[d:iabs c:iabt] -> tabs",
    "abc[b:ic] -> ac",
    "abc[a:is c:isb] -> sb",
    "abcd[c:it b:ias d:ita] -> tas",
    "abc[b:isat c:ita] -> sat",
    "abcd[b:idat c:isda] -> tsda",
    "abc[c:ib a:itbs] -> tbs",
    "abc[b:isca] -> sca",
    "abcd[a:itbs c:itbs d:p] -> tbs",
    "abcd[d:p a:isb c:p] -> sb",
    "abc[c:isa b:w3] -> bsa",
    "abcd[d:itb a:icb] -> tcb",
    "abcd[b:isdc] -> asdc",
    "ab[a:itb] -> tb",
    "abc[c:ib a:w2] -> ab",
    "abc[b:istc] -> astc",
    "abc[a:isct b:its] -> sct",
    "abc[c:ista] -> stab",
    "abcd[b:itc a:ic d:p] -> tc",
    "abc[b:iats] -> atsc",
    "abcd[b:itsa d:w3] -> dtsac",
    "abcd[c:itbd a:is] -> stbd",
    "abc[b:iasc] -> asc",
    "abc[a:ic] -> cb",
    "ab[b:ias] -> as",
    "ab[b:iast] -> ast",
    "abc[c:istba] -> stba",
    "abc[a:isc] -> scb",
    "abc[c:iasb] -> asb",
    "abcd[d:iabs c:w2] -> cabs",
    "abcd[a:p b:ics] -> csd",
    "ab[a:ib] -> b",
    "abc[c:isba] -> sba",
    "ab[b:ia] -> a",
    "abc[c:is b:ia] -> as",
    "abcd[c:id a:is] -> sdb",
    "abcd[c:iabt] -> abtd",
    "abcd[a:is c:is d:itb] -> stb",
    "abc[a:isbct] -> sbct",
    "abc[b:ic a:isct] -> sct",
    "abc[b:isat c:ist] -> sat",
    "abc[a:ist c:ibs] -> tbs",
    "abc[a:w2 b:ict] -> act",
};

struct Case {
  std::string array, result;
  Indices indices;
  std::map<char, std::string> how;
};
Case parse(std::string_view line) {
  Case c;
  auto open = line.find('['), close = line.find(']');
  c.array = line.substr(0, open);
  c.result = line.substr(close + 5);
  std::istringstream items(std::string(line.substr(open + 1, close - open - 1)));
  for (std::string item; items >> item;) {
    auto what = item.substr(2);
    c.how[item[0]] = what;
    auto axis = axes_of(item.substr(0, 1))[0];
    auto index = what == "p"      ? Index(1)
                 : what == "r"    ? Index(Slice{1, 3})
                 : what[0] == 'w' ? Index(ds(1, axis.resize(what[1] - '0')))
                                  : Index(arange(axes_of(what.substr(1))) % axis.size);
    c.indices.emplace_back(axis.name, index);
  }
  return c;
}
// Returns the value at these positions of the result's axes, computed by hand.
double expected(const Case& c, const Axes& axes, std::map<char, std::int64_t> at) {
  double v = 0;
  for (char a : c.array) {
    auto how = c.how.find(a);
    std::int64_t i = at.count(a) ? at[a] : 0;
    if (how != c.how.end() && how->second == "p")
      i = 1;
    else if (how != c.how.end() && how->second == "r")
      i += 1;
    else if (how != c.how.end() && how->second[0] == 'w')
      i += 1;
    else if (how != c.how.end()) {
      i = 0;
      for (char name : how->second.substr(1))
        i = i * find_axis(axes, Name(std::string(1, name)))->size + at[name];
      i %= sizes.at(a);
    }
    if (i >= sizes.at(a)) return 0;
    v = v * double(sizes.at(a)) + double(i);
  }
  return v;
}

}  // namespace

namespace {
void check_lines(std::span<const char* const> lines) {
  for (std::string line : lines) {
    CAPTURE(line);
    auto c = parse(line);
    auto x = arange(axes_of(c.array), {.dtype = DType::f32});
    auto part = index(x, c.indices);
    CHECK_EQ(text_of(part.axes()), c.result);
    auto axes = part.axes();
    auto values = part.floats();
    bool same = true;
    for (std::int64_t flat = 0; flat < part.size(); ++flat) {
      std::map<char, std::int64_t> at;
      auto rest = flat;
      for (auto a = axes.rbegin(); a != axes.rend(); ++a) {
        at[a->name.text()[0]] = rest % a->size;
        rest /= a->size;
      }

      same = same && values[std::size_t(flat)] == expected(c, axes, at);
    }
    CHECK(same);
    // The order is the same under vmap, and in an update.
    auto both = vmap([&](const NamedArray& v) { return index(v, c.indices); },
                     "copy")(stack("copy", {x, x * 2.}));
    CHECK_EQ(text_of(at(both, "copy", 1).axes()), c.result);
    CHECK(at(both, "copy", 1).floats() == (part * 2.).floats());
    CHECK(index(at_set(x, c.indices, zeros_like(part)), c.indices).floats() ==
          std::vector<float>(values.size()));
  }
}
}  // namespace

TEST_CASE("index orders the axes of the part as Haliax does") { check_lines(cases); }
TEST_CASE("index pairs the axes that an index array shares with the array") {
  check_lines(paired_cases);
}

TEST_CASE("index: a position from a loop index combines with a window") {
  Axis A("a", 3), B("b", 4), C("c", 5);
  auto x = arange(Axes{A, B, C}, {.dtype = DType::f32});
  auto row = [&](const NamedArray& i) { return index(x, {{"a", i}, {"c", ds(1, Axis("c", 2))}}); };
  auto rows = map(row, "n")(arange(Axis("n", 3)));
  CHECK_EQ(to_string(rows.axes()), "(n=3, c=2, b=4)");
  CHECK(rearrange(rows, Names{"n", "b", "c"}).floats() == slice(x, "c", 1, 2).floats());
}

TEST_CASE("index: shared axes of two sizes raise") {
  auto x = zeros({Axis("a", 3), Axis("b", 4), Axis("c", 5)});
  auto ids = zeros({Axis("b", 2)}, DType::i32);
  CHECK_THROWS_WITH_AS(index(x, {{"a", ids}}), doctest::Contains("axis b has size 2"), Error);
  CHECK_THROWS_WITH_AS(at_set(x, {{"a", ids}}, 0.), doctest::Contains("axis b has size 2"), Error);
  // The window and the index array have the same axis.
  CHECK_EQ(to_string(index(x, {{"a", ids}, {"b", ds(1, 2)}}).axes()), "(b=2, c=5)");
  // A range of a shared axis is paired after it is sliced.
  CHECK_EQ(to_string(index(x, {{"a", ids}, {"b", Slice{1, 3}}}).axes()), "(b=2, c=5)");
}
