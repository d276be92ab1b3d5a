// Learning-rate schedules by the names of Optax. See docs/how-to/training.md.
//
// A schedule is a function of the number of completed steps, an `i32` scalar. It returns an `f32`
// scalar. Steps are counted from 0.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "haliax/array.h"
#include "haliax/tree.h"

namespace [[gnu::visibility("default")]] haliax {
namespace optim {

/// @name Schedules
/// @{

/// A schedule. Any function from an array to an array converts to it.
using Schedule = StaticFunction<NamedArray(const NamedArray&)>;

/// Returns a schedule that is always `value`.
Schedule constant_schedule(double value);
/// Returns a schedule from `init_value` to `end_value` along a polynomial:
/// `(init_value - end_value) * (1 - t / transition_steps)^power + end_value`, where `t` is the
/// number of steps after `transition_begin`, from 0 to `transition_steps`.
///
/// @param init_value        value until `transition_begin`
/// @param end_value         value after the transition
/// @param power             exponent; 1: linear
/// @param transition_steps  steps of the transition; 0 or less: always `init_value`
/// @param transition_begin  first step of the transition
Schedule polynomial_schedule(double init_value, double end_value, double power,
                             std::int64_t transition_steps, std::int64_t transition_begin = 0);
/// Returns `polynomial_schedule` with the power 1.
///
///     auto warmup = optim::linear_schedule(0, 3e-4, 100);
Schedule linear_schedule(double init_value, double end_value, std::int64_t transition_steps,
                         std::int64_t transition_begin = 0);
/// Returns a schedule that decays along half a cosine: `init_value * ((1 - alpha) * c^exponent +
/// alpha)` with `c = (1 + cos(pi * min(t / decay_steps, 1))) / 2`.
///
/// @param init_value   value at step 0
/// @param decay_steps  steps of the decay
/// @param alpha        share of `init_value` after the decay
/// @param exponent     exponent of the cosine term
/// @throws haliax::Error if `decay_steps` is not positive
Schedule cosine_decay_schedule(double init_value, std::int64_t decay_steps, double alpha = 0,
                               double exponent = 1);
/// Options of `exponential_decay`.
struct ExponentialDecayOptions {
  std::int64_t transition_begin = 0;     ///< Steps before the decay.
  bool staircase = false;                ///< Decays only after each `transition_steps` steps.
  std::optional<double> end_value = {};  ///< Bound of the value.
};
/// Returns a schedule that decays exponentially: `init_value * decay_rate^(t / transition_steps)`,
/// where `t` is the number of steps after `transition_begin`.
///
/// @param init_value        value until `transition_begin`
/// @param transition_steps  steps for one factor `decay_rate`; 0 or less: always `init_value`
/// @param decay_rate        factor; 0: always `init_value`
/// @param options           start, steps of a staircase, and bound
Schedule exponential_decay(double init_value, std::int64_t transition_steps, double decay_rate,
                           ExponentialDecayOptions options = {});
/// Returns a schedule that decays with the inverse square root of the step: `max(end_value,
/// init_value * min(1, sqrt(timescale / (t + warmup_steps))))`.
///
/// @param init_value    value until step `timescale - warmup_steps`
/// @param timescale     step from which the value decays
/// @param warmup_steps  steps that precede step 0 of this schedule
/// @param end_value     smallest value
/// @throws haliax::Error if `timescale` is not positive
Schedule inv_sqrt_decay_schedule(double init_value, double timescale = 10000,
                                 std::int64_t warmup_steps = 0, double end_value = 0);
/// Returns a constant schedule.
Schedule piecewise_constant_schedule(double init_value);
/// Returns a schedule that is multiplied by a factor from each of some steps on.
///
/// @param init_value             value at step 0
/// @param boundaries_and_scales  pairs of a step and a factor
/// @throws haliax::Error if a factor is negative
Schedule piecewise_constant_schedule(
    double init_value, std::vector<std::pair<std::int64_t, double>> boundaries_and_scales);
/// Returns a schedule that runs several schedules, one after the other. Each counts its steps from
/// its own boundary.
///
///     auto rate = optim::join_schedules(
///         {optim::linear_schedule(0, 1e-3, 100), optim::cosine_decay_schedule(1e-3, 900)}, {100});
///
/// @param schedules   the schedules, in order
/// @param boundaries  first step of each schedule, except for the first one
/// @throws haliax::Error if there are no schedules, or not one boundary between two schedules
Schedule join_schedules(std::vector<Schedule> schedules, std::vector<std::int64_t> boundaries);
/// Returns a schedule that increases linearly from `init_value` to `peak_value`, and then stays.
Schedule warmup_constant_schedule(double init_value, double peak_value, std::int64_t warmup_steps);
/// Returns a schedule that increases linearly from `init_value` to `peak_value`, and then decays to
/// `end_value` along half a cosine.
///
/// @param init_value    value at step 0
/// @param peak_value    value at step `warmup_steps`
/// @param warmup_steps  steps of the increase
/// @param decay_steps   steps until `end_value`, warmup included
/// @param end_value     value after `decay_steps`
/// @param exponent      exponent of the cosine term
/// @throws haliax::Error if `decay_steps` is not greater than `warmup_steps`
Schedule warmup_cosine_decay_schedule(double init_value, double peak_value,
                                      std::int64_t warmup_steps, std::int64_t decay_steps,
                                      double end_value = 0, double exponent = 1);
/// Returns a schedule that increases linearly from `init_value` to `peak_value`, and then decays as
/// `exponential_decay`, whose steps are counted after the warmup.
Schedule warmup_exponential_decay_schedule(double init_value, double peak_value,
                                           std::int64_t warmup_steps, std::int64_t transition_steps,
                                           double decay_rate, ExponentialDecayOptions options = {});

/// @}

}  // namespace optim
}  // namespace haliax
