// Collectives of simulated GPUs: bitwise identical to the communicator of the threads, for every
// transport, dtype and layout. Sends and receives that do not match are found.
#include <doctest/doctest.h>

#include <chrono>

#include "support/raises.h"
#include "support/simulated.h"

using namespace haliax;
using namespace haliax::program;
using namespace haliax::testing;

namespace {

std::vector<Case> cases(int n) {
  std::vector<Case> out;
  for (int d = 0; d < n; ++d) out.emplace_back(unsigned(d));
  return out;
}
// Programs with the same layouts on all devices, and different values.
struct Drawn {
  const Mesh& mesh;
  unsigned seed;
  Collective how = {};
  std::vector<Case> of_device = cases(mesh.devices());
  std::int64_t ranks() const {
    std::int64_t n = 1;
    for (int axis : how.over) n *= mesh.axes()[std::size_t(axis)].second;
    return n;
  }
  std::int64_t rank(int d) const {
    std::int64_t r = 0;
    for (int axis : how.over) {
      std::int64_t stride = 1;
      for (std::size_t k = std::size_t(axis) + 1; k < mesh.axes().size(); ++k)
        stride *= mesh.axes()[k].second;
      auto size = mesh.axes()[std::size_t(axis)].second;
      r = r * size + d / stride % size;
    }
    return r;
  }
  // Adds x and out of an array. `x_sharded` and `out_sharded`: dim is sharded there; otherwise the
  // array is full.
  void add(DType dtype, Dims full, int dim, bool x_sharded, bool out_sharded, Case::Layout x,
           Case::Layout out) {
    const auto size = dim < 0 ? 0 : full[std::size_t(dim)],
               step = dim < 0 ? 0 : (size + ranks() - 1) / ranks();
    how.dim.push_back(dim);
    how.size.push_back(size);
    for (int d = 0; d < mesh.devices(); ++d) {
      auto& c = of_device[std::size_t(d)];
      auto dims = [&](bool sharded) {
        auto mine = full;
        if (sharded)
          mine[std::size_t(dim)] = std::clamp<std::int64_t>(size - rank(d) * step, 0, step);
        return mine;
      };
      c.random = Random(seed + unsigned(how.dim.size()));  // layouts are equal
      Operand from{dims(x_sharded), c.view(false, dtype, dims(x_sharded), x)},
          to{dims(out_sharded), c.view(true, dtype, dims(out_sharded), out)};
      c.random = Random(seed + 100 * unsigned(d + 1));
      c.fill(c.arguments.back(), dtype);
      if (c.program.steps.empty()) c.add(Kind::collective).collective.kind = how.kind;
      auto& mine = c.program.steps[0].collective;
      mine.x.push_back(from);
      mine.out.push_back(to);
    }
  }
  void finish() {
    for (auto& c : of_device) {
      auto& mine = c.program.steps[0].collective;
      auto x = mine.x, out = mine.out;
      mine = how;
      mine.x = x;
      mine.out = out;
      mine.ranks = int(ranks());
    }
  }
};

// Runs the cases on threads, in host memory.
std::vector<std::vector<Bytes>> by_threads(const Mesh& mesh, const std::vector<Case>& cases) {
  auto cpu = cpu::make_cpu_device();
  std::vector<std::vector<Bytes>> out(cases.size());
  on_devices(mesh, [&](int d, Communicator& c) {
    auto& of = cases[std::size_t(d)];
    auto in = of.arguments;
    auto& results = out[std::size_t(d)] = of.results;
    auto& how = of.program.steps[0].collective;
    std::vector<const void*> x;
    std::vector<void*> to;
    for (std::size_t k = 0; k < how.x.size(); ++k)
      x.push_back(in[k].data() + how.x[k].view.offset * bytes_of(how.x[k].view.dtype));
    for (std::size_t k = 0; k < how.out.size(); ++k)
      to.push_back(results[k].data() + how.out[k].view.offset * bytes_of(how.out[k].view.dtype));
    c.run(how, x.data(), to.data(), nullptr, 0);
  });
  return out;
}
// A machine with one GPU, which all devices of a mesh share.
cuda::Api& one_card() {
  auto& api = faulty();
  api.gpus = [] {
    return cuda::Gpus{.driver = 13000, .needed = 13000, .gpus = {{"simulated", 90}}};
  };
  return api;
}
// A machine whose GPUs communicate as the GPUs of several processes do.
cuda::Api& linked() {
  auto& api = faulty();
  api.join = [](const std::string& id, int ranks, int rank, int d, const cuda::Check&) {
    return cuda::simulated().join(id, ranks, rank, d, [](auto) {});
  };
  return api;
}
const Mesh four{{{"data", 2}, {"model", 2}}};
const Mesh three{{{"data", 3}}};

Drawn sum_in_order(const std::vector<float>& values) {  // one value per device
  static const Mesh all{{{"data", 4}}};
  Drawn drawn{all, 1};
  drawn.how.over = {0};
  drawn.add(DType::f32, {4}, -1, false, false, Case::dense, Case::dense);
  drawn.finish();
  for (std::size_t d = 0; d < 4; ++d) {
    auto& c = drawn.of_device[d];
    auto& v = c.program.steps[0].collective.x[0].view;
    for (std::int64_t i = 0; i < 4; ++i)
      scalar::store(DType::f32, &c.arguments[0][std::size_t(v.offset + i) * 4], {values[d], 0});
  }
  return drawn;
}

}  // namespace

