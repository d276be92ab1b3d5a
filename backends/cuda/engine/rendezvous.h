// The rendezvous of processes that share a mesh: each process publishes the GPUs that it uses, and
// receives the id with which its devices join.
#pragma once
#include <string>
#include <vector>

#include "../api.h"
#include "program/ranks.h"

namespace haliax::cuda {

struct ProcessGpus {
  std::string id;  // any bytes; set by the first process only
  std::string host;
  // unique ids of the GPUs: those of its devices, and all that are visible to it
  std::vector<std::string> used, visible;
};
// Must be called by all processes together. Returns the id. Raises an error on all processes if two
// devices are the same GPU, because NCCL accepts each GPU only once.
std::string rendezvous(const Api&, program::RankGroup&, const ProcessGpus& mine);

}  // namespace haliax::cuda
