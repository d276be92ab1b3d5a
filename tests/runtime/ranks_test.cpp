// Ranks, as threads of this process that send each other messages: what collectives give and send, and what becomes of a rank that
// fails. (tests/ranks_test.py runs real ones.)
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "base/scalar.h"
#include "runtime/communicator.h"
#include "runtime/rank_communicator.h"
#include "support/raises.h"

using namespace haliax;
using namespace std::chrono_literals;
using program::Collective;
using program::Dims;
using program::Wire;

namespace {

using Bytes = std::vector<std::byte>;

// Messages lie in the order in which they were sent until somebody asks for them.
struct Post {
  struct Letter {
    int from, tag;
    Bytes text;
  };
  std::mutex lock;
  std::map<std::pair<int, int>, std::deque<Letter>> boxes;   // by channel and receiver
};
class SimulatedRanks final : public program::Ranks {
 public:
  SimulatedRanks(Post& post, int rank, int count, int tags) : post_(post), rank_(rank), count_(count), tags_(tags) {}
  int rank() const override { return rank_; }
  int count() const override { return count_; }
  std::string where() const override { return "here"; }
  int tags() const override { return tags_; }
  Message send(Channel c, int to, int tag, const void* data, std::int64_t bytes) override {
    REQUIRE((tag >= 0 && tag < tags_));
    auto* p = static_cast<const std::byte*>(data);
    std::lock_guard hold(post_.lock);
    if (!silent) post_.boxes[{int(c), to}].push_back({rank_, tag, Bytes(p, p + bytes)});
    return {};
  }
  Message receive(Channel c, int from, int tag, void* data, std::int64_t bytes) override {
    return {new Wanted{c, from, tag, data, bytes}};
  }
  bool done(Message& m) override {
    if (!m.handle) return true;
    auto& w = *static_cast<Wanted*>(m.handle);
    std::lock_guard hold(post_.lock);
    auto& box = post_.boxes[{int(w.channel), rank_}];
    auto found = std::find_if(box.begin(), box.end(), [&](auto& l) { return l.from == w.from && l.tag == w.tag; });
    if (found == box.end()) return false;
    if (std::int64_t(found->text.size()) != w.bytes) throw Error("[ranks] a message of another length");
    if (w.bytes > 0) std::memcpy(w.data, found->text.data(), found->text.size());
    box.erase(found);
    delete &w;
    m.handle = nullptr;
    return true;
  }
  std::optional<Envelope> waiting(Channel c, int from, int tag) override {
    std::lock_guard hold(post_.lock);
    for (auto& l : post_.boxes[{int(c), rank_}])
      if ((from < 0 || l.from == from) && (tag < 0 || l.tag == tag)) return Envelope{l.from, l.tag, std::int64_t(l.text.size())};
    return {};
  }
  void leave(bool) override {}
  std::atomic<bool> silent = false;                           // nothing leaves any more

 private:
  struct Wanted {
    Channel channel;
    int from, tag;
    void* data;
    std::int64_t bytes;
  };
  Post& post_;
  int rank_, count_, tags_;
};

// f(its peers, its carrier) on each of n ranks at once; gives what each raised.
std::vector<std::string> on_ranks(int n, const std::function<void(Peers&, SimulatedRanks&)>& f,
                                  std::chrono::milliseconds patience = 0ms, int tags = 1 << 30) {
  Post post;
  std::vector<std::string> said(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      SimulatedRanks carrier(post, r, n, tags);
      Peers peers(carrier, patience);
      try {
        f(peers, carrier);
      } catch (const std::exception& e) {
        said[std::size_t(r)] = e.what();
        if (!dynamic_cast<const Elsewhere*>(&e)) peers.fail(e.what());
      }
      peers.leave();
    });
  for (auto& t : threads) t.join();
  return said;
}

