// Streams, events and graphs of simulated devices. Queued work does not run until a thread waits.
// Waiting threads then run it in an order that is drawn at random from all legal orders.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "../api.h"
#include "base/protected_memory.h"

namespace haliax::cuda::sim {

class Links;     // links.h
struct Network;  // network.h
struct PendingGroup;
struct Stream;
struct Graph;

// Shared: queued work keeps its events alive.
struct Event : std::enable_shared_from_this<Event> {
  explicit Event(int d) : device(d) {}
  int device = 0;
  std::int64_t recorded = 0, done = 0;              // number of times
  std::chrono::steady_clock::time_point came = {};  // time of the last completion
  Graph* graph = nullptr;  // graph of the last recording; null: not captured
  std::vector<int> nodes = {};
};
// One operation. Raises an error where the device would fail.
struct Work {
  enum class Kind : std::uint8_t { plain, follow, exchange };
  Kind kind = Kind::plain;
  std::function<void()> run = {};
  std::shared_ptr<Event> event = {};  // follow: waits until the event was done `times` times
  std::int64_t times = 0;
  std::shared_ptr<Network> network = {};  // exchange
  int rank = 0;
  std::vector<Transfer> transfers = {};
  std::vector<std::shared_ptr<const unsigned>> ifs = {};  // skipped if one of them is 0
};
struct Graph {
  std::vector<Work> work;
  std::vector<int> after;              // per operation, the number of predecessors
  std::vector<std::vector<int>> then;  // per operation, its successors
  std::vector<Stream*> streams = {};   // captured streams
  bool exchanges = false, has_ifs = false;
  std::vector<std::shared_ptr<const unsigned>> conditions = {};  // conditions that its kernels set
  int add(Work, const std::vector<int>& predecessors);
};
// An entry of a stream's queue: a running graph. A single operation is a graph with one node.
struct Running {
  std::shared_ptr<const Graph> graph;
  std::vector<int> left;                               // per node, the number of predecessors left
  std::vector<int> ready;                              // nodes without predecessors left
  std::vector<std::shared_ptr<PendingGroup>> pending;  // started exchanges
  std::size_t done = 0;
  explicit Running(std::shared_ptr<const Graph>);
};
struct Stream {
  int device = 0;
  std::deque<Running> queue = {};
  bool busy = false;       // a thread runs its work
  Graph* graph = nullptr;  // captures into this graph, after these nodes
  std::vector<int> tips = {};
  // conditions of the work that is queued here
  std::vector<std::shared_ptr<const unsigned>> ifs = {};
  Stream* around = nullptr;
};

class Machine {
 public:
  static Machine& instance();  // never destroyed

  Stream* make_stream(int device);
  void end_stream(Stream*);
  Event* make_event(int device);
  void end_event(Event*);
  void enqueue(Stream*, Work);
  void record(Event*, Stream*);
  void follow(Stream*, Event*);
  void wait(Stream*);
  void wait(Event*);
  double seconds(const Event* from, const Event* to);
  void begin_graph(Stream*);
  std::shared_ptr<const Graph> end_graph(Stream*);
  void run_graph(Stream*, std::shared_ptr<const Graph>);
  void begin_if(Stream*, Stream* inside, std::shared_ptr<const unsigned> runs);
  void end_if(Stream* inside);

  std::byte* allocate(Stream*, std::int64_t bytes);
  void release(Stream*, std::byte*);
  std::int64_t free_bytes(int device);
  std::int64_t grown() const { return grown_; }
  std::int64_t sent() const { return sent_; }
  // Returns the allocated bytes, and their maximum since the previous query.
  std::pair<std::int64_t, std::int64_t> held(int device);
  void set_memory(int device, std::int64_t bytes);
  void refuse_in_graph(const char* what) const;  // raises an error during a capture of this thread
  // like a fault of a kernel; empty: clears the fault
  void fail(int device, const std::string& why);

  std::shared_ptr<Network> join(const std::string& id, int ranks, int rank, int device);
  std::shared_ptr<Network> join(std::unique_ptr<Links>, const Check&, int ranks, int rank,
                                int device);
  void abort(Network&);
  void leave(Network&);

 private:
  struct Piece {
    std::int64_t bytes = 0;   // without the guard bytes
    std::int64_t number = 0;  // unique
    bool written = false;     // has been filled
  };
  struct Device {
    ProtectedMemory memory;
    std::map<std::byte*, Piece> taken;
    std::int64_t limit = std::int64_t(32) << 30, used = 0;
    std::byte* end = nullptr;              // end of the address range used so far
    std::int64_t held = 0, most_held = 0;  // bytes requested
    std::string failed;
    bool lost = false;  // failed because a peer failed
  };
  struct Choice {
    Stream* stream = nullptr;
    std::size_t at = 0;  // index in `ready`
  };
  Machine();
  Device& device(int d);
  void refuse_if_failed(int d);
  void enqueue_graph(Stream*, std::shared_ptr<const Graph>);
  bool is_ready(Running&, int node);
  std::vector<Choice> choices();
  void finish(Stream*, Running&, std::size_t at, int node);
  void work_until(std::unique_lock<std::mutex>&, int of_device, const std::function<bool()>& done);
  void open(int by);
  void work_on(std::unique_lock<std::mutex>&, Choice);
  void check_guard(int d);
  void failed(int d, const std::string& why, bool lost = false);
  void go_on();  // loop of a background thread, started with the first link
  void listen();
  bool is_linked(int d) const;  // communicates with other processes
  void check_peers(int d, std::chrono::nanoseconds waited);

  std::mutex lock_;
  int working_ = 0;  // working threads: memory is open if above 0
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::shared_ptr<Event>> events_;
  std::map<int, std::unique_ptr<Device>> devices_;
  std::map<std::string, std::shared_ptr<Network>> networks_;  // by id
  std::vector<std::shared_ptr<Network>> linked_;
  bool has_threads_ = false;
  std::mt19937_64 random_;
  std::int64_t waiting_ = 0;  // number of queued operations
  std::int64_t pieces_ = 0;   // number of allocations so far
  std::int64_t grown_ = 0;    // allocations that extended the address range
  std::int64_t sent_ = 0;     // bytes sent
};

}  // namespace haliax::cuda::sim
