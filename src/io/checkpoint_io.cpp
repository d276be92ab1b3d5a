// Writing the blocks of a checkpoint, and reading parts of them with checksum tests.
#include "io/checkpoint_io.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "io/checksum.h"
#include "devices/device_memory.h"
#include "io/safetensors.h"

namespace haliax {
namespace {

constexpr const char* kSaving = "Checkpoints";
constexpr const char* kLoading = "load_checkpoint";
using Bytes = std::span<const std::byte>;

struct InFile {
  std::size_t array;
  const PartValue* held;
};
// Returns the parts in file order: dtypes with larger elements first, so that each part is aligned,
// then in tree order.
std::vector<InFile> in_file_order(const std::vector<ArrayToSave>& all) {
  std::vector<InFile> order;
  for (std::size_t k = 0; k < all.size(); ++k)
    for (auto& p : all[k].parts) order.push_back({k, &p});
  std::stable_sort(order.begin(), order.end(), [&](auto& a, auto& b) {
    return bytes_of(all[a.array].array.dtype) > bytes_of(all[b.array].array.dtype);
  });
  return order;
}

// Returns the bytes of a part in host memory: in place, or copied into `scratch`.
Bytes bytes_on_host(const PartValue& held, DType dtype, std::unique_ptr<Buffer>& scratch) {
  auto& b = *held.data;
  if (b.on_host()) return {b.data(), std::size_t(b.bytes())};
  scratch = std::make_unique<Buffer>(b.bytes());
  program::Box box;
  box.dims = held.part.sizes;
  box.width = bytes_of(dtype);
  box.to = scratch->data();
  box.to_strides = program::row_major(box.dims);
  haliax::read(b, std::move(box));
  return {scratch->data(), std::size_t(scratch->bytes())};
}

}  // namespace

Manifest write_blocks(const std::string& folder, const std::string& name, std::int64_t step,
                      const std::vector<ArrayToSave>& all) {
  Manifest out{.step = step};
  const auto order = in_file_order(all);
  std::vector<TensorHead> heads;
  for (auto& a : all) out.arrays.push_back(a.array);
  for (auto& o : order)
    for (auto& t : tensors_of(all[o.array].array, o.held->part)) heads.push_back(std::move(t));
  const auto head = safetensors_head(heads, {{"format", "pt"}, {"step", std::to_string(step)}});
  const auto head_bytes = Bytes(std::as_bytes(std::span(head)));
  OutputFile file(kSaving, folder + "/" + name);
  file.write(head_bytes);
  auto at = std::int64_t(head.size());
  for (auto& o : order) {
    std::unique_ptr<Buffer> scratch;
    auto bytes = bytes_on_host(*o.held, all[o.array].array.dtype, scratch);
    SavedBlock block{.file = 0, .begin = at, .part = o.held->part, .checksums = {}};
    at += std::int64_t(bytes.size());
    // checksums and writes small amounts, so that the data is still in a cache for the write
    constexpr std::size_t at_once = 16 * kPieceBytes;
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(at_once, bytes.size()))) {
      const auto now = bytes.first(std::min(at_once, bytes.size()));
      for (auto left = now; !left.empty();
           left = left.subspan(std::min(std::size_t(kPieceBytes), left.size())))
        block.checksums.push_back(
            xxh64(left.first(std::min(std::size_t(kPieceBytes), left.size()))));
      file.write(now);
      file.start_sync();  // the disk writes during the next checksums
    }
    out.arrays[o.array].blocks.push_back(std::move(block));
  }
  file.sync_and_close();
  out.files = {{name, at, std::int64_t(head.size()), xxh64(head_bytes)}};
  return out;
}

// ---- reading ----

