// How processes that share a mesh meet: each says which cards it takes, and gets the id by which
// their devices join.
#pragma once
#include <string>
#include <vector>

#include "api.h"
#include "program/ranks.h"

namespace haliax::cuda {

struct ProcessGpus {
  std::string id;  // any bytes; of the first process alone
  std::string host;
  // cards, by what tells them apart: of its devices; all that it may use
  std::vector<std::string> used, visible;
};
// All call it together. Gives the id; raises on all of them if two devices are one card, as NCCL
// takes each once.
std::string rendezvous(const Api&, program::RankGroup&, const ProcessGpus& mine);

}  // namespace haliax::cuda
