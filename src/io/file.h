// Files as readers and writers of tensors see them. Every failure names the path and the reason
// that the system gives.
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
  std::int64_t size() const;                  // raises if it is no regular file
  void read(void* data, std::int64_t bytes);  // the next ones
  void read_at(std::int64_t offset, void* data, std::int64_t bytes) const;  // any thread

 private:
  const char* op_;
  std::string path_;
  int descriptor_;
};
std::vector<std::byte> contents_of(const char* op, const std::string& path);

class OutputFile {  // made anew; an older one is written over
 public:
  OutputFile(const char* op, const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(std::span<const std::byte>);
  void start_sync();      // of what is written so far; waits for nothing
  void sync_and_close();  // or else it may be lost

 private:
  const char* op_;
  std::string path_;
  int descriptor_;
  std::int64_t written_ = 0, syncing_ = 0;
};
// The names in a folder last too, where the file system can.
void sync_folder(const std::string& path);

// All or nothing: the file appears under its name when it is complete and on the disk; until then
// an older one stays.
void replace_file(const char* op, const std::string& path,
                  const std::vector<std::span<const std::byte>>& parts);

// "[op] text" -> "text": for who raises it as an error of its own.
std::string without_op(std::string_view message);
// What a file says may be anything: printable and short, so that a message stays one sentence.
std::string printable(std::string_view text);
// The bytes of a shape, or nothing if it is negative or too large to be real.
std::optional<std::int64_t> bytes_of_shape(const std::vector<std::int64_t>& shape, DType);

}  // namespace haliax
