// Tests of debug::callback, debug::diagnose_common_issues and nn::named_call.
#include <doctest/doctest.h>

#include <atomic>
#include <limits>
#include <mutex>

#include "haliax/haliax.h"
#include "haliax/profile.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 4), Embed("embed", 3);

struct Received {  // the values that a callback received
  std::mutex lock;
  std::vector<std::vector<float>> values;
  std::vector<Axes> axes;
};
// Returns a callback that stores its arguments.
auto into(Received& all) {
  return [&all](const NamedArray& a, const NamedArray& b) {
    std::lock_guard hold(all.lock);
    all.values.push_back(a.floats());
    all.values.back().push_back(float(b.item()));
    all.axes.push_back(a.axes());
  };
}

struct Model {
  nn::Linear up;
  NamedArray scale;
  std::optional<NamedArray> bias;
};
Model model() { return {nn::Linear::init(Embed, Axis("mlp", 5), random::key(0)), ones(Embed), {}}; }

}  // namespace

TEST_CASE("callback: a function receives the values of each call and iteration, in order") {
  Received all;
  auto x = arange(Batch) * 1.;
  auto body = [&](const NamedArray& c, const NamedArray& v) {
    auto next = c + v;
    debug::callback(into(all), next, 7.);
    return next;
  };
  auto f = [&](const NamedArray& xs) { return fold(body, "batch")(NamedArray(0.), xs); };
  const std::vector<std::vector<float>> wanted{{0, 7}, {1, 7}, {3, 7}, {6, 7}};
  f(x);
  CHECK(all.values == wanted);
  for (auto* backend : {"cpu", "reference"}) {
    auto compiled = jit(f, {.backend = backend});
    all.values.clear();
    compiled(x);
    CHECK(all.values == wanted);
    compiled(x);
    CHECK(all.values.size() == 8);
  }
}

TEST_CASE("callback: on a mesh and under vmap one call receives full arrays") {
  Received all;
  auto x = arange({Batch, Embed}) * 1.;
  auto f = [&](const NamedArray& v) {
    debug::callback(into(all), v * 2., sum(v));
    return v + 1.;
  };
  named_jit(f, {.mesh = Mesh{{{"data", 2}}}, .axis_resources = Mapping{{"batch", "data"}}})(x);
  REQUIRE(all.values.size() == 1);
  CHECK(all.axes[0] == x.axes());
  auto wanted = (x * 2.).floats();
  wanted.push_back(float(sum(x).item()));
  CHECK(all.values[0] == wanted);

  std::atomic<int> calls = 0;
  auto row = [&](const NamedArray& v) {
    debug::callback([&](const NamedArray& a) { calls += a.size() == 12; }, v);
    return sum(v);
  };
  jit(vmap(row, "batch"))(x);
  CHECK(calls == 1);
}

TEST_CASE("callback: a function receives a known value") {
  double seen = 0;
  auto log = [&](const NamedArray& loss) { seen = loss.item(); };
  auto x = ones(Embed);
  debug::callback(log, sum(x));
  CHECK(seen == 3);
}

TEST_CASE("callback: no values, errors of the function, and bad arguments") {
  std::atomic<int> calls = 0;
  auto f = jit([&](const NamedArray& x) {
    debug::callback([&] { ++calls; });
    return x + 1.;
  });
  f(ones(Embed));
  f(ones(Embed));
  CHECK(calls == 2);
  auto bad = jit([](const NamedArray& x) {
    debug::callback([](const NamedArray& a) { throw std::runtime_error("at " + a.to_string()); },
                    sum(x));
    return x + 1.;
  });
  CHECK(has(error_of([&] { return bad(ones(Embed)).floats(); }), "at NamedArray(f32, (), 3)"));
  raises(
      [] {
        debug::callback([](const NamedArray&) {}, NamedArray());
        return 0;
      },
      {"[callback] a NamedArray is empty", "diagnose_test.cpp"});
  raises(
      [] {
        return chunked_reduce("batch", {}, [](const NamedArray& v) {
          debug::callback([](const NamedArray&) {}, v);
          return sum(v);
        })(ones(Batch));
      },
      {"[callback] values are not materialized inside chunked_reduce"});
}

