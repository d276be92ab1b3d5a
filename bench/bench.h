// The cases of `bench`. Their names and sizes match the scripts for other libraries, so that result
// lines can be joined.
#pragma once
#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "haliax/haliax.h"

namespace bench {

// A case with its inputs computed and its functions compiled, ready to run repeatedly.
struct Prepared {
  std::function<double()> run;  // runs once and returns the seconds
  // Further facts to print, collected after the last run.
  std::function<nlohmann::json()> facts = {};
  // The inputs, for a peer that runs the same case: printed with `ready` (--serve).
  std::function<nlohmann::json()> spec = {};
};

struct Case {
  std::string name, shape;
  haliax::DType dtype;
  double amount;  // per run: GB, GFLOP, tokens, or calls (for a unit of time)
  // "GB/s", "GFLOP/s", "tokens/s": amount / seconds. "us/op": microseconds / amount. "s": seconds.
  std::string unit;
  std::function<Prepared()> prepare;
  int least_runs = 5;
};

template <class F> std::function<double()> timed(F f) {
  return [f = std::move(f)]() mutable {
    auto start = std::chrono::steady_clock::now();
    f();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
}
// Times one call of the jitted function. Calls are synchronous; the time includes freeing the
// results.
template <class F, class... A> Prepared jitted(F f, A... args) {
  return {timed([call = haliax::jit(std::move(f)), args...] { call(args...); })};
}

// The cases of each kind, for arrays of this dtype.
std::vector<Case> op_cases(haliax::DType);        // ops.cpp: elementwise, rows, selection, random
std::vector<Case> gemm_cases(haliax::DType);      // gemm.cpp
std::vector<Case> layer_cases(haliax::DType);     // layers.cpp: convolutions, experts
std::vector<Case> overhead_cases();               // overhead.cpp: the cost of the library itself
std::vector<Case> loop_cases();                   // loops.cpp: small loops
std::vector<Case> gpt2_cases(haliax::DType);      // gpt2.cpp
std::vector<Case> generate_cases(haliax::DType);  // generate.cpp
// Every op by its test entry, at the sizes that the text names (all_ops.cpp). Empty: all sizes.
std::vector<Case> all_op_cases(haliax::DType, const std::string& sizes);

}  // namespace bench