TEST_CASE("cuda: collectives are bitwise identical to the threads' communicator") {
  auto device = cuda::make_simulated_device(), shared = device_of(one_card()),
       processes = device_of(linked());
  for (unsigned seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    Drawn drawn{seed % 3 ? four : three, seed};
    drawn.how.kind = CollectiveKind(seed % 3 == 0 ? seed / 3 % 3 : seed % 4 % 3);
    drawn.how.monoid = Monoid(random.below(4));
    drawn.how.over = seed % 3 == 0 ? std::vector{0}
                     : seed % 2    ? std::vector{0, 1}
                                   : std::vector{int(random.below(2))};
    const auto wire = drawn.how.kind;
    for (std::int64_t k = 0; k <= random.below(3); ++k) {
      Dims full{1 + random.below(6), 1 + random.below(9), 1 + random.below(5)};
      auto layout = [&] { return random.coin() ? Case::dense : Case::Layout(random.below(4)); };
      const int dim = wire == CollectiveKind::all_reduce ? -1 : int(random.below(3));
      drawn.add(all_dtypes[random.below(13)], full, dim, wire == CollectiveKind::all_gather,
                wire == CollectiveKind::reduce_scatter, layout(), layout());
    }
    drawn.finish();
    const auto expected = by_threads(drawn.mesh, drawn.of_device);
    CHECK((run_on_mesh(*device, drawn.mesh, drawn.of_device, 2) == expected));
    CHECK((run_on_mesh(*shared, drawn.mesh, drawn.of_device, 2) == expected));
    CHECK((run_on_mesh(*processes, drawn.mesh, drawn.of_device, 2) == expected));
  }
}

TEST_CASE("cuda: boxes are copied from device to device, and to the device itself") {
  auto device = cuda::make_simulated_device(), shared = device_of(one_card());
  for (unsigned seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    Random random(seed);
    auto all = cases(4);
    const Dims dims{6, 5};
    for (auto& c : all) {
      auto& how = c.add(Kind::collective).collective;
      how.kind = CollectiveKind::exchange;
      how.over = {0, 1};
      how.x = {{dims, c.view(false, DType::f32, dims, Case::Layout(seed % 4))}};
      how.out = {{dims, c.view(true, DType::f32, dims, Case::Layout(seed / 4 % 4))}};
    }
    for (int k = 0; k < 6; ++k) {
      const auto from = random.below(4), to = k < 2 ? from : random.below(4);
      // no two boxes have the same destination
      const Dims box{1, 1 + random.below(3)}, step{1 + random.below(2), 2};
      auto of = [&](std::int64_t d) -> Collective& {
        return all[std::size_t(d)].program.steps[0].collective;
      };
      of(from).sends.push_back({int(to), 0, {random.below(6), 0}, box, step});
      of(to).receives.push_back({int(from), 0, {k, random.below(3)}, box, {1, 1}});
    }
    const auto expected = by_threads(four, all);
    CHECK((run_on_mesh(*device, four, all) == expected));
    CHECK((run_on_mesh(*shared, four, all) == expected));
  }
}