CheckpointReader::CheckpointReader(std::string folder, std::int64_t step)
    : folder_(std::move(folder)) {
  const auto path = folder_ + "/" + kManifestName;
  if (::access(path.c_str(), F_OK) != 0)
    throw CorruptCheckpoint("there is no " + std::string(kManifestName));
  const auto bytes = contents_of(kLoading, path);
  try {
    manifest_ = parse_manifest({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  } catch (const CorruptCheckpoint& e) {
    throw CorruptCheckpoint(std::string(kManifestName) + " " + e.what());
  }
  if (manifest_.step != step)
    throw CorruptCheckpoint(fmt::format("it is a checkpoint of step {}", manifest_.step));
}

std::shared_ptr<const InputFile> CheckpointReader::file(std::size_t k) const {
  constexpr std::size_t most_open = 256;
  std::lock_guard hold(opening_);
  if (auto known = files_.find(k); known != files_.end()) return known->second;
  if (files_.size() >= most_open) files_.clear();
  auto& f = manifest_.files[k];
  const auto path = folder_ + "/" + f.name;
  if (::access(path.c_str(), F_OK) != 0) throw CorruptCheckpoint("there is no " + f.name);
  auto opened = std::make_shared<InputFile>(kLoading, path);
  if (auto bytes = opened->size(); bytes != f.bytes)
    throw CorruptCheckpoint(fmt::format("{} has {} bytes, expected {}", f.name, bytes, f.bytes));
  std::vector<std::byte> head(std::size_t(f.head_bytes));
  opened->read_at(0, head.data(), f.head_bytes);
  if (xxh64(head) != f.head_checksum)
    throw CorruptCheckpoint(f.name + ": its header is corrupt (checksum mismatch)");
  return files_[k] = std::move(opened);
}

// The bytes of a block, in order. Each piece that is needed is read and checked once.
struct CheckpointReader::Source {
  const CheckpointReader& reader;
  const SavedArray& array;
  const SavedBlock& block;
  std::shared_ptr<const InputFile> file = reader.file(block.file);
  std::int64_t bytes = block.part.size() * bytes_of(array.dtype);
  std::int64_t there = -1;  // index of the piece in `piece`; -1: none
  std::vector<std::byte> piece = {};

  // Reads piece k of the block, and compares it with its checksum.
  void fetch(std::int64_t k, std::byte* to, std::int64_t size) {
    const auto from = block.begin + k * kPieceBytes;
    try {
      file->read_at(from, to, size);
    } catch (const Error& e) {  // the disk lost the data
      throw CorruptCheckpoint(without_op(e.what()));
    }
    reader.bytes_read_ += size;
    if (xxh64({to, std::size_t(size)}) == block.checksums[std::size_t(k)]) return;
    throw CorruptCheckpoint(
        fmt::format("{}: bytes {} to {}, of {}, are corrupt (checksum mismatch)",
                    reader.manifest_.files[block.file].name, from, from + size, array.name));
  }
  void copy(std::int64_t from, std::byte* to, std::int64_t size) {
    while (size > 0) {
      const auto k = from / kPieceBytes, begin = k * kPieceBytes,
                 all = std::min(kPieceBytes, bytes - begin);
      const auto n = std::min(size, begin + all - from);
      if (n == all) {
        fetch(k, to, n);
      } else {
        if (k != there) {
          piece.resize(std::size_t(kPieceBytes));
          there = -1;
          fetch(k, piece.data(), all);
          there = k;
        }
        std::memcpy(to, piece.data() + (from - begin), std::size_t(n));
      }
      from += n;
      to += n;
      size -= n;
    }
  }
};

namespace {

// The intersection of a block and a part, as runs of bytes that are contiguous in both, in the
// order of the block.
class ByteRuns {
 public:
  ByteRuns(const Part& block, const ArrayByParts::PartToFill& part, std::int64_t width)
      : data_(part.data) {
    const auto both = intersection(block, part.part);
    if (both.size() == 0) return;
    const auto from = program::row_major(block.sizes), to = program::row_major(part.part.sizes);
    bytes_ = width;
    // A run covers the last dims, up to and including the first one that the block or the part does
    // not have in full. For example, rows 2-3 of a block (8, 4) are one run of 8 elements, and
    // columns 0-1 of it are 8 runs of 2 elements.
    bool is_in_run = true;
    for (auto d = both.sizes.size(); d-- > 0;) {
      from_ += (both.start[d] - block.start[d]) * from[d] * width;
      to_ += (both.start[d] - part.part.start[d]) * to[d] * width;
      if (is_in_run)
        bytes_ *= both.sizes[d];
      else
        outer_.push_back({both.sizes[d], from[d] * width, to[d] * width, 0});
      is_in_run &= both.sizes[d] == block.sizes[d] && both.sizes[d] == part.part.sizes[d];
    }
  }
  bool done() const { return bytes_ == 0; }
  std::int64_t from() const { return from_; }
  std::byte* to() const { return data_ + to_; }
  std::int64_t bytes() const { return bytes_; }
  void next() {
    for (auto& d : outer_) {
      from_ += d.from;
      to_ += d.to;
      if (++d.index < d.size) return;
      from_ -= d.size * d.from;
      to_ -= d.size * d.to;
      d.index = 0;
    }
    bytes_ = 0;
  }

 private:
  struct Dim {
    std::int64_t size, from, to, index;
  };
  std::vector<Dim> outer_;  // dims over which runs repeat, fastest first
  std::byte* data_;
  std::int64_t from_ = 0, to_ = 0, bytes_ = 0;  // the current run; 0 bytes: done
};

}  // namespace

void CheckpointReader::read(const SavedArray& a, const SavedBlock& block,
                            std::span<const ArrayByParts::PartToFill> parts) const {
  std::vector<ByteRuns> all;
  for (auto& p : parts) all.emplace_back(block.part, p, bytes_of(a.dtype));
  std::erase_if(all, [](auto& runs) { return runs.done(); });
  if (all.empty()) return;
  Source source{*this, a, block};
  while (!all.empty()) {
    auto first = std::min_element(all.begin(), all.end(),
                                  [](auto& x, auto& y) { return x.from() < y.from(); });
    source.copy(first->from(), first->to(), first->bytes());
    first->next();
    if (first->done()) all.erase(first);
  }
}

}  // namespace haliax
