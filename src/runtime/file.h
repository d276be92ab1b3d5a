// Files as readers and writers of tensors see them. Every failure names the path and the reason that the system gives.
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
  std::int64_t size() const;                     // raises if it is no regular file
  void read(void* data, std::int64_t bytes);     // the next ones

 private:
  const char* op_;
  std::string path_;
  int descriptor_;
};
std::vector<std::byte> contents_of(const char* op, const std::string& path);

// All or nothing: the file appears under its name when it is complete and on the disk; until then an older one stays.
void replace_file(const char* op, const std::string& path, const std::vector<std::span<const std::byte>>& parts);

// What a file says may be anything: printable and short, so that a message stays one sentence.
std::string printable(std::string_view text);
// The bytes of a shape, or nothing if it is negative or too large to be real.
std::optional<std::int64_t> bytes_of_shape(const std::vector<std::int64_t>& shape, DType);

}  // namespace haliax
