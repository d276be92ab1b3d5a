// Detects failures between the ranks of a program.
//
// In: a transport of messages, and each call as it begins. Always: if a rank raises, ends early,
// dies, hangs or makes another call, all other ranks raise an error that names it. No rank waits
// forever.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "haliax/error.h"
#include "program/ranks.h"

namespace haliax {

// An error whose cause is on another device.
struct RemoteError : Error {
  using Error::Error;
};

inline constexpr const char* kSameCallsHint =
    "all ranks must make the same calls on a mesh and read "
    "the same distributed arrays, in the same order";

// A rank without progress for this long notifies the rank that it waits for, and repeats the notice
// after this time.
inline constexpr std::chrono::seconds kWaitNotice{3};

// A thread of this rank sends heartbeats to the next rank, and exchanges notices with all others.
class RankMonitor {
 public:
  // `patience` is the time after which a silent rank counts as lost; 0: never.
  RankMonitor(program::Ranks&, std::chrono::milliseconds patience);
  ~RankMonitor();
  RankMonitor(const RankMonitor&) = delete;

  // Sets the current call: its number, and its description for messages. Raises on all ranks if
  // another rank makes another call under this number.
  void begin_call(std::uint64_t number, const std::string& description);
  std::string current_call() const;
  // Notifies a rank that this one waits for its messages, at most once in kWaitNotice. If that rank
  // waits as well, at another call, all ranks raise.
  void announce_wait(int rank);
  void end_wait() { waiting_ = false; }

  void check() const;  // raises the error of another rank
  // also raises if a rank has ended and `waited` exceeds the patience
  void check(std::chrono::nanoseconds waited) const;
  bool has_ended(int rank) const;
  // Announces that this rank has failed. From now on all other ranks raise.
  void fail(const std::string& why) noexcept;
  // Ends this process's part: waits for the other ranks, unless one has failed.
  void leave();

 private:
  using Clock = std::chrono::steady_clock;
  // tags on the monitor channel
  enum NoticeKind : int { heartbeat, failures, ends, waits, calls };
  struct Notice {
    program::Ranks::Message message = {};
    std::string text;
  };
  void monitor();  // the thread: heartbeats and notices
  void receive_notices();
  void send_notice(int rank, NoticeKind, std::string text);
  void broadcast_notice(NoticeKind, const std::string& text);
  void note_failure(std::string why);
  void fail_all(const std::string& why);
  void compare_call(std::uint64_t number);
  std::string named() const;  // as in "rank 2 (host, process 17)"
  int previous_rank() const { return (me_ + count_ - 1) % count_; }
  int next_rank() const { return (me_ + 1) % count_; }

  program::Ranks& transport_;
  const int me_, count_;
  const std::chrono::milliseconds patience_;
  std::atomic<bool> waiting_{false};  // for several seconds
  std::atomic<bool> failed_{false};
  mutable std::mutex lock_;   // guards all members below
  std::string current_call_;  // description of the call, for messages
  // Calls by number, of this rank and of the previous one, until they are compared.
  std::map<std::uint64_t, std::string> calls_of_this_rank_, calls_of_previous_rank_;
  Clock::time_point last_wait_notice_;  // time of the latest notice that this rank waits
  std::condition_variable changed_;
  std::string failure_;               // error of another rank, or the one that this rank announced
  std::vector<char> ended_;           // by rank
  std::list<Notice> notices_;         // in transit
  Clock::time_point last_heartbeat_;  // from the previous rank
  bool stop_ = false;
  std::thread monitor_thread_;
};

}  // namespace haliax