TEST_CASE("cuda: another order of the ranks in a sum is detected") {
  // In rank order the first 1 is lost, the second one is not.
  const auto drawn = sum_in_order({1e8f, 1, -1e8f, 1});
  const auto expected = by_threads(drawn.mesh, drawn.of_device);
  CHECK((run_on_mesh(*cuda::make_simulated_device(), drawn.mesh, drawn.of_device) == expected));
  auto& api = faulty();
  api.exchange = [](cuda::Handle c, cuda::Handle s, const std::vector<cuda::Transfer>& all) {
    auto turned = all;  // the message of the last rank is at the place of the first one's
    std::vector<std::size_t> come;
    for (std::size_t k = 0; k < all.size(); ++k)
      if (!all[k].sends) come.push_back(k);
    for (std::size_t k = 0; k < come.size(); ++k)
      turned[come[k]].at = all[come[come.size() - 1 - k]].at;
    cuda::simulated().exchange(c, s, turned);
  };
  CHECK_FALSE((run_on_mesh(*device_of(api), drawn.mesh, drawn.of_device) == expected));
}

TEST_CASE("cuda: a message that is too short is found between processes, too") {
  const auto drawn = sum_in_order({1, 2, 3, 4});
  auto& api = linked();
  api.exchange = [](cuda::Handle c, cuda::Handle s, const std::vector<cuda::Transfer>& all) {
    auto shorter = all;
    for (auto& t : shorter)
      if (t.sends && t.peer == 2) t.bytes -= 1;
    cuda::simulated().exchange(c, s, shorter);
  };
  auto device = device_of(api);
  auto message = error_of([&] { return run_on_mesh(*device, drawn.mesh, drawn.of_device); });
  CHECK(has(message, "sends 3 bytes to rank 2, which receives 4"));
  for (int d = 0; d < 4; ++d) {
    CAPTURE(d);
    auto of_device = error_of([&] { return get(*device, device->allocate(4, d), 4, d); });
    CHECK(has(of_device, "sends 3 bytes to rank 2"));
    cuda::inject_fault(d, "");
  }
}

TEST_CASE("cuda: waiting for a missing GPU of another process raises with the reason") {
  const auto drawn = sum_in_order({1, 2, 3, 4});
  auto& api = faulty();
  api.join = [](const std::string& id, int ranks, int rank, int d, const cuda::Check&) {
    return cuda::simulated().join(id, ranks, rank, d, [](auto waited) {
      if (waited > std::chrono::milliseconds(300)) throw Error("[ranks] rank 2 has not responded");
    });
  };
  api.exchange = [](cuda::Handle c, cuda::Handle s, const std::vector<cuda::Transfer>& all) {
    auto others = all;  // no device requests the part of rank 2
    std::erase_if(others, [](auto& t) { return t.peer == 2 && t.sends; });
    cuda::simulated().exchange(c, s, others);
  };
  auto device = device_of(api);
  CHECK(error_of([&] { return run_on_mesh(*device, drawn.mesh, drawn.of_device); }) ==
        "[ranks] rank 2 has not responded");
  for (int d = 0; d < 4; ++d) cuda::inject_fault(d, "");
}

TEST_CASE("cuda: a message that is too short is found, and all devices name the failed one") {
  const auto drawn = sum_in_order({1, 2, 3, 4});
  auto& api = faulty();
  api.exchange = [](cuda::Handle c, cuda::Handle s, const std::vector<cuda::Transfer>& all) {
    auto shorter = all;
    for (auto& t : shorter)
      if (t.sends) t.bytes -= 1;
    cuda::simulated().exchange(c, s, shorter);
  };
  auto device = device_of(api);
  auto message = error_of([&] { return run_on_mesh(*device, drawn.mesh, drawn.of_device); });
  CHECK(has(message, "in the call of jit at mesh.cpp:1"));
  CHECK(has(message, "sends 3 bytes to rank"));
  CHECK(has(message, "which receives 4"));
  for (int d = 0; d < 4; ++d) {
    CAPTURE(d);
    auto of_device = error_of([&] { return get(*device, device->allocate(4, d), 4, d); });
    CHECK(has(of_device, "[cuda-sim] device " + std::to_string(d) + " has failed"));
    cuda::inject_fault(d, "");
  }
}

