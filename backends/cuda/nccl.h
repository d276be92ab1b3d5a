// NCCL, opened when a mesh first asks for it: it carries bytes, and adds nothing up
// (collective.cpp).
#pragma once
#include <string>
#include <vector>

#include "api.h"

namespace haliax::cuda {

std::string nccl_id();
// In the device's context; waits for the other ranks.
Handle nccl_join(const std::string& id, int ranks, int rank);
void nccl_exchange(Handle communicator, void* stream, const std::vector<Transfer>&);
void nccl_abort(Handle communicator);
void nccl_leave(Handle communicator);

}  // namespace haliax::cuda
