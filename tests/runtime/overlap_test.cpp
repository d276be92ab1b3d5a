// The benefit of overlap: two ranks with slow messages run a step of a model that is sharded over
// both.
#include <doctest/doctest.h>

#include <algorithm>

#include "base/thread_pool.h"
#include "compile/pipeline.h"
#include "haliax/haliax.h"
#include "ops/prim.h"
#include "devices/rank_communicator.h"
#include "runtime/run.h"
#include "support/simulated_ranks.h"
#include "transforms/sharding.h"

using namespace haliax;
using namespace test;

namespace {

const Axis Batch{"batch", 2048}, Embed{"embed", 128}, Mlp{"mlp", 512}, Layers{"layers", 6};
const Mesh two{{{"data", 2}}};
const Mapping by_batch{{"batch", "data"}}, by_embed{{"embed", "data"}};

NamedArray loss(const NamedArray& up, const NamedArray& down, const NamedArray& x) {
  auto layer = [](const NamedArray& h, const std::pair<NamedArray, NamedArray>& w) {
    return h + dot(nn::gelu(dot(h, w.first, Embed)), w.second, Mlp);
  };
  return mean(square(fold(layer, Layers, {.checkpoint = "full"})(x, std::pair(up, down))));
}

// Returns the loss and its gradients, compiled for each device.
std::vector<Compiled> compiled(bool overlap) {
  use_mesh on(two);
  axis_mapping by(by_batch);
  detail::Tracing tracing;
  auto options = options_for("cpu", "a step");
  options.mesh = &two;
  options.partition.overlap = overlap;
  Compilation c{{}, {}, options};
  Leaves in;
  auto argument = [&](const Axes& axes, const Mapping& at) {
    c.inputs.push_back(prim::input(axes, DType::f32));
    c.options.in.push_back(sharding_for(axes, at, two, "an argument"));
    in.push_back(NamedArray(c.inputs.back()));
  };
  argument({Layers, Embed, Mlp}, by_embed);
  argument({Layers, Mlp, Embed}, by_embed);
  argument({Batch, Embed}, by_batch);
  auto [y, g] = value_and_grad([&](const std::pair<NamedArray, NamedArray>& w) {
    return loss(w.first, w.second, in[2]);
  })(std::pair(in[0], in[1]));
  for (auto& r : {y, g.first, g.second}) {
    c.roots.push_back(r.node());
    c.options.out.push_back(sharding_for(r.node()->axes, by_embed, two, "a result"));
  }
  run(c, Stage::graph, Stage::sharding);
  std::vector<Compiled> out;
  for (int d = 0; d < 2; ++d) {
    auto local = on_device(c, d);
    out.push_back(finish(local, "cpu"));
  }
  return out;
}

// Computes when a step ends if each collective takes `call` seconds and each multiplication
// `multiplication` seconds, one after the other.
class Timetable {
 public:
  Timetable(const program::Program& p, double call, double multiplication)
      : call_(call), multiplication_(multiplication) {
    done_.resize(std::size_t(p.calls));
    steps(p.steps, false);
  }
  double now = 0, calls = 0,
         work = 0;  // seconds: the clock, the sum of all collectives, the sum of all matmuls

 private:
  void steps(const std::vector<program::Step>& all, bool last_iteration) {
    for (auto& s : all) switch (s.kind) {
        case program::Kind::loop:
          for (std::int64_t t = 1; t <= s.loop.trips; ++t) steps(s.body, t == s.loop.trips);
          break;
        case program::Kind::conditional:
          if (!last_iteration) steps(s.body, false);
          break;
        case program::Kind::contract: {
          auto took = program::multiplications({s}) * multiplication_;
          now += took;
          work += took;
          break;
        }
        case program::Kind::collective:
          free_ = std::max(free_, now) + call_;
          calls += call_;
          if (s.collective.call < 0)
            now = free_;
          else
            done_[std::size_t(s.collective.call)] = free_;
          break;
        case program::Kind::finish:
          now = std::max(now, done_[std::size_t(s.finish.call)]);
          break;
        default:
          break;
      }
  }
  double call_, multiplication_,
      free_ = 0;  // free_: the time at which the next collective may start
  std::vector<double> done_;
};

struct Ran {
  std::vector<std::vector<Bytes>> results;  // by device
  double seconds = 1e9;                     // the minimum over some steps
};
Ran ran(const std::vector<Compiled>& devices, std::chrono::microseconds latency) {
  Ran out;
  out.results.resize(2);
  constexpr int steps = 8;
  std::atomic<int> first{0};
  auto errors = on_ranks(
      2,
      [&](Peers& peers, SimulatedRanks&) {
        auto& mine = devices[std::size_t(peers.rank())];
        std::vector<Bytes> arguments;
        std::vector<ArgumentValue> given;
        for (int slot : mine.program->argument_slots) {
          auto& memory = arguments.emplace_back(std::size_t(mine.program->slot(slot).bytes));
          auto* x = reinterpret_cast<float*>(memory.data());
          for (std::size_t i = 0; i < memory.size() / 4; ++i)
            x[i] = float(int(i * 7919 + std::size_t(slot) * 31) % 1009 - 504) / 8000.f;
          given.push_back({nullptr, memory.data()});
        }
        for (int s = 0; s < steps; ++s) {
          Peers::JointCall call(peers, "a step");
          RankCommunicator wire(peers, call, two, peers.rank());
          auto started = Clock::now();
          auto made = haliax::call(mine, given, &wire);
          auto took = std::chrono::duration<double>(Clock::now() - started).count();
          if (peers.rank() == 0) out.seconds = std::min(out.seconds, took);
          if (s > 0) continue;
          for (auto& b : made)
            out.results[std::size_t(peers.rank())].emplace_back(b->data(), b->data() + b->bytes());
        }
      },
      0ms, 1 << 30, latency);
  for (auto& s : errors) CHECK(s == "");
  return out;
}

}  // namespace

TEST_CASE("overlap: a sharded step hides at least 60 % of the time of 2 ms collectives") {
  auto blocking = compiled(false), beside = compiled(true);
  // By plan: with work that takes half as long, as long, and three times as long as the
  // collectives.
  const double all = program::multiplications(blocking[0].program->steps), call = 2e-3;
  const double calls = Timetable(*blocking[0].program, call, 0).calls;
  for (double share : {0.5, 1., 3.}) {
    CAPTURE(share);
    Timetable one_by_one(*blocking[0].program, call, share * calls / all),
        at_once(*beside[0].program, call, share * calls / all);
    CHECK(one_by_one.now == doctest::Approx(one_by_one.calls + one_by_one.work));
    CHECK(at_once.calls == doctest::Approx(one_by_one.calls));
    auto hidden = (one_by_one.now - at_once.now) / std::min(one_by_one.calls, one_by_one.work);
    MESSAGE("work " << share << " times as long as calls: " << hidden
                    << " of what can be hidden is");
    CHECK(hidden >= 0.6);
  }
  // In a real run. Its times depend on the load of the machine, so only results are checked.
  const auto usual = haliax::threads();
  set_threads(1);  // one thread for each rank, since both compute at once
  auto free = ran(blocking, 0us), plain = ran(blocking, 2ms), hidden = ran(beside, 2ms);
  set_threads(usual);
  CHECK(plain.results == free.results);
  CHECK(hidden.results == plain.results);
  MESSAGE("a step: " << free.seconds * 1e3 << " ms; with slow calls " << plain.seconds * 1e3
                     << " ms, overlapped " << hidden.seconds * 1e3 << " ms");
}
