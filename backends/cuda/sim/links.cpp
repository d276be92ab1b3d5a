// Connections between processes; see links.h.
#include "links.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

namespace haliax::cuda::sim {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kJoining = std::chrono::seconds(30);  // until all others have joined

// The header of each packet.
struct Head {
  Packet::Kind kind;
  std::uint64_t bytes;
};

// An abstract address: it is not a file, and disappears with its process.
struct Address {
  sockaddr_un at = {};
  socklen_t size = 0;
  Address(const std::string& id, int rank) {
    const auto name = fmt::format("haliax-{}-{}", id, rank);
    if (name.size() + 1 > sizeof at.sun_path)
      throw Error("[cuda-sim] the id of a communicator is too long: " + id);
    at.sun_family = AF_UNIX;
    std::memcpy(at.sun_path + 1, name.data(), name.size());
    size = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&at); }
};
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {
    if (fd_ < 0)
      throw Error(fmt::format("[cuda-sim] there is no socket: {}", std::strerror(errno)));
  }
  Socket() : Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Polls f until it returns a value.
template <class F> auto waited_for(const F& f, const Check& check) {
  const auto since = Clock::now();
  for (;;) {
    if (auto got = f()) return *got;
    const auto waited = Clock::now() - since;
    check(waited);
    if (waited > kJoining)
      throw Error("[cuda-sim] a rank timed out while it waited for others to join");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

Links::Links(const std::string& id, int ranks, int rank, const Check& check)
    : links_(std::size_t(ranks)) {
  const Socket listening;
  const Address mine(id, rank);
  if (::bind(listening.get(), mine.get(), mine.size) != 0 || ::listen(listening.get(), ranks) != 0)
    throw Error(fmt::format("[cuda-sim] rank {} cannot join: {}", rank, std::strerror(errno)));
  for (int other = 0; other < rank; ++other) connect_to(id, other, rank, check);
  for (int other = rank + 1; other < ranks; ++other) accept_ranks(listening.get(), check);
}
Links::~Links() {
  for (auto& l : links_)
    if (l.socket >= 0) ::close(l.socket);
}
// The connecting side sends its rank first.
void Links::connect_to(const std::string& id, int other, int rank, const Check& check) {
  const Address theirs(id, other);
  Socket mine;
  waited_for(
      [&] {
        return ::connect(mine.get(), theirs.get(), theirs.size) == 0 ? std::optional(true)
                                                                     : std::nullopt;
      },
      check);
  const std::int32_t me = rank;
  if (::send(mine.get(), &me, sizeof me, MSG_NOSIGNAL) != sizeof me)
    throw Error(fmt::format("[cuda-sim] rank {} exited while others join", other));
  links_[std::size_t(other)].socket = mine.release();
}
void Links::accept_ranks(int listening, const Check& check) {
  Socket theirs(waited_for(
      [&] {
        const int got = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        return got >= 0 ? std::optional(got) : std::nullopt;
      },
      check));
  std::int32_t other = -1;
  waited_for(
      [&] {
        return ::recv(theirs.get(), &other, sizeof other, 0) == sizeof other ? std::optional(true)
                                                                             : std::nullopt;
      },
      check);
  if (other < 0 || std::size_t(other) >= links_.size() || links_[std::size_t(other)].socket >= 0)
    throw Error(
        fmt::format("[cuda-sim] rank {} joins, but does not exist or has already joined", other));
  links_[std::size_t(other)].socket = theirs.release();
}

void Links::send(Packet::Kind kind, int to, const void* data, std::int64_t bytes) {
  auto& l = links_[std::size_t(to)];
  const Head head{kind, std::uint64_t(bytes)};
  l.out.append(reinterpret_cast<const char*>(&head), sizeof head);
  l.out.append(static_cast<const char*>(data), std::size_t(bytes));
  flush(l);
}
void Links::flush(Link& l) {
  while (l.socket >= 0 && !l.out.empty()) {
    const auto n = ::send(l.socket, l.out.data(), l.out.size(), MSG_NOSIGNAL);
    if (n <= 0) return;  // the socket is full; reads detect a closed peer
    l.out.erase(0, std::size_t(n));
  }
}
std::vector<Packet> Links::receive_all() {
  std::vector<Packet> all;
  for (std::size_t r = 0; r < links_.size(); ++r) {
    auto& l = links_[r];
    flush(l);
    bool closed = false;
    for (char some[1 << 16]; l.socket >= 0 && !closed;) {
      const auto n = ::recv(l.socket, some, sizeof some, 0);
      if (n > 0)
        l.in.append(some, std::size_t(n));
      else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        break;
      else
        closed = n == 0 || errno != EINTR;
    }
    std::size_t at = 0;
    for (Head head; l.in.size() - at >= sizeof head;) {
      std::memcpy(&head, l.in.data() + at, sizeof head);
      if (l.in.size() - at - sizeof head < head.bytes) break;
      all.push_back({head.kind, int(r), l.in.substr(at + sizeof head, head.bytes)});
      at += sizeof head + head.bytes;
    }
    l.in.erase(0, at);
    if (!closed) continue;
    ::close(std::exchange(l.socket, -1));
    all.push_back({Packet::Kind::ended, int(r)});
  }
  return all;
}
void Links::add_to(std::vector<pollfd>& all) const {
  for (auto& l : links_)
    if (l.socket >= 0)
      all.push_back({l.socket, short(l.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
}

}  // namespace haliax::cuda::sim
