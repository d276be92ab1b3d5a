// Lion, RMSProp, Adafactor, Muon, and the transformations that they consist of.
#include "haliax/optimizers.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/fail.h"
#include "nn/optim_leaves.h"
#include "ops/named.h"

namespace haliax::optim {

ScaleByLearningRate scale_by_learning_rate(LearningRate rate, bool flip_sign) {
  return {std::move(rate), flip_sign};
}
Identity identity() { return {}; }
Scale set_to_zero() { return {0}; }
Momentum trace(double decay, bool nesterov) { return {decay, nesterov}; }
ClipByBlockRms clip_by_block_rms(double threshold) { return {threshold}; }
Clip clip(double max_delta) { return {max_delta}; }
ScaleBySign scale_by_sign() { return {}; }
ScaleByParamBlockRms scale_by_param_block_rms(double min_scale) { return {min_scale}; }
ScaleByTrustRatio scale_by_trust_ratio(double min_norm, double trust_coefficient, double eps) {
  return {min_norm, trust_coefficient, eps};
}
Ema ema(double decay, bool debias) {
  if (decay < 0) fail("ema", "decay is {}; it must be from 0 to 1", decay);
  return {decay, debias};
}
ScaleByRms scale_by_rms(double decay, double eps, double initial_scale, bool eps_in_sqrt,
                        bool bias_correction) {
  return {decay, eps, initial_scale, eps_in_sqrt, bias_correction, false};
}
ScaleByRms scale_by_stddev(double decay, double eps, double initial_scale, bool eps_in_sqrt,
                           bool bias_correction) {
  return {decay, eps, initial_scale, eps_in_sqrt, bias_correction, true};
}
ScaleByLion scale_by_lion(double b1, double b2) { return {b1, b2}; }
ScaleByFactoredRms scale_by_factored_rms(bool factored, double decay_rate, std::int64_t step_offset,
                                         std::int64_t min_dim_size_to_factor, double epsilon) {
  ScaleByFactoredRms s;
  s.factored = factored;
  s.decay_rate = decay_rate;
  s.step_offset = step_offset;
  s.min_dim_size_to_factor = min_dim_size_to_factor;
  s.epsilon = epsilon;
  return s;
}
ScaleByMuon scale_by_muon(double beta, double eps, std::int64_t ns_steps, bool nesterov) {
  return {beta, eps, ns_steps, nesterov};
}

Lion lion(LionOptions o) {
  return chain(ScaleByLion{o.b1, o.b2}, AddDecayedWeights{o.weight_decay, std::move(o.mask)},
               scale_by_learning_rate(std::move(o.learning_rate)));
}
RmsProp rmsprop(RmsPropOptions o) {
  return chain(
      ScaleByRms{o.decay, o.eps, o.initial_scale, o.eps_in_sqrt, o.bias_correction, o.centered},
      scale_by_learning_rate(std::move(o.learning_rate)), Momentum{o.momentum, o.nesterov});
}
Adafactor adafactor(AdafactorOptions o) {
  return chain(scale_by_factored_rms(o.factored, o.decay_rate, o.decay_offset,
                                     o.min_dim_size_to_factor, o.eps),
               clip_by_block_rms(o.clipping_threshold),
               scale_by_learning_rate(o.learning_rate.value_or(1.), false),
               ScaleByParamBlockRms{1e-3, o.multiply_by_parameter_scale},
               Ema{o.momentum.value_or(-1), false},
               AddDecayedWeights{o.weight_decay_rate, std::move(o.weight_decay_mask)}, scale(-1));
}
Muon muon(MuonOptions o) {
  return {chain(ScaleByMuon{o.beta, o.eps, o.ns_steps, o.nesterov, o.adaptive, o.consistent_rms},
                AddDecayedWeights{o.weight_decay, std::move(o.mask)},
                scale_by_learning_rate(o.learning_rate)),
          chain(ScaleByAdam{o.adam_b1, o.adam_b2, o.eps, o.nesterov},
                AddDecayedWeights{o.adam_weight_decay, {}},
                scale_by_learning_rate(o.adam_learning_rate.value_or(o.learning_rate))),
          std::move(o.which)};
}

namespace detail {
namespace {

// Applies f(array in the dtype to compute in, index) to each leaf, and rounds once.
template <class F> Leaves each(Leaves leaves, const F& f) {
  for (std::size_t i = 0; i < leaves.size(); ++i)
    if (auto& a = leaves[i]; !a.empty()) a = astype(f(astype(a, wide(a.dtype())), i), a.dtype());
  return leaves;
}
NamedArray rms_of(const NamedArray& x) { return sqrt(mean(square(x))); }
NamedArray blend(const NamedArray& old, const NamedArray& now, const Arr& decay) {
  return decay * old + (1. - decay) * now;
}

}  // namespace

Leaves clipped_blocks(Leaves updates, double threshold) {
  if (std::isinf(threshold)) return updates;
  return each(std::move(updates), [&](const NamedArray& u, std::size_t) {
    return u / maximum(rms_of(u) / threshold, 1.);
  });
}
Leaves clipped_elements(Leaves updates, double most) {
  return each(std::move(updates),
              [&](const NamedArray& u, std::size_t) { return haliax::clip(u, -most, most); });
}
Leaves signs(Leaves updates) {
  return each(std::move(updates), [](const NamedArray& u, std::size_t) { return sign(u); });
}
Leaves scaled_by_param_rms(Leaves updates, const Leaves& params, double min_scale) {
  check_same(params, "params", updates, "updates");
  return each(std::move(updates), [&](const NamedArray& u, std::size_t i) {
    return u * maximum(rms_of(astype(params[i], u.dtype())), min_scale);
  });
}
Leaves scaled_by_trust_ratio(Leaves updates, const Leaves& params, double min_norm,
                             double trust_coefficient, double eps) {
  check_same(params, "params", updates, "updates");
  return each(std::move(updates), [&](const NamedArray& u, std::size_t i) {
    auto norm_of = [&](const NamedArray& x) { return maximum(sqrt(sum(square(x))), min_norm); };
    const auto of_param = norm_of(astype(params[i], u.dtype())), of_update = norm_of(u);
    const auto is_zero = (of_param == 0.) | (of_update == 0.);
    return u * where(is_zero, 1., trust_coefficient * of_param / (of_update + eps));
  });
}
Leaves filled_like(Leaves leaves, double value) {
  if (value == 0) return leaves;
  for (auto& a : leaves)
    if (!a.empty()) a = full_like(a, value);
  return leaves;
}
std::pair<Leaves, Leaves> lion(Leaves grads, Leaves mu, double b1, double b2) {
  check_states(mu, "moments", grads);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].empty()) continue;
    const auto d = wide(promote(mu[i].dtype(), grads[i].dtype()));
    const auto g = astype(grads[i], d), m = astype(mu[i], d);
    grads[i] = astype(sign(blend(m, g, b1)), grads[i].dtype());
    mu[i] = astype(blend(m, g, b2), mu[i].dtype());
  }
  return {std::move(grads), std::move(mu)};
}
std::pair<Leaves, Leaves> averaged(Leaves updates, Leaves ema, double decay,
                                   const NamedArray& count, bool debias) {
  check_states(ema, "means", updates);
  for (std::size_t i = 0; i < updates.size(); ++i) {
    if (updates[i].empty()) continue;
    const auto d = wide(promote(ema[i].dtype(), updates[i].dtype()));
    const auto m = blend(astype(ema[i], d), astype(updates[i], d), decay);
    updates[i] = astype(debias ? m * correction(decay, count, d) : m, updates[i].dtype());
    ema[i] = astype(m, ema[i].dtype());
  }
  return {std::move(updates), std::move(ema)};
}
Updated rms(Leaves grads, Leaves mu, Leaves nu, const NamedArray& count, const RmsOptions& o) {
  check_states(nu, "second moments", grads);
  if (o.centered) check_states(mu, "means", grads);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].empty()) continue;
    const auto d = wide(promote(nu[i].dtype(), grads[i].dtype()));
    const auto g = astype(grads[i], d), n = blend(astype(nu[i], d), square(g), o.decay);
    auto corrected = [&](const NamedArray& x) {
      return o.bias_correction ? x * correction(o.decay, count, d) : x;
    };
    auto v = corrected(n);
    if (o.centered) {
      const auto m = blend(astype(mu[i], d), g, o.decay);
      v = v - square(corrected(m));
      mu[i] = astype(m, mu[i].dtype());
    }
    grads[i] =
        astype(o.eps_in_sqrt ? g * rsqrt(v + o.eps) : g / (sqrt(v) + o.eps), grads[i].dtype());
    nu[i] = astype(n, nu[i].dtype());
  }
  return {std::move(grads), std::move(mu), std::move(nu)};
}

