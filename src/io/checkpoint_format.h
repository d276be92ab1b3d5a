// The format of a checkpoint: a folder with one safetensors file per process and a manifest.
//
//   step-00000200/state.safetensors                        one process
//                 state-00001-of-00004.safetensors, ...    several processes
//   step-00000200/manifest.json                            location of each block, and checksums
//
// A block is stored row-major, as the tensors that to_state_dict creates from the array, layer by
// layer. If an axis is sharded, the tensor names include the block, as in
// h.0.attn.weight[embed=0:64], and the tensor dims are its axes. The manifest holds the position of
// each block in its file. Checksums cover pieces of 256 KiB from there on, so that a reader of a
// part can check the part.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "haliax/checkpoint.h"
#include "io/sharded_arrays.h"

namespace haliax {

// A fault of one checkpoint. Loading the latest checkpoint skips a corrupt one.
struct CorruptCheckpoint : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr std::int64_t kPieceBytes = 256 << 10;

struct SavedFile {
  std::string name;
  std::int64_t bytes = 0, head_bytes = 0;
  std::uint64_t head_checksum = 0;  // checksum of the bytes before the first block
};
struct SavedBlock {
  std::size_t file = 0;
  std::int64_t begin = 0;  // bytes from the start of the file
  Part part;
  std::vector<std::uint64_t> checksums;  // one per piece
};
struct SavedArray {
  std::string name;  // transformer.blocks.{}.attn.weight
  DType dtype = DType::f32;
  Axes axes;
  std::vector<std::int64_t> shape;  // shape of a tensor: of one layer if the array has layers
  std::int64_t layers = -1;
  std::vector<SavedBlock> blocks = {};
  std::int64_t bytes() const { return axis_size(axes) * bytes_of(dtype); }
};
struct Manifest {
  std::int64_t step = 0;
  CheckpointNumbers numbers = {};
  std::vector<SavedFile> files = {};
  std::vector<SavedArray> arrays = {};  // in tree order
};

// Returns the description of an array, without blocks.
SavedArray saved_array(const StateEntry&);
struct TensorHead;
// Returns the names and shapes of the tensors that a block is stored as.
std::vector<TensorHead> tensors_of(const SavedArray&, const Part&);

// The text includes its own checksum. parse_manifest raises CorruptCheckpoint for a text that
// manifest_text did not write, and for missing blocks unless the manifest is that of one process
// (Complete::no).
enum class Complete : bool { no, yes };
std::string manifest_text(const Manifest&);
Manifest parse_manifest(const std::string& text, Complete = Complete::yes);
// Adds the files and blocks that another process wrote. Raises if it saved other arrays.
void add(Manifest& to, const Manifest& from, int rank);

// ---- folders ----
inline constexpr const char* kManifestName = "manifest.json";
std::string file_name(int rank, int count);
// The folder of a step. A step may be saved again: the second folder is step-00000200.1, and the
// first one is removed when the second is complete.
struct StepFolder {
  std::int64_t step = 0;
  int attempt = 0;
  std::string name() const;
  friend auto operator<=>(const StepFolder&, const StepFolder&) = default;
};
// Returns the step folders in order; empty if the folder does not exist.
std::vector<StepFolder> step_folders(const std::string& folder);

}  // namespace haliax