TEST_CASE("diagnose: a model without problems passes, also with equal values and empty fields") {
  debug::diagnose_common_issues(model());
  const std::pair equal{zeros(Embed), zeros(Embed)};
  equal.first.eval();
  CHECK(debug::module_problems(equal).empty());  // equal constants are one node
  CHECK(debug::module_problems(std::pair{zeros(Embed), zeros(Embed)}).empty());
  auto loss = [](const Model& m, const NamedArray& x) { return sum(m.up(x * m.scale)); };
  debug::diagnose_common_issues(model(), grad(loss)(model(), ones(Embed)));
}

TEST_CASE("diagnose: shared, infinite and unused arrays are reported by path") {
  auto m = model();
  m.scale = m.scale * random::normal(random::key(1), Embed);
  m.bias = m.scale;
  m.up.weight = m.up.weight / 0.;
  auto found = debug::module_problems(m);
  CHECK(found.reused == std::vector<std::vector<std::string>>{{"scale", "bias"}});
  CHECK(found.non_finite == std::vector<std::string>{"up.weight"});
  CHECK(found.without_gradient.empty());
  raises([&] { return debug::diagnose_common_issues(m), 0; },
         {"[diagnose_common_issues] the model has problems", "scale, bias are one array",
          "up.weight has values that are not finite", "diagnose_test.cpp"});

  auto loss = [](const Model& m, const NamedArray& x) { return sum(m.up(x)) + 0. * sum(m.scale); };
  m = model();
  m.bias = ones(Embed);
  auto g = grad(loss)(m, ones(Embed));
  CHECK(debug::module_problems(m, g).without_gradient == std::vector<std::string>{"scale", "bias"});
  raises([&] { return debug::diagnose_common_issues(m, g), 0; }, {"bias has no gradient"});
  raises([&] { return debug::module_problems(m, model()); }, {"diagnose_common_issues"});

  // Arrays that need no gradient.
  const std::pair fixed{Frozen<NamedArray>{ones(Embed)}, arange(Embed)};
  CHECK(debug::module_problems(fixed, {Frozen<NamedArray>{zeros(Embed)}, NamedArray()}).empty());
}

TEST_CASE("diagnose: inside of a traced function only structure is checked") {
  bool shared = false;
  jit([&](const Model& given) {
    auto m = given;
    m.scale = given.scale / 0.;
    m.bias = m.scale;
    auto found = debug::module_problems(m);
    shared = found.reused.size() == 1 && found.non_finite.empty();
    return m.scale;
  })(model());
  CHECK(shared);
}

TEST_CASE("named_call: errors and profiles name the ops of a function") {
  auto rotate = [](const NamedArray& x) { return roll(x, 1, "embed") * 2.; };
  auto x = ones({Batch, Embed});
  CHECK(nn::named_call("rope", rotate)(x).floats() == rotate(x).floats());
  raises([&] { return nn::named_call("rope", [](auto& v) { return sum(v, "no"); })(x); },
         {"axis no", "diagnose_test.cpp", ", in rope"});
  raises(
      [&] {
        nn::NameScope outer("attention");
        return nn::named_call("rope", [](auto& v) { return sum(v, "no"); })(x);
      },
      {"in attention.rope"});
  CHECK(!has(error_of([&] { return sum(x, "no"); }), "in rope"));
  raises([&] { return nn::named_call("", rotate)(x); }, {"[name_scope] the name is empty"});

  // A layer with a path keeps it. Ops outside of layers have the name.
  auto f = jit([&](const Model& m, const NamedArray& v) {
    return nn::named_call("rope", [&](const NamedArray& a) { return exp(m.up(a * m.scale)); })(v);
  });
  auto p = profile(f, model(), x);
  bool layer = false, named = false;
  for (auto& m : p.by_module) {
    layer |= m.name == "up";
    named |= has(m.name, "rope");
    CHECK(!has(m.name, "up.rope"));
  }
  CHECK(layer);
  CHECK(named);
}
