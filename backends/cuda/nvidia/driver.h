// The NVIDIA driver API, opened at run time; nothing links to it.
#pragma once
#include <cuda.h>

namespace haliax::cuda {

struct Driver {
  decltype(&cuInit) init = nullptr;
  decltype(&cuDriverGetVersion) version = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;
  decltype(&cuDeviceGetCount) count = nullptr;
  decltype(&cuDeviceGet) device = nullptr;
  decltype(&cuDeviceGetName) device_name = nullptr;
  decltype(&cuDeviceGetUuid) device_id = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) context = nullptr;
  decltype(&cuCtxSetCurrent) set_context = nullptr;
  decltype(&cuMemGetInfo) memory = nullptr;
  decltype(&cuDeviceGetDefaultMemPool) pool = nullptr;
  decltype(&cuMemPoolSetAttribute) set_pool = nullptr;
  decltype(&cuMemPoolGetAttribute) get_pool = nullptr;
  decltype(&cuMemAllocAsync) allocate = nullptr;
  decltype(&cuMemFreeAsync) release = nullptr;
  decltype(&cuMemHostAlloc) allocate_host = nullptr;
  decltype(&cuMemFreeHost) release_host = nullptr;
  decltype(&cuMemcpyHtoDAsync) put = nullptr;
  decltype(&cuMemcpyDtoHAsync) get = nullptr;
  decltype(&cuMemcpyDtoDAsync) copy = nullptr;
  decltype(&cuStreamCreate) make_stream = nullptr;
  decltype(&cuStreamDestroy) end_stream = nullptr;
  decltype(&cuStreamQuery) is_done = nullptr;
  decltype(&cuStreamSynchronize) wait = nullptr;
  decltype(&cuStreamWriteValue64) mark = nullptr;
  decltype(&cuStreamWaitEvent) follow = nullptr;
  decltype(&cuEventCreate) make_event = nullptr;
  decltype(&cuEventDestroy) end_event = nullptr;
  decltype(&cuEventRecord) record = nullptr;
  decltype(&cuEventQuery) has_come = nullptr;
  decltype(&cuEventSynchronize) wait_event = nullptr;
  decltype(&cuEventElapsedTime) elapsed = nullptr;
  decltype(&cuLibraryLoadData) load = nullptr;
  decltype(&cuLibraryGetKernel) kernel = nullptr;
  decltype(&cuKernelSetAttribute) set_kernel = nullptr;
  decltype(&cuLaunchKernel) launch = nullptr;
  decltype(&cuStreamBeginCapture) begin_graph = nullptr;
  decltype(&cuStreamEndCapture) end_graph = nullptr;
  decltype(&cuGraphDestroy) drop_graph = nullptr;
  decltype(&cuGraphInstantiate) instantiate = nullptr;
  decltype(&cuGraphExecUpdate) update = nullptr;
  decltype(&cuGraphLaunch) run_graph = nullptr;
  decltype(&cuGraphExecDestroy) end_instance = nullptr;
#if CUDA_VERSION >= 13000  // older headers use these names for other functions
  // For conditional nodes of graphs; null if the driver lacks them.
  decltype(&cuStreamGetCaptureInfo) captured = nullptr;
  decltype(&cuStreamUpdateCaptureDependencies) update_capture_dependencies = nullptr;
  decltype(&cuStreamBeginCaptureToGraph) begin_inside = nullptr;
  decltype(&cuGraphConditionalHandleCreate) make_condition = nullptr;
  decltype(&cuGraphAddNode) add_node = nullptr;
#endif
  bool has_ifs = false;
  const char* missing = nullptr;  // the missing library or function; null: none
};
const Driver& driver();

}  // namespace haliax::cuda