struct Array {                                   // on one device
  program::Operand how;
  Bytes memory;
};
Array made(const Dims& dims, DType dtype, std::mt19937& dice, bool filled) {
  Array a;
  a.how.dims = dims, a.how.view.dtype = dtype;
  std::vector<std::size_t> order(dims.size());
  for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
  std::shuffle(order.begin(), order.end(), dice);
  a.how.view.strides.resize(dims.size());
  std::int64_t stride = 1;
  for (auto d : order) a.how.view.strides[d] = stride, stride *= dims[d] + std::int64_t(dice() % 3 == 0);
  a.memory.resize(std::size_t(std::max<std::int64_t>(stride, 1) * bytes_of(dtype)));
  for (std::size_t i = 0; filled && i < a.memory.size(); i += std::size_t(bytes_of(dtype))) {
    auto v = double(int(dice() % 2001)) / 100 - 10;
    if (dice() % 50 == 0) v *= 1e6;
    scalar::store(dtype, a.memory.data() + i, {v, std::int64_t(v * 10)});
  }
  return a;
}
// One collective of several devices: what each gives, and room for what it gets.
struct Exchange {
  std::vector<Collective> how;                   // by device
  std::vector<std::vector<Array>> x, out;
};
Exchange drawn(const Mesh& mesh, std::mt19937& dice) {
  static const DType dtypes[] = {DType::f32, DType::bf16, DType::f64, DType::f16, DType::i32, DType::u8, DType::boolean};
  Exchange e;
  const int n = mesh.devices();
  e.how.resize(std::size_t(n)), e.x.resize(std::size_t(n)), e.out.resize(std::size_t(n));
  std::vector<int> over;
  for (int a = 0; a < int(mesh.axes().size()); ++a)
    if (over.empty() || dice() % 2) over.push_back(a);
  if (dice() % 2) std::reverse(over.begin(), over.end());
  const auto wire = Wire(dice() % 3);
  const auto monoid = program::Monoid(dice() % 4);
  const auto ranks = std::int64_t(group_of(mesh, over, 0).size());
  for (auto arrays = 1 + dice() % 3; arrays > 0; --arrays) {
    const auto dtype = dtypes[dice() % std::size(dtypes)];
    Dims whole;
    for (auto d = 1 + dice() % 3; d > 0; --d) whole.push_back(std::int64_t(1 + dice() % 9));
    if (dice() % 8 == 0) whole[0] = 70'000;      // several messages
    const auto dim = std::size_t(dice() % whole.size());
    const auto step = (whole[dim] + ranks - 1) / ranks;
    for (int d = 0; d < n; ++d) {
      const auto group = group_of(mesh, over, d);
      const auto at = std::int64_t(std::find(group.begin(), group.end(), d) - group.begin());
      Dims block = whole;
      block[dim] = std::clamp<std::int64_t>(whole[dim] - at * step, 0, step);
      auto& how = e.how[std::size_t(d)];
      how.wire = wire, how.over = over, how.monoid = monoid;
      how.dim.push_back(int(dim)), how.size.push_back(whole[dim]);
      e.x[std::size_t(d)].push_back(made(wire == Wire::all_gather ? block : whole, dtype, dice, true));
      e.out[std::size_t(d)].push_back(made(wire == Wire::reduce_scatter ? block : whole, dtype, dice, false));
      how.x.push_back(e.x[std::size_t(d)].back().how), how.out.push_back(e.out[std::size_t(d)].back().how);
    }
  }
  return e;
}
void run(Exchange& e, int device, program::Communicator& c) {
  std::vector<const void*> x;
  std::vector<void*> out;
  for (auto& a : e.x[std::size_t(device)]) x.push_back(a.memory.data());
  for (auto& a : e.out[std::size_t(device)]) out.push_back(a.memory.data());
  c.run(e.how[std::size_t(device)], x.data(), out.data(), nullptr, 0);
}
// What all devices together send on a ring, in bytes.
std::int64_t ring_bytes(const Exchange& e, const Mesh& mesh) {
  std::int64_t sum = 0;
  for (int d = 0; d < mesh.devices(); ++d) {
    auto& how = e.how[std::size_t(d)];
    const auto others = std::int64_t(group_of(mesh, how.over, d).size()) - 1;
    for (std::size_t k = 0; k < how.x.size(); ++k) {
      auto bytes = [&](const program::Operand& o) { return program::points(o.dims) * bytes_of(o.view.dtype); };
      if (how.wire == Wire::all_gather) sum += others * bytes(how.x[k]);
      else if (how.wire == Wire::reduce_scatter) sum += bytes(how.x[k]) - bytes(how.out[k]);
      else sum += d == group_of(mesh, how.over, d)[0] ? 2 * others * bytes(how.x[k]) : 0;   // of the group
    }
  }
  return sum;
}

}  // namespace

