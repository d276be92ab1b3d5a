// How long each step of a function takes, and what of that time the machine needs for it:
// profile(step, args...). HALIAX_PROFILE=FILE is the same for a whole process. See
// docs/performance.md.
#pragma once
#include <iosfwd>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "haliax/tree.h"

namespace [[gnu::visibility("default")]] haliax {

// In one call of the function, over all devices.
struct ProfileCost {
  double calls = 0;              // how often a step ran
  double seconds = 0;            // of a loop: without the steps of its body
  double read = 0, written = 0;  // bytes: what the step's views hold, each element once
  double flops = 0;              // of contractions: a multiplication and an addition are two
  // what this machine needs to move those bytes, or to compute those products
  double bound_s = 0;
  // above 1: what it read lay in caches
  double share() const { return seconds > 0 ? bound_s / seconds : 0; }
  double bytes_per_s() const { return seconds > 0 ? (read + written) / seconds : 0; }
  double flops_per_s() const { return seconds > 0 ? flops / seconds : 0; }
};
// All steps that do the same at one line.
struct StepProfile : ProfileCost {
  std::string kind;           // fused, contract, gather, loop, collective, ...
  std::string op;             // the op that the step ends in: dot
  std::string holds;          // of a fused step, what it computes, in order: sub exp reduce_sum
  std::string shape;          // its points: 8 256 384; of a contraction [batch] m x n x k
  std::string where, module;  // model.cpp:41; blocks.mlp.up
  std::string called;         // what ran it: jit at train.cpp:12
  int loops = 0;              // around it
  // Turns of a loop around it that run at a time, each on a thread; `seconds` are those of all
  // threads, over how many they are.
  int side_by_side = 1;
};
struct ProfileSum : ProfileCost {
  std::string name;
};
// Measured once in a process, by the library's own steps on large arrays, with all threads. 0: not
// known, and then no bound is.
struct MachineRates {
  double read = 0;  // bytes per second, of a sum, or of a vector times a matrix
  double copy = 0;  // bytes per second, read and written, of a copy
  // per second, of a square product, by dtype
  std::vector<std::pair<std::string, double>> flops = {};
};
struct Profile {
  int runs = 0;                    // timed; what stands here is of one of them, on average
  double wall_s = 0;               // of a call
  double steps_s = 0;              // of all steps; on a mesh of all devices together
  std::vector<StepProfile> steps;  // in order
  // dearest first; what a module takes is in those around it too
  std::vector<ProfileSum> by_kind, by_module;
  MachineRates machine;
};
std::string to_string(const Profile&);  // tables
std::ostream& operator<<(std::ostream&, const Profile&);

namespace detail {
Profile profiled(void (*call)(const void*), const void* f);
}

// Calls f(args...) once to warm it, then three times, and says what each step took. f is what jit
// or named_jit gave, or a function that runs such ones, or reads arrays itself; its results are
// read, and thrown away. What it would donate is copied, and stays. Steps are told apart on the
// cpu; of other backends wall_s is all. Raises inside of a trace, and what f raises.
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
