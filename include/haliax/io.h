// Tensors in files: safetensors, the format of Hugging Face, and the .npy and .npz files of NumPy.
// See docs/how-to/checkpoints.md and docs/how-to/interchange.md.
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

/// @name Tensors and safetensors
/// @{

/// A tensor in a file: row-major, little-endian, with unnamed dimensions.
struct Tensor {
  std::string name;                 ///< Name in the file.
  DType dtype = DType::f32;         ///< Element type.
  std::vector<std::int64_t> shape;  ///< Sizes of the dimensions.
  std::vector<std::byte> data;      ///< The elements.
};

/// The content of a file of tensors.
struct TensorFile {
  std::vector<Tensor> tensors;  ///< The tensors; sorted by name if read from a file.
  std::vector<std::pair<std::string, std::string>> metadata;  ///< Keys and values of the header.

  /// Returns the tensor with this name, or null.
  const Tensor* find(std::string_view name) const;
  /// Returns the tensor with this name.
  /// @throws haliax::Error if there is none
  const Tensor& at(std::string_view name, SourceLocation at = SourceLocation::current()) const;
};

/// Reads a safetensors file.
/// @throws haliax::Error if the file is truncated or corrupt, or if a tensor has an unknown dtype;
///     the error names the tensor
TensorFile read_safetensors(const std::string& path, SourceLocation at = SourceLocation::current());

/// Writes a safetensors file. The file appears under its name when it is complete and on the disk;
/// until then, an existing file stays unchanged.
/// @throws haliax::Error if the file cannot be written
void write_safetensors(const std::string& path, const TensorFile& file,
                       SourceLocation at = SourceLocation::current());

/// Computes `read_safetensors(path)`: the name in Haliax.
TensorFile load_state_dict(const std::string& path, SourceLocation at = SourceLocation::current());
/// Computes `write_safetensors(path, state_dict)`: the name and the order of arguments in Haliax.
void save_state_dict(const TensorFile& state_dict, const std::string& path,
                     SourceLocation at = SourceLocation::current());

/// @}

/// @name NumPy files
/// @{

/// Reads a file of `np.save`, with any order of axes and bytes. The tensor has no name.
/// @throws haliax::Error if the file is truncated or corrupt, or has an unknown dtype (objects,
///     strings, complex numbers, structs)
Tensor read_npy(const std::string& path, SourceLocation at = SourceLocation::current());
/// Reads a file of `np.savez` or `np.savez_compressed`. The names have no `.npy`. Raises as
/// `read_npy` does.
TensorFile read_npz(const std::string& path, SourceLocation at = SourceLocation::current());
/// Writes a file for `np.load`. The file appears when it is complete, as in `write_safetensors`.
/// @throws haliax::Error if the dtype is `bf16`, which NumPy lacks, or if the file cannot be
///     written
void write_npy(const std::string& path, const Tensor& tensor,
               SourceLocation at = SourceLocation::current());
/// Writes an uncompressed `.npz` file, without metadata. Raises as `write_npy` does.
void write_npz(const std::string& path, const TensorFile& file,
               SourceLocation at = SourceLocation::current());

/// @}

/// @name Tensors and arrays
/// @{

/// Returns a copy of a tensor as an array whose dimensions are named in order.
/// @throws haliax::Error if the shape differs from the sizes of `axes`
NamedArray from_tensor(const Tensor& tensor, const AxisSpec& axes,
                       SourceLocation at = SourceLocation::current());
/// Returns a copy of an array as a tensor, with the dimensions in the order of the axes.
Tensor to_tensor(const NamedArray& array, std::string name = {},
                 SourceLocation at = SourceLocation::current());

/// @}

}  // namespace haliax
