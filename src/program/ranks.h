// Ranks: processes that run one program together, each with some of the devices of every mesh. What
// carries messages between them is a plugin's (backends/mpi); what is sent, and how sums are taken,
// is the runtime's: a carrier adds nothing up.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace haliax::program {

// Calls come from several threads at once, and none of them waits for another rank.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;  // of this process
  virtual int count() const = 0;
  virtual std::string where() const = 0;  // this process, for people: its host
  virtual int local_rank() const = 0;     // of this process among the ranks of its host: 0, 1, ...
  // Tags of messages lie below it; it is at least 1 << 15.
  virtual int tags() const = 0;

  // What is sent in one never meets what is sent in another: the data of calls; what ranks say
  // beside them, in an order of its own; and that by which they look after each other.
  enum class Channel { data, control, monitor };
  // Of one channel, one tag and one sender they arrive in the order in which they were sent, each
  // as long as its receiver says. Their memory stays as it is until they are done.
  struct Message {
    void* handle = nullptr;  // null: it is done
  };
  virtual Message send(Channel, int to, int tag, const void*, std::int64_t bytes) = 0;
  virtual Message receive(Channel, int from, int tag, void*, std::int64_t bytes) = 0;
  virtual bool done(Message&) = 0;  // raises for one that was longer than its receiver said
  // A message that is here and that nobody has asked for, from that rank (-1: any), with that tag
  // (-1: any).
  struct Envelope {
    int from = 0, tag = 0;
    std::int64_t bytes = 0;
  };
  virtual std::optional<Envelope> probe(Channel, int from, int tag) = 0;
  // The end of this process: `together`, when all ranks are at theirs; else by itself. Nothing is
  // sent after it.
  virtual void leave(bool together) = 0;
};

// The ranks that share a mesh, as a backend sees them whose devices speak to each other by a way of
// their own.
class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual int rank() const = 0;  // of this process
  virtual int count() const = 0;
  virtual std::string where() const = 0;  // this process, for people: its host
  // What each says, by rank. Asked while a communicator is made, on all ranks alike; by one thread
  // of each.
  virtual std::vector<std::string> all_gather_text(const std::string& mine) = 0;
  // Asked now and then by whoever waits for another rank's device, for so long already: raises
  // where that will not come.
  virtual void check(std::chrono::nanoseconds waited) const = 0;
};

}  // namespace haliax::program
