// Files of tensors. Every error names the path and the reason of the system.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haliax/dtype.h"

namespace haliax {

class InputFile {
 public:
  InputFile(const char* op, const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  std::int64_t size() const;                  // raises if the file is not regular
  void read(void* data, std::int64_t bytes);  // reads the next bytes
  void read_at(std::int64_t offset, void* data, std::int64_t bytes) const;  // thread safe

 private:
  const char* op_;
  std::string path_;
  int descriptor_;
};
std::vector<std::byte> contents_of(const char* op, const std::string& path);

// A new file, which replaces the contents of an existing one.
class OutputFile {
 public:
  OutputFile(const char* op, const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(std::span<const std::byte>);
  void start_sync();      // starts writing to disk, without waiting
  void sync_and_close();  // required: unsynced data may be lost

 private:
  const char* op_;
  std::string path_;
  int descriptor_;
  std::int64_t written_ = 0, syncing_ = 0;
};
// Makes the names in a folder durable, if the file system supports it.
void sync_folder(const std::string& path);

// Replaces a file atomically: the new file appears when it is complete and on disk. An existing
// file stays until then.
void replace_file(const char* op, const std::string& path,
                  const std::vector<std::span<const std::byte>>& parts);

// Returns the text of an error message without its "[op] ", for an error of another op.
std::string without_op(std::string_view message);
// Returns a short, printable form of a string from a file, so that a message stays one sentence.
std::string printable(std::string_view text);
// Returns the bytes of a shape, or nothing if a size is negative or the result overflows.
std::optional<std::int64_t> bytes_of_shape(const std::vector<std::int64_t>& shape, DType);

}  // namespace haliax
