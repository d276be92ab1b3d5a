// The mode --mesh SEED: runs cases inside named_jit, on random meshes and mappings. The draws of a
// case depend only on the seed and its id, so one case reproduces a failure.
#pragma once
#include <map>
#include <random>

#include "gpt2.h"

namespace golden {

// Counts over all cases.
struct MeshTally {
  int trials = 0;
  std::map<std::string, int> refused;  // by words of the message; these trials were drawn again
};

class MeshCase {
 public:
  MeshCase(std::uint64_t seed, const std::string& id, MeshTally&);

  // Works as golden::check, with the case's arrays as arguments of one compiled function and its
  // parts as results.
  Problems check(const Group&, const Value& c, const Op&);
  // Calls the op of a case that must raise.
  Arrays call(const Op&, const Arrays& inputs, const Value& args);
  // Runs a few training steps.
  Problems train(const Group&, const Value& c, const std::string& backend);

  const std::string& backend() const { return backend_; }
  const std::string& how() const { return how_; }  // mesh, mappings and options of the last trial

 private:
  template <class F> auto trial(F attempt);

  std::mt19937_64 dice_;
  MeshTally& tally_;
  std::string backend_, how_;
};

}  // namespace golden