TEST_CASE("ranks: collectives have the bits of threads, and send what a ring sends") {
  const Mesh meshes[] = {Mesh{{{"a", 2}}}, Mesh{{{"a", 3}}}, Mesh{{{"a", 2}, {"b", 2}}}, Mesh{{{"a", 2}, {"b", 3}}}, Mesh{{{"a", 5}}}};
  std::mt19937 dice(7);
  for (int round = 0; round < 60; ++round) {
    const auto& mesh = meshes[std::size_t(round) % std::size(meshes)];
    auto wanted = drawn(mesh, dice);
    auto got = wanted;
    on_devices(mesh, [&](int d, program::Communicator& c) { run(wanted, d, c); });
    const int each = mesh.devices() % 2 == 0 && round % 2 ? 2 : 1;   // devices a rank
    std::atomic<std::int64_t> sent = 0;
    const auto said = on_ranks(mesh.devices() / each, [&](Peers& peers, SimulatedRanks&) {
      Peers::Call call(peers, "a test");
      std::vector<std::thread> devices;
      for (int k = 0; k < each; ++k)
        devices.emplace_back([&, k] {
          const int d = peers.rank() * each + k;
          RankCommunicator c(peers, call, mesh, d);
          run(got, d, c);
        });
      for (auto& t : devices) t.join();
      sent += peers.sent_bytes();
    }, 0ms, round % 3 ? 1 << 30 : 1 << 15);
    for (auto& s : said) REQUIRE(s == "");
    for (int d = 0; d < mesh.devices(); ++d)
      for (std::size_t k = 0; k < got.out[std::size_t(d)].size(); ++k)
        REQUIRE(got.out[std::size_t(d)][k].memory == wanted.out[std::size_t(d)][k].memory);
    if (each == 1) REQUIRE(sent == ring_bytes(got, mesh));
  }
}

TEST_CASE("ranks: one that raises is named by all others") {
  const auto said = on_ranks(4, [](Peers& peers, SimulatedRanks&) {
    if (peers.rank() == 2) throw Error("[disk] it is full");
    for (;;) {
      peers.check();
      std::this_thread::sleep_for(1ms);
    }
  });
  for (int r : {0, 1, 3}) {
    CHECK(has(said[std::size_t(r)], "[ranks] rank 2 (here, process "));
    CHECK(has(said[std::size_t(r)], "has failed: [disk] it is full"));
  }
}

TEST_CASE("ranks: one that falls silent is named") {
  const auto said = on_ranks(3, [](Peers& peers, SimulatedRanks& carrier) {
    carrier.silent = peers.rank() == 1;
    for (;;) {
      peers.check();
      std::this_thread::sleep_for(1ms);
    }
  }, 2s);
  for (int r : {0, 2}) CHECK(has(said[std::size_t(r)], "rank 1 has said nothing for 2"));
}

TEST_CASE("ranks: calls that differ, and a rank that has ended") {
  const Mesh two{{{"a", 2}}};
  std::mt19937 dice(3);
  for (const std::string how : {"other call", "other collective", "ended"}) {
    CAPTURE(how);
    auto one = drawn(two, dice), other = drawn(two, dice);
    for (auto* e : {&one, &other})
      for (auto& c : e->how) c.wire = Wire::all_reduce, c.out = c.x;
    for (std::size_t d = 0; d < 2; ++d) one.out[d] = one.x[d], other.out[d] = other.x[d], other.how[d].monoid = program::Monoid::prod;
    for (auto& c : one.how) c.monoid = program::Monoid::sum;
    const auto said = on_ranks(2, [&](Peers& peers, SimulatedRanks&) {
      const bool second = peers.rank() == 1;
      if (second && how == "ended") return;
      Peers::Call call(peers, second && how == "other call" ? "jit at b.cpp:2" : "jit at a.cpp:1");
      RankCommunicator c(peers, call, two, peers.rank());
      run(second ? other : one, peers.rank(), c);
    });
    CHECK(has(said[0], how == "ended" ? "[ranks] rank 1 has ended, and rank 0 waits for it at jit at a.cpp:1 (call 1); all ranks make"
                                      : "makes another call than rank"));
  }
}

TEST_CASE("ranks: all say what they are about to do, and what differs is named") {
  const auto said = on_ranks(3, [](Peers& peers, SimulatedRanks&) {
    Peers::Call call(peers, "a first call");
    peers.agree({{"version", "1"}, {"mesh", "data=3"}, {"plan", "17", false}});
    peers.agree({{"mesh", peers.rank() == 2 ? "data=2" : "data=3"}, {"plan", std::to_string(peers.rank()), false}});
  });
  for (auto& s : said) CHECK(s == "[ranks] rank 1 has another plan than rank 0; all ranks run the same program, with the same arguments and environment");
  const auto shown = on_ranks(3, [](Peers& peers, SimulatedRanks&) {
    Peers::Call call(peers, "a first call");
    peers.agree({{"mesh", peers.rank() == 2 ? "data=2" : "data=3"}});
  });
  for (auto& s : shown) CHECK(has(s, "rank 2 has another mesh than rank 0: data=2, and not data=3; all ranks run"));
}
