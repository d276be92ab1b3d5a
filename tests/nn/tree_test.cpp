// Traversal of model structs as trees: paths, order, flattening, statics and invalid types.
#include <doctest/doctest.h>

#include "haliax/tree.h"

using namespace haliax;

namespace {

// A leaf that is identified by its address: a traversal never reads the array.
NamedArray leaf(int id) {
  static char nodes[64];
  return NamedArray(NodePtr(std::make_shared<int>(id), reinterpret_cast<const Node*>(&nodes[id])));
}
bool same(const NamedArray& a, const NamedArray& b) { return a.node() == b.node(); }

double twice(double x) { return 2 * x; }
double half(double x) { return x / 2; }

struct Linear {
  NamedArray weight;
  std::optional<NamedArray> bias;
  Axis in, out;
};
struct Attention {
  Linear c_attn, c_proj;
  float scale = 1;
};
struct Block {
  Attention attn;
  Frozen<Linear> probe;
};
enum class Mode { train, test };
struct Config {
  int layers = 2;
  double epsilon = 1e-5;
  std::string name = "gpt";
  Mode mode = Mode::test;
  bool bias = true;
};
struct NoFields {};
struct Model {
  Linear wte;
  std::vector<Block> blocks;
  std::pair<NamedArray, Linear> head;
  std::tuple<NamedArray, int, std::array<NamedArray, 2>> rest;
  Frozen<NamedArray> mask;
  std::optional<Block> extra;
  Config config;
  double (*activation)(double) = twice;
  NoFields nothing;
};

Linear linear(int id, bool bias = false) {
  Linear l{leaf(id), {}, {"in", 2}, {"out", 3}};
  if (bias) l.bias = leaf(id + 1);
  return l;
}
Model model() {
  Model m;
  m.wte = linear(0, true);
  m.blocks = {{{linear(2), linear(3)}, {linear(4, true)}}};
  m.head = {leaf(6), linear(7)};
  m.rest = {leaf(8), 5, {leaf(9), leaf(10)}};
  m.mask = {leaf(11)};
  return m;
}

struct Wide {
  NamedArray f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
      f19, f20, f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, last_one;
};

class Private {
 public:
  explicit Private(int id) : weight_(leaf(id)), rest{leaf(id + 1)} {}
  bool holds(int id) const { return same(weight_, leaf(id)); }

 private:
  NamedArray weight_;
  Frozen<NamedArray> rest;
  int count_ = 3;
  HALIAX_FIELDS(weight_, rest, count_)
};

// A static value without reflected fields.
class Schedule {
 public:
  static constexpr bool is_static = true;
  explicit Schedule(long double rate) : rate_(rate) {}
  friend bool operator==(const Schedule&, const Schedule&) = default;

 private:
  long double rate_;
};

struct Opaque {
 public:
  Opaque(int v) : value(v) {}
  int value;
  friend bool operator==(Opaque, Opaque) = default;
};

template <class T> bool same_statics(const T& a, const T& b) {
  return walk_of(a, {.statics = true}).same_statics(walk_of(b, {.statics = true}));
}

template <class T> struct One { T value; };
template <class T> bool distinguished(const T& a, const T& b) {
  return same_statics(One<T>{a}, One<T>{a}) && same_statics(One<T>{b}, One<T>{b}) &&
         !same_statics(One<T>{a}, One<T>{b});
}

// Types of fields that make it hard to count the fields.
struct NoDefault {
  AxisSelector axis;
  NamedArray weight;
  Opaque opaque;
};
struct Defaults {
  Opaque opaque = Opaque(3);
  NamedArray weight;
  const int width = 4;
};
struct Optionals {
  std::optional<int> a;
  std::optional<Axis> b;
  std::optional<std::string> c;
  std::optional<Linear> d;
  AxisSelection e;
};
struct Recursive {
  NamedArray value;
  std::vector<Recursive> children;
};
struct Stateless {
  decltype([](int x) { return x + 1; }) f;
  std::nullptr_t none = nullptr;
  NamedArray weight;
};
struct Flags {
  std::vector<bool> flags;
  std::vector<std::string> words;
  std::array<float, 3> numbers;
};
struct HasArray {
  int numbers[3];
  NamedArray weight;
};
struct BigArray {
  NamedArray weight;
  float numbers[100];
};
struct Derived : Linear {
  NamedArray more;
};
struct EmptyBase : NoFields {
  NamedArray weight;
};
struct TooMany {
  int a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, c0, c1, c2,
      c3, c4, c5, c6, c7, c8, c9;
  NamedArray x, y, z;
};
struct Ctor {
  Ctor() {}
  NamedArray weight;
};
struct Virtual {
  virtual ~Virtual() = default;
  NamedArray weight;
};
class Inherits : public Private {
  using Private::Private;
  NamedArray forgotten;
};
struct NoEquals {
  static constexpr bool is_static = true;
  int x;
};
using Strings = std::vector<std::string>;

}  // namespace

