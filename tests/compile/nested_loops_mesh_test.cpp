// Loops inside the iterations of a loop that devices share: each device has its own carry, and its
// own flags for skipped iterations.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "haliax/haliax.h"
#include "support/near.h"
#include "support/planned.h"

using namespace haliax;

namespace {

const Axis A("a", 12), C("c", 4), J("j", 2), K("k", 3);
using F = std::function<NamedArray(const NamedArray&)>;
struct Row {
  const char* name;
  F of;
};

NamedArray twice(const F& body, const NamedArray& start) {
  return fold([=](const NamedArray& s, const NamedArray&) { return body(s); }, J)(start, zeros(J));
}
std::vector<Row> rows() {
  const auto w = random::normal(random::key(2), {C});
  auto inner = [](const NamedArray& t) { return tanh(t) * sum(t); };
  auto sides = [](const NamedArray& s) {
    return cond(
        sum(s) > 0., [](const NamedArray& u) { return u * sum(u); },
        [](const NamedArray& u) { return u + 1.; })(s);
  };
  auto outer = [](const F& body) {
    return F([=](const NamedArray& v) {
      return fold([=](const NamedArray& s, const NamedArray&) { return body(s); }, K)(v, zeros(K));
    });
  };
  return {{"a fold", outer([=](const NamedArray& s) { return twice(inner, s); })},
          {"a fold that starts from zeros", outer([=](const NamedArray& s) {
             return s * 0.5 + twice([=](const NamedArray& t) { return tanh(t + s); }, zeros(C));
           })},
          {"a fold that starts from a weight", outer([=](const NamedArray& s) {
             return s * 0.5 +
                    twice([=](const NamedArray& t) { return tanh(t + s) * sum(s); }, w * 1.);
           })},
          {"a choice", outer(sides)},
          {"a map", outer([](const NamedArray& s) {
             return map([](const NamedArray& t) { return tanh(t) * 2.; }, AxisSelector("c"))(s);
           })},
          {"a scan", outer([](const NamedArray& s) {
             return sum(scan([](const NamedArray& t,
                                const NamedArray&) { return std::pair(tanh(t), t * sum(t)); },
                             J)(s, zeros(J))
                            .second,
                        "j");
           })},
          {"loops that end", [](const NamedArray& v) {
             auto shrinks = [](const NamedArray& u) {
               return while_loop([](const NamedArray& q) { return max(q) > 0.9; },
                                 [](const NamedArray& q) { return q * 0.8; }, Axis("few", 2))(u) *
                      0.7;
             };
             return while_loop([](const NamedArray& u) { return sum(abs(u)) > 0.5; }, shrinks,
                               Axis("most", 4))(v);
           }}};
}
F gradient(const F& f) {
  return [=](const NamedArray& x) {
    return grad([&](const NamedArray& u) { return sum(sin(f(u))); })(x);
  };
}

}  // namespace

TEST_CASE("nested loops: a loop in shared iterations carries each device's own values") {
  const auto x = random::normal(random::key(0), {A, C}).eval();
  const Mapping by_iteration{{"a", "data"}}, result{{"c", "data"}};
  for (auto& row : rows()) {
    INFO(std::string(row.name));
    F all = [&](const NamedArray& v) { return map(row.of, AxisSelector("a"))(v); };
    for (auto& f : {all, gradient(all)}) {
      const auto expected = jit(f)(x);
      for (int devices : {2, 3}) {
        JitOptions o{.mesh = Mesh{{{"data", devices}}}, .axis_resources = by_iteration};
        CHECK(difference(named_jit([&](const NamedArray& v) { return shard(f(v), result); }, o)(x),
                         expected, 1e-5) == "");
        o.out = Mappings(result);
        CHECK(difference(named_jit(f, o)(x), expected, 1e-5) == "");
        o.axis_resources = {};
        o.in = Mappings(by_iteration);
        CHECK(difference(named_jit(f, o)(x), expected, 1e-5) == "");
      }
    }
  }
}

