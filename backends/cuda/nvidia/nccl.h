// NCCL, opened when a mesh first needs it. It only transfers bytes; reductions run in kernels
// (engine/collective.cpp).
#pragma once
#include <string>
#include <vector>

#include "../api.h"

namespace haliax::cuda {

std::string nccl_id();
// Must be called in the device's context. Blocks until all ranks have joined.
Handle nccl_join(const std::string& id, int ranks, int rank);
void nccl_exchange(Handle communicator, void* stream, const std::vector<Transfer>&);
void nccl_abort(Handle communicator);
void nccl_leave(Handle communicator);

}  // namespace haliax::cuda
