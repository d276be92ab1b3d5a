// Token files that are mapped into memory, and a loader of batches with a shuffled order.
#include "haliax/data.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "graph/fail.h"
#include "io/file.h"
#include "io/npy.h"
#include "io/sharded_arrays.h"
#include "io/permutation.h"
#include "io/joint_errors.h"

namespace haliax {
namespace {

constexpr const char* kTokens = "Tokens";
constexpr const char* kLoader = "TokenLoader";

// The finalizer of SplitMix64.
std::uint64_t stirred(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

}  // namespace

// The tokens of a file or of a string.
class TokenFile {
 public:
  TokenFile(const std::string& path, DType raw) : name_(path), dtype_(raw) {
    const auto bytes = InputFile(kTokens, path).size();
    if (bytes == 0) throw Error("[Tokens] " + path + " is empty");
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    void* all =
        file < 0 ? MAP_FAILED : ::mmap(nullptr, std::size_t(bytes), PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0) ::close(file);
    if (all == MAP_FAILED) throw Error("[Tokens] " + path + " cannot be mapped into memory");
    ::madvise(all, std::size_t(bytes), MADV_RANDOM);
    mapped_ = {all, [bytes](void* p) { ::munmap(p, std::size_t(bytes)); }};
    const std::span<const std::byte> file_bytes(static_cast<const std::byte*>(all),
                                                std::size_t(bytes));
    first_ = file_bytes.data();
    if (path.ends_with(".npy")) {
      take_header(npy_header(file_bytes, path));
    } else {
      if (bytes % bytes_of(raw) != 0)
        throw Error(
            fmt::format("[Tokens] {} has {} bytes, not a multiple of the size of {} tokens; "
                        "it is truncated, or of another dtype",
                        path, bytes, name_of(raw)));
      size_ = bytes / bytes_of(raw);
    }
  }
  explicit TokenFile(std::string text) : name_("the text"), dtype_(DType::u8) {
    auto held = std::make_shared<std::string>(std::move(text));
    first_ = reinterpret_cast<const std::byte*>(held->data());
    size_ = std::int64_t(held->size());
    mapped_ = std::move(held);
  }
  const std::string& name() const { return name_; }
  std::int64_t size() const { return size_; }
  std::int64_t at(std::int64_t k) const {
    switch (dtype_) {
      case DType::u8:
        return load<std::uint8_t>(k);
      case DType::u16:
        return load<std::uint16_t>(k);
      case DType::u32:
        return load<std::uint32_t>(k);
      case DType::i32:
        return load<std::int32_t>(k);
      default:
        return load<std::int64_t>(k);
    }
  }

