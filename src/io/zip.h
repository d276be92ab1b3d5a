// Zip archives in memory, as far as NumPy writes and reads them: stored and deflated entries, also
// beyond 4 GiB.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace haliax::zip {

using Bytes = std::span<const std::byte>;
struct Entry {
  std::string name;
  Bytes packed;            // in the archive
  std::uint64_t size = 0;  // unpacked
  std::uint32_t crc = 0;
  int method = 0;  // 0 stored, 8 deflated
};

struct CorruptZip {
  const char* what;  // the archive, or an entry
};
// These raise it.
std::vector<Entry> entries_of(Bytes archive);
std::vector<std::byte> unpacked(const Entry&);  // checks size and sum

// What stands around stored entries: before each, and at the end.
struct Frame {
  std::vector<std::vector<std::byte>> before;
  std::vector<std::byte> end;
};
struct Stored {
  std::string name;
  std::vector<Bytes> parts;
};
Frame frame_of(const std::vector<Stored>&);

}  // namespace haliax::zip
