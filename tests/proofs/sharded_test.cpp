// Sharded programs equal unsharded ones, for random programs, meshes and mappings. Values without a
// sum of floats are bitwise identical; others agree to 1e-6 of the value's scale. A failure prints
// its seed. HALIAX_SEED=n runs only that seed and prints the program and its collectives.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>

#include "haliax/jit.h"
#include "haliax/losses.h"
#include "haliax/nn.h"

using namespace haliax;

namespace {

// Random draws that are equal on every machine.
class Dice {
 public:
  explicit Dice(unsigned seed) : next_(seed) {}
  int below(std::size_t n) { return int(next_() % n); }
  int between(int low, int high) { return low + below(std::size_t(high - low + 1)); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T> const T& one_of(const std::vector<T>& list) {
    return list[std::size_t(below(list.size()))];
  }
  template <class T> std::vector<T> shuffled(std::vector<T> list) {
    for (std::size_t k = list.size(); k > 1; --k)
      std::swap(list[k - 1], list[std::size_t(below(k))]);
    return list;
  }

 private:
  std::mt19937 next_;
};

struct Value {
  NamedArray x;
  // True if the value depends on no sum of floats. Its values are bitwise identical for any
  // sharding, so indices may depend on it.
  bool exact;
};
struct Trace {
  std::string text;  // the drawn steps, in order
  std::vector<bool> exact;
};

// Draws steps one after the other, each on values that exist already.
class Maker {
 public:
  Maker(Dice& dice, Trace& trace, std::vector<Value> floats, std::vector<NamedArray> ids,
        int depth = 0)
      : dice(dice), trace(trace), floats(std::move(floats)), ids(std::move(ids)), depth(depth) {}

  void run(int steps) {
    for (int tries = 0; steps > 0 && tries < 200; ++tries) {
      auto& [name, make] = dice.one_of(kinds());
      auto before = trace.text;
      trace.text += std::string(name) + " ";
      auto made = (this->*make)();
      if (!made || made->x.size() > 3000 || made->x.ndim() > 4) {
        trace.text = before;
        continue;
      }
      trace.text += haliax::to_string(made->x.axes()) + (made->exact ? ", " : "~, ");
      floats.push_back(*made);
      --steps;
    }
  }

  Dice& dice;
  Trace& trace;
  std::vector<Value> floats;
  std::vector<NamedArray> ids;  // integers, not negative

 private:
  using Made = std::optional<Value>;
  using Make = Made (Maker::*)();
  int depth;

  static const std::vector<std::pair<const char*, Make>>& kinds() {
    static const std::vector<std::pair<const char*, Make>> all{{"point", &Maker::point},
                                                               {"point", &Maker::point},
                                                               {"pair", &Maker::pair},
                                                               {"pair", &Maker::pair},
                                                               {"dot", &Maker::product},
                                                               {"dot", &Maker::product},
                                                               {"reduce", &Maker::reduced},
                                                               {"reduce", &Maker::reduced},
                                                               {"norm", &Maker::normed},
                                                               {"running", &Maker::running},
                                                               {"order", &Maker::ordered},
                                                               {"choice", &Maker::choice},
                                                               {"pick", &Maker::picked},
                                                               {"place", &Maker::placed},
                                                               {"turn", &Maker::turned},
                                                               {"rename", &Maker::renamed},
                                                               {"flatten", &Maker::flat},
                                                               {"split", &Maker::split},
                                                               {"join", &Maker::joined},
                                                               {"move", &Maker::moved},
                                                               {"cut", &Maker::part},
                                                               {"mask", &Maker::masked},
                                                               {"draw", &Maker::drawn},
                                                               {"scan", &Maker::scanned},
                                                               {"vmap", &Maker::mapped},
                                                               {"gradient", &Maker::gradient},
                                                               {"constrain", &Maker::pinned},
                                                               {"count", &Maker::counted},
                                                               {"layers", &Maker::layered},
                                                               {"loss", &Maker::loss},
                                                               {"broadcast", &Maker::broadcast},
                                                               {"turns", &Maker::each}};
    return all;
  }

