// Files and atomic replacement of files.
#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "graph/node.h"

namespace haliax {
namespace {

[[noreturn]] void fail_on(const char* op, const std::string& path, const char* what) {
  haliax::fail(op, fmt::format("{} {}: {}", path, what, std::strerror(errno)));
}

// Reads `bytes` bytes by calls of part(address, most), each of which reads at least one.
template <class Part>
void read_all(const char* op, const std::string& path, void* data, std::int64_t bytes,
              const Part& part) {
  for (auto* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t n = part(at, std::size_t(bytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_on(op, path, "cannot be read");
    if (n == 0) haliax::fail(op, path + " was truncated while it was read");
    at += n;
    bytes -= n;
  }
}

}  // namespace

InputFile::InputFile(const char* op, const std::string& path)
    : op_(op), path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (descriptor_ < 0) fail_on(op_, path_, "cannot be opened");
}
InputFile::~InputFile() { ::close(descriptor_); }
std::int64_t InputFile::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail_on(op_, path_, "cannot be read");
  if (!S_ISREG(status.st_mode)) haliax::fail(op_, path_ + " is not a regular file");
  return status.st_size;
}
void InputFile::read(void* data, std::int64_t bytes) {
  read_all(op_, path_, data, bytes,
           [&](char* at, std::size_t most) { return ::read(descriptor_, at, most); });
}
void InputFile::read_at(std::int64_t offset, void* data, std::int64_t bytes) const {
  auto* first = static_cast<char*>(data);
  read_all(op_, path_, data, bytes, [&](char* at, std::size_t most) {
    return ::pread(descriptor_, at, most, offset + (at - first));
  });
}

std::vector<std::byte> contents_of(const char* op, const std::string& path) {
  InputFile file(op, path);
  std::vector<std::byte> out(std::size_t(file.size()));
  file.read(out.data(), std::int64_t(out.size()));
  return out;
}

OutputFile::OutputFile(const char* op, const std::string& path)
    : op_(op), path_(path),
      descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail_on(op_, path_, "cannot be opened");
}
OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}
void OutputFile::write(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t n = ::write(descriptor_, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_on(op_, path_, "cannot be written");
    data = data.subspan(std::size_t(n));
    written_ += n;
  }
}
void OutputFile::start_sync() {
  // fsync reports errors of the disk
  static_cast<void>(
      ::sync_file_range(descriptor_, syncing_, written_ - syncing_, SYNC_FILE_RANGE_WRITE));
  syncing_ = written_;
}
void OutputFile::sync_and_close() {
  if (::fsync(descriptor_) != 0) fail_on(op_, path_, "cannot be written");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_on(op_, path_, "cannot be written");
}

void sync_folder(const std::string& path) {
  if (const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      descriptor >= 0) {
    ::fsync(descriptor);
    ::close(descriptor);
  }
}

void replace_file(const char* op, const std::string& path,
                  const std::vector<std::span<const std::byte>>& parts) {
  const std::string unfinished = path + ".tmp." + std::to_string(::getpid());
  try {
    OutputFile out(op, unfinished);
    for (auto& part : parts) out.write(part);
    out.sync_and_close();
    if (std::rename(unfinished.c_str(), path.c_str()) != 0) fail_on(op, path, "cannot be written");
  } catch (...) {
    ::unlink(unfinished.c_str());
    throw;
  }
  const auto slash = path.rfind('/');
  sync_folder(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

std::string without_op(std::string_view message) {
  const auto end = message.starts_with('[') ? message.find("] ") : message.npos;
  return std::string(end == message.npos ? message : message.substr(end + 2));
}

std::string printable(std::string_view text) {
  std::string out(text.substr(0, 80));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  return text.size() > 80 ? out + "..." : out;
}

std::optional<std::int64_t> bytes_of_shape(const std::vector<std::int64_t>& shape, DType dtype) {
  std::int64_t elements = 1;
  bool empty = false;
  for (std::int64_t size : shape) {
    if (size < 0) return {};
    if (size == 0)
      empty = true;
    else if (__builtin_mul_overflow(elements, size, &elements))
      return {};
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(empty ? 0 : elements, std::int64_t(bytes_of(dtype)), &bytes))
    return {};
  return bytes;
}

}  // namespace haliax
