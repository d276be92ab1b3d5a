// Ranks: processes that run one program together, each with some devices of every mesh. A plugin
// (backends/mpi) transports the messages. The runtime decides which messages to send and computes
// all sums.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace haliax::program {

// The transport. Thread safe. No function waits for another rank.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual int rank() const = 0;  // rank of this process
  virtual int count() const = 0;
  virtual std::string where() const = 0;  // name of this process for messages: its host
  virtual int local_rank() const = 0;     // rank of this process within its host: 0, 1, ...
  // Returns the number of tags; a tag is in [0, tags()). At least 1 << 15.
  virtual int tags() const = 0;

  // Messages of different channels never match. `data` carries collectives, `control` carries
  // messages between runtimes in a separate order, and `monitor` carries liveness checks.
  enum class Channel { data, control, monitor };
  // A message in transit. Messages of one channel, tag and sender arrive in the order of the sends.
  // The receiver states the size of each. The memory must stay valid and unchanged until the
  // message is done.
  struct Message {
    void* handle = nullptr;  // null: done
  };
  virtual Message send(Channel, int to, int tag, const void*, std::int64_t bytes) = 0;
  virtual Message receive(Channel, int from, int tag, void*, std::int64_t bytes) = 0;
  // Returns true if the message is complete. Raises if it was longer than the receiver's buffer.
  virtual bool done(Message&) = 0;
  // Returns a message that has arrived and that no receive has matched, from this rank (-1: any)
  // with this tag (-1: any).
  struct Envelope {
    int from = 0, tag = 0;
    std::int64_t bytes = 0;
  };
  virtual std::optional<Envelope> probe(Channel, int from, int tag) = 0;
  // Ends the communication of this process. `together` states that all ranks do so. No message may
  // be sent afterwards.
  virtual void leave(bool together) = 0;
};

// The ranks that share a mesh, for backends whose devices communicate directly.
class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual int rank() const = 0;  // rank of this process
  virtual int count() const = 0;
  virtual std::string where() const = 0;  // name of this process for messages: its host
  // Returns the text that each rank passed as `mine`, by rank. Called while a communicator is
  // created: on all ranks, on one thread of each.
  virtual std::vector<std::string> all_gather_text(const std::string& mine) = 0;
  // To be called regularly while waiting for a device of another rank. `waited` is the time since
  // the wait began. Raises if the other rank has failed.
  virtual void check(std::chrono::nanoseconds waited) const = 0;
};

}  // namespace haliax::program
