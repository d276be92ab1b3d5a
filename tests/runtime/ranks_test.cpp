// Ranks as threads of this process that send messages to each other: results and bytes of
// collectives, and failures of a rank. tests/ranks_test.py runs real processes.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "base/scalar.h"
#include "devices/communicator.h"
#include "devices/rank_communicator.h"
#include "support/raises.h"
#include "support/simulated_ranks.h"

using namespace haliax;
using namespace test;
using namespace std::chrono_literals;
using program::Collective;
using program::Dims;
using program::CollectiveKind;

namespace {

struct Array {  // an array on one device
  program::Operand how;
  Bytes memory;
  std::int64_t first = 0;  // byte offset of element (0, 0, ...)
};
// Returns an array with a random memory layout: any order of dims, gaps, and negative strides. An
// array that is only read may also repeat along a dim.
Array made(const Dims& dims, DType dtype, std::mt19937& dice, bool filled) {
  Array a;
  a.how.dims = dims;
  a.how.view.dtype = dtype;
  std::vector<std::size_t> order(dims.size());
  for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
  if (dice() % 2)
    std::shuffle(order.begin(), order.end(), dice);
  else
    std::reverse(order.begin(), order.end());
  a.how.view.strides.resize(dims.size());
  std::int64_t stride = 1;
  for (auto d : order) {
    auto& of_dim = a.how.view.strides[d];
    of_dim = stride;
    if (filled && dice() % 10 == 0)
      of_dim = 0;
    else
      stride *= dims[d] + std::int64_t(dice() % 3 == 0);
    if (dice() % 10 == 0 && dims[d] > 0) a.first -= (dims[d] - 1) * (of_dim = -of_dim);
  }
  a.memory.resize(std::size_t(std::max<std::int64_t>(stride, 1) * bytes_of(dtype)));
  a.first *= bytes_of(dtype);
  for (std::size_t i = 0; filled && i < a.memory.size(); i += std::size_t(bytes_of(dtype))) {
    auto v = double(int(dice() % 2001)) / 100 - 10;
    if (dice() % 50 == 0) v *= 1e6;
    if (dice() % 50 == 0) v = NAN;
    auto bits = std::uint64_t(dice()) << 32 | dice();
    scalar::store(dtype, a.memory.data() + i, {v, std::int64_t(dice() % 2 ? bits : bits % 100)});
  }
  return a;
}
// One collective of several devices: the inputs and the outputs of each.
struct Exchange {
  std::vector<Collective> how;  // by device
  std::vector<std::vector<Array>> x, out;
};
Dims drawn_dims(std::mt19937& dice) {
  Dims full;
  for (auto d = 1 + dice() % 3; d > 0; --d) full.push_back(std::int64_t(1 + dice() % 9));
  if (dice() % 6 == 0) full.back() = 1'000 + std::int64_t(dice() % 300);
  if (dice() % 24 == 0) full = {70'000, 2};  // several messages
  return full;
}
void add_array(Exchange& e, int device, const Dims& x, const Dims& out, DType dtype,
               std::mt19937& dice) {
  auto d = std::size_t(device);
  e.x[d].push_back(made(x, dtype, dice, true));
  e.out[d].push_back(made(out, dtype, dice, false));
  e.how[d].x.push_back(e.x[d].back().how);
  e.how[d].out.push_back(e.out[d].back().how);
}
// Draws an all-to-all: each device has an array of its own size and sends strided boxes of it to
// any devices.
void draw_boxes(Exchange& e, const Mesh& mesh, const std::vector<int>& over, std::mt19937& dice) {
  const int n = mesh.devices();
  const auto dtype = DType(dice() % 13);
  const auto rows = std::int64_t(1 + dice() % 40), columns = std::int64_t(1 + dice() % 9);
  std::vector<std::int64_t> got(std::size_t(n),
                                0);  // rows of the results that are already assigned
  std::vector<std::tuple<int, int, program::BoxTransfer, program::BoxTransfer>> all;
  for (int from = 0; from < n; ++from)
    for (int to : group_of(mesh, over, from))
      for (auto parcels = dice() % 3; parcels > 0; --parcels) {
        const auto step = std::int64_t(1 + dice() % 3), start = std::int64_t(dice()) % rows;
        const Dims dims{1 + std::int64_t(dice()) % ((rows - start + step - 1) / step), columns};
        all.push_back({from,
                       to,
                       {to, 0, {start, 0}, dims, {step, 1}},
                       {from, 0, {got[std::size_t(to)], 0}, dims, {1, 1}}});
        got[std::size_t(to)] += dims[0];
      }
  for (int d = 0; d < n; ++d)
    add_array(e, d, {rows, columns}, {std::max<std::int64_t>(got[std::size_t(d)], 1), columns},
              dtype, dice);
  for (auto& [from, to, sent, received] : all) {
    e.how[std::size_t(from)].sends.push_back(sent);
    e.how[std::size_t(to)].receives.push_back(received);
  }

  const auto skip_flag = program::SkipFlag(dice() % 3);
  if (skip_flag == program::SkipFlag::nothing) return;
  for (int k = 0; k < n; ++k) {
    const auto d = std::size_t(k);
    Array flag{{{}, {0, DType::boolean, 0, {}, {}}}, {std::byte(dice() % 2)}};
    e.x[d].push_back(flag);
    e.how[d].x.push_back(flag.how);
    e.how[d].skip_flag = skip_flag;
    // Outputs of skipped devices stay unchanged.
    for (auto& a : e.out[d]) std::fill(a.memory.begin(), a.memory.end(), std::byte(77));
  }
}
bool takes_part(const Exchange& e, int device) {
  return e.x[std::size_t(device)].back().memory[0] != std::byte(0);
}
Exchange drawn(const Mesh& mesh, std::mt19937& dice, int kinds = 3) {
  Exchange e;
  const int n = mesh.devices();
  e.how.resize(std::size_t(n));
  e.x.resize(std::size_t(n));
  e.out.resize(std::size_t(n));
  std::vector<int> over;
  for (int a = 0; a < int(mesh.axes().size()); ++a)
    if (over.empty() || dice() % 2) over.push_back(a);
  if (dice() % 2) std::reverse(over.begin(), over.end());
  const auto wire = CollectiveKind(dice() % unsigned(kinds));
  const auto monoid = program::Monoid(dice() % 4);
  for (auto& how : e.how) {
    how.kind = wire;
    how.over = over;
    how.monoid = monoid;
  }

  if (wire == CollectiveKind::exchange) {
    draw_boxes(e, mesh, over, dice);
    return e;
  }

  const auto ranks = std::int64_t(group_of(mesh, over, 0).size());
  for (auto arrays = 1 + dice() % 3; arrays > 0; --arrays) {
    const auto dtype = DType(dice() % 13);
    const auto full = drawn_dims(dice);
    const auto dim = std::size_t(dice() % full.size());
    const auto step = (full[dim] + ranks - 1) / ranks;
    for (int d = 0; d < n; ++d) {
      const auto group = group_of(mesh, over, d);
      const auto at = std::int64_t(std::find(group.begin(), group.end(), d) - group.begin());
      Dims block = full;
      block[dim] = std::clamp<std::int64_t>(full[dim] - at * step, 0, step);
      e.how[std::size_t(d)].dim.push_back(int(dim));
      e.how[std::size_t(d)].size.push_back(full[dim]);
      add_array(e, d, wire == CollectiveKind::all_gather ? block : full,
                wire == CollectiveKind::reduce_scatter ? block : full, dtype, dice);
    }
  }
  return e;
}
// Computes the expected results, one element after the other.
std::byte* element(Array& a, const Dims& at) {
  auto offset = a.first;
  for (std::size_t d = 0; d < at.size(); ++d)
    offset += at[d] * a.how.view.strides[d] * bytes_of(a.how.view.dtype);
  return a.memory.data() + offset;
}
template <class F> void each_point(const Dims& dims, F f) {
  for (std::int64_t k = 0; k < program::points(dims); ++k) {
    Dims at(dims.size());
    auto rest = k;
    for (auto d = dims.size(); d-- > 0; rest /= dims[d]) at[d] = rest % dims[d];
    f(at);
  }
}
void fold_in(program::Monoid m, DType dtype, scalar::Value& sum, scalar::Value v) {
  const bool wide = dtype == DType::f64;
  auto number = [&](double x) { return wide ? x : double(float(x)); };
  switch (m) {
    case program::Monoid::sum:
      sum = {number(sum.real + v.real),
             std::int64_t(std::uint64_t(sum.integer) + std::uint64_t(v.integer))};
      return;
    case program::Monoid::prod:
      sum = {number(sum.real * v.real),
             std::int64_t(std::uint64_t(sum.integer) * std::uint64_t(v.integer))};
      return;
    case program::Monoid::max:
    case program::Monoid::min:
      if (scalar::is_nan(dtype, sum)) return;
      if (scalar::is_nan(dtype, v) ||
          (m == program::Monoid::max ? scalar::less(dtype, sum, v) : scalar::less(dtype, v, sum)))
        sum = v;
  }
}
void by_elements(Exchange& e, const Mesh& mesh) {
  for (int device = 0; device < mesh.devices(); ++device) {
    auto& how = e.how[std::size_t(device)];
    const auto group = group_of(mesh, how.over, device);
    const auto mine = std::int64_t(std::find(group.begin(), group.end(), device) - group.begin());
    std::map<int, std::size_t> next;
    for (auto& got : how.receives) {
      auto& sends = e.how[std::size_t(got.device)].sends;
      while (sends[next[got.device]].device != device) ++next[got.device];
      auto& sent = sends[next[got.device]++];
      const bool other = got.device != device;
      if (other && how.skip_flag == program::SkipFlag::unread && !takes_part(e, device)) continue;
      const bool zeros =
          other && how.skip_flag == program::SkipFlag::zeros && !takes_part(e, got.device);
      each_point(got.dims, [&](const Dims& i) {
        Dims from = sent.start, to = got.start;
        for (std::size_t d = 0; d < i.size(); ++d) {
          from[d] += i[d] * sent.step[d];
          to[d] += i[d];
        }

        auto* at = element(e.out[std::size_t(device)][0], to);
        const auto width = std::size_t(bytes_of(how.out[0].view.dtype));
        if (zeros)
          std::memset(at, 0, width);
        else
          std::memcpy(at, element(e.x[std::size_t(got.device)][0], from), width);
      });
    }
    for (std::size_t k = 0; how.kind != CollectiveKind::exchange && k < how.out.size(); ++k) {
      const auto dtype = how.out[k].view.dtype;
      const auto dim = std::size_t(how.dim[k]);
      const auto step = (how.size[k] + std::int64_t(group.size()) - 1) / std::int64_t(group.size());
      auto x = [&](std::int64_t g) -> Array& { return e.x[std::size_t(group[std::size_t(g)])][k]; };
      each_point(how.out[k].dims, [&](const Dims& at) {
        auto from = at;
        auto* to = element(e.out[std::size_t(device)][k], at);
        if (how.kind == CollectiveKind::all_gather) {
          from[dim] %= step;
          std::memcpy(to, element(x(at[dim] / step), from), std::size_t(bytes_of(dtype)));
          return;
        }
        if (how.kind == CollectiveKind::reduce_scatter) from[dim] += mine * step;
        auto sum = scalar::load(dtype, element(x(0), from));
        for (std::int64_t g = 1; g < std::int64_t(group.size()); ++g)
          fold_in(how.monoid, dtype, sum, scalar::load(dtype, element(x(g), from)));
        scalar::store(dtype, to, sum);
      });
    }
  }
}
void run(Exchange& e, int device, program::Communicator& c) {
  std::vector<const void*> x;
  std::vector<void*> out;
  for (auto& a : e.x[std::size_t(device)]) x.push_back(a.memory.data() + a.first);
  for (auto& a : e.out[std::size_t(device)]) out.push_back(a.memory.data() + a.first);
  c.run(e.how[std::size_t(device)], x.data(), out.data(), nullptr, 0);
}
// Returns the bytes that all devices together send on a ring.
std::int64_t ring_bytes(const Exchange& e, const Mesh& mesh) {
  std::int64_t sum = 0;
  for (int d = 0; d < mesh.devices(); ++d) {
    auto& how = e.how[std::size_t(d)];
    const auto others = std::int64_t(group_of(mesh, how.over, d).size()) - 1;
    for (std::size_t k = 0; k < how.x.size(); ++k) {
      auto bytes = [&](const program::Operand& o) {
        return program::points(o.dims) * bytes_of(o.view.dtype);
      };
      if (how.kind == CollectiveKind::all_gather)
        sum += others * bytes(how.x[k]);
      else if (how.kind == CollectiveKind::reduce_scatter)
        sum += bytes(how.x[k]) - bytes(how.out[k]);
      // An all-reduce, counted once per group.
      else
        sum += d == group_of(mesh, how.over, d)[0] ? 2 * others * bytes(how.x[k]) : 0;
    }
  }
  return sum;
}

}  // namespace

TEST_CASE(
    "ranks: collectives are bitwise identical to those of threads, and send the bytes of a ring") {
  const Mesh meshes[] = {Mesh{{{"a", 2}}}, Mesh{{{"a", 3}}}, Mesh{{{"a", 2}, {"b", 2}}},
                         Mesh{{{"a", 2}, {"b", 3}}}, Mesh{{{"a", 5}}}};
  std::mt19937 dice(7);
  for (int round = 0; round < 120; ++round) {
    const auto& mesh = meshes[std::size_t(round) % std::size(meshes)];
    auto wanted = drawn(mesh, dice, 4);
    auto got = wanted, threads = wanted;
    by_elements(wanted, mesh);
    on_devices(mesh, [&](int d, program::Communicator& c) { run(threads, d, c); });
    auto same = [&](const Exchange& e) {
      for (int d = 0; d < mesh.devices(); ++d)
        for (std::size_t k = 0; k < e.out[std::size_t(d)].size(); ++k) {
          auto& how = e.how[std::size_t(d)];
          INFO("round ", round, ", wire ", int(how.kind), ", monoid ", int(how.monoid), ", array ",
               k, ": ", name_of(how.out[k].view.dtype));
          REQUIRE(e.out[std::size_t(d)][k].memory == wanted.out[std::size_t(d)][k].memory);
        }
    };
    same(threads);
    const int each = mesh.devices() % 2 == 0 && round % 2 ? 2 : 1;  // devices per rank
    std::atomic<std::int64_t> sent = 0;
    const auto errors = on_ranks(
        mesh.devices() / each,
        [&](Peers& peers, SimulatedRanks&) {
          Peers::JointCall call(peers, "a test");
          std::vector<std::thread> devices;
          for (int k = 0; k < each; ++k)
            devices.emplace_back([&, k] {
              const int d = peers.rank() * each + k;
              RankCommunicator c(peers, call, mesh, d);
              run(got, d, c);
            });
          for (auto& t : devices) t.join();
          sent += peers.sent_bytes();
        },
        0ms, round % 3 ? 1 << 30 : 1 << 15);
    for (auto& s : errors) REQUIRE(s == "");
    same(got);
    if (each == 1 && got.how[0].kind != CollectiveKind::exchange)
      REQUIRE(sent == ring_bytes(got, mesh));
  }
}

TEST_CASE("ranks: a rank that raises is named by all others") {
  const auto errors = on_ranks(4, [](Peers& peers, SimulatedRanks&) {
    if (peers.rank() == 2) throw Error("[disk] it is full");
    for (;;) {
      peers.check();
      std::this_thread::sleep_for(1ms);
    }
  });
  for (int r : {0, 1, 3}) {
    CHECK(has(errors[std::size_t(r)], "[ranks] rank 2 (here, process "));
    CHECK(has(errors[std::size_t(r)], "has failed: [disk] it is full"));
  }
}

TEST_CASE("ranks: a rank that stops responding is named") {
  const auto errors = on_ranks(
      3,
      [](Peers& peers, SimulatedRanks& carrier) {
        carrier.silent = peers.rank() == 1;
        for (;;) {
          peers.check();
          std::this_thread::sleep_for(1ms);
        }
      },
      2s);
  for (int r : {0, 2}) CHECK(has(errors[std::size_t(r)], "rank 1 has not responded for 2"));
}

TEST_CASE("ranks: different collectives, and a rank that has ended, raise") {
  const Mesh two{{{"a", 2}}};
  std::mt19937 dice(3);
  for (const std::string how : {"other call", "other collective", "ended"}) {
    CAPTURE(how);
    auto one = drawn(two, dice), other = drawn(two, dice);
    for (auto* e : {&one, &other})
      for (auto& c : e->how) {
        c.kind = CollectiveKind::all_reduce;
        c.out = c.x;
      }

    for (std::size_t d = 0; d < 2; ++d) {
      one.out[d] = one.x[d];
      other.out[d] = other.x[d];
      other.how[d].monoid = program::Monoid::prod;
    }

    for (auto& c : one.how) c.monoid = program::Monoid::sum;
    const auto errors = on_ranks(2, [&](Peers& peers, SimulatedRanks&) {
      const bool second = peers.rank() == 1;
      if (second && how == "ended") return;
      Peers::JointCall call(peers,
                            second && how == "other call" ? "jit at b.cpp:2" : "jit at a.cpp:1");
      RankCommunicator c(peers, call, two, peers.rank());
      run(second ? other : one, peers.rank(), c);
    });
    CHECK(has(errors[0], how == "ended"
                             ? "[ranks] rank 1 has ended, but rank 0 waits for it at jit "
                               "at a.cpp:1 (call 1); all ranks must make"
                             : "makes a different call than rank"));
  }
}

TEST_CASE("ranks: ranks compare their next calls, and the difference is named") {
  const auto errors = on_ranks(3, [](Peers& peers, SimulatedRanks&) {
    Peers::JointCall call(peers, "a first call");
    peers.agree({{"version", "1"}, {"mesh", "data=3"}, {"plan", "17", false}});
    peers.agree({{"mesh", peers.rank() == 2 ? "data=2" : "data=3"},
                 {"plan", std::to_string(peers.rank()), false}});
  });
  for (auto& s : errors)
    CHECK(
        s ==
        "[ranks] rank 1 differs in plan from rank 0; all ranks must run the same program, with the "
        "same arguments and environment");
  const auto shown = on_ranks(3, [](Peers& peers, SimulatedRanks&) {
    Peers::JointCall call(peers, "a first call");
    peers.agree({{"mesh", peers.rank() == 2 ? "data=2" : "data=3"}});
  });
  for (auto& s : shown)
    CHECK(has(s, "rank 2 differs in mesh from rank 0: data=2, not data=3; all ranks must run"));
}
