#include "runtime/zip.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace haliax::zip {
namespace {

constexpr std::uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50,
                        kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr std::uint32_t kLarge = 0xffffffff;  // the number stands elsewhere, in 64 bits

[[noreturn]] void fail(const char* what) { throw Broken{what}; }

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

std::uint32_t crc_of(std::span<const Bytes> parts) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = (c >> 1) ^ (c & 1 ? 0xedb88320u : 0);
      t[i] = c;
    }
    return t;
  }();
  std::uint32_t crc = kLarge;
  for (auto& part : parts)
    for (std::byte b : part) crc = (crc >> 8) ^ table[(crc ^ std::uint32_t(b)) & 255];
  return ~crc;
}

// ---- deflate (RFC 1951) ----
class Bits {
 public:
  explicit Bits(Bytes data) : data_(data) {}
  std::uint32_t take(int n) {  // least significant first; n at most 16
    while (held_ < n) {
      if (at_ == data_.size()) fail("ends in the middle of a compressed block");
      word_ |= std::uint32_t(data_[at_++]) << held_, held_ += 8;
    }
    auto out = word_ & ((1u << n) - 1);
    word_ >>= n;
    held_ -= n;
    return out;
  }
  Bytes bytes(std::size_t n) {  // from the next whole byte on
    word_ = 0;
    held_ = 0;
    if (n > data_.size() - at_) fail("ends in the middle of a compressed block");
    at_ += n;
    return data_.subspan(at_ - n, n);
  }

 private:
  Bytes data_;
  std::size_t at_ = 0;
  std::uint32_t word_ = 0;
  int held_ = 0;
};

// A canonical Huffman code: of each length how many codes there are, and the symbols in order.
struct Huffman {
  std::array<int, 16> count{};
  std::vector<int> symbols;
  explicit Huffman(std::span<const int> lengths) {
    std::array<int, 16> first{};
    for (int n : lengths) ++count[std::size_t(n)];
    count[0] = 0;
    int left = 1;
    for (std::size_t n = 1; n < 16; ++n) {
      left = 2 * left - count[n];
      if (left < 0) fail("has a compressed block with an impossible code");
      first[n] = first[n - 1] + count[n - 1];
    }
    symbols.resize(lengths.size());
    for (std::size_t s = 0; s < lengths.size(); ++s)
      if (lengths[s]) symbols[std::size_t(first[std::size_t(lengths[s])]++)] = int(s);
  }
  int next(Bits& bits) const {
    int code = 0, first = 0, index = 0;
    for (std::size_t n = 1; n < 16; ++n) {
      code |= int(bits.take(1));
      if (code - count[n] < first) return symbols[std::size_t(index + code - first)];
      index += count[n];
      first = (first + count[n]) << 1;
      code <<= 1;
    }
    fail("has a compressed block with an unknown code");
  }
};

class Inflate {
 public:
  Inflate(Bytes packed, std::size_t size) : bits_(packed), size_(size) { out_.reserve(size); }
  std::vector<std::byte> run() {
    for (bool last = false; !last;) {
      last = bits_.take(1);
      switch (bits_.take(2)) {
        case 0:
          stored();
          break;
        case 1:
          block(fixed_lengths(), std::vector<int>(30, 5));
          break;
        case 2:
          dynamic();
          break;
        default:
          fail("has a compressed block of an unknown kind");
      }
    }
    if (out_.size() != size_) fail("unpacks to fewer bytes than it promises");
    return std::move(out_);
  }

