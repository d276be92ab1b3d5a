// The ranks of this program, as one of them sees them: their calls, messages and failures
// (program/ranks.h).
//
// In: a transport of messages. Out: calls that all ranks run together, in the same order. Failures
// are detected by rank_monitor.h.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "devices/rank_monitor.h"
#include "program/ranks.h"

namespace haliax {

class Peers final : public program::RankGroup {
 public:
  // `patience` is the time after which a silent rank counts as lost; 0: never.
  Peers(program::Ranks&, std::chrono::milliseconds patience);
  Peers(const Peers&) = delete;
  int rank() const override { return me_; }
  int count() const override { return count_; }
  std::string where() const override { return transport_.where(); }
  int local_rank() const { return transport_.local_rank(); }

  // A call that all ranks run together. Only one runs at a time; other threads wait. Raises if
  // another rank has failed.
  class JointCall {
   public:
    // `what` must be the same on all ranks. It describes the call in messages: "jit at
    // train.cpp:12".
    JointCall(Peers&, std::string what);
    JointCall(const JointCall&) = delete;
    std::uint64_t number() const { return peers_.calls_; }  // the same on all ranks

   private:
    Peers& peers_;
    std::unique_lock<std::mutex> call_lock_;
  };

  // ---- messages within a call ----
  // The other end of a message: a device, by its index on its rank, or the rank itself.
  static constexpr int kItself = 31;
  struct Endpoint {
    int rank = 0, device = kItself;
  };
  struct Transfer {
    program::Ranks::Message message = {};
    Endpoint other = {};
    int tag = 0;
    bool receives = false;
  };
  // `key` identifies the purpose of a message and must be the same at both ends. Messages with the
  // same key and the same two ends arrive in order.
  Transfer send(int device, Endpoint to, std::uint64_t key, const void*, std::int64_t bytes);
  Transfer receive(Endpoint from, int device, std::uint64_t key, void*, std::int64_t bytes);
  // Waits until all transfers are done. After an exception, the memory of unfinished transfers
  // still belongs to the transport and must stay valid.
  void wait(std::vector<Transfer>&);

  // Compares values of all ranks. Raises on all ranks if a value differs from that of rank 0. Long
  // values may be passed as their hash; `printed` is then false.
  struct AgreedValue {
    std::string name, text;
    bool printed = true;
  };
  void agree(const std::vector<AgreedValue>&);
  // Returns the strings of all ranks, by rank.
  std::vector<std::string> all_gather_text(const std::string& mine) override {
    return gather_from_all(kInCall, mine);
  }
  // Returns the strings of all ranks, by rank, outside of a call. Returns after all ranks have
  // called it. `control_channel` 0 runs a call for it. Any other channel is independent of calls
  // and of other channels; one thread per rank may use it at a time.
  std::vector<std::string> all_gather_text_alone(const std::string& mine, int control_channel = 0);
  // Returns true if `mine` is true on any rank. Runs a call of its own.
  bool any(bool mine);

  // Announces that this rank has failed. From now on all other ranks raise.
  void fail(const std::string& why) noexcept { monitor_.fail(why); }
  void check() const { monitor_.check(); }  // raises the error of another rank
  // also raises if a rank has ended and `waited` exceeds the patience
  void check(std::chrono::nanoseconds waited) const override { monitor_.check(waited); }
  // Ends this process's part: waits for the other ranks, unless one has failed.
  void leave() { monitor_.leave(); }
  std::int64_t sent_bytes() const { return sent_; }  // data bytes sent to other ranks

 private:
  using Clock = std::chrono::steady_clock;
  int tag(int from, int to, std::uint64_t key) const;
  static constexpr int kInCall = -1;  // within a call, instead of a control channel
  std::vector<std::string> gather_from_all(int control_channel, const std::string& mine);
  void send_text(int control_channel, int to, const std::string&);
  std::string receive_text(int control_channel, int from);
  void wait_for(program::Ranks::Message, int rank);
  void check_suspects(const std::vector<Transfer>&, Clock::time_point since);

  program::Ranks& transport_;
  const int me_, count_, call_tags_;
  std::mutex joint_call_;
  std::uint64_t calls_ = 0;
  int call_tag_ = 0;
  std::atomic<std::int64_t> sent_{0};
  RankMonitor monitor_;
};

// Returns the ranks of this program; null: a single process. Opened on first use, if the process
// was started by mpirun or if HALIAX_RANKS=mpi.
Peers* peers();
// While an object lives, meshes of this thread are local to this process: their devices are
// threads, whatever the number of ranks.
class single_process_scope {
 public:
  [[nodiscard]] single_process_scope();
  ~single_process_scope();
  single_process_scope(const single_process_scope&) = delete;
};

}  // namespace haliax
