// Opens the NVIDIA driver; see driver.h.
#include "driver.h"

#include "library.h"

namespace haliax::cuda {
namespace {

// Opens functions by their names in the library: cuda.h maps plain names to the newest version of
// each.
Driver opened() {
  Driver d;
  const Library library({"libcuda.so.1"});
  auto find = [&](auto& f, const char* name) {
    if (!library.find(f, name) && !d.missing) d.missing = name;
  };
  find(d.init, "cuInit");
  find(d.version, "cuDriverGetVersion");
  find(d.error_string, "cuGetErrorString");
  find(d.count, "cuDeviceGetCount");
  find(d.device, "cuDeviceGet");
  find(d.device_name, "cuDeviceGetName");
  find(d.device_id, "cuDeviceGetUuid_v2");
  find(d.attribute, "cuDeviceGetAttribute");
  find(d.context, "cuDevicePrimaryCtxRetain");
  find(d.set_context, "cuCtxSetCurrent");
  find(d.memory, "cuMemGetInfo_v2");
  find(d.pool, "cuDeviceGetDefaultMemPool");
  find(d.set_pool, "cuMemPoolSetAttribute");
  find(d.get_pool, "cuMemPoolGetAttribute");
  find(d.allocate, "cuMemAllocAsync");
  find(d.release, "cuMemFreeAsync");
  find(d.allocate_host, "cuMemHostAlloc");
  find(d.release_host, "cuMemFreeHost");
  find(d.put, "cuMemcpyHtoDAsync_v2");
  find(d.get, "cuMemcpyDtoHAsync_v2");
  find(d.copy, "cuMemcpyDtoDAsync_v2");
  find(d.make_stream, "cuStreamCreate");
  find(d.end_stream, "cuStreamDestroy_v2");
  find(d.is_done, "cuStreamQuery");
  find(d.wait, "cuStreamSynchronize");
  find(d.mark, "cuStreamWriteValue64_v2");
  find(d.follow, "cuStreamWaitEvent");
  find(d.make_event, "cuEventCreate");
  find(d.end_event, "cuEventDestroy_v2");
  find(d.record, "cuEventRecord");
  find(d.has_come, "cuEventQuery");
  find(d.wait_event, "cuEventSynchronize");
  find(d.elapsed, "cuEventElapsedTime_v2");
  find(d.load, "cuLibraryLoadData");
  find(d.kernel, "cuLibraryGetKernel");
  find(d.set_kernel, "cuKernelSetAttribute");
  find(d.launch, "cuLaunchKernel");
  find(d.begin_graph, "cuStreamBeginCapture_v2");
  find(d.end_graph, "cuStreamEndCapture");
  find(d.drop_graph, "cuGraphDestroy");
  find(d.instantiate, "cuGraphInstantiateWithFlags");
  find(d.update, "cuGraphExecUpdate_v2");
  find(d.run_graph, "cuGraphLaunch");
  find(d.end_instance, "cuGraphExecDestroy");
#if CUDA_VERSION >= 13000
  int version = 0;
  d.has_ifs = library.find(d.captured, "cuStreamGetCaptureInfo_v3") &&
              library.find(d.update_capture_dependencies, "cuStreamUpdateCaptureDependencies_v2") &&
              library.find(d.begin_inside, "cuStreamBeginCaptureToGraph") &&
              library.find(d.make_condition, "cuGraphConditionalHandleCreate") &&
              library.find(d.add_node, "cuGraphAddNode_v2") && d.version &&
              d.version(&version) == CUDA_SUCCESS && version >= 12040;
#endif
  return d;
}

}  // namespace

const Driver& driver() {
  static const Driver one = opened();
  return one;
}

}  // namespace haliax::cuda
