// Optimizers and learning-rate schedules.
#include "haliax/optim.h"

#include <cmath>
#include <map>
#include <numbers>

#include "graph/fail.h"
#include "ops/named.h"

namespace haliax::optim {

NamedArray WarmupCosine::operator()(const NamedArray& count) const {
  auto step = astype(count, DType::f32);
  auto span = double(std::max<std::int64_t>(1, total - warmup));
  auto done = clip((step - double(warmup)) / span, 0., 1.);
  auto down = final + (peak - final) * 0.5 * (1. + cos(done * std::numbers::pi));
  if (warmup <= 0) return down;
  return where(step < double(warmup), step * (peak / double(warmup)), down);
}

ClipByGlobalNorm clip_by_global_norm(double max_norm) { return {max_norm}; }
ScaleByAdam scale_by_adam(double b1, double b2, double eps) { return {b1, b2, eps}; }
AddDecayedWeights add_decayed_weights(double weight_decay, LeafFilter mask) {
  return {weight_decay, std::move(mask)};
}
Scale scale(double factor) { return {factor}; }
Sgd sgd(SgdOptions o) { return chain(Momentum{o.momentum, o.nesterov}, Scale{-o.learning_rate}); }
Adam adam(AdamOptions o) { return chain(ScaleByAdam{o.b1, o.b2, o.eps}, Scale{-o.learning_rate}); }
AdamW adamw(AdamWOptions o) {
  return chain(ScaleByAdam{o.b1, o.b2, o.eps}, AddDecayedWeights{o.weight_decay, o.mask},
               Scale{-o.learning_rate});
}

namespace detail {
namespace {

void check_same(const Leaves& a, const char* what, const Leaves& b, const char* other) {
  if (a.size() != b.size())
    fail("optim", "there are {} {}, but {} {}; the trees must have the same structure", a.size(),
         what, b.size(), other);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].empty() || b[i].empty()) continue;
    // An array with fewer axes would be broadcast. Ops check the sizes.
    auto x = a[i].axes(), y = b[i].axes();
    auto same_name = [](const Axis& p, const Axis& q) { return p.name == q.name; };
    if (!std::is_permutation(x.begin(), x.end(), y.begin(), y.end(), same_name))
      fail("optim",
           "array {} of the {} is {}, but that of the {} is {}; their axes must be the same", i,
           what, x, other, y);
  }
}
void check_states(const Leaves& state, const char* what, const Leaves& grads) {
  check_same(state, what, grads, "gradients");
  for (std::size_t i = 0; i < grads.size(); ++i)
    if (!grads[i].empty() && state[i].empty())
      fail("optim",
           "array {} {} has a gradient, but the state was created without it; "
           "compute gradients for the same part of the model, as in value_and_grad(loss, \"lora\")",
           i, grads[i].axes());
}
// Returns the dtype to compute in. 16-bit results are then rounded once rather than at each op.
DType wide(DType d) { return is_float(d) ? ops::wide_of(d) : d; }
NamedArray with_decay(const NamedArray& update, const NamedArray& param, double by) {
  const auto d = wide(update.dtype());
  return astype(astype(update, d) + by * astype(param, d), update.dtype());
}
NamedArray times(const NamedArray& a, const NamedArray& by) {
  const auto d = wide(a.dtype());
  return astype(astype(a, d) * astype(by, d), a.dtype());
}
// Returns 1 / (1 - b^count), without a loss of precision for b close to 1.
NamedArray correction(double b, const NamedArray& count, DType d) {
  if (b == 0) return 1.;
  return -1. / expm1(astype(count, d) * std::log(b));
}

}  // namespace

UpdateScope::UpdateScope(SourceLocation at) : here_(std::make_shared<CallSite>(at, true)) {}
UpdateScope::UpdateScope(const Walk& params, SourceLocation at) : UpdateScope(at) {
  haliax::detail::note_fields(params);
}
UpdateScope::~UpdateScope() = default;

NamedArray first_step() { return zeros({}, DType::i32); }

Leaves trainable_zeros(const Leaves& params, const std::vector<bool>& frozen) {
  Leaves out(params.size());
  for (std::size_t i = 0; i < params.size(); ++i)
    if (!params[i].empty() && !frozen[i] && is_float(params[i].dtype()))
      out[i] = zeros_like(params[i]);
  return out;
}