  // ---- the operands of a step ----
  const Value& any() {  // newer values are likelier
    auto n = floats.size();
    return dice.chance(60) ? floats[n - 1 - std::size_t(dice.below(std::min<std::size_t>(n, 3)))]
                           : dice.one_of(floats);
  }
  const Value* exact() {
    std::vector<const Value*> all;
    for (auto& v : floats)
      if (v.exact && v.x.ndim() > 0) all.push_back(&v);
    return all.empty() ? nullptr : dice.one_of(all);
  }
  std::optional<Axis> axis(const NamedArray& x) {
    auto all = x.axes();
    if (all.empty()) return {};
    return dice.one_of(all);
  }
  Axes some(const NamedArray& x) {  // at least one, if the array has an axis
    auto all = dice.shuffled(x.axes());
    if (!all.empty()) all.resize(std::size_t(dice.between(1, int(all.size()))));
    return all;
  }
  static double points(const Axes& axes) {
    double n = 1;
    for (auto& a : axes) n *= double(a.size);
    return n;
  }
  static bool fits(const NamedArray& x, const NamedArray& y) {  // shared names have the same size
    for (auto& a : x.axes())
      if (y.has_axis(a.name) && y.axis_size(a.name) != a.size) return false;
    return true;
  }
  const Value* partner(const NamedArray& x, bool subset) {
    std::vector<const Value*> all;
    for (auto& v : floats) {
      bool good = fits(x, v.x);
      if (subset)
        for (auto& a : v.x.axes()) good &= x.has_axis(a.name);
      if (good) all.push_back(&v);
    }
    return all.empty() ? nullptr : dice.one_of(all);
  }
  NamedArray id(std::int64_t size) { return dice.one_of(ids) % int(size); }
  Name fresh(const NamedArray& x) {
    for (auto& n : dice.shuffled(Names{"r", "s", "t", "u", "v"}))
      if (!x.has_axis(n)) return n;
    return "w";
  }

