// Learning-rate schedules.
#include "haliax/schedules.h"

#include <cmath>
#include <numbers>

#include "graph/fail.h"
#include "haliax/ops.h"

namespace haliax::optim {
namespace {

NamedArray step_of(const NamedArray& count) { return astype(count, DType::f32); }

}  // namespace

Schedule constant_schedule(double value) {
  return [=](const NamedArray&) { return NamedArray(value); };
}
Schedule polynomial_schedule(double init, double end, double power, std::int64_t steps,
                             std::int64_t begin) {
  if (steps <= 0) return constant_schedule(init);
  begin = std::max<std::int64_t>(begin, 0);
  return [=](const NamedArray& count) {
    const auto left = 1. - clip(step_of(count) - double(begin), 0., double(steps)) / double(steps);
    return (init - end) * (power == 1 ? left : haliax::power(left, power)) + end;
  };
}
Schedule linear_schedule(double init, double end, std::int64_t steps, std::int64_t begin) {
  return polynomial_schedule(init, end, 1, steps, begin);
}
Schedule cosine_decay_schedule(double init, std::int64_t steps, double alpha, double exponent) {
  if (steps <= 0) fail("cosine_decay_schedule", "decay_steps is {}; it must be positive", steps);
  return [=](const NamedArray& count) {
    const auto part = minimum(step_of(count), double(steps)) / double(steps);
    const auto c = 0.5 * (1. + cos(part * std::numbers::pi));
    return init * ((1 - alpha) * (exponent == 1 ? c : power(c, exponent)) + alpha);
  };
}
Schedule exponential_decay(double init, std::int64_t steps, double rate,
                           ExponentialDecayOptions options) {
  if (steps <= 0 || rate == 0) return constant_schedule(init);
  const auto begin = double(std::max<std::int64_t>(options.transition_begin, 0));
  return [=](const NamedArray& count) {
    const auto after = step_of(count) - begin;
    auto p = after / double(steps);
    if (options.staircase) p = floor(p);
    auto y = where(after <= 0., init, init * power(rate, p));
    if (!options.end_value) return y;
    return rate < 1 ? maximum(y, *options.end_value) : minimum(y, *options.end_value);
  };
}
Schedule inv_sqrt_decay_schedule(double init, double timescale, std::int64_t warmup, double end) {
  if (!(timescale > 0))
    fail("inv_sqrt_decay_schedule", "timescale is {}; it must be positive", timescale);
  return [=](const NamedArray& count) {
    const auto step = maximum(step_of(count) + double(warmup), 1.);
    return maximum(init * minimum(sqrt(timescale / step), 1.), end);
  };
}
Schedule piecewise_constant_schedule(double init) { return constant_schedule(init); }
Schedule piecewise_constant_schedule(double init,
                                     std::vector<std::pair<std::int64_t, double>> boundaries) {
  for (auto& [step, factor] : boundaries)
    if (!(factor >= 0))
      fail("piecewise_constant_schedule", "the factor of step {} is {}; it must be 0 or greater",
           step, factor);
  return [=](const NamedArray& count) {
    NamedArray y = init;
    for (auto& [step, factor] : boundaries)
      y = y * where(step_of(count) >= double(step), factor, 1.);
    return y;
  };
}
Schedule join_schedules(std::vector<Schedule> schedules, std::vector<std::int64_t> boundaries) {
  if (schedules.empty() || boundaries.size() + 1 != schedules.size())
    fail("join_schedules",
         "there are {} schedules and {} boundaries; expected one boundary between "
         "two schedules",
         schedules.size(), boundaries.size());
  return [=](const NamedArray& count) {
    auto y = schedules[0](count);
    for (std::size_t k = 0; k < boundaries.size(); ++k)
      y = where(count < double(boundaries[k]), y, schedules[k + 1](count - double(boundaries[k])));
    return y;
  };
}
Schedule warmup_constant_schedule(double init, double peak, std::int64_t warmup) {
  return linear_schedule(init, peak, warmup);
}
Schedule warmup_cosine_decay_schedule(double init, double peak, std::int64_t warmup,
                                      std::int64_t steps, double end, double exponent) {
  if (steps <= warmup)
    fail("warmup_cosine_decay_schedule",
         "decay_steps is {}, but warmup_steps is {}; decay_steps includes the warmup", steps,
         warmup);
  return join_schedules(
      {linear_schedule(init, peak, warmup),
       cosine_decay_schedule(peak, steps - warmup, peak == 0 ? 0 : end / peak, exponent)},
      {warmup});
}
Schedule warmup_exponential_decay_schedule(double init, double peak, std::int64_t warmup,
                                           std::int64_t steps, double rate,
                                           ExponentialDecayOptions options) {
  return join_schedules(
      {linear_schedule(init, peak, warmup), exponential_decay(peak, steps, rate, options)},
      {warmup});
}

}  // namespace haliax::optim
