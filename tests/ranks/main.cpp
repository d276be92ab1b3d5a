// ranks `WHAT`: programs that tests/ranks_test.py runs with several processes.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/ranges.h>

#include "backends/cuda/sim/sim.h"
#include "haliax/checkpoint.h"
#include "haliax/fmt.h"
#include "haliax/haliax.h"
#include "devices/ranks.h"

using namespace haliax;

namespace {

const Axis Batch{"batch", 12}, Embed{"embed", 24}, Mlp{"mlp", 40};

struct Layer {
  NamedArray up, down;
  auto fields() { return std::tie(up, down); }
};
Layer layer() {
  auto keys = random::split(random::key(1), 2);
  return {random::normal(keys[0], {Embed, Mlp}), random::normal(keys[1], {Mlp, Embed})};
}
auto step_on(const Mesh& mesh, Mapping parameters, Mapping inside) {
  auto step = [inside](const Layer& w, const NamedArray& x) {
    axis_mapping scope(inside);
    auto loss = [&](const Layer& w) {
      return mean(square(dot({tanh(dot({auto_sharded(x), w.up}, Embed)), w.down}, Mlp)));
    };
    auto [value, g] = value_and_grad(loss)(w);
    return std::pair(value, Layer{w.up - 0.1 * g.up, w.down - 0.1 * g.down});
  };
  return named_jit(step, {.donate = {0}, .mesh = mesh, .axis_resources = parameters});
}

// Checks that losses and planned bytes equal those of the same mesh with threads, and that the
// bytes sent are the planned ones.
int traffic() {
  const int n = devices();
  const Mesh mesh =
      n % 2 ? Mesh{{{"data", n}, {"model", 1}}} : Mesh{{{"data", n / 2}, {"model", 2}}};
  const std::pair<Mapping, Mapping> layouts[] = {
      {{}, {{"batch", "data"}}},
      {{{"embed", "data"}}, {{"batch", "data"}}},
      {{{"embed", "data"}, {"mlp", "model"}}, {{"batch", "data"}, {"mlp", "model"}}},
      {{{"mlp", {"data", "model"}}}, {{"mlp", {"data", "model"}}}}};
  int wrong = 0;
  for (auto& [parameters, inside] : layouts) {
    auto train = [&, &parameters = parameters, &inside = inside](JitReport& report, double& sent) {
      auto step = step_on(mesh, parameters, inside);
      auto w = layer();
      const auto x = random::normal(random::key(2), {Batch, Embed});
      std::vector<double> losses;
      const auto cards_before = cuda::simulation_counts().sent;
      for (int i = 0; i < 5; ++i) {
        const auto before = peers() ? peers()->sent_bytes() : 0;
        auto [loss, next] = step(w, x);
        sent = peers() ? double(peers()->sent_bytes() - before) : 0;
        w = std::move(next);
        losses.push_back(loss.item());
      }
      const auto all = w.up.doubles();  // waits for the last step
      sent += double(cuda::simulation_counts().sent - cards_before) / 5;
      losses.insert(losses.end(), all.begin(), all.end());
      report = step.report();
      return losses;
    };
    JitReport here, threads;
    double sent = 0, none = 0;
    const auto mine = train(here, sent);
    set_devices(n);
    const auto theirs = [&] {
      const single_process_scope by_itself;
      return train(threads, none);
    }();
    set_devices(n / rank_count());
    auto check = [&](bool good, const char* what) {
      if (!good) {
        fmt::print("rank {}: parameters {}, inside {}: {}\n", this_rank(), parameters, inside,
                   what);
        ++wrong;
      }
    };
    check(mine == theirs, "not the bits of threads");
    check(here.sent_bytes == threads.sent_bytes && here.peak_bytes <= threads.peak_bytes,
          "other planned bytes");
    // Sums the bytes sent by all ranks with one device each. The plan has the average over the
    // devices.
    Axis Rank{"rank", rank_count()};
    auto total = named_jit([=](const NamedArray& x) { return sum(x, Rank); },
                           {.mesh = mesh, .axis_resources = Mapping{{"rank", {"data", "model"}}}});
    std::vector<float> own(std::size_t(rank_count()), 0.f);
    own[std::size_t(this_rank())] = float(sent);
    const auto all = total(array(own, {Rank})).item();  // each rank's device holds its own count
    if (n == rank_count())
      check(std::abs(all - here.sent_bytes * n) <= 8. * n, "what was sent is not what was planned");
  }
  fmt::print("rank {}: {} wrong\n", this_rank(), wrong);
  return wrong ? 1 : 0;
}

// Checks that a mixture of experts on a device each has the values and gradients of threads, also
// if all tokens choose the same experts.
int experts() {
  const int n = devices();
  const Axis Tokens{"token", 8 * n}, Experts{"expert", 2 * n};
  const Mesh mesh{{{"expert", n}}};
  auto moe = nn::MoE::init(Experts, Embed, Mlp, random::key(1));
  auto skewed = moe;
  skewed.router.weight = skewed.router.weight * 0.f + arange(Experts).astype(DType::f32);
  const auto x = random::uniform(random::key(2), {Tokens, Embed});
  auto wrong = 0;
  for (const auto& m : {moe, skewed}) {
    auto run = [&] {
      auto f = named_jit(
          [](const nn::MoE& layer, const NamedArray& in) {
            auto loss = [&](const nn::MoE& l) { return sum(square(l(in))); };
            return std::pair(layer(in), grad(loss)(layer));
          },
          {.mesh = mesh, .axis_resources = Mapping{{"token", "expert"}, {"expert", "expert"}}});
      auto [y, g] = f(m, x);
      auto all = y.doubles();
      for (auto& leaf : flatten(g))
        for (double v : leaf.doubles()) all.push_back(v);
      return all;
    };
    const auto mine = run();
    set_devices(n);
    const auto theirs = [&] {
      const single_process_scope by_itself;
      return run();
    }();
    set_devices(n / rank_count());
    wrong += mine != theirs;
  }
  fmt::print("rank {}: {} wrong\n", this_rank(), wrong);
  return wrong ? 1 : 0;
}

// Prints the planned and the resident memory of a rank, for a training run with sharded
// initialization.
int memory() {
  const Axis In{"in", 2048}, Hidden{"hidden", 4096}, Rows{"rows", 1024};
  const Mesh mesh{{{"data", devices()}}};
  const Mapping parameters{{"in", "data"}}, inside{{"rows", "data"}};
  const JitOptions on_mesh{.mesh = mesh, .axis_resources = parameters};
  auto init = named_jit(
      [=](const Key& key) {
        return Layer{random::normal(key, {In, Hidden}), random::normal(key, {Hidden, In})};
      },
      on_mesh);
  auto step = named_jit(
      [=](const Layer& w, const Key& key) {
        axis_mapping scope(inside);
        const auto x = random::normal(key, {Rows, In});
        auto loss = [&](const Layer& w) {
          return mean(square(dot({tanh(dot({x, w.up}, In)), w.down}, Hidden)));
        };
        auto [value, g] = value_and_grad(loss)(w);
        return std::pair(value, Layer{w.up - 0.1 * g.up, w.down - 0.1 * g.down});
      },
      {.donate = {0}, .mesh = mesh, .axis_resources = parameters});
  auto w = init(random::key(1));
  for (int i = 0; i < 3; ++i) {
    auto [loss, next] = step(w, random::key(std::uint64_t(i)));
    w = std::move(next);
    (void)loss.item();
  }
  std::ifstream status("/proc/self/status");
  std::string line;
  double most = 0;
  while (std::getline(status, line))
    if (line.starts_with("VmHWM:")) most = std::atof(line.c_str() + 6) / 1024;
  const auto report = step.report();
  fmt::print("rank {}: planned {:.1f} MiB, held {:.1f} MiB\n", this_rank(),
             double(report.argument_bytes + report.peak_bytes) / (1 << 20), most);
  return 0;
}

// Uses arrays that are sharded over all ranks.
int arrays() {
  const Mesh mesh{{{"data", -1}}};
  use_mesh on(mesh);
  const auto positions = arange(Axis{"batch", 2 * devices() + 1});
  const auto [y, total] = named_jit([](const NamedArray& x) { return std::pair(x * 2, sum(x)); },
                                    {.axis_resources = Mapping{{"batch", "data"}}})(positions);
  if (this_rank() == 0) fmt::print("total {}\n", total.item());  // replicated on each rank
  auto& x = y;
  // docs/how-to/clusters.md shows this loop.
  for (auto& shard : local_shards(x))  // without communication
    fmt::print("device {} of rank {}: {} from {}\n", shard.device, this_rank(), shard.value.axes(),
               shard.start);
  if (!on_any_rank(this_rank() == rank_count() - 1) || on_any_rank(false)) return 1;
  const auto all = y.integers();
  fmt::print(
      "rank {}: {} of {} right\n", this_rank(),
      std::count_if(all.begin(), all.end(), [&, k = 0](auto v) mutable { return v == 2 * k++; }),
      all.size());
  return 0;
}

// Writes two folders concurrently while reading. Messages about one folder must not be mistaken for
// messages about the other.
int folders(const std::string& in) {
  const Mesh mesh{{{"data", -1}}};
  use_mesh on(mesh);
  const JitOptions by_batch{.axis_resources = Mapping{{"batch", "data"}}};
  auto x = named_jit(
      [](const Key& k) {
        return random::normal(k, {Batch, Axis{"embed", 1 << 14}});
      },
      by_batch)(random::key(1));
  const auto next = named_jit([](const NamedArray& x) { return x * 1.5; }, by_batch);
  Checkpoints last(in + "/last"), best(in + "/best");
  for (int step = 1; step <= 12; ++step) {
    last.save(step, x);
    best.save(step, x);
    if (step % 4 == 0 && latest_checkpoint(in + "/last", x)->step < step - 1)
      throw Error("[test] an old one");
    x = next(x);
  }
  last.wait();
  best.wait();
  fmt::print("rank {}: {} and {} are there\n", this_rank(), checkpoint_steps(in + "/last"),
             checkpoint_steps(in + "/best"));
  return 0;
}

int fault(const std::string& how) {
  const Mesh mesh{{{"data", -1}}};
  use_mesh on(mesh);
  axis_mapping scope({{"batch", "data"}});
  auto x = random::normal(random::key(1), {Axis{"batch", 8}, Axis{"embed", 1 << 16}});
  auto step = named_jit([](const NamedArray& x) { return std::pair(sum(x), x * 2.); });
  for (int i = 0; i < 6; ++i) {
    auto [s, y] = step(x);
    (void)s.item();  // waits, since GPUs may lag
    if (i == 3 && this_rank() == 1) {
      if (how == "killed") kill(getpid(), SIGKILL);
      if (how == "stopped") kill(getpid(), SIGSTOP);
      if (how == "card") cuda::inject_fault(1, "a planted fault");
      if (how == "raises") throw Error("[data] the disk is full");
      if (how == "ends") return 0;
      if (how == "reads") (void)y.floats();
      if (how == "opens")
        Checkpoints alone(std::filesystem::temp_directory_path() / "haliax-ranks-test");
      if (how == "calls") (void)named_jit([](const NamedArray& x) { return x * sum(x); })(x);
    }
    x = y;
  }
  fmt::print("rank {}: nothing went wrong\n", this_rank());
  return 0;
}
// Assigns simulated GPUs to each rank by `whose`: its own ones, the same ones as other ranks, or
// too few. If a rank sees no more GPUs than it needs, they are either its own or shared.
int cards(const std::string& whose) {
  const int each = devices() / rank_count();
  cuda::set_simulated_gpus(whose == "few" ? 2 * each - 1 : each,
                           whose == "own" ? this_rank() * each : 0);
  return fault("");
}
int differs(const std::string& what) {
  const bool other = this_rank() == 1;
  if (what == "environment" && other) ::setenv("HALIAX_SCORES", "1000", 1);
  const int n = devices();
  const Mesh mesh = what == "mesh" && other ? Mesh{{{"model", n}}} : Mesh{{{"data", n}}};
  const Mapping mapping = what == "mapping" && other
                              ? Mapping{{"embed", mesh.axes()[0].first.c_str()}}
                              : Mapping{{"batch", mesh.axes()[0].first.c_str()}};
  const auto x = random::normal(random::key(1), {Batch, Embed},
                                what == "dtype" && other ? DType::bf16 : DType::f32);
  const double factor = what == "program" && other ? 3 : 2;
  (void)named_jit(
      [=](const NamedArray& x) { return factor > 2 ? sum(x * x, Batch) : sum(x * factor, Batch); },
      {.mesh = mesh, .axis_resources = mapping})(x);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "", how = argc > 2 ? argv[2] : "";
  try {
    if (what == "traffic") return traffic();
    if (what == "arrays") return arrays();
    if (what == "experts") return experts();
    if (what == "memory") return memory();
    if (what == "folders") return folders(how);
    if (what == "fault") return fault(how);
    if (what == "cards") return cards(how);
    if (what == "differs") return differs(how);
    throw Error(
        "[test] ranks traffic|arrays|experts|memory|folders IN|fault HOW|cards "
        "own|same|few|differs WHAT");
  } catch (const std::exception& e) {
    std::printf("rank %s: %s\n",
                std::getenv("OMPI_COMM_WORLD_RANK") ? std::getenv("OMPI_COMM_WORLD_RANK") : "0",
                e.what());
    std::fflush(stdout);
    return 1;
  }
}
