// Tensors in files: the safetensors format, as Hugging Face stores checkpoints, and NumPy's .npy
// and .npz.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haliax/array.h"
#include "haliax/dtype.h"
#include "haliax/where.h"

namespace [[gnu::visibility("default")]] haliax {

// A tensor as a file holds it: row-major, little-endian, its dimensions without names.
struct Tensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

struct TensorFile {
  std::vector<Tensor> tensors;  // sorted by name when read
  std::vector<std::pair<std::string, std::string>> metadata;

  const Tensor* find(std::string_view name) const;  // null if there is none
  // Raises if there is none.
  const Tensor& at(std::string_view name, SourceLocation = SourceLocation::current()) const;
};

// Raises, naming the tensor, for a file that is truncated or corrupt or has a dtype that is not
// ours.
TensorFile read_safetensors(const std::string& path, SourceLocation = SourceLocation::current());

// All or nothing: the file appears under its name when it is complete and on the disk; until then
// an older one stays.
void write_safetensors(const std::string& path, const TensorFile& file,
                       SourceLocation = SourceLocation::current());

// ---- NumPy: np.save, np.savez and np.savez_compressed ----
// Any order of axes and of bytes; row-major and little-endian when read. Raise, naming the file and
// what is in it, for one that is truncated or corrupt and for dtypes that are not ours (objects,
// text, complex numbers, structs). without a name
Tensor read_npy(const std::string& path, SourceLocation = SourceLocation::current());
// names without .npy
TensorFile read_npz(const std::string& path, SourceLocation = SourceLocation::current());
// All or nothing, as write_safetensors. Raise for bf16, which NumPy has not.
void write_npy(const std::string& path, const Tensor&, SourceLocation = SourceLocation::current());
// Not compressed; metadata is not written.
void write_npz(const std::string& path, const TensorFile&,
               SourceLocation = SourceLocation::current());

// The values with names for the dimensions, in order, and back. Copies. Raises if the sizes differ.
NamedArray from_tensor(const Tensor&, const AxisSpec& axes,
                       SourceLocation = SourceLocation::current());
Tensor to_tensor(const NamedArray&, std::string name = {},
                 SourceLocation = SourceLocation::current());

}  // namespace haliax
