// Arrays from and to other libraries without a copy: the structs of DLPack 0.8, which NumPy,
// PyTorch and JAX support. See docs/how-to/interchange.md. haliax.h does not include this header.
#pragma once
#include <cstdint>

#include "haliax/array.h"

extern "C" {

#ifndef DLPACK_VERSION  // dlpack.h defines the same structs; the caller may have included it
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

/// Returns the memory of an array as a DLPack tensor, row-major in the order of the axes. Evaluates
/// the array if necessary.
///
/// The receiver calls the deleter once, on any thread. The memory stays valid until then, also if
/// the array is destroyed. The memory is read-only.
///
/// @throws haliax::Error if the array has no value: inside `jit`, `scan` and `vmap`, or after a
///     donation
DLManagedTensor* to_dlpack(const NamedArray& array, SourceLocation at = SourceLocation::current());
/// Returns the memory of a DLPack tensor as an array.
///
/// The library calls the deleter after the last reader is destroyed. The memory is copied only if
/// it is not row-major, or not aligned to its elements. Later writes to the memory are visible in
/// the array. The library never writes to it, also if the array is donated.
///
/// @param tensor  tensor in host memory
/// @param axes    names for the dimensions, in order
/// @throws haliax::Error if the shape differs from the sizes of `axes`, if the dtype is unknown, or
///     if the tensor is not in host memory; the caller still owns the tensor then
NamedArray from_dlpack(DLManagedTensor* tensor, const AxisSpec& axes,
                       SourceLocation at = SourceLocation::current());

}  // namespace haliax