template <> inline constexpr bool haliax::is_static<Opaque> = true;

TEST_CASE("tree: paths go through structs, vectors, optionals, pairs, tuples and Frozen") {
  Model m = model();
  CHECK(tree_paths(m) == Strings{"wte.weight", "wte.bias", "blocks.0.attn.c_attn.weight",
                                 "blocks.0.attn.c_proj.weight", "blocks.0.probe.weight",
                                 "blocks.0.probe.bias", "head.0", "head.1.weight", "rest.0",
                                 "rest.2.0", "rest.2.1", "mask"});
  m.extra = m.blocks[0];
  CHECK(tree_paths(m)[12] == "extra.attn.c_attn.weight");
  struct Outer {
    Block blocks;
  } outer;
  CHECK(tree_paths(outer) ==
        Strings{"blocks.attn.c_attn.weight", "blocks.attn.c_proj.weight", "blocks.probe.weight"});
  CHECK(tree_paths(leaf(1)) == Strings{""});
  CHECK(tree_paths(std::pair(leaf(1), linear(2))) == Strings{"0", "1.weight"});
  CHECK(tree_paths(NoFields{}).empty());
  CHECK(tree_paths(3.5).empty());
}

TEST_CASE("tree: arrays are in the order of the fields, and frozen ones are marked") {
  Model m = model();
  Walk w = walk_of(m);
  REQUIRE(w.arrays.size() == 12);
  CHECK(w.paths.empty());
  CHECK(w.statics.empty());
  for (int i = 0; i < 12; ++i) CHECK(same(*w.arrays[i], leaf(i)));
  CHECK(w.arrays[0] == &m.wte.weight);  // pointers to the arrays themselves
  CHECK(w.frozen == std::vector<bool>{0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1});
  CHECK(walk_of(Frozen{std::pair(Frozen{leaf(0)}, leaf(1))}).frozen == std::vector<bool>{1, 1});
  Walk two;
  walk(two, m.wte);
  walk(two, m.head);
  CHECK(two.arrays.size() == 4);
}

TEST_CASE("tree: each of 32 fields has its name") {
  auto paths = tree_paths(Wide{});
  REQUIRE(paths.size() == 32);
  for (int i = 0; i < 31; ++i) CHECK(paths[i] == "f" + std::to_string(i));
  CHECK(paths[31] == "last_one");
}

TEST_CASE("tree: a class lists its fields") {
  Private p(4);
  CHECK(tree_paths(p) == Strings{"weight", "rest"});
  CHECK(walk_of(p).frozen == std::vector<bool>{0, 1});
  CHECK(walk_of(p, {.statics = true}).statics.size() == sizeof(int));
  CHECK(unflatten(p, {leaf(9), leaf(8)}).holds(9));
  CHECK(p.holds(4));
  CHECK(tree_paths(std::pair(0, Private(1))) == Strings{"1.weight", "1.rest"});
}

