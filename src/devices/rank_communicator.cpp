// Collectives between ranks, as messages between pairs of devices.
#include "devices/rank_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "base/buffer.h"
#include "devices/reduce.h"
#include "devices/packing.h"
#include "transforms/sharding.h"

namespace haliax {
namespace {

using program::Collective;
using program::Dims;
using program::SkipFlag;
using program::CollectiveKind;

// approximate bytes of packed messages per device at a time
constexpr std::int64_t kStaging = 8 << 20;
// messages to and from each device of the group that kStaging allows for
constexpr std::int64_t kStagedMessages = 4;
constexpr std::int64_t kMinMessage = 1 << 14, kMaxMessage = 1 << 20;  // bytes

std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15 + (h << 6) + (h >> 2);
  return h * 0xbf58476d1ce4e5b9;
}

}  // namespace

std::vector<int> group_of(const Mesh& mesh, const std::vector<int>& over, int device) {
  std::vector<int> group{device};
  for (int axis : over) {
    std::vector<int> wider;
    int size = mesh.axes()[std::size_t(axis)].second, stride = 1;
    for (std::size_t k = std::size_t(axis) + 1; k < mesh.axes().size(); ++k)
      stride *= mesh.axes()[k].second;
    for (int g : group)
      for (int r = 0; r < size; ++r) wider.push_back(g + (r - coordinate(mesh, g, axis)) * stride);
    group = wider;
  }
  return group;
}

// The run of one collective: messages to and from each other device of the group.
class RankCommunicator::CollectiveRun {
 public:
  CollectiveRun(RankCommunicator& c, std::uint64_t key, const Collective& how, const void* const* x,
                void* const* out)
      : c_(c), key_(key), how_(how), group_(group_of(c.mesh_, how.over, c.device_)),
        staging_(std::make_unique<Staging>()) {
    mine_ = std::size_t(std::find(group_.begin(), group_.end(), c.device_) - group_.begin());
    // read only
    for (std::size_t k = 0; k < how.x.size(); ++k) x_.push_back(const_cast<void*>(x[k]));
    out_.assign(out, out + how.out.size());
    piece_ = std::clamp(kStaging / (kStagedMessages * std::int64_t(group_.size())), kMinMessage,
                        kMaxMessage);
  }
  void run() {
    try {
      switch (how_.kind) {
        case CollectiveKind::exchange:
          if (how_.skip_flag == SkipFlag::rows) return exchange_rows();
          return exchange(box_transfers(how_.sends, true), box_transfers(how_.receives, false));
        case CollectiveKind::all_gather:
          return move({group_.size(), full(x_, how_.x)}, blocks(out_, how_.out));
        case CollectiveKind::reduce_scatter:
          return reduce(blocks(x_, how_.x), full(out_, how_.out), nullptr);
        case CollectiveKind::all_reduce: {
          auto parts = shares(out_, how_.out);
          return reduce(shares(x_, how_.x), parts[mine_], &parts);
        }
      }
    } catch (...) {
      (void)staging_.release();  // the transport may still use the memory
      throw;
    }
  }

 private:
  // packed messages of the current round, in pooled memory
  using Staging = std::vector<std::unique_ptr<Buffer>>;
  using PeerPatches = std::vector<Patches>;  // by index in the group

  // ---- the patches for each device ----
  static Patches full(const std::vector<void*>& at, const std::vector<program::Operand>& of) {
    Patches all;
    for (std::size_t k = 0; k < at.size(); ++k) all.push_back(full_patch(at[k], of[k]));
    return all;
  }
  PeerPatches blocks(const std::vector<void*>& at, const std::vector<program::Operand>& of) const {
    PeerPatches peer_patches(group_.size());
    for (std::size_t g = 0; g < group_.size(); ++g)
      for (std::size_t k = 0; k < at.size(); ++k) {
        auto [from, size] = block_in_group(how_, k, group_.size(), g);
        peer_patches[g].push_back(slice_patch(at[k], of[k], how_.dim[k], from, size));
      }
    return peer_patches;
  }
  // Splits the arrays evenly: each device reduces the same number of elements.
  PeerPatches shares(const std::vector<void*>& at, const std::vector<program::Operand>& of) const {
    PeerPatches peer_patches(group_.size());
    for (std::size_t g = 0; g < group_.size(); ++g)
      for (auto& p : full(at, of)) peer_patches[g].push_back(share_of(p, group_.size(), g));
    return peer_patches;
  }
  PeerPatches box_transfers(const std::vector<program::BoxTransfer>& all, bool sends) const {
    PeerPatches peer_patches(group_.size());
    for (auto& p : all) {
      auto g = std::size_t(std::find(group_.begin(), group_.end(), p.device) - group_.begin());
      auto k = std::size_t(p.array);
      peer_patches[g].push_back(sends ? box_patch(x_[k], how_.x[k], p.start, p.dims, &p.step)
                                      : box_patch(out_[k], how_.out[k], p.start, p.dims, nullptr));
    }
    return peer_patches;
  }

