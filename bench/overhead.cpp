// The overhead of the library: tiny arrays, a thousand ops or calls.
#include "bench.h"

namespace bench {
namespace {

using namespace haliax;

constexpr int kTimes = 1000;

NamedArray chain(NamedArray x) {
  for (int i = 0; i < kTimes; ++i) x = x + 1.;
  return x;
}
NamedArray tiny() { return ones(Axis("tiny", 16)).eval(); }

Case per_call(const char* name, const char* shape, std::function<Prepared()> prepare) {
  return {name, shape, DType::f32, kTimes, "us/op", std::move(prepare)};
}

}  // namespace

std::vector<Case> overhead_cases() {
  return {
      // Builds the graph only.
      per_call("chain_record", "1000x[16]",
               [] { return Prepared{timed([x = tiny()] { chain(x); })}; }),
      // Builds and evaluates the graph.
      per_call("chain_eager", "1000x[16]",
               [] { return Prepared{timed([x = tiny()] { chain(x).eval(); })}; }),
      per_call("chain_each", "1000x[16]",
               [] {  // evaluates each op
                 return Prepared{timed([x = tiny()] {
                   auto y = x;
                   for (int i = 0; i < kTimes; ++i) y = (y + 1.).eval();
                 })};
               }),
      per_call("chain_jit", "1000x[16]", [] { return jitted(chain, tiny()); }),
      per_call("call", "1000 calls",
               [] {
                 auto f = jit([](const NamedArray& x) { return x + 1.; });
                 return Prepared{timed([f, x = tiny()] {
                   for (int i = 0; i < kTimes; ++i) f(x);
                 })};
               }),
  };
}

}  // namespace bench
