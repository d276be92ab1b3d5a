// The files of one checkpoint, written by a process and read by any.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "io/checkpoint_format.h"
#include "io/file.h"

namespace haliax {

// An array and the parts of it that this process writes.
struct ArrayToSave {
  SavedArray array;
  std::vector<PartValue> parts;
};
// Writes them to folder/name, as they lie in memory, and to the disk. A block that is not on the
// host is read into memory of its own, one at a time. Returns what a manifest says about it.
Manifest write_blocks(const std::string& folder, const std::string& name, std::int64_t step,
                      const std::vector<ArrayToSave>&);

// A checkpoint that is read; Damaged where it is not as it was written. Any thread.
class CheckpointReader {
 public:
  CheckpointReader(std::string folder, std::int64_t step);
  const Manifest& manifest() const { return manifest_; }
  // What of these parts of an array lies in one of its blocks. Pieces of the block that any of them
  // meets are read, once, and compared with their checksums.
  void read(const SavedArray&, const SavedBlock&, std::span<const ArrayByParts::PartToFill>) const;
  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Source;  // a piece after the other of one block
  // opened and checked when it is first wanted
  std::shared_ptr<const InputFile> file(std::size_t) const;
  std::string folder_;
  Manifest manifest_;
  mutable std::mutex opening_;
  // not too many at a time
  mutable std::map<std::size_t, std::shared_ptr<const InputFile>> files_;
  mutable std::atomic<std::int64_t> bytes_read_{0};
};

}  // namespace haliax