 private:
  void take_header(const NpyHeader& h) {
    const bool known = h.dtype == DType::u8 || h.dtype == DType::u16 || h.dtype == DType::u32 ||
                       h.dtype == DType::i32 || h.dtype == DType::i64;
    if (!known || h.swapped)
      throw Error(
          fmt::format("[Tokens] {}: expected u8, u16, u32, i32 or i64, little-endian, got {}{}",
                      name_, name_of(h.dtype), h.swapped ? ", big-endian" : ""));
    if (h.shape.size() != 1)
      throw Error(
          fmt::format("[Tokens] {} has {} axes, expected 1; use np.save(path, tokens.ravel())",
                      name_, h.shape.size()));
    dtype_ = h.dtype;
    first_ += h.begin;
    size_ = h.shape[0];
  }
  template <class T> std::int64_t load(std::int64_t k) const {
    T v;
    std::memcpy(&v, first_ + std::size_t(k) * sizeof(T), sizeof v);
    return std::int64_t(v);
  }
  std::string name_;
  DType dtype_;
  const std::byte* first_ = nullptr;
  std::int64_t size_ = 0;
  std::shared_ptr<void> mapped_;
};

std::uint64_t key_of(std::uint64_t key, std::uint64_t number) {
  return stirred(key + 0x9E3779B97F4A7C15 * (number + 1));
}
std::int64_t permuted(std::int64_t i, std::int64_t n, std::uint64_t key) {
  // width of one half of the Feistel network, in bits
  const auto bits = std::max(1, (int(std::bit_width(std::uint64_t(n - 1))) + 1) / 2);
  const std::uint64_t mask = (std::uint64_t(1) << bits) - 1;
  auto at = std::uint64_t(i);
  do {
    auto left = at >> bits, right = at & mask;
    for (std::uint64_t round = 0; round < 8; ++round) {
      const auto next = left ^ (stirred(right + key_of(key, round)) & mask);
      left = right;
      right = next;
    }
    at = left << bits | right;
  } while (at >= std::uint64_t(n));
  return std::int64_t(at);
}

struct Tokens::Data {
  std::vector<TokenFile> files;
};

Tokens::Tokens(const std::vector<std::string>& paths, DType raw, SourceLocation at) {
  with_location(kTokens, at, [&] {
    if (raw != DType::u8 && raw != DType::u16 && raw != DType::u32)
      throw Error(fmt::format("[Tokens] raw: expected u8, u16 or u32, got {}", name_of(raw)));
    if (paths.empty()) throw Error("[Tokens] there are no paths");
    auto data = std::make_shared<Data>();
    for (auto& path : paths) data->files.emplace_back(path, raw);
    data_ = std::move(data);
  });
}
Tokens Tokens::of_bytes(std::string text) {
  Tokens out;
  auto data = std::make_shared<Data>();
  data->files.emplace_back(std::move(text));
  out.data_ = std::move(data);
  return out;
}
std::int64_t Tokens::size() const {
  std::int64_t n = 0;
  for (auto& f : data_->files) n += f.size();
  return n;
}

TokenLoader::TokenLoader(Tokens tokens, const Axis& Batch, const Axis& Pos,
                         TokenLoaderOptions options, SourceLocation at)
    : tokens_(std::move(tokens)), batch_(Batch), pos_(Pos), options_(std::move(options)) {
  if (auto& key = options_.key) {
    auto words = key.words.integers(at);
    CallSite here(at);
    if (words.size() != 2)
      fail(kLoader, "expected one key for the order, got {}", to_string(key.words.axes()));
    key_ = std::uint64_t(words[0]) << 32 | std::uint64_t(words[1]);
  }
  CallSite here(at);
  if (options_.stride < 0) fail(kLoader, "stride is {}; it must not be negative", options_.stride);
  if (options_.stride == 0) options_.stride = std::max<std::int64_t>(1, pos_.size);
  examples_before_ = {0};
  std::int64_t longest = 0;
  for (auto& f : tokens_.data_->files) {
    const auto n = f.size() < pos_.size ? 0 : (f.size() - pos_.size) / options_.stride + 1;
    examples_before_.push_back(examples_before_.back() + n);
    longest = std::max(longest, f.size());
  }
  if (examples() == 0)
    fail(kLoader,
         "an example requires {} tokens, but the longest of {} files has {}; use more text or a "
         "shorter axis {}",
         pos_.size, tokens_.data_->files.size(), longest, pos_);
}
std::int64_t TokenLoader::examples() const { return examples_before_.back(); }
void TokenLoader::seek(std::int64_t position, SourceLocation at) {
  CallSite here(at);
  if (position < 0) fail(kLoader, "position {} is negative", position);
  position_ = position;
}

// Reads tokens [first, first + count) of an example. `number` counts examples over all epochs.
void TokenLoader::read(std::int64_t number, std::int64_t first, std::int64_t count,
                       std::int32_t* to) const {
  const auto n = examples();
  auto example = number % n;
  if (options_.key) example = permuted(example, n, key_of(key_, std::uint64_t(number / n)));
  const auto after = std::upper_bound(examples_before_.begin(), examples_before_.end(), example);
  const auto k = std::size_t(after - examples_before_.begin()) - 1;
  const auto& file = tokens_.data_->files[k];
  const auto start = (example - examples_before_[k]) * options_.stride + first;
  const auto most = options_.vocab > 0 ? options_.vocab
                                       : std::int64_t(std::numeric_limits<std::int32_t>::max()) + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto token = file.at(start + i);
    if (token < 0 || token >= most)
      throw Error(
          fmt::format("[TokenLoader] token {} of {} is {}, but {} {}", start + i, file.name(),
                      token, options_.vocab > 0 ? "the vocabulary has" : "tokens are below", most));
    to[i] = std::int32_t(token);
  }
}

NamedArray TokenLoader::next(SourceLocation at) {
  return with_location(kLoader, at, [&] {
    auto mesh = options_.mesh ? std::make_shared<const Mesh>(*options_.mesh) : current_mesh();
    auto mapping = options_.axis_resources
                       ? std::make_shared<const Mapping>(*options_.axis_resources)
                       : current_mapping();
    std::shared_ptr<const Placement> placed;
    if (mesh && mapping) placed = std::make_shared<const Placement>(Placement{*mesh, *mapping});
    ArrayByParts batch({batch_, pos_}, DType::i32, std::move(placed),
                       options_.group ? *options_.group : all_processes());
    std::int64_t tokens = 0;
    for (auto& [part, data] : batch.parts_to_fill())
      for (std::int64_t row = 0; row < part.sizes[0]; ++row, tokens += part.sizes[1])
        read(position_ + part.start[0] + row, part.start[1], part.sizes[1],
             reinterpret_cast<std::int32_t*>(data) + row * part.sizes[1]);
    position_ += batch_.size;
    tokens_read_ += tokens;
    return batch.finish();
  });
}

}  // namespace haliax
