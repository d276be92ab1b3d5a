// What one rank of a communicator sends to ranks of other processes of this host, and gets from
// them: a UNIX socket to each. They find each other by the id alone, as those of NCCL do.
#pragma once
#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../api.h"

namespace haliax::cuda::sim {

struct Packet {
  // taken: what was sent; gone: the other's process has ended
  enum class Kind : std::uint64_t { data, taken, failed, gone };
  Kind kind = Kind::data;
  int other = 0;  // the rank that sends it
  std::string bytes = {};
};

class Links {
 public:
  // Waits until all others are there. Raises what check raises, and if they do not come.
  Links(const std::string& id, int ranks, int rank, const Check& check);
  ~Links();
  Links(const Links&) = delete;
  // Neither waits: what does not fit into a socket goes on its way later.
  void send(Packet::Kind, int to, const void*, std::int64_t bytes);
  // since this was asked last, of each rank in the order in which it has sent them
  std::vector<Packet> receive_all();
  void add_to(std::vector<pollfd>&) const;  // what may change

 private:
  struct Link {
    int socket = -1;  // -1: it is this rank's own, or gone
    std::string in, out;
  };
  void connect_to(const std::string& id, int other, int rank, const Check& check);
  void accept_ranks(int listening, const Check& check);
  void flush(Link&);
  std::vector<Link> links_;  // by rank
};

}  // namespace haliax::cuda::sim