  // ---- messages ----
  std::byte* staged_buffer(const Patches& p) {
    return staging_->emplace_back(std::make_unique<Buffer>(std::max<std::int64_t>(bytes_in(p), 1)))
        ->data();
  }
  Peers::Endpoint end(std::size_t g) const {
    int local = c_.mesh_.devices() / c_.peers_.count();
    return {group_[g] / local, group_[g] % local};
  }
  int here() const { return end(mine_).device; }
  void post_send(std::size_t g, int part, const std::byte* data, std::int64_t bytes) {
    pending_.push_back(c_.peers_.send(here(), end(g), mix(key_, std::uint64_t(part)), data, bytes));
  }
  // Posts a receive of packed patches. Returns the address of the data, which is valid after
  // `wait`.
  const std::byte* post_receive(std::size_t g, int part, const Patches& p) {
    auto* to = staged_buffer(p);
    pending_.push_back(
        c_.peers_.receive(end(g), here(), mix(key_, std::uint64_t(part)), to, bytes_in(p)));
    return to;
  }
  std::vector<std::vector<Patches>> in_messages(const PeerPatches& peer_patches) const {
    std::vector<std::vector<Patches>> out;
    for (auto& l : peer_patches) out.push_back(split_patches(l, piece_));
    return out;
  }

