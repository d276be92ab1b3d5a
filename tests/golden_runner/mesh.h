// The mode --mesh SEED: cases inside named_jit, on a mesh and by mappings that are drawn. What a
// case draws depends on the seed and its id alone, so that a failure is repeated by the case alone.
#pragma once
#include <map>
#include <random>

#include "gpt2.h"

namespace golden {

// Of all cases.
struct MeshTally {
  int trials = 0;
  std::map<std::string, int> refused;  // by words of the message: these trials were drawn anew
};

class MeshCase {
 public:
  MeshCase(std::uint64_t seed, const std::string& id, MeshTally&);

  // As golden::check, with the case's arrays as arguments of one compiled function, and its parts
  // as the results.
  Problems check(const Group&, const Value& c, const Op&);
  // The op of a case that raises.
  Arrays call(const Op&, const Arrays& inputs, const Value& args);
  // A few steps of training.
  Problems train(const Group&, const Value& c, const std::string& backend);

  const std::string& backend() const { return backend_; }
  const std::string& how() const { return how_; }  // the last trial: mesh, mappings and options

 private:
  template <class F> auto trial(F attempt);

  std::mt19937_64 dice_;
  MeshTally& tally_;
  std::string backend_, how_;
};

}  // namespace golden