TEST_CASE(
    "cuda: a failed device ends the waits of the others; "
    "a device that raises does not affect them") {
  auto drawn = sum_in_order({1, 2, 3, 4});
  auto device = cuda::make_simulated_device();
  const auto expected = by_threads(drawn.mesh, drawn.of_device);
  auto raised = error_of([&] {
    on_devices(
        drawn.mesh,
        [&](int d, Communicator&) {
          if (d == 2) throw Error("[test] device 2 cannot go on");
        },
        device.get());
    return 0;
  });
  CHECK(raised == "[test] device 2 cannot go on");
  CHECK((run_on_mesh(*device, drawn.mesh, drawn.of_device) == expected));
  auto shared = device_of(one_card());  // waits on the host raise there
  raised = error_of([&] {
    on_devices(
        drawn.mesh,
        [&](int d, Communicator& c) {
          if (d == 2) throw Error("[test] device 2 cannot go on");
          dynamic_cast<cuda::Rank&>(c).exchange(cuda::simulated().make_stream(0),
                                                {{.peer = 2, .bytes = 4}});
        },
        shared.get());
    return 0;
  });
  CHECK(has(raised, "[test] device 2 cannot go on"));
  CHECK((run_on_mesh(*shared, drawn.mesh, drawn.of_device) == expected));
  // The others have requested their part, and raise while they wait.
  const auto began = std::chrono::steady_clock::now();
  auto& api = faulty();
  api.exchange = [](cuda::Handle c, cuda::Handle s, const std::vector<cuda::Transfer>& all) {
    static int calls = 0;
    if (++calls == 1) cuda::inject_fault(1, "a planted fault");
    cuda::simulated().exchange(c, s, all);
  };
  auto message =
      error_of([&] { return run_on_mesh(*device_of(api), drawn.mesh, drawn.of_device); });
  CHECK(has(message, "device 1 has failed"));
  CHECK(has(message, "a planted fault"));
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(25));
  for (int d = 0; d < 4; ++d) cuda::inject_fault(d, "");
}

TEST_CASE("cuda: a missing edge between streams is found") {
  // A sum over devices, and concurrently a kernel that writes to the same memory.
  auto wrong = [](const cuda::Api& api, const char* words) {
    int found = 0;
    for (unsigned k = 0; k < 12; ++k) {
      auto drawn = sum_in_order({1, 2, 3, 4});
      for (auto& c : drawn.of_device) {
        const auto out = c.program.steps[0].collective.out[0].view,
                   twice = c.view(true, DType::f32, {4}, Case::dense);
        auto& f = c.add(Kind::fused).fused;
        f.dims = {4};
        f.outer = 1;
        f.code = {load(out), op(Code::add, DType::f32, {0, 0}), store(twice, 1)};
      }
      auto got = error_of([&] {
        auto all = run_on_mesh(*device_of(api, words), drawn.mesh, drawn.of_device);
        for (std::size_t d = 0; d < all.size(); ++d) {
          auto& v = drawn.of_device[d].program.steps[1].fused.code[2].view;
          if (floats_of(all[d][1])[std::size_t(v.offset)] != 20) throw Error("[test] another sum");
        }
        return 0;
      });
      found += !got.empty();
      for (int d = 0; d < 4; ++d) cuda::inject_fault(d, "");
    }
    return found;
  };
  CHECK(wrong(cuda::simulated(), "") == 0);
  CHECK(wrong(cuda::simulated(), "eager") == 0);
  auto& api = faulty();
  api.follow = [](cuda::Handle, cuda::Handle) {};
  CHECK(wrong(api, "eager") > 0);
  CHECK(wrong(api, "") > 0);
  CHECK(wrong(one_card(), "") == 0);
  auto& loose = one_card();
  loose.follow = [](cuda::Handle, cuda::Handle) {};
  CHECK(wrong(loose, "") > 0);
}
