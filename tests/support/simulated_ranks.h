// Ranks that are threads of this process. Messages between them may have a latency.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "devices/ranks.h"

namespace haliax::test {

using namespace haliax;
using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

using Clock = std::chrono::steady_clock;

// Messages in transit, in the order in which they were sent, until their receiver requests them.
struct Post {
  struct Letter {
    int from, tag;
    Bytes text;
    Clock::time_point arrives;
  };
  Clock::duration latency = {};  // delay of data messages
  std::mutex lock;
  std::map<std::pair<int, int>, std::deque<Letter>> boxes;  // messages by channel and receiver
};
class SimulatedRanks final : public program::Ranks {
 public:
  SimulatedRanks(Post& post, int rank, int count, int tags)
      : post_(post), rank_(rank), count_(count), tags_(tags) {}
  int rank() const override { return rank_; }
  int count() const override { return count_; }
  std::string where() const override { return "here"; }
  int local_rank() const override { return rank_; }
  int tags() const override { return tags_; }
  Message send(Channel c, int to, int tag, const void* data, std::int64_t bytes) override {
    REQUIRE((tag >= 0 && tag < tags_));
    auto* p = static_cast<const std::byte*>(data);
    std::lock_guard hold(post_.lock);
    auto arrives = Clock::now() + (c == Channel::data ? post_.latency : Clock::duration());
    if (!silent) post_.boxes[{int(c), to}].push_back({rank_, tag, Bytes(p, p + bytes), arrives});
    return {};
  }
  Message receive(Channel c, int from, int tag, void* data, std::int64_t bytes) override {
    std::lock_guard hold(post_.lock);
    return {
        wanted_.emplace_back(std::make_unique<Wanted>(Wanted{c, from, tag, data, bytes})).get()};
  }
  bool done(Message& m) override {
    if (!m.handle) return true;
    auto& w = *static_cast<Wanted*>(m.handle);
    std::lock_guard hold(post_.lock);
    auto& box = post_.boxes[{int(w.channel), rank_}];
    auto found = std::find_if(box.begin(), box.end(),
                              [&](auto& l) { return l.from == w.from && l.tag == w.tag; });
    if (found == box.end() || Clock::now() < found->arrives) return false;
    if (std::int64_t(found->text.size()) != w.bytes)
      throw Error("[ranks] a message of another length");
    if (w.bytes > 0) std::memcpy(w.data, found->text.data(), found->text.size());
    box.erase(found);
    std::erase_if(wanted_, [&](auto& its) { return its.get() == &w; });
    m.handle = nullptr;
    return true;
  }
  std::optional<Envelope> probe(Channel c, int from, int tag) override {
    std::lock_guard hold(post_.lock);
    for (auto& l : post_.boxes[{int(c), rank_}])
      if ((from < 0 || l.from == from) && (tag < 0 || l.tag == tag))
        return Envelope{l.from, l.tag, std::int64_t(l.text.size())};
    return {};
  }
  void leave(bool) override {}
  std::atomic<bool> silent = false;  // drops messages that are sent

 private:
  struct Wanted {
    Channel channel;
    int from, tag;
    void* data;
    std::int64_t bytes;
  };
  Post& post_;
  int rank_, count_, tags_;
  std::vector<std::unique_ptr<Wanted>> wanted_;  // receives that are not complete
};

// Runs f(peers, carrier) on n ranks concurrently. Returns the error message of each rank.
inline std::vector<std::string> on_ranks(int n,
                                         const std::function<void(Peers&, SimulatedRanks&)>& f,
                                         std::chrono::milliseconds patience = 0ms,
                                         int tags = 1 << 30, Clock::duration latency = {}) {
  Post post;
  post.latency = latency;
  std::vector<std::string> errors(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      SimulatedRanks carrier(post, r, n, tags);
      Peers peers(carrier, patience);
      try {
        f(peers, carrier);
      } catch (const std::exception& e) {
        errors[std::size_t(r)] = e.what();
        if (!dynamic_cast<const RemoteError*>(&e)) peers.fail(e.what());
      }
      peers.leave();
    });
  for (auto& t : threads) t.join();
  return errors;
}

}  // namespace haliax::test
