// Profiles: the time of each step of a function, and the time that this machine needs for it at its
// best rate. `HALIAX_PROFILE=FILE` profiles a process. See docs/how-to/performance.md.
#pragma once
#include <iosfwd>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "haliax/tree.h"

namespace [[gnu::visibility("default")]] haliax {

/// The cost of a step, or of several steps, in one call of the function, over all devices.
struct ProfileCost {
  double calls = 0;    ///< Executions.
  double seconds = 0;  ///< Time. The time of a loop excludes the steps of its body.
  double read = 0;     ///< Bytes that the steps read; each element counts once.
  double written = 0;  ///< Bytes that the steps write.
  double flops = 0;    ///< Floating-point operations of contractions; a multiply-add counts as two.
  /// Time that this machine needs for these bytes or operations at its best rate.
  double bound_s = 0;
  /// Returns `bound_s / seconds`. Values above 1 occur if the arrays are in the caches.
  double share() const { return seconds > 0 ? bound_s / seconds : 0; }
  /// Returns the bytes read and written per second.
  double bytes_per_s() const { return seconds > 0 ? (read + written) / seconds : 0; }
  /// Returns the floating-point operations per second.
  double flops_per_s() const { return seconds > 0 ? flops / seconds : 0; }
};
/// The profile of all equal steps at one line.
struct StepProfile : ProfileCost {
  std::string kind;    ///< Kind of step: `fused`, `contract`, `gather`, `loop`, `collective`, ...
  std::string op;      ///< The last op of the step: `dot`.
  std::string holds;   ///< For a fused step, its ops in order: `sub exp reduce_sum`.
  std::string shape;   ///< Iteration space: `8 256 384`; for a contraction: `[batch] m x n x k`.
  std::string where;   ///< Source location: `model.cpp:41`.
  std::string module;  ///< Path of the module: `blocks.mlp.up`.
  std::string called;  ///< The call that runs the step: `jit at train.cpp:12`.
  int loops = 0;       ///< Number of loops around the step.
  /// Number of iterations that run in parallel, each on a thread. `seconds` is the time of all
  /// threads, divided by this number.
  int side_by_side = 1;
};
/// The cost of all steps of one kind or module.
struct ProfileSum : ProfileCost {
  std::string name;  ///< Kind, or path of the module.
};
/// The best rates of this machine, with all threads. They are measured once per process with steps
/// of the library. 0: unknown; no bound is known then.
struct MachineRates {
  double read = 0;  ///< Bytes per second of a sum, or of a vector times a matrix.
  double copy = 0;  ///< Bytes read and written per second of a copy.
  /// Floating-point operations per second of a square matmul, by dtype.
  std::vector<std::pair<std::string, double>> flops = {};
};
/// The profile of a function.
struct Profile {
  int runs = 0;                     ///< Timed calls. All values are means over them.
  double wall_s = 0;                ///< Time of a call.
  double steps_s = 0;               ///< Time of all steps; on a mesh, the sum over all devices.
  std::vector<StepProfile> steps;   ///< The steps, in order.
  std::vector<ProfileSum> by_kind;  ///< Sums by kind of step, the most expensive first.
  /// Sums by module, the most expensive first. A module includes its submodules.
  std::vector<ProfileSum> by_module;
  MachineRates machine;  ///< The rates that the bounds derive from.
};
/// Returns the profile as tables: by kind, by module, and by step.
std::string to_string(const Profile& profile);
/// Prints the tables.
std::ostream& operator<<(std::ostream& out, const Profile& profile);

namespace detail {
Profile profiled(void (*call)(const void*), const void* f);
}

/// Profiles a function: calls `f(args...)` once to warm up, and then three times.
///
/// Arguments that `f` would donate are copied and stay valid. Results are computed and discarded.
/// Steps are timed on the `cpu` backend; on other backends only `wall_s` is set.
///
///     std::cout << profile(step, model, x);
///
/// @param f     a result of `jit` or `named_jit`, or a function that calls such functions or reads
///     arrays
/// @param args  arguments of `f`
/// @throws haliax::Error inside a traced function, or if `f` raises
template <class F, class... A> Profile profile(const F& f, const A&... args) {
  auto call = [&] {
    using R = std::invoke_result_t<const F&, const A&...>;
    if constexpr (std::is_void_v<R>) {
      f(args...);
    } else {
      R out = f(args...);
      if constexpr (Tree<R>)
        for (auto& a : flatten(out))
          if (!a.empty()) a.eval();
    }
  };
  return detail::profiled([](const void* c) { (*static_cast<const decltype(call)*>(c))(); }, &call);
}

}  // namespace haliax
