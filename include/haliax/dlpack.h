// Arrays to and from other libraries without a copy: the structs of DLPack (version 0.8), which
// NumPy, PyTorch and JAX speak. haliax.h does not include this.
#pragma once
#include <cstdint>

#include "haliax/array.h"

extern "C" {

#ifndef DLPACK_VERSION  // the caller may have included dlpack.h: these are the same structs
#define DLPACK_VERSION 80
typedef enum : std::int32_t { kDLCPU = 1 } DLDeviceType;
typedef struct {
  DLDeviceType device_type;
  std::int32_t device_id;
} DLDevice;
typedef enum {
  kDLInt = 0U,
  kDLUInt = 1U,
  kDLFloat = 2U,
  kDLBfloat = 4U,
  kDLBool = 6U
} DLDataTypeCode;
typedef struct {
  std::uint8_t code, bits;
  std::uint16_t lanes;
} DLDataType;
typedef struct {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: row-major
  std::uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor*);
} DLManagedTensor;
#endif
}

namespace [[gnu::visibility("default")]] haliax {

// The array's own memory, row-major in the order of its axes, computed if need be. Whoever takes it
// calls its deleter once, on any thread; until then the memory stays, also when the array is gone.
// Nobody may write to it. Raises where there is no value (inside jit, scan and vmap; donated).
DLManagedTensor* to_dlpack(const NamedArray&, SourceLocation = SourceLocation::current());
// The tensor's memory as an array, its dimensions named in order; the library calls the deleter
// when the last reader is gone. No copy, unless it is not row-major, or not aligned to its
// elements. Raises, and leaves the tensor to the caller, for other sizes than those of the axes, a
// dtype that is not ours, and memory that is not the host's. What is written to the memory later
// shows in the array; the library never writes to it, whether the array is donated or not.
NamedArray from_dlpack(DLManagedTensor*, const AxisSpec& axes,
                       SourceLocation = SourceLocation::current());

}  // namespace haliax
