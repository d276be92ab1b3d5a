// The files of one checkpoint: each process writes its own, and any process reads them.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "io/checkpoint_format.h"
#include "io/file.h"

namespace haliax {

// An array, and the parts of it that this process writes.
struct ArrayToSave {
  SavedArray array;
  std::vector<PartValue> parts;
};
// Writes the parts to folder/name and syncs the file. A part that is not on the host is copied to
// host memory, one at a time. Returns the manifest of this file.
Manifest write_blocks(const std::string& folder, const std::string& name, std::int64_t step,
                      const std::vector<ArrayToSave>&);

// Reads a checkpoint. Raises CorruptCheckpoint if the files differ from those that were written.
// Thread-safe.
class CheckpointReader {
 public:
  CheckpointReader(std::string folder, std::int64_t step);
  const Manifest& manifest() const { return manifest_; }
  // Copies the intersection of a block and these parts of its array. Each piece of the block that a
  // part needs is read once and compared with its checksum.
  void read(const SavedArray&, const SavedBlock&, std::span<const ArrayByParts::PartToFill>) const;
  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Source;  // reads one block, piece by piece
  // Returns an open file. Opens and checks it on first use.
  std::shared_ptr<const InputFile> file(std::size_t) const;
  std::string folder_;
  Manifest manifest_;
  mutable std::mutex opening_;
  // a limited number at a time
  mutable std::map<std::size_t, std::shared_ptr<const InputFile>> files_;
  mutable std::atomic<std::int64_t> bytes_read_{0};
};

}  // namespace haliax
