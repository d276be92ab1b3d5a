// What the bench times: cases, named and sized as those of the peers' scripts, so that lines of
// both can be joined.
#pragma once
#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "haliax/haliax.h"

namespace bench {

// Inputs made and functions compiled: what is left is to run it, again and again.
struct Prepared {
  std::function<double()> run;  // once; gives the seconds it took
  // what else is worth printing, asked after the last run
  std::function<nlohmann::json()> facts = {};
};

struct Case {
  std::string name, shape;
  haliax::DType dtype;
  double amount;  // in one run: GB, GFLOP, tokens; or calls, for a unit of time
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
// One call of the jitted function. It is synchronous; giving back the memory of its results counts
// as well.
template <class F, class... A> Prepared jitted(F f, A... args) {
  return {timed([call = haliax::jit(std::move(f)), args...] { call(args...); })};
}

// The cases of each kind, for arrays of this dtype.
std::vector<Case> op_cases(haliax::DType);        // ops.cpp: elementwise, rows, picking, random
std::vector<Case> gemm_cases(haliax::DType);      // gemm.cpp
std::vector<Case> overhead_cases();               // calls.cpp: what the library itself costs
std::vector<Case> gpt2_cases(haliax::DType);      // gpt2.cpp
std::vector<Case> generate_cases(haliax::DType);  // generate.cpp

}  // namespace bench
