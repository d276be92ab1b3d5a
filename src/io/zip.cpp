// Reading and writing zip archives; zlib inflates and computes checksums.
#include "io/zip.h"

#include <zlib.h>

#include <algorithm>
#include <memory>

namespace haliax::zip {
namespace {

constexpr std::uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50,
                        kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr std::uint32_t kLarge = 0xffffffff;  // marks a value of 64 bits in another field

[[noreturn]] void fail(const char* what) { throw CorruptZip{what}; }

// Little-endian numbers, one after another; raises at the end.
class Cursor {
 public:
  Cursor(Bytes data, std::uint64_t at, const char* what = "is truncated")
      : data_(data), at_(at), what_(what) {
    if (at > data.size()) fail(what_);
  }
  Bytes take(std::uint64_t n) {
    if (n > data_.size() - at_) fail(what_);
    at_ += n;
    return data_.subspan(std::size_t(at_ - n), std::size_t(n));
  }
  std::uint64_t number(int bytes) {
    std::uint64_t v = 0;
    auto from = take(std::uint64_t(bytes));
    for (std::size_t k = from.size(); k-- > 0;) v = v << 8 | std::uint64_t(from[k]);
    return v;
  }
  std::uint32_t u16() { return std::uint32_t(number(2)); }
  std::uint32_t u32() { return std::uint32_t(number(4)); }
  std::uint64_t u64() { return number(8); }
  bool done() const { return at_ == data_.size(); }

 private:
  Bytes data_;
  std::uint64_t at_;
  const char* what_;
};

// Bytes that zlib is passed at a time: it counts them in 32 bits.
constexpr std::size_t kAtATime = std::size_t(1) << 30;

std::uint32_t crc_of(std::span<const Bytes> parts) {
  uLong crc = 0;
  for (auto& part : parts)
    // zlib resets the checksum for a null pointer, as empty parts may have
    if (!part.empty()) crc = crc32_z(crc, reinterpret_cast<const Bytef*>(part.data()), part.size());
  return std::uint32_t(crc);
}

// Inflates a raw deflate stream (RFC 1951) of exactly `size` bytes.
std::vector<std::byte> inflated(Bytes packed, std::size_t size) {
  std::vector<std::byte> out(size);
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) fail("cannot be unpacked: zlib is out of memory");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, inflateEnd);
  std::size_t read = 0, written = 0;
  std::byte beyond{};  // one byte more than the archive specifies
  for (;;) {
    const auto in = std::min(packed.size() - read, kAtATime);
    const bool full = written == size;
    const auto room = full ? 1 : std::min(size - written, kAtATime);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data() + read));
    stream.avail_in = uInt(in);
    stream.next_out = reinterpret_cast<Bytef*>(full ? &beyond : out.data() + written);
    stream.avail_out = uInt(room);
    const int status = inflate(&stream, Z_NO_FLUSH);
    read += in - stream.avail_in;
    const auto more = room - stream.avail_out;
    if (full && more > 0) fail("unpacks to more bytes than it specifies");
    written += more;
    if (status == Z_STREAM_END) break;
    if (status == Z_BUF_ERROR || (status == Z_OK && read == packed.size() && more == 0))
      fail("ends in the middle of a compressed block");
    if (status != Z_OK) fail("has a compressed block that is corrupt");
  }
  if (written != size) fail("unpacks to fewer bytes than it specifies");
  return out;
}

// Where the list of entries is, and how many there are.
struct Directory {
  std::uint64_t count, at;
};
Directory directory_of(Bytes archive) {
  constexpr std::size_t least = 22;
  if (archive.size() < least) fail("is too short to be a zip archive");
  auto lowest = archive.size() - std::min<std::size_t>(archive.size(), least + 0xffff);
  for (auto at = archive.size() - least + 1; at-- > lowest;) {
    Cursor c(archive, at);
    if (c.u32() != kEnd) continue;
    c.take(6);
    Directory out{c.u16(), 0};
    c.u32();
    out.at = c.u32();
    if (at >= 20)
      if (Cursor l(archive, at - 20); l.u32() == kLocator64) {
        l.u32();
        Cursor e(archive, l.u64());
        if (e.u32() != kEnd64) fail("has no central directory at the specified position");
        e.take(28);
        out.count = e.u64();
        e.u64();
        out.at = e.u64();
      }
    return out;
  }
  fail("is truncated or not a zip archive: it has no end of central directory");
}

}  // namespace