TEST_CASE("nested loops: devices with different iterations issue different collectives") {
  const Axis layer("layer", 3), to("to", 4);
  const auto x = random::normal(random::key(0), {A, C}).eval(),
             w = random::normal(random::key(1), {layer, C, to}).eval();
  auto deep = [=](const NamedArray& v, const NamedArray& w) {
    return fold(
        [](const NamedArray& s, const NamedArray& one) {
          return rename(tanh(dot(s, one, "c")), {{"to", "c"}});
        },
        layer)(v, w);
  };
  auto sides = [=](const NamedArray& x, const NamedArray& w) {
    auto row = [&](const NamedArray& v) {
      return cond(
          sum(v) > 0., [&](const NamedArray& u) { return deep(u, w) * sum(tanh(u)); },
          [](const NamedArray& u) { return u - 1.; })(v);
    };
    return map(row, AxisSelector("a"))(x);
  };
  auto ends = [=](const NamedArray& x, const NamedArray& w) {
    auto row = [&](const NamedArray& v) {
      return while_loop([](const NamedArray& u) { return sum(abs(u)) > 0.5; },
                        [&](const NamedArray& u) { return deep(u, w) * 0.5; }, Axis("most", 3))(v);
    };
    return map(row, AxisSelector("a"))(x);
  };
  auto checked = [&](auto f) {
    auto g = [=](const NamedArray& x, const NamedArray& w) {
      return grad([&](const std::pair<NamedArray, NamedArray>& p) {
        return sum(sin(f(p.first, p.second)));
      })(std::pair(x, w));
    };
    const auto expected = jit(f)(x, w);
    const auto of_both = jit(g)(x, w);
    for (auto& mesh : {Mesh{{{"data", 2}, {"model", 2}}}, Mesh{{{"model", 2}, {"data", 3}}},
                       Mesh{{{"data", 4}}}})
      for (bool overlap : {false, true})
        for (auto& weights :
             {Mapping{{"c", "data"}}, Mapping{{"to", "data"}}, Mapping{{"layer", "data"}}}) {
          JitOptions o{.mesh = mesh, .axis_resources = Mapping{{"a", "data"}}, .overlap = overlap};
          if (mesh.axes().size() > 1) o.axis_resources = Mapping{{"a", "data"}, {"c", "model"}};
          o.in = Mappings::of_each({Mapping{{"a", "data"}}, weights});
          CHECK(difference(named_jit(f, o)(x, w), expected, 1e-5) == "");
          const auto got = named_jit(g, o)(x, w);
          CHECK(difference(got.first, of_both.first, 1e-5) == "");
          CHECK(difference(got.second, of_both.second, 1e-5) == "");
        }
  };
  checked(sides);
  checked(ends);
}

TEST_CASE("verify finds a plan's faults: loops in shared iterations") {
  using namespace partitioning;
  const Mesh mesh{{{"data", 2}, {"model", 2}}};
  auto x = array({A, C}), w = array({C});
  const std::vector<PartitionInput> inputs{{x, sharded("a", {0})}, {w, sharded("c", {0})}};
  auto with = [&](const NamedArray& y, const Version::Kind& kind, auto damage) {
    return damaged(y.node(), inputs, sharded("a", {0}), mesh, kind, damage);
  };
  auto carries =
      map([](const NamedArray& v) { return twice([](const NamedArray& t) { return tanh(t); }, v); },
          AxisSelector("a"))(NamedArray(x));
  auto text = with(carries, Carry{}, [&](Version& v, Plan&) { v.sharding = sharded("c", {0}); });
  CHECK(text.find("mesh axis data is used twice") != std::string::npos);
  auto sums = fold([](const NamedArray& s, const NamedArray& v) { return s + tanh(v); }, A)(
      zeros(C), NamedArray(x));
  text = with(sums, RunLoop{}, [&](Version& v, Plan& p) {
    auto& of = p.loop(v.loop());
    for (auto& other : p.versions)  // adds a second reader to the carry of the sum
      if (other.live && other.node != p.version(of.value[0][0]).node &&
          other.body == of.bodies[0] && !other.in.empty())
        other.in.push_back(of.carry[0][0]);
  });
  CHECK(text.find("devices share its iterations, but a carry is not only added to") !=
        std::string::npos);
  auto chooses = map(
      [&](const NamedArray& v) {
        return cond(
            sum(v) > 0., [&](const NamedArray& u) { return u * NamedArray(w); },
            [](const NamedArray& u) { return u; })(v);
      },
      AxisSelector("a"))(NamedArray(x));
  text = with(chooses, Reshard{}, [&](Version& v, Plan& p) {
    for (auto& other : p.versions)
      if (other.live &&
          std::count(other.in.begin(), other.in.end(), int(&v - p.versions.data())) > 0)
        v.body = other.body;
  });
  CHECK(text.find("it is communicated over data, but not all of its devices run this iteration") !=
        std::string::npos);
}
