// Zip archives in memory, as NumPy writes and reads them: stored and deflated entries, also beyond
// 4 GiB.
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
  Bytes packed;            // compressed data in the archive
  std::uint64_t size = 0;  // uncompressed bytes
  std::uint32_t crc = 0;
  int method = 0;  // 0: stored, 8: deflated
};

struct CorruptZip {
  const char* what;  // fault of the archive or of an entry
};
// The functions below raise CorruptZip.
std::vector<Entry> entries_of(Bytes archive);
// Returns the uncompressed data of an entry. Checks its size and its CRC.
std::vector<std::byte> unpacked(const Entry&);

// The bytes of an archive around stored entries: before each entry, and at the end.
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