 private:
  void room_for(std::size_t n) const {
    if (n > size_ - out_.size()) fail("unpacks to more bytes than it promises");
  }
  void stored() {
    auto head = bits_.bytes(4);
    auto part = [&](std::size_t k) { return std::size_t(head[k]) | std::size_t(head[k + 1]) << 8; };
    if ((part(0) ^ 0xffff) != part(2)) fail("has a stored block with a wrong length");
    room_for(part(0));
    auto data = bits_.bytes(part(0));
    out_.insert(out_.end(), data.begin(), data.end());
  }
  static std::vector<int> fixed_lengths() {
    std::vector<int> n(288, 8);
    std::fill(n.begin() + 144, n.begin() + 256, 9);
    std::fill(n.begin() + 256, n.begin() + 280, 7);
    return n;
  }
  void dynamic() {
    static constexpr std::size_t order[] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                            11, 4,  12, 3, 13, 2, 14, 1, 15};
    auto literals = std::size_t(bits_.take(5)) + 257, distances = std::size_t(bits_.take(5)) + 1;
    std::array<int, 19> of_lengths{};
    auto given = bits_.take(4) + 4;
    for (std::size_t k = 0; k < given; ++k) of_lengths[order[k]] = int(bits_.take(3));
    const Huffman code(of_lengths);
    std::vector<int> lengths;
    while (lengths.size() < literals + distances) {
      int s = code.next(bits_);
      if (s == 16 && lengths.empty()) fail("has a compressed block that repeats nothing");
      if (s < 16)
        lengths.push_back(s);
      else if (s == 16)
        lengths.insert(lengths.end(), bits_.take(2) + 3, int(lengths.back()));
      else
        lengths.insert(lengths.end(), s == 17 ? bits_.take(3) + 3 : bits_.take(7) + 11, 0);
    }
    if (lengths.size() != literals + distances)
      fail("has a compressed block with too many lengths");
    auto split = lengths.begin() + std::ptrdiff_t(literals);
    block({lengths.begin(), split}, {split, lengths.end()});
  }
  void block(const std::vector<int>& literal_lengths, const std::vector<int>& distance_lengths) {
    static constexpr int base[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                   31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    static constexpr int more[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                   2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static constexpr int far[] = {1,    2,    3,    4,    5,    7,    9,    13,    17,    25,
                                  33,   49,   65,   97,   129,  193,  257,  385,   513,   769,
                                  1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    const Huffman literals(literal_lengths), distances(distance_lengths);
    for (;;) {
      int s = literals.next(bits_);
      if (s == 256) return;
      if (s < 256) {
        room_for(1);
        out_.push_back(std::byte(s));
        continue;
      }
      auto k = std::size_t(s - 257);
      if (k >= std::size(base)) fail("has a compressed block with an unknown length");
      auto length = std::size_t(base[k]) + bits_.take(more[k]);
      auto d = std::size_t(distances.next(bits_));
      if (d >= std::size(far)) fail("has a compressed block with an unknown distance");
      auto distance = std::size_t(far[d]) + bits_.take(d < 2 ? 0 : int(d) / 2 - 1);
      if (distance > out_.size()) fail("has a compressed block that points before its start");
      room_for(length);
      for (; length > 0; --length) out_.push_back(out_[out_.size() - distance]);
    }
  }

  Bits bits_;
  std::size_t size_;
  std::vector<std::byte> out_;
};

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
        if (e.u32() != kEnd64) fail("has no list of its entries where it should be");
        e.take(28);
        out.count = e.u64();
        e.u64();
        out.at = e.u64();
      }
    return out;
  }
  fail("is truncated or no zip archive: it has no end of a list of entries");
}

}  // namespace

std::vector<Entry> entries_of(Bytes archive) {
  auto list = directory_of(archive);
  Cursor c(archive, list.at, "has a list of entries that is truncated");
  std::vector<Entry> out;
  for (std::uint64_t k = 0; k < list.count; ++k) {
    if (c.u32() != kCentral) fail("has a list of entries that is corrupt");
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
    if (encrypted) fail("has entries that are encrypted");
    Cursor local(archive, at, "has an entry that is truncated");
    if (local.u32() != kLocal) fail("has an entry that is not where the list says");
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
    if (e.packed.size() != e.size) fail("has a stored size that is not its size");
    out.assign(e.packed.begin(), e.packed.end());
  } else if (e.method == 8) {
    // deflate packs 1032 to 1
    if (e.size / 1100 > e.packed.size()) fail("promises more bytes than can be packed so small");
    out = Inflate(e.packed, std::size_t(e.size)).run();
  } else {
    fail(
        "is compressed in a way that is not known; np.savez and np.savez_compressed write what is");
  }
  Bytes all(out);
  if (crc_of({&all, 1}) != e.crc) fail("is corrupt: its sum is wrong");
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
  // version, UTF-8 names, stored, 1980-01-01, sum, sizes
  auto common = [&](std::vector<std::byte>& to, std::uint32_t crc) {
    put(to, 45, 2);
    put(to, 0x0800, 2);
    put(to, 0, 2);
    put(to, 0, 2);
    put(to, 33, 2);
    put(to, crc, 4);
    put(to, kLarge, 4);
    put(to, kLarge, 4);
  };
  std::vector<std::byte> list;
  for (auto& e : entries) {
    std::uint64_t size = 0;
    for (auto& p : e.parts) size += p.size();
    auto crc = crc_of(e.parts);
    auto& local = out.before.emplace_back();
    put(local, kLocal, 4);
    common(local, crc);
    put(local, e.name.size(), 2);
    put(local, 20, 2);
    name(local, e.name);
    put(local, 1, 2);
    put(local, 16, 2);
    put(local, size, 8);
    put(local, size, 8);
    put(list, kCentral, 4);
    put(list, 45, 2);
    common(list, crc);
    put(list, e.name.size(), 2);
    put(list, 28, 2);
    put(list, 0, 2);
    put(list, 0, 2);

    put(list, 0, 2);
    put(list, 0, 4);
    put(list, kLarge, 4);
    name(list, e.name);
    put(list, 1, 2);
    put(list, 24, 2);
    put(list, size, 8);
    put(list, size, 8);
    put(list, at, 8);
    at += local.size() + size;
  }
  auto& end = out.end = list;
  put(end, kEnd64, 4);
  put(end, 44, 8);
  put(end, 45, 2);
  put(end, 45, 2);
  put(end, 0, 4);

  put(end, 0, 4);
  put(end, entries.size(), 8);
  put(end, entries.size(), 8);
  put(end, list.size(), 8);

  put(end, at, 8);
  put(end, kLocator64, 4);
  put(end, 0, 4);
  put(end, at + list.size(), 8);
  put(end, 1, 4);
  auto few = std::min<std::uint64_t>(entries.size(), 0xffff);
  put(end, kEnd, 4);
  put(end, 0, 4);
  put(end, few, 2);
  put(end, few, 2);
  put(end, kLarge, 4);

  put(end, kLarge, 4);
  put(end, 0, 2);
  return out;
}

}  // namespace haliax::zip