  void move(const PeerPatches& from, const PeerPatches& to) {
    auto sends = in_messages(from), receives = in_messages(to);
    for (std::size_t round = 0;; ++round) {
      std::vector<std::pair<const std::byte*, const Patches*>> got;
      staging_->clear();
      for (std::size_t g = 0; g < group_.size(); ++g) {
        bool own = g == mine_, in = round < receives[g].size(), out = round < sends[g].size();
        if (in && !own)
          got.push_back({post_receive(g, 0, receives[g][round]), &receives[g][round]});
        if (!out) continue;
        auto* packed = staged_buffer(sends[g][round]);
        pack(sends[g][round], packed);
        if (own)
          unpack(packed, receives[g].at(round));
        else
          post_send(g, 0, packed, bytes_in(sends[g][round]));
      }
      if (staging_->empty()) return;
      c_.peers_.wait(pending_);
      for (auto& [at, patches] : got) unpack(at, *patches);
    }
  }
  // With a flag, each device first sends its flag to the devices that it concerns.
  void exchange(PeerPatches sends, PeerPatches receives) {
    if (how_.skip_flag != SkipFlag::nothing) skip_unneeded(sends, receives);
    move(sends, receives);
  }
  void exchange_rows() {
    auto sends = how_.sends, receives = how_.receives;
    for (auto& s : sends) s.dims = sent_dims(how_, x_.data(), s.start, s.dims);
    exchange_counts(sends, receives);
    for (std::size_t k = 0; k < receives.size(); ++k) {
      auto& full = how_.receives[k];
      const auto array = std::size_t(full.array);
      fill_rest(box_patch(out_[array], how_.out[array], full.start, full.dims, nullptr),
                receives[k].dims);
    }
    move(box_transfers(sends, true), box_transfers(receives, false));
  }
  // Sends the number of rows of each box to its receiver, and sets it in the receives.
  void exchange_counts(const std::vector<program::BoxTransfer>& sends,
                       std::vector<program::BoxTransfer>& receives) {
    const auto rows = how_.x.back().dims.size();
    auto of_peer = [&](auto& boxes, std::size_t g) {
      std::vector<decltype(boxes.data())> out;
      for (auto& b : boxes)
        if (b.device == group_[g]) out.push_back(&b);
      return out;
    };
    auto counts = [&](std::size_t n) {
      auto& memory = staging_->emplace_back(std::make_unique<Buffer>(std::int64_t(8 * n)));
      return reinterpret_cast<std::int64_t*>(memory->data());
    };
    std::vector<std::int64_t*> theirs(group_.size());
    for (std::size_t g = 0; g < group_.size(); ++g) {
      const auto sent = of_peer(sends, g);
      const auto received = of_peer(receives, g);
      auto* mine = counts(sent.size());
      for (std::size_t k = 0; k < sent.size(); ++k) mine[k] = sent[k]->dims[rows];
      theirs[g] = g == mine_ ? mine : counts(received.size());
      if (g == mine_) continue;
      auto bytes = [](auto& boxes) { return std::int64_t(8 * boxes.size()); };
      if (!sent.empty()) post_send(g, 2, reinterpret_cast<std::byte*>(mine), bytes(sent));
      if (!received.empty())
        pending_.push_back(c_.peers_.receive(end(g), here(), mix(key_, 2),
                                             reinterpret_cast<std::byte*>(theirs[g]),
                                             bytes(received)));
    }
    c_.peers_.wait(pending_);
    for (std::size_t g = 0; g < group_.size(); ++g) {
      const auto received = of_peer(receives, g);
      for (std::size_t k = 0; k < received.size(); ++k) received[k]->dims[rows] = theirs[g][k];
    }
  }
  void skip_unneeded(PeerPatches& sends, PeerPatches& receives) {
    const bool mine = participates(how_, x_.data());
    auto &flag_receivers = how_.skip_flag == SkipFlag::unread ? receives : sends,
         &flag_senders = how_.skip_flag == SkipFlag::unread ? sends : receives;
    std::vector<const std::byte*> theirs(group_.size());
    auto flag = [&] { return staging_->emplace_back(std::make_unique<Buffer>(1))->data(); };
    for (std::size_t g = 0; g < group_.size(); ++g) {
      if (g == mine_) continue;
      if (!flag_receivers[g].empty()) {
        auto* sent_flag = flag();
        *sent_flag = std::byte(mine);
        post_send(g, 2, sent_flag, 1);
      }
      if (flag_senders[g].empty()) continue;
      auto* received_flag = flag();
      pending_.push_back(c_.peers_.receive(end(g), here(), mix(key_, 2), received_flag, 1));
      theirs[g] = received_flag;
    }
    c_.peers_.wait(pending_);
    for (std::size_t g = 0; g < group_.size(); ++g) {
      if (g != mine_ && !mine) flag_receivers[g].clear();
      if (!theirs[g] || *theirs[g] != std::byte(0)) continue;
      if (how_.skip_flag == SkipFlag::zeros)
        for (auto& p : flag_senders[g]) fill_zeros(p);
      flag_senders[g].clear();
    }
  }
  // Reduces the patches `mine` of this device. `x` holds the patches of this device's operands that
  // each device reduces. If `all` is set, the result is sent to all devices.
  void reduce(const PeerPatches& x, const Patches& mine, const PeerPatches* all) {
    auto sends = in_messages(x);
    auto sums = split_patches(mine, piece_);
    auto others = all ? in_messages(*all) : std::vector<std::vector<Patches>>(group_.size());
    for (std::size_t round = 0;; ++round) {
      staging_->clear();
      bool sum = round < sums.size();
      std::vector<const std::byte*> parts(group_.size());
      std::vector<std::pair<const std::byte*, const Patches*>> got;
      for (std::size_t g = 0; g < group_.size(); ++g) {
        if (sum && g != mine_) parts[g] = post_receive(g, 0, sums[round]);
        if (round >= sends[g].size()) continue;
        auto* packed = staged_buffer(sends[g][round]);
        pack(sends[g][round], packed);
        if (g == mine_)
          parts[g] = packed;
        else
          post_send(g, 0, packed, bytes_in(sends[g][round]));
      }
      if (staging_->empty()) return;
      c_.peers_.wait(pending_);
      for (std::size_t g = 0; g < group_.size(); ++g) {
        if (g == mine_ || round >= others[g].size()) continue;
        got.push_back({post_receive(g, 1, others[g][round]), &others[g][round]});
      }
      if (sum) {
        auto* total = staged_buffer(sums[round]);
        std::int64_t at = 0;
        for (auto& p : sums[round]) {
          std::vector<const std::byte*> from;
          for (auto* part : parts) from.push_back(part + at);
          reduce_parts(how_.monoid, p.dtype, from, total + at, p.count);
          at += p.bytes();
        }
        unpack(total, sums[round]);
        for (std::size_t g = 0; all && g < group_.size(); ++g)
          if (g != mine_) post_send(g, 1, total, at);
      }
      c_.peers_.wait(pending_);
      for (auto& [at, patches] : got) unpack(at, *patches);
    }
  }