// ---- Adafactor ----

namespace {

// The largest axis, which `v_row` lacks, and the second largest, which `v_col` lacks. If sizes
// are equal, the later axis is the larger one, as in a stable sort.
struct FactoredAxes {
  Axis second, largest;
};
std::optional<FactoredAxes> factored_axes(const Axes& axes, const FactoredOptions& o) {
  if (!o.factored || axes.size() < 2) return {};
  auto order = axes;
  std::stable_sort(order.begin(), order.end(), [](auto& a, auto& b) { return a.size < b.size; });
  const auto &second = order[order.size() - 2], &largest = order.back();
  if (second.size < o.min_dim_size_to_factor) return {};
  return FactoredAxes{second, largest};
}

}  // namespace

Factored factored_zeros(const Leaves& params, const FactoredOptions& o) {
  Factored f{{}, Leaves(params.size()), Leaves(params.size()), Leaves(params.size())};
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].empty()) continue;
    const auto axes = params[i].axes();
    auto factors = factored_axes(axes, o);
    auto zero = [&](const Axes& a) { return zeros(a, params[i].dtype()); };
    if (factors) {
      f.v_row[i] = zero(without_axes(axes, factors->largest));
      f.v_col[i] = zero(without_axes(axes, factors->second));
    } else {
      f.v[i] = zero(axes);
    }
  }
  return f;
}
Factored factored_rms(Leaves grads, Factored s, const NamedArray& count, const FactoredOptions& o) {
  if (s.v.size() != grads.size())
    fail("optim", "there are {} states, but {} gradients; the trees must have the same structure",
         s.v.size(), grads.size());
  const auto step = astype(count, DType::f32) + double(1 - o.step_offset);
  const auto decay = 1. - power(step, -o.decay_rate);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].empty()) continue;
    const auto dtype = grads[i].dtype(), d = wide(dtype);
    const auto g = astype(grads[i], d), squares = square(g) + o.epsilon, by = astype(decay, d);
    auto mixed = [&](NamedArray& state, const NamedArray& now) {
      const auto next = blend(astype(state, d), now, by);
      state = astype(next, state.dtype());
      return astype(state, d);
    };
    if (auto f = factored_axes(g.axes(), o); f && !s.v_row[i].empty()) {
      const auto row = mixed(s.v_row[i], mean(squares, f->largest)),
                 col = mixed(s.v_col[i], mean(squares, f->second));
      const auto of_row = rsqrt(row / mean(row, f->second)), of_col = rsqrt(col);
      grads[i] = astype(g * of_row * of_col, dtype);
    } else if (!s.v[i].empty()) {
      grads[i] = astype(g * rsqrt(mixed(s.v[i], squares)), dtype);
    } else {
      fail("optim",
           "array {} {} has a gradient, but the state was created without it; compute gradients "
           "for the same part of the model",
           i, g.axes());
    }
  }
  s.updates = std::move(grads);
  return s;
}

