// Small loops: thousands of steps over a few numbers each, as in simulations, filters and recurrent
// networks. tools/peers/loops.py runs the same cases in JAX.
#include <string>
#include <utility>
#include <vector>

#include "bench.h"

namespace bench {
namespace {

using namespace haliax;

const Axis Time("time", 2000);

NamedArray normal(int seed, Axes axes, double scale = 1) {
  return (random::normal(random::key(static_cast<std::uint64_t>(seed)), std::move(axes)) * scale)
      .eval();
}

// A step of the classical Runge-Kutta method.
template <class F> NamedArray rk4_step(F derivative, const NamedArray& x, double dt) {
  auto k1 = derivative(x);
  auto k2 = derivative(x + k1 * (dt / 2));
  auto k3 = derivative(x + k2 * (dt / 2));
  auto k4 = derivative(x + k3 * dt);
  return x + (k1 + k2 * 2. + k3 * 2. + k4) * (dt / 6);
}

// dx/dt = tanh(x W), 20,000 steps of 16 numbers.
const Axis Cell("state", 16), NextCell("next", 16);
NamedArray neural_ode(const NamedArray& x, const NamedArray& w) {
  auto derivative = [&](const NamedArray& s) {
    return tanh(dot(s, w, "state")).rename({{"next", "state"}});
  };
  auto step = [&](const NamedArray& s, const NamedArray&) { return rk4_step(derivative, s, 1e-3); };
  return fold(step, "time")(x, arange(Axis("time", 20000)));
}

// A Kalman filter of 8 states with one observation per step: the final mean and covariance.
const Axis StateRow("row", 8), StateCol("col", 8);
using Gaussian = std::pair<NamedArray, NamedArray>;
Gaussian kalman(const NamedArray& a, const NamedArray& noise, const NamedArray& h,
                const NamedArray& observed) {
  // a (row, col): dynamics; noise (row, col); h (col): the observation
  auto step = [&](const Gaussian& state, const NamedArray& z) {
    auto [mean, cov] = state;  // (col), (row, col)
    auto m = dot(a, mean, "col").rename({{"row", "col"}});
    auto ap = dot(a.rename({{"col", "mid"}}), cov.rename({{"row", "mid"}}), "mid");
    auto p =
        dot(ap.rename({{"col", "mid"}}), a.rename({{"row", "col"}, {"col", "mid"}}), "mid") + noise;
    auto ph = dot(p, h, "col").rename({{"row", "col"}});
    auto gain = ph / (dot(ph, h, "col") + 0.1);
    auto updated = m + gain * (z - dot(h, m, "col"));
    return Gaussian{updated, p - gain.rename({{"col", "row"}}).broadcast_axis(StateCol) * ph};
  };
  return fold(step, "time")(Gaussian{zeros(StateCol), noise}, observed);
}

// Predators and prey: 1,000 examples under vmap, 2,000 steps.
NamedArray lotka_volterra(const NamedArray& start, const NamedArray& rates) {
  auto example = [](const NamedArray& s, const NamedArray& r) {
    auto rate = [&](int k) { return r[{"rate", k}]; };
    auto derivative = [&](const NamedArray& x) {
      auto prey = x[{"species", 0}], predators = x[{"species", 1}];
      auto met = prey * predators;
      return stack("species",
                   {prey * rate(0) - met * rate(1), met * rate(2) - predators * rate(3)});
    };
    auto step = [&](const NamedArray& x, const NamedArray&) {
      return rk4_step(derivative, x, 1e-3);
    };
    return fold(step, "time")(s, arange(Time));
  };
  return vmap(example, "example")(start, rates);
}

// Recurrent networks of 128 units over 256 positions.
const Axis Position("position", 256), Input("embed", 128), Units("units", 128);
struct Gate {
  NamedArray input, state, bias;  // (embed, units), (old, units), (units)
  static Gate init(int seed) {
    return {normal(seed, {Input, Units}, .1), normal(seed + 1, {Axis("old", 128), Units}, .1),
            normal(seed + 2, {Units}, .1)};
  }
  NamedArray operator()(const NamedArray& x, const NamedArray& h) const {
    return dot(x, input, "embed") + dot(h.rename({{"units", "old"}}), state, "old") + bias;
  }
};
NamedArray lstm(const std::vector<Gate>& gates, const NamedArray& xs) {
  using Carry = std::pair<NamedArray, NamedArray>;
  auto step = [&](const Carry& carry, const NamedArray& x) {
    auto [h, c] = carry;
    auto next =
        nn::sigmoid(gates[0](x, h)) * c + nn::sigmoid(gates[1](x, h)) * tanh(gates[2](x, h));
    return Carry{nn::sigmoid(gates[3](x, h)) * tanh(next), next};
  };
  auto zero = zeros({xs.resolve_axis("batch"), Units});
  return fold(step, "position")(Carry{zero, zero}, xs).first;
}
NamedArray gru(const std::vector<Gate>& gates, const NamedArray& xs) {
  auto step = [&](const NamedArray& h, const NamedArray& x) {
    auto reset = nn::sigmoid(gates[0](x, h));
    auto update = nn::sigmoid(gates[1](x, h));
    auto next = tanh(gates[2](x, reset * h));
    return next + update * (h - next);
  };
  return fold(step, "position")(zeros({xs.resolve_axis("batch"), Units}), xs);
}

// Moves a robot arm of 7 links to a target: 1,000 steps of gradient descent on its 7 angles.
const Axis Link("link", 7), X("x", 4), Y("y", 4), Z("z", 4);
NamedArray reach(const NamedArray& angles, const NamedArray& links, const NamedArray& target) {
  // links (link, basis, x, y): the transform of a link is links[0] + cos * links[1] + sin *
  // links[2]
  auto distance = [&](const NamedArray& q) {
    auto joint = [&](const NamedArray& pose, const NamedArray& link, const NamedArray& angle) {
      auto part = [&](int k) { return link[{"basis", k}]; };
      auto moved = part(0) + part(1) * cos(angle) + part(2) * sin(angle);
      return dot(pose.rename({{"x", "z"}}), moved.rename({{"x", "z"}, {"y", "x"}}), "z");
    };
    auto origin = zeros(X).at({"x", 3}).set(1.);
    auto hand = fold(joint, "link")(origin, links, q);
    return sum(square(hand - target), "x");
  };
  auto step = [&](const NamedArray& q, const NamedArray&) { return q - grad(distance)(q) * 0.01; };
  return fold(step, "time")(angles, arange(Axis("time", 1000)));
}

Case loop(std::string name, std::string shape, std::function<Prepared()> prepare) {
  return {"loop_" + name, std::move(shape), DType::f32, 1, "s", std::move(prepare)};
}
template <class F, class... A> Prepared gradient(F f, A... args) {
  auto loss = [f](const std::tuple<A...>& in) { return sum(std::apply(f, in)); };
  return jitted([loss](const std::tuple<A...>& in) { return grad(loss)(in); }, std::tuple(args...));
}
std::vector<Gate> gates(int count) {
  std::vector<Gate> out;
  for (int k = 0; k < count; ++k) out.push_back(Gate::init(3 * k));
  return out;
}

}  // namespace

std::vector<Case> loop_cases() {
  std::vector<Case> cases;
  auto both = [&](const std::string& name, const std::string& shape, auto f, auto inputs) {
    cases.push_back(loop(name, shape, [=] {
      return std::apply([&](auto... in) { return jitted(f, in...); }, inputs());
    }));
    cases.push_back(loop(name + "_grad", shape, [=] {
      return std::apply([&](auto... in) { return gradient(f, in...); }, inputs());
    }));
  };
  both("ode", "20000 steps, [16]", neural_ode, [] {
    return std::tuple(normal(0, {Cell}), normal(1, {Cell, NextCell}, .25));
  });
  cases.push_back(loop("kalman", "2000 steps, [8, 8]", [] {
    auto eye = nn::one_hot(arange(StateRow), StateCol, DType::f32);
    return jitted(kalman, (eye * .9 + normal(0, {StateRow, StateCol}, .02)).eval(),
                  (eye * .01).eval(), normal(1, {StateCol}), normal(2, {Time}));
  }));
  both("lotka", "2000 steps, [1000, 2]", lotka_volterra, [] {
    const Axis Example("example", 1000);
    return std::tuple((random::uniform(random::key(0), {Example, Axis("species", 2)}) + 1.).eval(),
                      (random::uniform(random::key(1), {Example, Axis("rate", 4)}) + .5).eval());
  });
  for (int batch : {1, 32}) {
    auto xs = [batch] { return normal(99, {Axis("batch", batch), Position, Input}); };
    auto suffix = "_" + std::to_string(batch);
    auto shape = "256 steps, [" + std::to_string(batch) + ", 128]";
    both("lstm" + suffix, shape, lstm, [xs] { return std::tuple(gates(4), xs()); });
    both("gru" + suffix, shape, gru, [xs] { return std::tuple(gates(3), xs()); });
  }
  cases.push_back(loop("arm", "1000 steps, 7 links", [] {
    return jitted(reach, normal(0, {Link}), normal(1, {Link, Axis("basis", 3), X, Y}, .4),
                  normal(2, {X}));
  }));
  return cases;
}

}  // namespace bench