  RankCommunicator& c_;
  const std::uint64_t key_;  // key of the messages
  const Collective& how_;
  std::vector<int> group_;
  std::size_t mine_ = 0;
  std::vector<void*> x_, out_;
  std::int64_t piece_;  // bytes; maximum size of a message
  std::unique_ptr<Staging> staging_;
  std::vector<Peers::Transfer> pending_;
};

// Runs collectives on a thread, in the order in which they are added. After an error it runs no
// more.
class RankCommunicator::Queue {
 public:
  struct QueuedCall {
    const Collective* how;
    std::uint64_t key;
    std::vector<const void*> x;
    std::vector<void*> out;
  };
  explicit Queue(RankCommunicator& c) : thread_([this, &c] { serve(c); }) {}
  // Runs the calls that are still queued, then ends the thread.
  ~Queue() {
    {
      std::lock_guard hold(lock_);
      stop_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  std::int64_t add(QueuedCall i) {
    std::lock_guard hold(lock_);
    items_.push_back(std::move(i));
    changed_.notify_all();
    return ++added_;
  }
  void wait(std::int64_t call) {
    std::unique_lock hold(lock_);
    changed_.wait(hold, [&] { return done_ >= call || error_; });
    if (done_ < call) std::rethrow_exception(error_);
  }

 private:
  void serve(RankCommunicator& c) {
    std::unique_lock hold(lock_);
    for (;;) {
      changed_.wait(hold, [&] { return stop_ || !items_.empty(); });
      if (items_.empty()) return;
      auto i = std::move(items_.front());
      items_.pop_front();
      hold.unlock();
      std::exception_ptr error;
      try {
        CollectiveRun(c, i.key, *i.how, i.x.data(), i.out.data()).run();
      } catch (...) {
        error = std::current_exception();
      }
      hold.lock();
      if (error)
        error_ = error;
      else
        ++done_;
      changed_.notify_all();
      if (error) return;
    }
  }
  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<QueuedCall> items_;
  std::int64_t added_ = 0, done_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last, since it uses all members above
};

RankCommunicator::RankCommunicator(Peers& peers, const Peers::JointCall& call, const Mesh& mesh,
                                   int device)
    : peers_(peers), mesh_(mesh), device_(device), call_(mix(17, call.number())) {}
RankCommunicator::~RankCommunicator() = default;
std::uint64_t RankCommunicator::next_key(const Collective& c) {
  auto& key = keys_.try_emplace(c.over, call_).first->second;
  key = mix(key, std::uint64_t(c.kind) * 8 + std::uint64_t(c.monoid));
  for (auto axis : c.over) key = mix(key, std::uint64_t(axis));
  for (auto size : c.size) key = mix(key, std::uint64_t(size));
  return key;
}
void RankCommunicator::run(const Collective& c, const void* const* x, void* const* out,
                           void* scratch, std::int64_t bytes) {
  if (queue_) return finish(start(c, x, out, scratch, bytes));
  CollectiveRun(*this, next_key(c), c, x, out).run();
}
std::int64_t RankCommunicator::start(const Collective& c, const void* const* x, void* const* out,
                                     void*, std::int64_t) {
  if (!queue_) queue_ = std::make_unique<Queue>(*this);
  return queue_->add({&c, next_key(c), std::vector<const void*>(x, x + c.x.size()),
                      std::vector<void*>(out, out + c.out.size())});
}
void RankCommunicator::finish(std::int64_t call) {
  if (queue_) queue_->wait(call);
}
void RankCommunicator::fail(const char* why) {
  peers_.fail(fmt::format("device {}: {}", device_, why));
}

}  // namespace haliax