// ---- Muon ----

std::vector<MatrixAxes> matrices_of(const Walk& w) {
  std::vector<MatrixAxes> out(w.arrays.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (w.arrays[i]->empty()) continue;
    const auto axes = without_axes(w.arrays[i]->axes(), w.layers_of(i));
    if (auto* m = w.matrix_of(w.arrays[i]))
      out[i] = {m->In, m->Out};
    else if (axes.size() == 2)
      out[i] = {{axes[0]}, {axes[1]}};
  }
  return out;
}
std::vector<bool> are_matrices(const std::vector<MatrixAxes>& all) {
  std::vector<bool> out;
  for (auto& m : all) out.push_back(m.is_matrix());
  return out;
}
LeafFilter with_paths(std::vector<std::string> paths) {
  return LeafFilter([paths = std::move(paths)](const std::string& path, const NamedArray&) {
    return std::find(paths.begin(), paths.end(), path) != paths.end();
  });
}

namespace {

// Orthogonalizes x with a quintic Newton-Schulz iteration: X <- a X + (b A + c A A) X with
// A = X X^T. The rows are the smaller side.
NamedArray orthogonalized(const NamedArray& x, const MatrixAxes& m, const MuonOptionsOf& o) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const bool by_reduction = axis_size(m.reduction) <= axis_size(m.output);
  const Axes &rows = by_reduction ? m.reduction : m.output,
             &columns = by_reduction ? m.output : m.reduction;
  std::vector<std::pair<Name, Name>> to_other, back;
  Axes others;
  for (auto& r : rows) {
    const Name other(std::string(r.name.text()) + "'");
    others.push_back(Axis(other, r.size));
    to_other.push_back({r.name, other});
    back.push_back({other, r.name});
  }
  auto renamed = [](NamedArray v, const std::vector<std::pair<Name, Name>>& names) {
    for (auto& [from, to] : names) v = rename(v, from, to);
    return v;
  };
  Axes of_matrix = rows;
  of_matrix.insert(of_matrix.end(), columns.begin(), columns.end());
  auto y = x / (sqrt(sum(square(x), of_matrix)) + o.eps);
  for (std::int64_t k = 0; k < o.ns_steps; ++k) {
    const auto gram = dot(y, renamed(y, to_other), columns);  // (rows, rows')
    // gram is symmetric, so (rows', rows'') of it is gram with other names.
    std::vector<std::pair<Name, Name>> third;
    for (auto& r : rows) third.push_back({r.name, Name(std::string(r.name.text()) + "''")});
    const auto squared = renamed(dot(gram, renamed(gram, third), others), [&] {
      std::vector<std::pair<Name, Name>> to;
      for (auto& r : rows) {
        const std::string n(r.name.text());
        to.push_back({Name(n + "''"), Name(n + "'")});
      }
      return to;
    }());
    y = rearrange(a * y + dot(b * gram + c * squared, renamed(y, to_other), others), x.axes());
  }
  return y;
}

}  // namespace

