// Blocks of sharded arrays, and the assembly of an array from the blocks of several ranks.
#include "devices/shards.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "graph/axes.h"
#include "devices/communicator.h"
#include "devices/device_memory.h"
#include "devices/ranks.h"

namespace haliax {

Part full_part(const Axes& axes) { return {program::Dims(axes.size()), sizes_of(axes)}; }
Part part_on(const Axes& axes, const Sharding& s, const Mesh& mesh, int device) {
  Part out;
  for (auto& a : axes) {
    auto [from, size] = block_of(a, s.mesh_axes(a.name), mesh, device);
    out.start.push_back(from);
    out.sizes.push_back(size);
  }
  return out;
}
Part intersection(const Part& a, const Part& b) {
  Part out;
  for (std::size_t d = 0; d < a.sizes.size(); ++d) {
    auto from = std::max(a.start[d], b.start[d]);
    auto to = std::min(a.start[d] + a.sizes[d], b.start[d] + b.sizes[d]);
    out.start.push_back(from);
    out.sizes.push_back(std::max<std::int64_t>(0, to - from));
  }
  return out;
}

DeviceBlock::DeviceBlock(const Axes& axes, DType dtype, const Sharding& s, const Mesh& mesh,
                         int device) {
  const auto full = sizes_of(axes);
  auto [start, sizes] = part_on(axes, s, mesh, device);
  in_full_array.dims = sizes;
  in_full_array.width = bytes_of(dtype);
  in_full_array.from_strides = program::row_major(full);
  std::int64_t outer = 1;  // number of positions along the previous dims
  for (std::size_t d = 0; d < full.size(); ++d) {
    offset += start[d] * in_full_array.from_strides[d] * in_full_array.width;
    in_one_piece &= outer == 1 || sizes[d] == full[d];
    outer *= sizes[d];
  }
}

namespace {

// The transfer of blocks from ranks that have them to ranks that lack them, for an array that ranks
// share.
class SharedRead {
 public:
  SharedRead(const Shards& s, Peers& ranks)
      : s_(s), ranks_(ranks), each_(s.mesh.devices() / ranks.count()) {
    for (int d = 0; d < s.mesh.devices(); ++d)
      holders_[owner_of(s.at, s.mesh, d)].insert(d / each_);
  }
  bool all_have_all() const {
    return std::all_of(holders_.begin(), holders_.end(),
                       [&](auto& h) { return int(h.second.size()) == ranks_.count(); });
  }
  // Runs the transfer. Calls put(device, data) for each block that this rank receives.
  void run(const std::function<void(int, const std::byte*)>& put) {
    Peers::JointCall call(ranks_, "the read of an array " + to_string(s_.axes) +
                                      " that is distributed over all ranks");
    auto received = std::make_unique<HostBlocks>(), sent = std::make_unique<HostBlocks>();
    std::vector<Peers::Transfer> sends;
    try {
      for (auto& [owner, ranks] : holders_) {
        if (owner / each_ != ranks_.rank() || int(ranks.size()) == ranks_.count()) continue;
        auto* block = on_host(*s_.blocks[std::size_t(owner - s_.first)], *sent);
        for (int r = 0; r < ranks_.count(); ++r)
          if (!ranks.count(r))
            move(bytes_of_block(owner), [&](auto from, auto n) {
              sends.push_back(ranks_.send(Peers::kItself, {r}, call.number(), block + from, n));
            });
      }
      for (auto& [owner, ranks] : holders_) {
        if (ranks.count(ranks_.rank())) continue;
        const auto bytes = bytes_of_block(owner);
        // clang 14 cannot capture structured bindings in a lambda
        const Peers::Endpoint from_rank{owner / each_};
        received->push_back(std::make_unique_for_overwrite<std::byte[]>(std::size_t(bytes)));
        std::vector<Peers::Transfer> receives;
        move(bytes, [&](auto from, auto n) {
          receives.push_back(ranks_.receive(from_rank, Peers::kItself, call.number(),
                                            received->back().get() + from, n));
        });
        ranks_.wait(receives);
        put(owner, received->back().get());
        received->clear();
      }
      ranks_.wait(sends);
    } catch (const std::exception& e) {
      (void)received.release();  // the transport may still write there
      (void)sent.release();
      new std::vector<BufferPtr>(s_.blocks);  // and read there
      ranks_.fail(e.what());
      throw;
    }
  }

 private:
  using HostBlocks = std::vector<std::unique_ptr<std::byte[]>>;
  // Returns the block in host memory, or a copy of it in `copies`. A copy is not attached to the
  // Buffer, since the full array is about to be assembled.
  static const std::byte* on_host(const Buffer& b, HostBlocks& copies) {
    if (b.on_host()) return b.data();
    copies.push_back(std::make_unique_for_overwrite<std::byte[]>(std::size_t(b.bytes())));
    read(b, {{b.bytes()}, 1, copies.back().get(), {1}, nullptr, {1}});
    return copies.back().get();
  }
  std::int64_t bytes_of_block(int device) const {
    return axis_size(local_axes(s_.axes, s_.at, s_.mesh, device)) * bytes_of(s_.dtype);
  }
  // Splits a block into messages of a size that every transport supports.
  template <class F> static void move(std::int64_t bytes, F f) {
    constexpr std::int64_t most = 64 << 20;
    for (std::int64_t from = 0; from < bytes; from += most) f(from, std::min(most, bytes - from));
  }
  const Shards& s_;
  Peers& ranks_;
  int each_;
  std::map<int, std::set<int>> holders_;  // per owner of a block: the ranks that have it
};

}  // namespace

std::unique_ptr<Shards> shards(const Mesh& mesh, const Sharding& at, const Axes& axes, DType dtype,
                               int first, std::vector<BufferPtr> blocks) {
  auto s = std::make_unique<Shards>();
  s->mesh = mesh;
  s->at = at;
  s->axes = axes;
  s->dtype = dtype;
  s->first = first;
  s->blocks = std::move(blocks);
  return s;
}
void Shards::write(std::byte* to) const {
  auto put = [&](int device, const auto& copy) {
    DeviceBlock b(axes, dtype, at, mesh, device);
    auto box = b.in_full_array;
    box.to = to + b.offset;
    box.to_strides = std::move(box.from_strides);
    copy(std::move(box));
  };
  std::set<int> there;
  for (std::size_t k = 0; k < blocks.size(); ++k)
    if (int owner = owner_of(at, mesh, first + int(k)); there.insert(owner).second)
      put(owner, [&](program::Box box) { read(*blocks[k], std::move(box)); });
  auto* ranks = local_devices(mesh).ranks;
  if (int(blocks.size()) == mesh.devices()) return;
  if (!ranks) throw Error("[mesh] parts of this array are stored in other processes");
  SharedRead shared(*this, *ranks);
  if (shared.all_have_all()) return;
  shared.run([&](int device, const std::byte* block) {
    put(device, [&](program::Box box) {
      box.from = block;
      box.from_strides = program::row_major(box.dims);
      program::copy_on_host(box);
    });
  });
}

const Shards* shards_in(const Buffer& b) {
  for (auto* p = b.device_storage(); p; p = p->next.get())
    if (auto* s = dynamic_cast<const Shards*>(p)) return s;
  return nullptr;
}

}  // namespace haliax
