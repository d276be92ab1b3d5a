// What a checkpoint is on a disk: a folder of safetensors files, one for each process, and a
// manifest.
//
//   step-00000200/state.safetensors                  of one process; of several
//   state-00001-of-00004.safetensors, ... step-00000200/manifest.json                      which
//   block of which array lies where, and checksums
//
// A block lies row-major, as the tensors that to_state_dict makes of the array, layer by layer;
// where an axis is cut the block is in their names, and their dims are its axes:
// h.0.attn.weight[embed=0:64]. The manifest says where in its file a block begins. Its checksums
// are those of pieces of 256 KiB from there on, so that who reads a part can check what it reads.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

#include "haliax/checkpoint.h"
#include "io/sharded_arrays.h"

namespace haliax {

// What is wrong with one checkpoint: that one is passed over where the latest is wanted.
struct CorruptCheckpoint : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr std::int64_t kPieceBytes = 256 << 10;

struct SavedFile {
  std::string name;
  std::int64_t bytes = 0, head_bytes = 0;
  std::uint64_t head_checksum = 0;  // of the bytes before the first block
};
struct SavedBlock {
  std::size_t file = 0;
  std::int64_t begin = 0;  // in the file
  Part part;
  std::vector<std::uint64_t> checksums;  // of its pieces
};
struct SavedArray {
  std::string name;  // transformer.blocks.{}.attn.weight
  DType dtype = DType::f32;
  Axes axes;
  std::vector<std::int64_t> shape;  // of a tensor: of one layer, if it has any
  std::int64_t layers = -1;
  std::vector<SavedBlock> blocks = {};
  std::int64_t bytes() const { return axis_size(axes) * bytes_of(dtype); }
};
struct Manifest {
  std::int64_t step = 0;
  CheckpointNumbers numbers = {};
  std::vector<SavedFile> files = {};
  std::vector<SavedArray> arrays = {};  // in the order of the tree
};

SavedArray saved_array(const StateEntry&);  // without blocks
// The names and shapes of the tensors that a block is stored as.
struct TensorHead;
std::vector<TensorHead> tensors_of(const SavedArray&, const Part&);

// The text has a checksum of itself. manifest_in raises Damaged for whatever text_of has not
// written, and where blocks are missing, unless it is what one process says of its own.
enum class Complete : bool { no, yes };
std::string manifest_text(const Manifest&);
Manifest parse_manifest(const std::string& text, Complete = Complete::yes);
// Adds the files and blocks that another process has written. Raises if it saved other arrays.
void add(Manifest& to, const Manifest& from, int rank);

// ---- folders ----
inline constexpr const char* kManifestName = "manifest.json";
std::string file_name(int rank, int count);
// A step may be saved again: its second folder is step-00000200.1, and the first goes when that is
// whole.
struct StepFolder {
  std::int64_t step = 0;
  int attempt = 0;
  std::string name() const;
  friend auto operator<=>(const StepFolder&, const StepFolder&) = default;
};
// in order; none if there is no such folder
std::vector<StepFolder> step_folders(const std::string& folder);

}  // namespace haliax
