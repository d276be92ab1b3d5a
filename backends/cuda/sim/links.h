// The connections of a rank to ranks in other processes of this host: one UNIX socket for each.
// Ranks find each other by the id alone, as with NCCL.
#pragma once
#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../api.h"

namespace haliax::cuda::sim {

struct Packet {
  // taken: acknowledges a data packet; ended: the process of the other rank has ended
  enum class Kind : std::uint64_t { data, taken, failed, ended };
  Kind kind = Kind::data;
  int other = 0;  // rank of the sender
  std::string bytes = {};
};

class Links {
 public:
  // Blocks until all ranks are connected. Raises errors of `check`, and an error after a timeout.
  Links(const std::string& id, int ranks, int rank, const Check& check);
  ~Links();
  Links(const Links&) = delete;
  // The functions below never block: data that does not fit into a socket is sent later.
  void send(Packet::Kind, int to, const void*, std::int64_t bytes);
  // Returns new packets since the previous call, by rank, in the order of sending.
  std::vector<Packet> receive_all();
  void add_to(std::vector<pollfd>&) const;  // adds the sockets to poll

 private:
  struct Link {
    int socket = -1;  // -1: this rank itself, or a closed socket
    std::string in, out;
  };
  void connect_to(const std::string& id, int other, int rank, const Check& check);
  void accept_ranks(int listening, const Check& check);
  void flush(Link&);
  std::vector<Link> links_;  // by rank
};

}  // namespace haliax::cuda::sim
