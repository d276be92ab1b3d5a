// The ranks that run this program (program/ranks.h), as one of them sees them: who is there, who
// has failed, and how messages are waited for.
//
// In: what carries messages. Out: calls that all ranks make together, each in the same order.
// Always: a rank that raises, ends early, dies or stands still becomes an error of all others that
// names it; nobody waits for ever.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "haliax/error.h"
#include "program/ranks.h"

namespace haliax {

struct RemoteError : Error {  // the cause lies on another device
  using Error::Error;
};

class Peers final : public program::RankGroup {
 public:
  // patience: how long a rank may be silent before it counts as lost; 0: for ever.
  Peers(program::Ranks&, std::chrono::milliseconds patience);
  ~Peers() override;
  Peers(const Peers&) = delete;
  int rank() const override { return me_; }
  int count() const override { return count_; }
  std::string where() const override { return carrier_.where(); }
  int local_rank() const { return carrier_.local_rank(); }

  // What all ranks do together; one at a time, other threads wait. Raises if another rank has
  // failed.
  class JointCall {
   public:
    // the same on all ranks; for people: "jit at train.cpp:12"
    JointCall(Peers&, std::string what);
    JointCall(const JointCall&) = delete;
    std::uint64_t number() const { return peers_.calls_; }  // the same on all ranks

   private:
    Peers& peers_;
    std::unique_lock<std::mutex> call_lock_;
  };

  // ---- messages within a call ----
  // From whom, or to whom: a device, by its number among those of its rank, or the rank itself.
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
  // key: what it is about, the same at both ends; messages of one key between two ends arrive in
  // order.
  Transfer send(int device, Endpoint to, std::uint64_t key, const void*, std::int64_t bytes);
  Transfer receive(Endpoint from, int device, std::uint64_t key, void*, std::int64_t bytes);
  // Until all are done. What raises here leaves the memory of what is not done to the carrier: it
  // must stay where it is.
  void wait(std::vector<Transfer>&);

  // Each rank says what it is about to do; where a field differs from that of rank 0, all raise. A
  // long text may be given as its hash: then it is not shown.
  struct AgreedValue {
    std::string name, text;
    bool printed = true;
  };
  void agree(const std::vector<AgreedValue>&);
  // by rank
  std::vector<std::string> all_gather_text(const std::string& mine) override {
    return gather_from_all(kInCall, mine);
  }
  // What each says, by rank. Returns when all have spoken. 0: a call of its own. Any other `talk`
  // is beside calls, by one thread of each rank at a time, and what is said in one does not meet
  // what is said in another.
  std::vector<std::string> all_gather_text_alone(const std::string& mine, int control_channel = 0);
  bool any(bool mine);  // a call of its own

  // This rank goes no further: all others raise, from now on.
  void fail(const std::string& why) noexcept;
  void check() const;  // raises what another rank failed with
  // and for one that has ended, as long as one is patient
  void check(std::chrono::nanoseconds waited) const override;
  // The end of this process: waits for the others, unless one has failed.
  void leave();
  std::int64_t sent_bytes() const { return sent_; }  // of data, to other ranks

 private:
  using Clock = std::chrono::steady_clock;
  // tags of messages by which ranks look after each other
  enum NoticeKind : int { heartbeat, failures, ends, waits, calls };
  struct Notice {
    program::Ranks::Message message = {};
    std::string text;
  };
  int tag(int from, int to, std::uint64_t key) const;
  static constexpr int kInCall = -1;  // instead of a talk beside calls
  std::vector<std::string> gather_from_all(int control_channel, const std::string& mine);
  void send_text(int control_channel, int to, const std::string&);
  std::string receive_text(int control_channel, int from);
  void wait_for(program::Ranks::Message, int rank);
  void check_suspects(const std::vector<Transfer>&, Clock::time_point since);
  void monitor();  // the thread: beats, and what others say
  void receive_notices();
  void send_notice(int rank, NoticeKind, std::string text);
  void broadcast_notice(NoticeKind, const std::string& text);
  void note_failure(std::string why);
  void fail_all(const std::string& why);
  void compare_call(std::uint64_t number);
  std::string named() const;  // rank 2 (host, process 17)

  program::Ranks& carrier_;
  const int me_, count_, kinds_;  // kinds_: so many calls are told apart
  const std::chrono::milliseconds patience_;
  std::mutex calling_;
  std::uint64_t calls_ = 0;
  int call_ = 0;  // as messages name it
  std::atomic<std::int64_t> sent_{0};
  mutable std::mutex lock_;           // of all below
  std::string current_call_;          // the call, for people
  std::atomic<bool> waiting_{false};  // for long already
  // Calls by number: of this rank and of the one before it, until they are compared.
  std::map<std::uint64_t, std::string> calls_of_this_rank_, calls_of_previous_rank_;
  Clock::time_point last_wait_notice_;  // when this one last told another that it waits for it
  std::condition_variable changed_;
  std::string failure_;  // of another rank, or what this one told
  std::atomic<bool> failed_{false};
  std::vector<char> ended_;           // by rank
  std::list<Notice> notices_;         // on their way
  Clock::time_point last_heartbeat_;  // from the rank before this one
  bool stop_ = false;
  std::thread monitor_thread_;
};

// Those of this process; null: it runs by itself. Opened when first asked for: under mpirun, or
// where HALIAX_RANKS=mpi asks.
Peers* peers();
// While one lives, meshes of this thread lie in this process alone: their devices are its threads,
// whatever ranks there are.
class single_process_scope {
 public:
  [[nodiscard]] single_process_scope();
  ~single_process_scope();
  single_process_scope(const single_process_scope&) = delete;
};

}  // namespace haliax