std::pair<Leaves, Leaves> muon(Leaves grads, Leaves mu, const NamedArray& count,
                               const std::vector<MatrixAxes>& matrices, const MuonOptionsOf& o) {
  check_states(mu, "moments", grads);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].empty()) continue;
    if (!matrices[i].is_matrix())
      fail("scale_by_muon",
           "array {} {} is not a matrix; use `muon`, or `masked` to select matrices", i,
           grads[i].axes());
    const auto d = wide(promote(mu[i].dtype(), grads[i].dtype()));
    const auto g = astype(grads[i], d), m = blend(astype(mu[i], d), g, o.beta);
    const auto step = o.nesterov ? o.beta * (m * correction(o.beta, count + 1, d)) +
                                       (1 - o.beta) * (g * correction(o.beta, count, d))
                                 : m * correction(o.beta, count, d);
    const auto& axes = matrices[i];
    auto y = orthogonalized(step, axes, o);
    if (o.adaptive) {
      auto both = axes.reduction;
      both.insert(both.end(), axes.output.begin(), axes.output.end());
      y = sum(step * y, both) * y;
    }
    const auto in = double(axis_size(axes.reduction)), out = double(axis_size(axes.output));
    const auto factor = o.consistent_rms > 0 ? std::sqrt(std::max(in, out)) * o.consistent_rms
                                             : std::sqrt(std::max(1., out / in));
    grads[i] = astype(y * factor, grads[i].dtype());
    mu[i] = astype(m, mu[i].dtype());
  }
  return {std::move(grads), std::move(mu)};
}

}  // namespace detail
}  // namespace haliax::optim