NamedArray norm(const Leaves& leaves) {
  NamedArray total;
  for (auto& a : leaves) {
    if (a.empty()) continue;
    auto squares = sum(square(astype(a, DType::f32)));
    total = !total.empty() ? total + squares : squares;
  }
  return !total.empty() ? sqrt(total) : zeros({});
}

Leaves scaled(Leaves leaves, const NamedArray& by) {
  for (auto& a : leaves)
    if (!a.empty()) a = times(a, by);
  return leaves;
}
Leaves clipped(Leaves grads, double max_norm) {
  auto n = norm(grads);
  return scaled(std::move(grads), where(n < max_norm, 1., max_norm / n));
}

Updated adam(Leaves grads, Leaves mu, Leaves nu, const NamedArray& count, double b1, double b2,
             double eps) {
  check_states(mu, "moments", grads);
  // Corrections of both moments, once per dtype.
  std::map<DType, std::pair<NamedArray, NamedArray>> corrections;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].empty()) continue;
    const auto of_mu = promote(mu[i].dtype(), grads[i].dtype()),
               of_nu = promote(nu[i].dtype(), grads[i].dtype());
    const auto of_both = promote(of_mu, of_nu), d = wide(of_both);
    auto [of_d, is_new] = corrections.try_emplace(d);
    if (is_new) of_d->second = {correction(b1, count, d), correction(b2, count, d)};
    const auto& [c1, c2] = of_d->second;
    const auto g = astype(grads[i], d);
    const auto m = b1 * astype(mu[i], d) + (1 - b1) * g,
               n = b2 * astype(nu[i], d) + (1 - b2) * square(g);
    grads[i] = astype(m * c1 / (sqrt(n * c2) + eps), of_both);
    mu[i] = astype(m, of_mu);
    nu[i] = astype(n, of_nu);
  }
  return {std::move(grads), std::move(mu), std::move(nu)};
}

std::pair<Leaves, Leaves> momentum(Leaves grads, Leaves trace, double decay, bool nesterov) {
  check_states(trace, "traces", grads);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].empty()) continue;
    const auto of_both = promote(trace[i].dtype(), grads[i].dtype()), d = wide(of_both);
    const auto g = astype(grads[i], d), t = g + decay * astype(trace[i], d);
    grads[i] = astype(nesterov ? g + decay * t : t, of_both);
    trace[i] = astype(t, of_both);
  }
  return {std::move(grads), std::move(trace)};
}

Leaves decayed(Leaves updates, const Walk& params, double weight_decay, const LeafFilter& mask) {
  if (weight_decay == 0) return updates;
  check_same(params.leaves(), "params", updates, "updates");
  auto decays = std::vector<bool>(updates.size(), true);
  if (!mask.all()) decays = mask.chosen("add_decayed_weights", params, context().origin.at);
  for (std::size_t i = 0; i < updates.size(); ++i)
    if (!updates[i].empty() && !params.arrays[i]->empty() && decays[i])
      updates[i] = with_decay(updates[i], *params.arrays[i], weight_decay);
  return updates;
}

Leaves chosen_or(const Leaves& mine, const std::vector<bool>& chosen, Leaves others) {
  for (std::size_t i = 0; i < others.size(); ++i)
    if (chosen[i]) others[i] = mine[i];
  return others;
}
std::vector<int> group_of(const Walk& params, std::initializer_list<LeafFilter> filters) {
  std::vector<int> group(params.arrays.size(), -1);
  int which = 0;
  for (auto& f : filters) {
    auto chosen = f.chosen("groups", params, context().origin.at);
    for (std::size_t i = 0; i < group.size(); ++i)
      if (chosen[i] && group[i] < 0) group[i] = which;
    ++which;
  }
  return group;
}
Leaves of_group(Leaves leaves, const std::vector<int>& group, int which) {
  for (std::size_t i = 0; i < leaves.size(); ++i)
    if (group[i] != which) leaves[i] = {};
  return leaves;
}

Leaves applied(Leaves params, const Leaves& updates) {
  check_same(params, "params", updates, "updates");
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (updates[i].empty()) continue;
    auto next = astype(params[i] + updates[i], params[i].dtype());
    if (!params[i].empty()) next.node()->field.note(params[i].node()->field.path());
    params[i] = next;
  }
  return params;
}

}  // namespace detail
}  // namespace haliax::optim