TEST_CASE("tree: unflatten restores the tree that was flattened") {
  Model m = model();
  Leaves leaves = flatten(m);
  REQUIRE(leaves.size() == 12);
  Leaves other;
  for (int i = 0; i < 12; ++i) other.push_back(leaf(20 + i));
  Model n = unflatten(m, other);
  CHECK(same(n.blocks[0].probe->weight, leaf(24)));
  CHECK(same(std::get<2>(n.rest)[1], leaf(30)));
  CHECK(same(m.wte.weight, leaf(0)));  // modules have value semantics
  CHECK(n.wte.in == Axis("in", 2));
  other.pop_back();
  CHECK_THROWS_WITH_AS(unflatten(m, other),
                       doctest::Contains("] the tree has 12 arrays, but 11 were given; the trees "
                                         "must have the same structure; tree_test.cpp:"),
                       Error);
}

TEST_CASE("tree: tree_map and for_each_leaf apply a function to every leaf") {
  Linear a = linear(0, true), b = linear(2, true), none = linear(4);
  Linear second = tree_map([](const NamedArray&, const NamedArray& y) { return y; }, a, b);
  CHECK(same(second.weight, leaf(2)));
  CHECK(same(*second.bias, leaf(3)));
  CHECK(same(tree_map([](const NamedArray&) { return NamedArray(); }, a).weight, NamedArray()));
  CHECK_THROWS_AS(tree_map([](const NamedArray& x, const NamedArray&) { return x; }, a, none),
                  Error);
  CHECK_THROWS_AS(tree_map([](const NamedArray& x, const NamedArray&) { return x; }, none, a),
                  Error);

  std::string seen;
  Frozen<Linear> frozen{a};
  for_each_leaf(frozen, [&](const std::string& path, NamedArray& x, bool is_frozen) {
    seen += path + (is_frozen ? "*" : "") + " ";
    x = leaf(7);
  });
  CHECK(seen == "weight* bias* ");
  CHECK(same(frozen->weight, leaf(7)));
  for_each_leaf(std::as_const(a), [](const std::string&, auto& x, bool) {
    static_assert(std::is_const_v<std::remove_reference_t<decltype(x)>>);
  });
}

TEST_CASE("tree: statics are equal if and only if the static fields are") {
  CHECK(distinguished(1, 2));
  CHECK(distinguished(1.0f, 2.0f));
  CHECK(distinguished(1.0L, 2.0L));
  CHECK(distinguished(true, false));
  CHECK(distinguished(Mode::train, Mode::test));
  CHECK(distinguished(DType::f32, DType::bf16));
  CHECK(distinguished(&twice, &half));
  CHECK(distinguished<double (*)(double)>(&twice, nullptr));
  CHECK(distinguished(std::string("a"), std::string("b")));
  CHECK(distinguished(Name("a"), Name("b")));
  CHECK(distinguished(Axis("a", 1), Axis("a", 2)));
  CHECK(distinguished(Axis("a", 1), Axis("b", 1)));
  CHECK(distinguished(AxisSpec{{"a", 1}, {"b", 1}}, AxisSpec{{"b", 1}, {"a", 1}}));
  CHECK(distinguished(AxisSpec{}, AxisSpec{{"b", 1}}));
  CHECK(distinguished(AxisSelection(), AxisSelection(Names{})));
  CHECK(distinguished(AxisSelection("a"), AxisSelection(Axis("a", 1))));
  CHECK(distinguished(Axes{{"a", 1}}, Axes{{"a", 1}, {"b", 2}}));
  CHECK(distinguished(std::vector<int>{1, 2}, std::vector<int>{1}));
  CHECK(distinguished(std::vector<bool>{true, false}, std::vector<bool>{true, true}));
  CHECK(distinguished(Strings{"ab", "c"}, Strings{"a", "bc"}));
  CHECK(distinguished(std::array{1, 2}, std::array{1, 3}));
  CHECK(distinguished(std::optional<int>(), std::optional<int>(0)));
  CHECK(distinguished(std::pair(1, Mode::test), std::pair(1, Mode::train)));
  CHECK(distinguished(Schedule(1), Schedule(2)));
  CHECK(distinguished(Opaque(1), Opaque(2)));
  CHECK(distinguished(Config{}, Config{2, 1e-5, "gpu"}));
  // The lengths of fields are part of the structure.
  using Two = std::pair<std::vector<int>, std::vector<int>>;
  CHECK(distinguished(Two({1}, {}), Two({}, {1})));
  CHECK(
      distinguished(std::pair<std::optional<Schedule>, std::optional<Schedule>>(Schedule(1), {}),
                    std::pair<std::optional<Schedule>, std::optional<Schedule>>({}, Schedule(1))));
}

