// Interchange of arrays by DLPack, without a copy where possible.
#include "haliax/dlpack.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "graph/fail.h"
#include "ops/named.h"

namespace haliax {
namespace {

DLDataType code_of(DType d) {
  auto code = d == DType::boolean ? kDLBool
              : d == DType::bf16  ? kDLBfloat
              : is_float(d)       ? kDLFloat
              : is_signed(d)      ? kDLInt
                                  : kDLUInt;
  return {std::uint8_t(code), std::uint8_t(8 * bytes_of(d)), 1};
}
std::optional<DType> from_code(DLDataType t) {
  for (auto d : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i8, DType::i16, DType::i32,
                 DType::i64, DType::u8, DType::u16, DType::u32, DType::u64, DType::boolean})
    if (auto c = code_of(d); c.code == t.code && c.bits == t.bits && t.lanes == 1) return d;
  return {};
}

// The exported tensor, with the value and the sizes that it refers to.
struct Lent {
  DLManagedTensor tensor{};
  BufferPtr value;
  std::vector<std::int64_t> sizes, strides;
};

void check(const DLTensor& t, const Axes& axes, std::optional<DType> dtype) {
  auto device = int(t.device.device_type);
  if (device != kDLCPU)
    fail("from_dlpack",
         "the tensor is on a device of kind {}; only host memory (kind 1) is supported", device);
  if (!dtype)
    fail("from_dlpack",
         "the tensor has elements of kind {} with {} bits and {} lanes, which no dtype matches",
         int(t.dtype.code), int(t.dtype.bits), int(t.dtype.lanes));
  std::vector<std::int64_t> found(t.shape, t.shape + std::max(t.ndim, 0));
  if (found != sizes_of(axes))
    fail("from_dlpack", "the tensor has shape ({}), but the axes are {}",
         fmt::format("{}", fmt::join(found, ", ")), axes);
  if (!t.data && axis_size(axes) > 0) fail("from_dlpack", "the tensor has no data");
}

}  // namespace

DLManagedTensor* to_dlpack(const NamedArray& a, SourceLocation at) {
  CallSite here(at);
  auto& node = *a.eval(at).node();
  auto lent = std::make_unique<Lent>();
  lent->value = node.value.get();
  lent->sizes = sizes_of(a.axes());
  lent->strides = program::row_major(lent->sizes);
  auto& t = lent->tensor.dl_tensor;
  t.data = node.value->data();
  t.device = {kDLCPU, 0};
  t.ndim = std::int32_t(lent->sizes.size());
  t.dtype = code_of(node.dtype);
  t.shape = lent->sizes.data();
  t.strides = lent->strides.data();
  lent->tensor.manager_ctx = lent.get();
  lent->tensor.deleter = [](DLManagedTensor* self) {
    delete static_cast<Lent*>(self->manager_ctx);
  };
  return &lent.release()->tensor;
}

NamedArray from_dlpack(DLManagedTensor* given, const AxisSpec& axes, SourceLocation at) {
  CallSite here(at);
  if (!given) fail("from_dlpack", "the tensor is a null pointer");
  auto& t = given->dl_tensor;
  const auto dtype = from_code(t.dtype);
  check(t, axes, dtype);
  ops::check_unique("from_dlpack", axes);
  const auto width = std::size_t(bytes_of(*dtype));
  auto* data = static_cast<std::byte*>(t.data) + t.byte_offset;
  const auto bytes = axis_size(axes) * std::int64_t(width);
  const std::vector<std::int64_t> sizes(t.shape, t.shape + t.ndim);
  const auto straight = program::row_major(sizes);
  // Aligned and row-major data is used in place.
  bool is_contiguous = bytes > 0 && reinterpret_cast<std::uintptr_t>(data) % width == 0;
  for (std::size_t d = 0; t.strides && d < sizes.size(); ++d)
    is_contiguous &= sizes[d] == 1 || t.strides[d] == straight[d];
  bool odd = *dtype == DType::boolean && is_contiguous &&
             std::any_of(data, data + bytes, [](std::byte b) { return b > std::byte(1); });
  std::shared_ptr<void> owner(given, [](void* p) {
    auto* mine = static_cast<DLManagedTensor*>(p);
    if (mine->deleter) mine->deleter(mine);
  });
  if (is_contiguous && !odd)
    return NamedArray(
        make_data(std::make_shared<Buffer>(data, bytes, std::move(owner)), axes, *dtype));
  if (is_contiguous) return from_bytes({data, std::size_t(bytes)}, *dtype, axes, at);
  std::vector<std::byte> rows(static_cast<std::size_t>(bytes));
  const auto strides = t.strides ? program::Dims(t.strides, t.strides + t.ndim) : straight;
  program::copy_on_host({sizes, std::int64_t(width), rows.data(), straight, data, strides});
  return from_bytes(rows, *dtype, axes, at);
}

}  // namespace haliax