std::vector<Entry> entries_of(Bytes archive) {
  auto list = directory_of(archive);
  Cursor c(archive, list.at, "has a truncated central directory");
  std::vector<Entry> out;
  for (std::uint64_t k = 0; k < list.count; ++k) {
    if (c.u32() != kCentral) fail("has a corrupt central directory");
    c.take(4);
    bool encrypted = c.u16() & 1;
    Entry e;
    e.method = int(c.u16());
    c.take(4);
    e.crc = c.u32();
    std::uint64_t packed = c.u32(), size = c.u32();
    auto name = c.u16(), extra = c.u16(), comment = c.u16();
    c.take(8);
    std::uint64_t at = c.u32();
    auto text = c.take(name);
    e.name.assign(reinterpret_cast<const char*>(text.data()), text.size());
    for (Cursor x(c.take(extra), 0); !x.done();) {
      auto id = x.u16();
      auto field = x.take(x.u16());
      if (id != 1) continue;
      Cursor large(field, 0);
      for (auto* v : {&size, &packed, &at})
        if (*v == kLarge) *v = large.u64();
    }
    c.take(comment);
    if (encrypted) fail("has encrypted entries");
    Cursor local(archive, at, "has a truncated entry");
    if (local.u32() != kLocal) fail("has no entry at the position in its central directory");
    local.take(22);
    std::uint64_t skip = local.u16();
    skip += local.u16();
    local.take(skip);
    e.packed = local.take(packed);
    e.size = size;
    out.push_back(std::move(e));
  }
  return out;
}

std::vector<std::byte> unpacked(const Entry& e) {
  std::vector<std::byte> out;
  if (e.method == 0) {
    if (e.packed.size() != e.size) fail("has a stored size that differs from its size");
    out.assign(e.packed.begin(), e.packed.end());
  } else if (e.method == 8) {
    // deflate packs 1032 to 1
    if (e.size / 1100 > e.packed.size())
      fail("specifies more bytes than its compressed size allows");
    out = inflated(e.packed, std::size_t(e.size));
  } else {
    fail("has an unsupported compression method; use np.savez or np.savez_compressed");
  }
  Bytes all(out);
  if (crc_of({&all, 1}) != e.crc) fail("is corrupt: its checksum is wrong");
  return out;
}

Frame frame_of(const std::vector<Stored>& entries) {
  Frame out;
  std::uint64_t at = 0;
  auto put = [](std::vector<std::byte>& to, std::uint64_t v, int bytes) {
    for (int k = 0; k < bytes; ++k) to.push_back(std::byte(v >> (8 * k) & 255));
  };
  auto name = [](std::vector<std::byte>& to, const std::string& text) {
    auto bytes = std::as_bytes(std::span(text));
    to.insert(to.end(), bytes.begin(), bytes.end());
  };
  // The fields that the headers of an entry share.
  auto common = [&](std::vector<std::byte>& to, std::uint32_t crc) {
    put(to, 45, 2);      // version needed
    put(to, 0x0800, 2);  // flags: names in UTF-8
    put(to, 0, 2);       // method: stored
    put(to, 0, 2);       // time
    put(to, 33, 2);      // date: 1980-01-01
    put(to, crc, 4);     // checksum
    put(to, kLarge, 4);  // packed size: in the extra field
    put(to, kLarge, 4);  // size: in the extra field
  };
  std::vector<std::byte> list;
  for (auto& e : entries) {
    std::uint64_t size = 0;
    for (auto& p : e.parts) size += p.size();
    auto crc = crc_of(e.parts);
    auto& local = out.before.emplace_back();
    put(local, kLocal, 4);  // signature
    common(local, crc);
    put(local, e.name.size(), 2);  // bytes of the name
    put(local, 20, 2);             // bytes of the extra field
    name(local, e.name);
    put(local, 1, 2);        // id of the extra field
    put(local, 16, 2);       // bytes that follow
    put(local, size, 8);     // size
    put(local, size, 8);     // packed size
    put(list, kCentral, 4);  // signature
    put(list, 45, 2);        // version of the writer
    common(list, crc);
    put(list, e.name.size(), 2);  // bytes of the name
    put(list, 28, 2);             // bytes of the extra field
    put(list, 0, 2);              // bytes of the comment
    put(list, 0, 2);              // disk
    put(list, 0, 2);              // internal attributes
    put(list, 0, 4);              // external attributes
    put(list, kLarge, 4);         // offset: in the extra field
    name(list, e.name);
    put(list, 1, 2);     // id of the extra field
    put(list, 24, 2);    // bytes that follow
    put(list, size, 8);  // size
    put(list, size, 8);  // packed size
    put(list, at, 8);    // offset
    at += local.size() + size;
  }
  auto& end = out.end = list;
  put(end, kEnd64, 4);            // signature
  put(end, 44, 8);                // bytes that follow
  put(end, 45, 2);                // version of the writer
  put(end, 45, 2);                // version needed
  put(end, 0, 4);                 // disk
  put(end, 0, 4);                 // disk of the list
  put(end, entries.size(), 8);    // entries on the disk
  put(end, entries.size(), 8);    // entries
  put(end, list.size(), 8);       // bytes of the list
  put(end, at, 8);                // offset of the list
  put(end, kLocator64, 4);        // signature
  put(end, 0, 4);                 // disk of the end record
  put(end, at + list.size(), 8);  // offset of the end record
  put(end, 1, 4);                 // disks
  auto few = std::min<std::uint64_t>(entries.size(), 0xffff);
  put(end, kEnd, 4);    // signature
  put(end, 0, 4);       // disk, disk of the list (16 bits each)
  put(end, few, 2);     // entries on the disk
  put(end, few, 2);     // entries
  put(end, kLarge, 4);  // bytes of the list
  put(end, kLarge, 4);  // offset of the list
  put(end, 0, 2);       // bytes of the comment
  return out;
}

}  // namespace haliax::zip
