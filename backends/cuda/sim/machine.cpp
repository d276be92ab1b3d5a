// The scheduler of the simulated machine; see machine.h.
#include "machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "base/environment.h"
#include "network.h"

namespace haliax::cuda::sim {
namespace {

constexpr std::int64_t kGuardBytes = 256;  // guard bytes after each allocation
constexpr unsigned char kNobody = 0xa5;
// queued operations; above this limit, the caller runs some of them
constexpr std::int64_t kMostWaiting = 512;
constexpr auto kPatience = std::chrono::seconds(30);
constexpr auto kLook = std::chrono::milliseconds(20);  // interval of checks of other processes
thread_local int writing = 0;                          // graphs that this thread captures

std::uint64_t seed() {
  return std::uint64_t(
      env_integer("HALIAX_SIMSEED", 0, std::numeric_limits<std::int64_t>::max()).value_or(0));
}
std::int64_t with_guard(std::int64_t bytes) { return (bytes + 255) / 256 * 256 + kGuardBytes; }

}  // namespace

Machine& Machine::instance() {
  static auto* one = new Machine;
  return *one;
}
Machine::Machine() : random_(seed()) {}
Machine::Device& Machine::device(int d) {
  auto& found = devices_[d];
  if (!found) {
    found = std::make_unique<Device>();
    found->memory.open(working_);
  }
  return *found;
}
void Machine::open(int by) {
  working_ += by;
  for (auto& [d, x] : devices_) x->memory.open(by);
}

int Graph::add(Work w, const std::vector<int>& predecessors) {
  const int n = int(work.size());
  work.push_back(std::move(w));
  after.push_back(int(predecessors.size()));
  then.emplace_back();
  for (int b : predecessors) then[std::size_t(b)].push_back(n);
  return n;
}
Running::Running(std::shared_ptr<const Graph> g)
    : graph(std::move(g)), left(graph->after), pending(graph->work.size()) {
  for (std::size_t k = 0; k < left.size(); ++k)
    if (left[k] == 0) ready.push_back(int(k));
}

// ---- queueing ----
Stream* Machine::make_stream(int d) {
  std::lock_guard hold(lock_);
  streams_.push_back(std::make_unique<Stream>(Stream{.device = d}));
  return streams_.back().get();
}
void Machine::end_stream(Stream* s) {
  std::lock_guard hold(lock_);
  waiting_ -= std::int64_t(s->queue.size());
  std::erase_if(streams_, [&](auto& x) { return x.get() == s; });
}
Event* Machine::make_event(int d) {
  std::lock_guard hold(lock_);
  events_.push_back(std::make_shared<Event>(d));
  return events_.back().get();
}
void Machine::end_event(Event* e) {
  std::lock_guard hold(lock_);
  std::erase_if(events_, [&](auto& x) { return x.get() == e; });
}
void Machine::refuse_if_failed(int d) {
  auto& of = device(d);
  if (!of.failed.empty() && of.lost) throw Lost(of.failed);
  if (!of.failed.empty()) throw Fault(of.failed);
}
void Machine::refuse_in_graph(const char* what) const {
  if (writing > 0) throw Error(fmt::format("[cuda-sim] this thread captures a graph and {}", what));
}
void Machine::enqueue_graph(Stream* s, std::shared_ptr<const Graph> g) {
  std::unique_lock held(lock_);
  refuse_if_failed(s->device);
  if (s->graph) throw Error("[cuda-sim] a graph is launched in a stream that is being captured");
  if (g->work.empty()) return;
  s->queue.emplace_back(std::move(g));
  ++waiting_;
  changed_.notify_all();
  if (waiting_ > kMostWaiting && writing == 0)
    work_until(held, -1, [&] { return waiting_ <= kMostWaiting / 2; });
}
void Machine::enqueue(Stream* s, Work w) {
  {
    std::lock_guard hold(lock_);
    if (s->graph) {
      if (w.kind == Work::Kind::exchange) s->graph->exchanges = true;
      w.ifs = s->ifs;
      s->graph->has_ifs |= !s->ifs.empty();
      s->tips = {s->graph->add(std::move(w), s->tips)};
      return;
    }
  }
  auto one = std::make_shared<Graph>();
  one->add(std::move(w), {});
  enqueue_graph(s, std::move(one));
}
void Machine::record(Event* e, Stream* s) {
  {
    std::lock_guard hold(lock_);
    if ((e->graph = s->graph)) {
      e->nodes = s->tips;
      return;
    }
    ++e->recorded;
  }
  enqueue(s, {.run = [this, e = e->shared_from_this(), times = e->recorded] {
            std::lock_guard hold(lock_);
            e->done = std::max(e->done, times);
            e->came = std::chrono::steady_clock::now();
          }});
}
void Machine::follow(Stream* s, Event* e) {
  {
    std::lock_guard hold(lock_);
    if (e->graph) {
      if (s->graph && s->graph != e->graph)
        throw Error("[cuda-sim] a stream follows an event of another graph");
      if (!s->graph) {
        e->graph->streams.push_back(s);
        s->tips.clear();
      }

      s->graph = e->graph;
      for (int n : e->nodes)
        if (std::count(s->tips.begin(), s->tips.end(), n) == 0) s->tips.push_back(n);
      return;
    }
    if (s->graph)
      throw Error("[cuda-sim] a stream that is being captured follows an event that is not");
  }
  enqueue(s, {.kind = Work::Kind::follow, .event = e->shared_from_this(), .times = e->recorded});
}

// ---- graphs ----
void Machine::begin_graph(Stream* s) {
  std::lock_guard hold(lock_);
  if (s->graph || !s->queue.empty())
    throw Error("[cuda-sim] a capture begins in a stream that has pending work");
  s->graph = new Graph;
  s->tips.clear();
  s->graph->streams = {s};
  ++writing;
}
std::shared_ptr<const Graph> Machine::end_graph(Stream* s) {
  std::lock_guard hold(lock_);
  --writing;
  std::shared_ptr<Graph> g(s->graph);
  const auto tips = s->tips;
  const bool mixed = g->exchanges && g->has_ifs;
  for (auto* other : g->streams) {
    other->graph = nullptr;
    other->tips.clear();
  }

  g->streams.clear();
  for (auto& e : events_)
    if (e->graph == g.get()) e->graph = nullptr;
  if (mixed)
    throw Error(
        "[cuda-sim] a graph has communication and conditional nodes: NCCL does not support this");
  for (std::size_t n = 0; n < g->work.size(); ++n)
    if (g->then[n].empty() && std::count(tips.begin(), tips.end(), int(n)) == 0)
      throw Error("[cuda-sim] a capture ends, but a stream that was not joined has pending work");
  return g;
}
// The body of the node is in the same graph, after the work of s so far.
void Machine::begin_if(Stream* s, Stream* inside, std::shared_ptr<const unsigned> runs) {
  std::lock_guard hold(lock_);
  if (!s->graph) throw Error("[cuda-sim] a conditional node begins outside of a graph capture");
  inside->graph = s->graph;
  inside->tips = s->tips;
  inside->ifs = s->ifs;
  inside->ifs.push_back(runs);
  s->graph->conditions.push_back(std::move(runs));
  inside->around = s;
  s->graph->streams.push_back(inside);
}
void Machine::end_if(Stream* inside) {
  std::lock_guard hold(lock_);
  if (inside->graph) {
    inside->around->tips = inside->tips;
    std::erase(inside->graph->streams, inside);
  }
  std::erase_if(streams_, [&](auto& x) { return x.get() == inside; });
}
void Machine::run_graph(Stream* s, std::shared_ptr<const Graph> g) {
  enqueue_graph(s, std::move(g));
}

// ---- execution ----
bool Machine::is_ready(Running& r, int node) {
  auto& w = r.graph->work[std::size_t(node)];
  if (w.kind == Work::Kind::follow) return w.event->done >= w.times;
  auto& pending = r.pending[std::size_t(node)];
  return w.kind == Work::Kind::plain || !pending || !w.network->failed.empty() ||
         w.network->has_ended(*pending);
}
std::vector<Machine::Choice> Machine::choices() {
  std::vector<Choice> out;
  for (auto& s : streams_) {
    if (s->busy || s->queue.empty()) continue;
    auto& r = s->queue.front();
    for (std::size_t k = 0; k < r.ready.size(); ++k)
      if (is_ready(r, r.ready[k])) out.push_back({s.get(), k});
  }
  return out;
}
void Machine::finish(Stream* s, Running& r, std::size_t at, int node) {
  r.ready.erase(r.ready.begin() + std::ptrdiff_t(at));
  for (int k : r.graph->then[std::size_t(node)])
    if (--r.left[std::size_t(k)] == 0) r.ready.push_back(k);
  if (++r.done == r.left.size()) {
    s->queue.pop_front();
    --waiting_;
  }
}
void Machine::work_on(std::unique_lock<std::mutex>& held, Choice c) {
  auto& r = c.stream->queue.front();
  const int node = r.ready[c.at];
  auto& w = r.graph->work[std::size_t(node)];
  const int d = c.stream->device;
  try {
    if (w.kind == Work::Kind::exchange) {
      auto& pending = r.pending[std::size_t(node)];
      if (!w.network->failed.empty()) throw Error(w.network->failed);
      if (!pending) {
        pending = w.network->begin(w.rank, w.transfers);
        for (auto& t : w.transfers) sent_ += t.sends ? t.bytes : 0;
      }
      changed_.notify_all();
      if (!w.network->has_ended(*pending)) return;
    } else if (w.kind == Work::Kind::plain) {
      c.stream->busy = true;
      held.unlock();
      try {
        if (std::all_of(w.ifs.begin(), w.ifs.end(), [](auto& runs) { return *runs != 0; })) w.run();
      } catch (...) {
        held.lock();
        c.stream->busy = false;
        throw;
      }
      held.lock();
      c.stream->busy = false;
    }
    finish(c.stream, r, c.at, node);
    if (auto& why = device(d).failed; !why.empty()) failed(d, why);  // failed by another stream
  } catch (const std::exception& e) {
    failed(d, e.what());
  }
  changed_.notify_all();
}
void Machine::failed(int d, const std::string& why, bool lost) {
  device(d).failed = why;
  device(d).lost = lost;
  for (auto& s : streams_)
    if (s->device == d && !s->busy) {
      waiting_ -= std::int64_t(s->queue.size());
      s->queue.clear();
    }

  for (auto& [id, n] : networks_)
    if (std::count(n->devices.begin(), n->devices.end(), d) > 0)
      n->fail(fmt::format("device {} has failed: {}", d, why));
  for (auto& n : linked_)
    if (n->devices[std::size_t(n->linked)] != d)
      continue;
    else if (lost)
      n->failed = why;  // peers detect the failure by themselves
    else
      n->fail(fmt::format("rank {} has failed: {}", n->linked, why));
  changed_.notify_all();
}
// of_device: the device whose work is needed; -1: all devices, as far as possible.
void Machine::work_until(std::unique_lock<std::mutex>& held, int of_device,
                         const std::function<bool()>& done) {
  struct Opened {
    Machine& m;
    explicit Opened(Machine& machine) : m(machine) { m.open(1); }
    ~Opened() { m.open(-1); }
  };
  {
    Opened all_memory(*this);
    auto since = std::chrono::steady_clock::now();
    while (!done() && (of_device < 0 || device(of_device).failed.empty())) {
      if (auto all = choices(); !all.empty()) {
        work_on(held, all[random_() % all.size()]);
        since = std::chrono::steady_clock::now();
        continue;
      }
      if (of_device < 0) return;
      if (is_linked(of_device)) {
        changed_.wait_for(held, kLook);
        check_peers(of_device, std::chrono::steady_clock::now() - since);
        continue;
      }
      auto busy = std::any_of(streams_.begin(), streams_.end(), [](auto& s) { return s->busy; });
      if (changed_.wait_for(held, kPatience) == std::cv_status::timeout && !busy &&
          choices().empty())
        failed(of_device, "communication timed out: another device has not made the matching call");
    }
    if (of_device >= 0) check_guard(of_device);
  }
  if (of_device >= 0) refuse_if_failed(of_device);
}
void Machine::wait(Stream* s) {
  refuse_in_graph("waits");
  std::unique_lock held(lock_);
  refuse_if_failed(s->device);
  work_until(held, s->device, [&] { return s->queue.empty(); });
}
void Machine::wait(Event* e) {
  refuse_in_graph("waits");
  std::unique_lock held(lock_);
  refuse_if_failed(e->device);
  work_until(held, e->device, [e, times = e->recorded] { return e->done >= times; });
}

double Machine::seconds(const Event* from, const Event* to) {
  std::lock_guard hold(lock_);
  for (auto* e : {from, to})
    if (e->recorded == 0 || e->done < e->recorded)
      throw Error("[cuda-sim] the time of an unfinished event is queried");
  return std::chrono::duration<double>(to->came - from->came).count();
}

// ---- memory ----
std::byte* Machine::allocate(Stream* s, std::int64_t bytes) {
  refuse_in_graph("allocates memory");
  std::byte* got = nullptr;
  std::int64_t number = 0;
  {
    std::lock_guard hold(lock_);
    refuse_if_failed(s->device);
    auto& d = device(s->device);
    if (d.used + with_guard(bytes) > d.limit || !(got = d.memory.take(with_guard(bytes))))
      return nullptr;
    d.used += with_guard(bytes);
    d.held += bytes;
    d.most_held = std::max(d.most_held, d.held);
    if (auto* end = got + with_guard(bytes); end > d.end) {
      d.end = end;
      ++grown_;
    }

    d.taken[got] = {bytes, number = ++pieces_};
  }
  enqueue(s, {.run = [this, d = s->device, got, bytes, number] {
            std::memset(got, 0xff, std::size_t(bytes));  // NaN: unwritten memory
            std::memset(got + bytes, kNobody, std::size_t(with_guard(bytes) - bytes));
            std::lock_guard hold(lock_);
            auto& taken = device(d).taken;
            if (auto piece = taken.find(got);
                piece != taken.end() && piece->second.number == number)
              piece->second.written = true;
          }});
  return got;
}
void Machine::check_guard(int d) {
  for (auto& [at, piece] : device(d).taken) {
    const auto bytes = piece.bytes;
    auto* from = reinterpret_cast<const unsigned char*>(at) + bytes;
    const auto n = with_guard(bytes) - bytes;
    if (!piece.written || std::all_of(from, from + n, [](unsigned char c) { return c == kNobody; }))
      continue;
    failed(d, fmt::format("a write past the end of {} bytes of memory", bytes));
  }
}
void Machine::release(Stream* s, std::byte* at) {
  std::lock_guard hold(lock_);
  auto& d = device(s->device);
  auto found = d.taken.find(at);
  d.used -= with_guard(found->second.bytes);
  d.held -= found->second.bytes;
  d.taken.erase(found);
  d.memory.give_back(at, false);  // queued work may still use it
}
std::int64_t Machine::free_bytes(int d) {
  std::lock_guard hold(lock_);
  return device(d).limit - device(d).used;
}
std::pair<std::int64_t, std::int64_t> Machine::held(int d) {
  std::lock_guard hold(lock_);
  auto& x = device(d);
  return {x.held, std::exchange(x.most_held, x.held)};
}
void Machine::set_memory(int d, std::int64_t bytes) {
  std::lock_guard hold(lock_);
  device(d).limit = bytes;
}
void Machine::fail(int d, const std::string& why) {
  std::lock_guard hold(lock_);
  why.empty() ? device(d).failed.clear() : failed(d, why);
}

// ---- networks ----
std::shared_ptr<Network> Machine::join(const std::string& id, int ranks, int rank, int d) {
  std::lock_guard hold(lock_);
  auto& n = networks_[id];
  if (!n) {
    n = std::make_shared<Network>();
    n->devices.assign(std::size_t(ranks), -1);
  }

  if (n->devices.at(std::size_t(rank)) != -1 ||
      std::count(n->devices.begin(), n->devices.end(), d) > 0)
    throw Error(fmt::format(
        "[cuda-sim] device {} joins as rank {}, but that rank or device has already joined", d,
        rank));
  n->devices[std::size_t(rank)] = d;
  ++n->joined;
  return n;
}
// Background threads make progress, because peers wait for this process even if none of its threads
// waits.
std::shared_ptr<Network> Machine::join(std::unique_ptr<Links> links, const Check& check, int ranks,
                                       int rank, int d) {
  auto n = std::make_shared<Network>();
  n->devices.assign(std::size_t(ranks), -1);
  n->devices[std::size_t(rank)] = d;
  n->links = std::move(links);
  n->linked = rank;
  n->check = check;
  n->joined = 1;
  std::lock_guard hold(lock_);
  if (std::exchange(has_threads_, true) == false) {
    std::thread([this] { go_on(); }).detach();
    std::thread([this] { listen(); }).detach();
  }
  return linked_.emplace_back(std::move(n));
}
void Machine::go_on() {
  std::unique_lock held(lock_);
  for (;; changed_.wait(held))
    if (!linked_.empty() && !choices().empty()) work_until(held, -1, [] { return false; });
}
void Machine::listen() {
  for (std::vector<pollfd> all;; all.clear()) {
    {
      std::lock_guard hold(lock_);
      for (auto& n : linked_) n->links->add_to(all);
    }
    ::poll(all.data(), all.size(), 10);
    std::lock_guard hold(lock_);
    if (linked_.empty()) continue;
    open(1);
    for (auto& n : linked_) n->look();
    open(-1);
    changed_.notify_all();
  }
}
bool Machine::is_linked(int d) const {
  return std::any_of(linked_.begin(), linked_.end(),
                     [d](auto& n) { return n->devices[std::size_t(n->linked)] == d; });
}
void Machine::check_peers(int d, std::chrono::nanoseconds waited) {
  for (auto& n : linked_) {
    if (n->devices[std::size_t(n->linked)] != d) continue;
    try {
      n->check(waited);
    } catch (const Error& e) {
      return failed(d, e.what(), true);
    }
  }
}
void Machine::abort(Network& n) {
  std::lock_guard hold(lock_);
  n.aborted = true;
  n.sides.clear();
  changed_.notify_all();
}
void Machine::leave(Network& n) {
  std::lock_guard hold(lock_);
  if (--n.joined > 0) return;
  std::erase_if(networks_, [&](auto& x) { return x.second.get() == &n; });
  std::erase_if(linked_, [&](auto& x) { return x.get() == &n; });
}

}  // namespace haliax::cuda::sim
