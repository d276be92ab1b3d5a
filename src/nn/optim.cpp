// Optimizers and learning-rate schedules.
#include "haliax/optim.h"

#include <array>
#include <cmath>
#include <map>
#include <numbers>

#include "graph/fail.h"
#include "nn/optim_leaves.h"
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

Hyperparameter Hyperparameter::operator-() const {
  return array_.empty() ? Hyperparameter(-value_) : Hyperparameter(-array_);
}

ClipByGlobalNorm clip_by_global_norm(const Hyperparameter& max_norm) { return {max_norm}; }
ScaleByAdam scale_by_adam(double b1, double b2, double eps, bool nesterov) {
  return {b1, b2, eps, nesterov};
}
AddDecayedWeights add_decayed_weights(const Hyperparameter& weight_decay, LeafFilter mask) {
  return {weight_decay, std::move(mask)};
}
Scale scale(const Hyperparameter& factor) { return {factor}; }
Sgd sgd(SgdOptions o) { return chain(Momentum{o.momentum, o.nesterov}, Scale{-o.learning_rate}); }
Adam adam(AdamOptions o) { return chain(ScaleByAdam{o.b1, o.b2, o.eps}, Scale{-o.learning_rate}); }
AdamW adamw(AdamWOptions o) {
  return chain(ScaleByAdam{o.b1, o.b2, o.eps}, AddDecayedWeights{o.weight_decay, o.mask},
               Scale{-o.learning_rate});
}

namespace detail {

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
DType wide(DType d) { return is_float(d) ? ops::wide_of(d) : d; }
// Returns 1 / (1 - b^count), without a loss of precision for b close to 1.
NamedArray correction(double b, const NamedArray& count, DType d) {
  if (b == 0) return 1.;
  return -1. / expm1(astype(count, d) * std::log(b));
}

namespace {

// Returns the number as an operand: a constant adopts the dtype of the other operand.
Arr in_dtype(const Hyperparameter& h, NamedArray& array, DType d) {
  auto x = h.arr();
  if (x.is_number()) return x;
  if (!x.axes().empty())
    fail("optim", "a hyperparameter has axes {}; it must be a scalar", x.axes());
  return array = astype(x, d);
}
NamedArray with_decay(const NamedArray& update, const NamedArray& param, const Hyperparameter& by) {
  const auto d = wide(update.dtype());
  NamedArray array;
  return astype(astype(update, d) + in_dtype(by, array, d) * astype(param, d), update.dtype());
}
NamedArray times(const NamedArray& a, const Hyperparameter& by) {
  const auto d = wide(a.dtype());
  NamedArray array;
  return astype(astype(a, d) * in_dtype(by, array, d), a.dtype());
}

}  // namespace

UpdateScope::UpdateScope(SourceLocation at)
    : here_(std::make_shared<CallSite>(at, CallSite::layer)) {}
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

Leaves scaled(Leaves leaves, const Hyperparameter& by) {
  for (auto& a : leaves)
    if (!a.empty()) a = times(a, by);
  return leaves;
}
Leaves clipped(Leaves grads, const Hyperparameter& max_norm) {
  auto n = norm(grads);
  const auto most = max_norm.arr();
  return scaled(std::move(grads), where(n < most, 1., most / n));
}

Updated adam(Leaves grads, Leaves mu, Leaves nu, const NamedArray& count, double b1, double b2,
             double eps, bool nesterov) {
  check_states(mu, "moments", grads);
  // Corrections of both moments, once per dtype. With Nesterov momentum, also that of the next
  // step.
  std::map<DType, std::array<NamedArray, 3>> corrections;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].empty()) continue;
    const auto of_mu = promote(mu[i].dtype(), grads[i].dtype()),
               of_nu = promote(nu[i].dtype(), grads[i].dtype());
    const auto of_both = promote(of_mu, of_nu), d = wide(of_both);
    auto [of_d, is_new] = corrections.try_emplace(d);
    if (is_new) {
      of_d->second = {correction(b1, count, d), correction(b2, count, d), NamedArray()};
      if (nesterov) of_d->second[2] = correction(b1, count + 1, d);
    }
    const auto& [c1, c2, next_c1] = of_d->second;
    const auto g = astype(grads[i], d);
    const auto m = b1 * astype(mu[i], d) + (1 - b1) * g,
               n = b2 * astype(nu[i], d) + (1 - b2) * square(g);
    const auto step = nesterov ? b1 * (m * next_c1) + (1 - b1) * (g * c1) : m * c1;
    grads[i] = astype(step / (sqrt(n * c2) + eps), of_both);
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

Leaves decayed(Leaves updates, const Walk& params, const Hyperparameter& weight_decay,
               const LeafFilter& mask) {
  if (weight_decay.is(0)) return updates;
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
bool has_label(const std::string& label, const std::string& mine,
               const std::vector<std::string>& all, const std::string& path) {
  if (std::find(all.begin(), all.end(), label) == all.end())
    fail("multi_transform", "the label of {} is {}, for which there is no optimizer{}", path, label,
         did_you_mean(label, all));
  return label == mine;
}
Hyperparams hyperparams_at(const std::vector<Injected>& values, const NamedArray& count,
                           const Hyperparams* state) {
  std::vector<Hyperparams::value_type> all;
  for (auto& v : values) {
    for (auto& [name, _] : all)
      if (name == v.name) fail("inject_hyperparams", "the name {} is given twice", name);
    all.emplace_back(v.name, v.schedule ? astype(v.schedule(count), DType::f32)
                             : state    ? astype((*state)[v.name], DType::f32)
                                        : NamedArray(v.value));
  }
  return Hyperparams(std::move(all));
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

Hyperparams::Hyperparams() = default;
Hyperparams::Hyperparams(std::vector<value_type> all) : all_(std::move(all)) {}
Hyperparams::Hyperparams(const Hyperparams&) = default;
Hyperparams::Hyperparams(Hyperparams&&) noexcept = default;
Hyperparams& Hyperparams::operator=(const Hyperparams&) = default;
Hyperparams& Hyperparams::operator=(Hyperparams&&) noexcept = default;
Hyperparams::~Hyperparams() = default;
std::vector<Hyperparams::value_type>::iterator Hyperparams::begin() { return all_.begin(); }
std::vector<Hyperparams::value_type>::const_iterator Hyperparams::begin() const {
  return all_.begin();
}
std::vector<Hyperparams::value_type>::iterator Hyperparams::end() { return all_.end(); }
std::vector<Hyperparams::value_type>::const_iterator Hyperparams::end() const { return all_.end(); }
std::size_t Hyperparams::size() const { return all_.size(); }
std::vector<Hyperparams::value_type>::iterator Hyperparams::find(const std::string& name) {
  return std::find_if(all_.begin(), all_.end(), [&](auto& v) { return v.first == name; });
}
const NamedArray& Hyperparams::operator[](const std::string& name) const {
  for (auto& [known, value] : all_)
    if (known == name) return value;
  std::vector<std::string> names;
  for (auto& v : all_) names.push_back(v.first);
  fail("inject_hyperparams", "there is no hyperparameter {}{}", name, did_you_mean(name, names));
}
NamedArray& Hyperparams::operator[](const std::string& name) {
  return const_cast<NamedArray&>(std::as_const(*this)[name]);
}

}  // namespace haliax::optim