  // ---- the steps ----
  Made point() {
    auto v = any();
    auto& x = v.x;
    switch (dice.below(v.exact ? 9 : 7)) {
      case 0:
        return Value{tanh(x), v.exact};
      case 1:
        return Value{nn::gelu(x), v.exact};
      case 2:
        return Value{x * 0.5, v.exact};
      case 3:
        return Value{-x, v.exact};
      case 4:
        return Value{exp(-square(x)), v.exact};
      case 5:
        return Value{sin(x) + 0.25, v.exact};
      case 6:
        return Value{rsqrt(1. + square(x)), v.exact};
      case 7:
        return Value{abs(x), true};
      default:
        return Value{x.astype(DType::bf16).astype(DType::f32), true};
    }
  }
  Made pair() {
    auto v = any();
    auto* p = partner(v.x, true);
    if (!p) return {};
    auto y = *p;
    bool exact = v.exact && y.exact;
    switch (dice.below(exact ? 7 : 5)) {
      case 0:
        return Value{(v.x + y.x) * 0.5, exact};
      case 1:
        return Value{(y.x - v.x) * 0.5, exact};
      case 2:
        return Value{v.x * tanh(y.x), exact};
      case 3:
        return Value{v.x / (1. + square(y.x)), exact};
      case 4:
        return Value{v.x + y.x * 0.25, exact};
      case 5:
        return Value{maximum(v.x, y.x), true};
      default:
        return Value{where(greater(v.x, y.x), v.x, y.x * 0.5), true};
    }
  }
  Made product() {
    auto v = any();
    auto* p = partner(v.x, false);
    if (!p) return {};
    Axes shared;
    for (auto& a : v.x.axes())
      if (p->x.has_axis(a.name) && dice.chance(70)) shared.push_back(a);
    return Value{dot(v.x, p->x, shared) * (1 / std::max(1., points(shared))), false};
  }
  Made reduced() {
    auto v = any();
    auto over = some(v.x);
    if (over.empty()) return {};
    switch (dice.below(v.exact ? 9 : 6)) {
      case 0:
        return Value{mean(v.x, over), false};
      case 1:
        return Value{sum(v.x, over) * (1 / points(over)), false};
      case 2:
        return Value{logsumexp(v.x, over), false};
      case 3:
        return Value{var(v.x, over), false};
      case 4:
        return Value{prod(tanh(v.x), over), false};
      case 5: {
        auto* m = exact();
        if (!m || !fits(v.x, m->x)) return {};
        for (auto& a : m->x.axes())
          if (!v.x.has_axis(a.name)) return {};
        return Value{mean(v.x, over, {.where = greater(m->x, 0.)}), false};
      }
      case 6:
        return Value{max(v.x, over), true};
      case 7:
        return Value{min(v.x, over), true};
      default:
        return Value{any_of(greater(v.x, 1.), over), true};
    }
  }
  static NamedArray any_of(const NamedArray& x, const Axes& over) {
    return haliax::any(x, over).astype(DType::f32);
  }
  Made normed() {
    auto v = this->any();
    auto over = some(v.x);
    if (over.empty()) return {};
    switch (dice.below(3)) {
      case 0:
        return Value{softmax(v.x, over), false};
      case 1:
        return Value{log_softmax(v.x, over) * 0.2, false};
      default:
        return Value{standardize(v.x, over, 0.3), false};
    }
  }
  Made running() {
    auto v = this->any();
    auto a = axis(v.x);
    if (!a) return {};
    return Value{dice.chance(70)
                     ? cumsum(v.x, *a) * (1 / double(std::max<std::int64_t>(a->size, 1)))
                     : cumprod(tanh(v.x), *a),
                 false};
  }
  Made ordered() {
    auto* v = exact();
    if (!v) return {};
    auto x = v->x;
    auto a = *axis(x);
    if (dice.chance(40)) return Value{sort(x, a), true};
    if (dice.chance(40)) {
      ids.push_back(argsort(x, a));
      return Value{ids.back().astype(DType::f32) * 0.1, true};
    }
    auto [best, where] = top_k(x, a, dice.between(1, int(std::min<std::int64_t>(a.size, 3))));
    ids.push_back(where);
    return Value{best, true};
  }
  Made choice() {
    auto* v = exact();
    if (!v) return {};
    auto a = *axis(v->x);
    ids.push_back(dice.chance(50) ? argmax(v->x, a) : argmin(v->x, a));
    return Value{ids.back().astype(DType::f32) * 0.1, true};
  }
  Made counted() {
    auto& i = dice.one_of(ids);
    if (i.ndim() == 0) return Value{one_hot(i % 5, Axis("t", 5)), true};
    auto a = *axis(i);
    if (dice.chance(50)) ids.push_back(dice.chance(50) ? sum(i, a) : cumsum(i, a));
    // A partial sum may be scaled per device before it is reduced.
    return Value{ids.back().astype(DType::f32) * 0.02, false};
  }
  Made picked() {
    auto v = this->any();
    auto a = axis(v.x);
    if (!a || a->size == 0) return {};
    auto i = id(a->size);
    for (auto& b : i.axes())
      if (b.name != a->name && v.x.has_axis(b.name) && v.x.axis_size(b.name) != b.size) return {};
    bool paired = false;  // true if the index and the array share an axis
    for (auto& b : i.axes()) paired |= v.x.has_axis(b.name);
    return Value{paired || dice.chance(70) ? take(v.x, *a, i) : index(v.x, {{a->name, i}}),
                 v.exact};
  }
  Made placed() {
    auto v = this->any();
    auto a = axis(v.x);
    if (!a || a->size < 2) return {};
    if (dice.chance(50)) {
      auto i = id(a->size);
      for (auto& b : i.axes())
        if (v.x.has_axis(b.name)) return {};
      return Value{at_add(v.x, {{a->name, i}}, 0.125), false};
    }
    auto n = dice.between(1, int(a->size));
    auto at = dice.between(0, int(a->size) - n);
    auto part = tanh(slice(v.x, *a, dice.between(0, int(a->size) - n), n));
    if (dice.chance(50)) return Value{at_set(v.x, {{a->name, Slice{at, at + n}}}, part), v.exact};
    return Value{
        updated_slice(v.x,
                      {{a->name, arange(Axis("one", 1)).astype(DType::i32).unbind("one")[0] + at}},
                      part),
        v.exact};
  }
  Made turned() {
    auto v = this->any();
    Names order;
    for (auto& a : dice.shuffled(v.x.axes())) order.push_back(a.name);
    return Value{rearrange(v.x, order), v.exact};
  }
  Made renamed() {
    auto v = this->any();
    auto a = axis(v.x);
    if (!a) return {};
    return Value{rename(v.x, {{a->name, fresh(v.x)}}), v.exact};
  }
  Made flat() {
    auto v = this->any();
    auto all = dice.shuffled(v.x.axes());
    if (all.size() < 2) return {};
    return Value{flatten_axes(v.x, {all[0], all[1]}, fresh(v.x)), v.exact};
  }
  Made split() {
    auto v = this->any();
    auto a = axis(v.x);
    if (!a) return {};
    for (std::int64_t n : {2, 3})
      if (a->size > n && a->size % n == 0) {
        Axis outer(a->name, n), inner(fresh(v.x), a->size / n);
        return Value{
            unflatten_axis(v.x, *a,
                           dice.chance(50) ? Axes{outer, inner}
                                           : Axes{outer.resize(inner.size), inner.resize(n)}),
            v.exact};
      }
    return {};
  }
  Made broadcast() {
    auto v = this->any();
    return Value{broadcast_axis(v.x, Axis(fresh(v.x), dice.between(1, 5))), v.exact};
  }
  Made joined() {
    auto v = this->any();
    auto a = axis(v.x);
    if (!a) return stack_of(v);
    auto other = v;
    for (auto& p : floats) {
      bool same = p.x.ndim() == v.x.ndim();
      for (auto& b : p.x.axes())
        same &= v.x.has_axis(b.name) && (b.name == a->name || v.x.axis_size(b.name) == b.size);
      if (same && dice.chance(50)) other = p;
    }
    if (dice.chance(20)) return stack_of(v);
    return Value{concatenate(a->name, {v.x, other.x}), v.exact && other.exact};
  }
  Made stack_of(const Value& v) { return Value{stack(fresh(v.x), {v.x, tanh(v.x)}), v.exact}; }
  Made moved() {
    auto v = this->any();
    auto a = axis(v.x);
    if (!a || a->size == 0) return {};
    switch (dice.below(6)) {
      case 0:
        return Value{roll(v.x, dice.between(-3, 3), *a), v.exact};
      case 1:
        return Value{pad(v.x, {{a->name, {dice.between(0, 3), dice.between(0, 3)}}}, 0.5), v.exact};
      case 2:
        return Value{flip(v.x, *a), v.exact};
      case 3:
        return Value{repeat(v.x, *a, 2), v.exact};
      case 4:
        return Value{tile(v.x, {{a->name, 2}}), v.exact};
      default:
        return Value{roll(v.x, sum(dice.one_of(ids)), *a), v.exact};
    }
  }
  Made part() {
    auto v = this->any();
    auto a = axis(v.x);
    if (!a || a->size < 2) return {};
    auto n = dice.between(1, int(a->size));
    auto from = dice.between(0, int(a->size) - n);
    switch (dice.below(4)) {
      case 0:
        return Value{slice(v.x, *a, from, n), v.exact};
      case 1:
        return Value{slice(v.x, *a, sum(dice.one_of(ids)) % int(a->size), n), v.exact};
      case 2:
        return Value{index(v.x, {{a->name, Slice{from, {}, dice.between(1, 3)}}}), v.exact};
      default:
        return Value{unbind(v.x, *a)[std::size_t(from)], v.exact};
    }
  }
  Made masked() {
    auto v = this->any();
    auto a = axis(v.x);
    if (!a) return {};
    auto at =
        dice.chance(50) ? arange(*a) : rename(arange(Axis("other", a->size)), "other", a->name);
    return Value{where(less(at, dice.between(0, int(a->size))), v.x, v.x * 0.25), v.exact};
  }
  Made drawn() {
    auto v = this->any();
    auto key = random::fold_in(random::key(dice.below(1000)), dice.below(10));
    auto axes = AxisSpec(dice.shuffled(v.x.axes()));
    switch (dice.below(5)) {
      case 0:
        return Value{random::normal(key, axes), true};
      case 1:
        return Value{v.x * random::bernoulli(key, axes, 0.7).astype(DType::f32), v.exact};
      case 2:
        return Value{v.x * random::uniform(key, axes), v.exact};
      case 3:
        ids.push_back(random::randint(key, axes, 0, 9));
        return Value{ids.back().astype(DType::f32) * 0.1, true};
      default: {
        auto a = axis(v.x);
        if (!a) return {};
        return Value{random::permutation(key, v.x, *a), v.exact};
      }
    }
  }
  // A state that each position of an axis updates; returns the per-position outputs or the last
  // state.
  Made scanned() {
    auto v = this->any();
    auto a = axis(v.x);
    if (!a || a->size == 0) return {};
    auto over = [&](const NamedArray& x) {
      Axes rest;
      for (auto& b : x.axes())
        if (b.name != a->name) rest.push_back(b);
      return rest;
    };
    auto start = mean(v.x, *a);
    bool sums = dice.chance(40), reverse = dice.chance(30), last = dice.chance(50);
    auto body = [=](const NamedArray& h, const NamedArray& x) {
      auto next = sums ? h + x * 0.25 : tanh(h + x);
      return std::pair{next, over(x).empty() ? next * 0.5 : mean(next, over(x)) + next * 0.5};
    };
    auto [state, out] = scan(body, *a, {.checkpoint = policy(), .reverse = reverse})(start, v.x);
    return Value{last ? state : out, false};
  }
  // Maps over the positions of an axis one by one, or sums the results.
  Made each() {
    auto v = this->any();
    auto a = axis(v.x);
    if (!a || a->size == 0) return {};
    auto other = this->any().x;
    bool joins = fits(v.x, other) && !other.has_axis(a->name);
    for (auto& b : other.axes()) joins &= v.x.has_axis(b.name);
    auto f = [=](const NamedArray& x) {
      return joins ? tanh(x) * other : softmax(x * 2., Axes(x.axes()));
    };
    if (dice.chance(50)) return Value{haliax::map(f, *a)(v.x), false};
    auto start = zeros(AxisSpec(f(at(v.x, *a, 0)).axes()));
    auto position = arange(*a).astype(DType::f32) * 0.1;
    auto add = [=](const NamedArray& sum, const NamedArray& x, const NamedArray& i) {
      return sum + f(x) * cos(i);
    };
    return Value{fold(add, *a)(start, v.x, position) * (1 / double(a->size)), false};
  }
  const char* policy() {
    return dice.one_of(std::vector<const char*>{"none", "carries", "nested"});
  }
  // Layers: weights with their own axis, and a residual stream.
  Made layered() {
    auto v = this->any();
    auto a = axis(v.x);
    if (!a || v.x.has_axis("layers") || v.x.has_axis("hidden")) return {};
    Axis layers("layers", dice.between(2, 4)), hidden("hidden", dice.between(2, 6));
    auto w = random::normal(random::key(dice.below(100)), {layers, *a, hidden}) * 0.3;
    for (auto& p : floats)
      if (p.x.axes() == make_axes(layers, *a, hidden)) w = p.x;
    auto x = v.x;
    auto body = [=](const NamedArray& h, const NamedArray& w) {
      auto inner = tanh(dot(h, w, *a));
      return (h + rearrange(dot(inner, w, hidden), names_of(h)) * 0.2) * 0.9;
    };
    return Value{fold(body, layers, {.checkpoint = policy()})(x, w), false};
  }
  static Names names_of(const NamedArray& x) {
    Names out;
    for (auto& a : x.axes()) out.push_back(a.name);
    return out;
  }
  // Applies steps inside a vmap over an axis, a gradient or a checkpoint.
  Value steps_on(const Value& v, const NamedArray& x, int n) {
    Maker inner(dice, trace, {Value{x, v.exact}}, {arange(Axis("r", 3))}, depth + 1);
    trace.text += "[";
    inner.run(n);
    trace.text += "] ";
    return inner.floats.back();
  }
  Made mapped() {
    auto v = this->any();
    auto a = axis(v.x);
    // Excludes axis names that the steps add themselves.
    if (!a || depth > 1 || a->size == 0 || a->name.text() > "layers") return {};
    bool exact = false;
    auto out = vmap(
        [&](const NamedArray& x) {
          auto made = steps_on(v, x, 2);
          exact = made.exact;
          return made.x;
        },
        *a)(v.x);
    if (!out.has_axis(a->name)) return {};
    return Value{out, exact};
  }
  Made gradient() {
    auto v = this->any();
    if (depth > 1) return {};
    auto f = [&](const NamedArray& x) {
      auto made = steps_on(v, x, 2).x;
      return sum(square(made)) * (1 / std::max(1., double(made.size())));
    };
    auto g = dice.chance(50) ? grad(f)(v.x)
                             : grad([&](const NamedArray& x) { return checkpoint(f)(x); })(v.x);
    return Value{g * std::sqrt(double(v.x.size())), false};
  }
  Made pinned() {
    auto v = this->any();
    auto a = axis(v.x);
    if (dice.chance(50)) return Value{auto_sharded(v.x), v.exact};
    auto mapping = a && dice.chance(80) ? Mapping{{a->name, "x"}} : Mapping{};
    return Value{shard(v.x, mapping), v.exact};
  }
  Made loss() {
    auto v = this->any();
    auto a = axis(v.x);
    if (!a || v.x.ndim() < 2 || v.x.has_axis("vocab")) return {};
    Axis vocab("vocab", dice.between(3, 7));
    auto w = random::normal(random::key(7), {vocab, *a});
    Axes tokens;
    for (auto& b : v.x.axes())
      if (b.name != a->name) tokens.push_back(b);
    auto targets = random::randint(random::key(8), tokens, 0, int(vocab.size));
    auto chunked_axis = dice.one_of(tokens);
    return Value{nn::chunked_cross_entropy(v.x, w, targets, *a, vocab, chunked_axis,
                                           {.chunks = {.chunk = dice.between(1, 4)}}) *
                     0.3,
                 false};
  }
};

// ---- a program, its arguments, a mesh and mappings ----
struct Drawn {
  unsigned seed;
  Mesh mesh;
  Mapping parameters, data, inside, results;
  std::vector<NamedArray> p, x, ids;
  bool trains;
  int steps;