TEST_CASE("tree: the structure is static, the arrays are not") {
  Model m = model();
  CHECK(same_statics(m, model()));
  CHECK(same_statics(m, tree_map([](const NamedArray&) { return NamedArray(); }, m)));
  auto differs = [&](auto change) {
    Model n = model();
    change(n);
    return !same_statics(m, n);
  };
  CHECK(differs([](Model& n) { n.wte.bias.reset(); }));
  CHECK(differs([](Model& n) { n.blocks.push_back(n.blocks[0]); }));
  CHECK(differs([](Model& n) { n.activation = half; }));
  CHECK(differs([](Model& n) { n.blocks[0].probe.value.in.size = 9; }));
  CHECK(differs([](Model& n) { n.config.epsilon = 1e-6; }));
  CHECK(differs([](Model& n) { std::get<1>(n.rest) = 6; }));
}

TEST_CASE("tree: fields that are hard to count are counted") {
  CHECK(tree_paths(NoDefault{"a", leaf(0), 1}) == Strings{"weight"});
  CHECK_FALSE(same_statics(NoDefault{"a", leaf(0), 1}, NoDefault{"b", leaf(0), 1}));
  CHECK_FALSE(same_statics(NoDefault{"a", leaf(0), 1}, NoDefault{"a", leaf(0), 2}));
  CHECK(tree_paths(Defaults{}) == Strings{"weight"});
  CHECK_FALSE(same_statics(Defaults{}, Defaults{3, {}, 5}));
  Optionals full;
  full.b = Axis("a", 1);
  full.d = linear(0);
  CHECK_FALSE(same_statics(Optionals{}, full));
  CHECK(tree_paths(full) == Strings{"d.weight"});
  CHECK(tree_paths(Recursive{leaf(0), {{leaf(1), {{leaf(2), {}}}}, {leaf(3), {}}}}) ==
        Strings{"value", "children.0.value", "children.0.children.0.value", "children.1.value"});
  CHECK(tree_paths(Stateless{}) == Strings{"weight"});
  CHECK(walk_of(Stateless{}, {.statics = true}).statics.empty());
  CHECK_FALSE(same_statics(Flags{{true}, {}, {}}, Flags{{false}, {}, {}}));
  CHECK_FALSE(same_statics(Flags{{}, {}, {1, 2, 3}}, Flags{{}, {}, {1, 2, 4}}));
}

TEST_CASE("tree: a type that is not a tree has a kind that names the reason") {
  using reflect::Kind, reflect::kind;
  CHECK(Tree<Model>);
  CHECK(Tree<const Private>);
  CHECK_FALSE(Tree<Ctor>);
  CHECK(kind<Ctor> == Kind::unknown);
  CHECK(kind<Virtual> == Kind::unknown);
  CHECK(kind<std::shared_ptr<int>> == Kind::unknown);
  CHECK(kind<Derived> == Kind::base);
  CHECK(kind<EmptyBase> == Kind::base);
  CHECK(kind<Inherits> == Kind::inherited);
  CHECK(kind<HasArray> == Kind::c_array);
  CHECK(kind<BigArray> == Kind::c_array);
  CHECK(kind<TooMany> == Kind::too_many);
  CHECK(kind<Wide> == Kind::fields);
  CHECK(kind<NoEquals> == Kind::incomparable);
  CHECK(kind<const char*> == Kind::pointer);
  CHECK(kind<Arr> == Kind::arr);
}
