// Streams, events and graphs of simulated devices. What is asked for waits in queues, until
// somebody waits: then it is done by the threads that wait, in an order that is drawn anew each
// time from all those that are legal.
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

// lives as long as something in a queue has to do with it
struct Event : std::enable_shared_from_this<Event> {
  explicit Event(int d) : device(d) {}
  int device = 0;
  std::int64_t recorded = 0, done = 0;              // how often
  std::chrono::steady_clock::time_point came = {};  // when it was done last
  Graph* graph = nullptr;  // where it was recorded last, if that was into a graph
  std::vector<int> nodes = {};
};
// One thing to do. Raises where the device would fail.
struct Work {
  enum class Kind : std::uint8_t { plain, follow, exchange };
  Kind kind = Kind::plain;
  std::function<void()> run = {};
  std::shared_ptr<Event> event = {};  // follow: until it was done so often
  std::int64_t times = 0;
  std::shared_ptr<Network> network = {};  // exchange
  int rank = 0;
  std::vector<Transfer> transfers = {};
  std::vector<std::shared_ptr<const unsigned>> ifs = {};  // it is left out if one is 0
};
struct Graph {
  std::vector<Work> work;
  std::vector<int> after;              // of each, how many things must be done before
  std::vector<std::vector<int>> then;  // of each, what comes behind it
  std::vector<Stream*> streams = {};   // that are written down
  bool exchanges = false, has_ifs = false;
  std::vector<std::shared_ptr<const unsigned>> told = {};  // kernels of it write there
  int add(Work, const std::vector<int>& behind);
};
// What lies in a stream: a graph that is under way; a thing by itself is a graph of one.
struct Running {
  std::shared_ptr<const Graph> graph;
  std::vector<int> left;   // of each node: how many things must still be done before
  std::vector<int> ready;  // nodes
  std::vector<std::shared_ptr<PendingGroup>> pending;  // of exchanges that have begun
  std::size_t done = 0;
  explicit Running(std::shared_ptr<const Graph>);
};
struct Stream {
  int device = 0;
  std::deque<Running> queue = {};
  bool busy = false;       // a thread is at it
  Graph* graph = nullptr;  // it is written down there, behind these nodes
  std::vector<int> tips = {};
  std::vector<std::shared_ptr<const unsigned>> ifs = {};  // of what is asked for here
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
  // bytes, and the most since this was asked last
  std::pair<std::int64_t, std::int64_t> held(int device);
  void set_memory(int device, std::int64_t bytes);
  void refuse_in_graph(const char* what) const;   // on a thread that writes one down
  void fail(int device, const std::string& why);  // as a kernel's fault does; empty: it is as new

  std::shared_ptr<Network> join(const std::string& id, int ranks, int rank, int device);
  std::shared_ptr<Network> join(std::unique_ptr<Links>, const Check&, int ranks, int rank,
                                int device);
  void abort(Network&);
  void leave(Network&);

 private:
  struct Piece {
    std::int64_t bytes = 0;   // without what lies behind
    std::int64_t number = 0;  // no two have the same
    bool written = false;     // for the first time
  };
  struct Device {
    ProtectedMemory memory;
    std::map<std::byte*, Piece> taken;
    std::int64_t limit = std::int64_t(32) << 30, used = 0;
    std::byte* end = nullptr;              // of all that was taken so far
    std::int64_t held = 0, most_held = 0;  // bytes that were asked for
    std::string failed;
    bool lost = false;  // it has failed because another one has
  };
  struct Choice {
    Stream* stream = nullptr;
    std::size_t at = 0;  // in ready
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
  void check_behind(int d);
  void failed(int d, const std::string& why, bool lost = false);
  void go_on();  // what threads of the machine's own do, from the first link on
  void listen();
  bool is_linked(int d) const;  // it speaks to other processes
  void check_peers(int d, std::chrono::nanoseconds waited);

  std::mutex lock_;
  int working_ = 0;  // threads: all memory is open
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::shared_ptr<Event>> events_;
  std::map<int, std::unique_ptr<Device>> devices_;
  std::map<std::string, std::shared_ptr<Network>> networks_;  // by id
  std::vector<std::shared_ptr<Network>> linked_;
  bool has_threads_ = false;
  std::mt19937_64 random_;
  std::int64_t waiting_ = 0;  // in all queues
  std::int64_t pieces_ = 0;   // taken so far
  std::int64_t grown_ = 0;    // pieces where no memory was before
  std::int64_t sent_ = 0;     // bytes
};

}  // namespace haliax::cuda::sim