  explicit Drawn(unsigned n) : seed(n) {
    Dice dice(seed * 2 + 1);
    static const std::vector<Mesh> meshes{{{{"x", 2}}},           {{{"x", 3}}},
                                          {{{"x", 4}}},           {{{"x", 2}, {"y", 2}}},
                                          {{{"x", 2}, {"y", 3}}}, {{{"x", 4}, {"y", 2}}},
                                          {{{"x", 8}}},           {{{"x", 2}, {"y", 2}, {"z", 2}}}};
    mesh = dice.one_of(meshes);
    auto size = [&] { return dice.one_of(std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 4, 6, 8, 12}); };
    const Axes all{{"a", size()}, {"b", size()}, {"c", size()}, {"d", size()}};
    auto drawn_mapping = [&] {
      std::vector<Mapping::Entry> m;
      const Names names{"a", "b",      "c",      "d",     "a", "b", "c",
                        "d", "layers", "hidden", "vocab", "r", "s", "t"};
      for (auto& axis : dice.shuffled(mesh.axes())) {
        if (dice.chance(25)) continue;
        auto name = dice.one_of(names);
        auto known = std::find_if(m.begin(), m.end(), [&](auto& e) { return e.axis == name; });
        if (known == m.end())
          m.push_back({name, std::vector<std::string>{axis.first}});
        else
          known->mesh_axes.push_back(axis.first);
      }
      return Mapping::of(m);
    };
    parameters = drawn_mapping();
    data = drawn_mapping();
    inside = dice.chance(50) ? data : drawn_mapping();
    results = dice.chance(50) ? parameters : drawn_mapping();
    int key = 0;
    auto axes = [&] {
      auto some = dice.shuffled(all);
      some.resize(std::size_t(dice.between(1, 3)));
      return AxisSpec(some);
    };
    for (int k = dice.between(1, 2); k > 0; --k)
      p.push_back(random::normal(random::key(++key), axes()));
    if (dice.chance(40))
      p.push_back(
          random::normal(random::key(++key), {Axis("layers", 3), all[0], Axis("hidden", 5)}) * 0.3);
    for (int k = dice.between(1, 2); k > 0; --k)
      x.push_back(random::normal(random::key(++key), axes()));
    ids.push_back(random::randint(random::key(++key), axes(), 0, 12));
    trains = dice.chance(50);
    steps = dice.between(3, 9);
  }
  // Returns the last values, or the mean square of the last value and its gradients.
  std::vector<NamedArray> run(const std::vector<NamedArray>& p, const std::vector<NamedArray>& x,
                              const std::vector<NamedArray>& ids, Trace& trace) const {
    Dice dice(seed * 2);
    trace = {};
    auto made = [&](const std::vector<NamedArray>& p) {
      std::vector<Value> start;
      for (auto& v : p) start.push_back({v, true});
      for (auto& v : x) start.push_back({v, true});
      Maker m(dice, trace, start, ids);
      m.run(steps);
      return std::pair{m.floats, m.ids};
    };
    std::vector<NamedArray> out;
    if (trains) {
      auto loss = [&](const std::vector<NamedArray>& p) {
        auto values = made(p).first;
        auto sum = mean(square(values.back().x));
        if (values.size() > 1) sum = sum + mean(values[values.size() - 2].x);
        return sum;
      };
      auto [l, g] = value_and_grad(loss)(p);
      out = g;
      out.push_back(l);
      trace.exact.assign(out.size(), false);
    } else {
      auto [values, ids] = made(p);
      for (std::size_t k = values.size() > 3 ? values.size() - 3 : 0; k < values.size(); ++k) {
        out.push_back(values[k].x);
        trace.exact.push_back(values[k].exact);
      }

      out.push_back(ids.back());
      trace.exact.push_back(true);
    }
    return out;
  }
};

std::string difference(const NamedArray& got, const NamedArray& expected, bool exact) {
  if (got.empty() && expected.empty()) return "";
  if (got.axes() != expected.axes())
    return haliax::to_string(got.axes()) + ", not " + haliax::to_string(expected.axes());
  if (exact && got.bytes() == expected.bytes()) return "";
  auto a = got.doubles(), b = expected.doubles();
  double scale = 1;
  for (double v : b)
    if (std::isfinite(v)) scale = std::max(scale, std::abs(v));
  for (std::size_t i = 0; i < a.size(); ++i) {
    bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    if (!same && (exact || !(std::abs(a[i] - b[i]) <= 1e-6 * scale)))
      return "position " + std::to_string(i) + " of " + haliax::to_string(expected.axes()) + ": " +
             std::to_string(a[i]) + ", not " + std::to_string(b[i]) + ", a difference of " +
             std::to_string((a[i] - b[i]) * 1e6) + " millionths";
  }
  return "";
}

// Returns "", or the difference between sharded and unsharded results.
std::string disagreement(const Drawn& d, bool prints) {
  Trace trace;
  auto f = [&](const std::vector<NamedArray>& p, const std::vector<NamedArray>& x,
               const std::vector<NamedArray>& ids) { return d.run(p, x, ids, trace); };
  std::string about;
  try {
    const std::string backend = d.seed % 8 == 0 ? "reference" : "cpu";
    auto expected = jit(f, {.backend = backend})(d.p, d.x, d.ids);
    auto exact = trace.exact;
    about = (d.trains ? "gradient of " : "") + trace.text + "on";
    for (auto& [name, size] : d.mesh.axes()) about += " " + name + "=" + std::to_string(size);
    for (auto& v : d.p) about += ", parameter " + haliax::to_string(v.axes());
    for (auto& v : d.x) about += ", data " + haliax::to_string(v.axes());
    for (auto& v : d.ids) about += ", ids " + haliax::to_string(v.axes());
    about += "; parameters " + to_string(d.parameters) + " data " + to_string(d.data) + " inside " +
             to_string(d.inside) + " results " + to_string(d.results);
    if (prints) std::puts(about.c_str());
    JitOptions options{.backend = backend, .mesh = d.mesh, .axis_resources = d.inside};
    options.in = Mappings::of_each({d.parameters, d.data, d.data});
    options.out = Mappings(d.results);
    options.regather = d.seed % 2 == 0;
    options.overlap = d.seed % 3 == 0;
    auto sharded = named_jit(f, options);
    auto got = sharded(d.p, d.x, d.ids);
    if (prints) std::puts(sharded.report().explain.c_str());
    for (std::size_t k = 0; k < expected.size(); ++k)
      if (auto how = difference(got[k], expected[k], exact[k]); !how.empty())
        return "result " + std::to_string(k) + ": " + how + "\n" + about;
  } catch (const std::exception& e) {
    return std::string(e.what()) + "\n" + about;
  }
  return "";
}

}  // namespace

TEST_CASE("proof: sharded equals unsharded, for random programs, meshes and mappings") {
  auto* requested = std::getenv("HALIAX_SEED");
  auto first = requested ? unsigned(std::atoi(requested)) : 1, last = requested ? first : 300;
  for (auto seed = first; seed <= last; ++seed) {
    CAPTURE(seed);
    CHECK(disagreement(Drawn(seed), requested) == "");
  }
}
