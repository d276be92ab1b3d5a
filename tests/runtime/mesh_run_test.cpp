// Devices as threads: collectives, errors that reach all devices, and blocks that stay on their
// devices.
#include <doctest/doctest.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "haliax/jit.h"
#include "haliax/ops.h"
#include "haliax/random.h"
#include "devices/communicator.h"
#include "support/raises.h"

using namespace haliax;
using program::Communicator;

namespace {

const Mesh four{{{"data", 2}, {"model", 2}}};

// A sum of n floats with a stride over mesh axes.
program::Collective sum_of(std::int64_t n, std::vector<int> over, std::int64_t stride = 1) {
  program::Collective c;
  c.kind = program::CollectiveKind::all_reduce;
  c.over = std::move(over);
  c.x = {{{n}, {0, DType::f32, 0, {stride}, {}}}};
  c.out = {{{n}, {0, DType::f32, 0, {1}, {}}}};
  c.dim = {-1};
  c.size = {0};
  return c;
}

}  // namespace

TEST_CASE("devices: sums over some mesh axes add strided arrays in rank order") {
  std::vector<std::vector<float>> out(4, std::vector<float>(2));
  const float x[4][4] = {{1e8f, 9, 1, 9}, {2, 9, 3, 9}, {-1e8f, 9, 1, 9}, {4, 9, 5, 9}};
  on_devices(four, [&](int d, Communicator& c) {
    auto how = sum_of(2, {0}, 2);
    const void* in = x[d];
    void* to = out[std::size_t(d)].data();
    c.run(how, &in, &to, nullptr, 0);
  });
  CHECK(out[0] == std::vector<float>{0, 2});
  CHECK(out[1] == std::vector<float>{6, 8});
  CHECK(out[2] == out[0]);
  const float y[4] = {1e8f, 1, -1e8f,
                      1};  // in rank order, the first 1 is lost and the second one is not
  for (int repeat = 0; repeat < 20; ++repeat) {
    float sums[4];
    on_devices(four, [&](int d, Communicator& c) {
      auto how = sum_of(1, {0, 1});
      const void* in = &y[d];
      void* to = &sums[d];
      c.run(how, &in, &to, nullptr, 0);
    });
    for (float s : sums) REQUIRE(s == 1);
  }
}

TEST_CASE("devices: an error on one device ends all of them and reaches the caller") {
  for (int bad = 0; bad < 4; ++bad)
    for (int calls : {0, 1, 3}) {
      std::atomic<int> ended{0};
      auto text = error_of([&] {
        on_devices(four, [&](int d, Communicator& c) {
          struct End {
            std::atomic<int>& n;
            ~End() { ++n; }
          } end{ended};
          float in = 1, out = 0;
          const void* x = &in;
          void* to = &out;
          for (int k = 0; k < 5; ++k) {
            if (d == bad && k == calls)
              throw Error("[test] device " + std::to_string(d) + " cannot go on");
            auto how = sum_of(1, {0, 1});
            c.run(how, &x, &to, nullptr, 0);
          }
        });
      });
      CHECK(text == "[test] device " + std::to_string(bad) + " cannot go on");
      CHECK(ended == 4);
    }
}

TEST_CASE("devices: one device fails while others run their own collectives") {
  for (int round = 1; round < 20; ++round) {
    auto text = error_of([&] {
      on_devices(four, [&](int d, Communicator& c) {
        const bool fails =
            d >= 2;  // fails after some small collectives, while 0 and 1 run large ones
        // Large, so that its pages are unmapped as soon as the vector is freed.
        std::vector<float> in(fails ? 1 : 9 << 20, 1), out = in;
        const void* x = in.data();
        void* to = out.data();
        for (int k = 0; !fails || k < 100 * round; ++k) {
          auto how = sum_of(std::int64_t(in.size()), {1});  // over 0 and 1, and over 2 and 3
          c.run(how, &x, &to, nullptr, 0);
          REQUIRE(out.back() == 2);
        }
        throw Error("[test] it cannot go on");
      });
    });
    CHECK(text == "[test] it cannot go on");
  }
}

TEST_CASE("devices: different collectives raise, and no device blocks forever") {
  auto run = [](auto calls, std::int64_t size = 1) {
    return error_of([&] {
      on_devices(four, [&](int d, Communicator& c) {
        float in[2] = {}, out[2] = {};
        const void* x = in;
        void* to = out;
        for (int k = 0; k < calls(d); ++k) {
          auto how =
              sum_of(d == 2 ? size : 1, d == 1 && size > 1 ? std::vector{0} : std::vector{0, 1});
          c.run(how, &x, &to, nullptr, 0);
        }
      });
    });
  };
  CHECK(run([](int d) { return d == 3 ? 1 : 2; }).find("finished") != std::string::npos);
  CHECK(run([](int) { return 1; }, 2).find("makes a different call than device") !=
        std::string::npos);
  CHECK(run([](int) { return 2; }) == "");
}

TEST_CASE("devices: threads are reused by the next call") {
  std::mutex lock;
  std::set<std::thread::id> seen;
  auto note = [&](int, Communicator&) {
    std::lock_guard hold(lock);
    seen.insert(std::this_thread::get_id());
  };
  on_devices(four, note);
  int started = device_threads();
  CHECK(seen.count(std::this_thread::get_id()) == 1);
  CHECK(seen.size() == 4);
  for (int repeat = 0; repeat < 5; ++repeat) on_devices(four, note);
  CHECK(seen.size() == 4);
  CHECK(device_threads() == started);
}

TEST_CASE("devices: a backend with its own collectives communicates directly") {
  struct Own : program::Communicator {
    void run(const program::Collective&, const void* const*, void* const*, void*,
             std::int64_t) override {}
    void fail(const char* why) override { failed = why; }
    std::string failed;
  };
  struct Device : program::Device {
    const char* name() const override { return "own"; }
    bool is_host() const override { return false; }
    std::unique_ptr<program::Executable> compile(std::shared_ptr<const program::Program>) override {
      return nullptr;
    }
    std::shared_ptr<program::Communicator> communicator(const program::Dims& mesh, int d, int,
                                                        program::RankGroup*) override {
      std::lock_guard hold(lock);
      requested.push_back(mesh);
      return given[d] = std::make_shared<Own>();
    }
    std::mutex lock;
    std::vector<program::Dims> requested;
    std::map<int, std::shared_ptr<Own>> given;
  } device;
  const Mesh mesh{{{"data", 2}, {"model", 2}}};
  auto text = error_of([&] {
    on_devices(
        mesh,
        [&](int d, program::Communicator& c) {
          if (&c != device.given[d].get()) throw Error("[test] another communicator");
          if (d == 2) throw Error("[test] so it is");
        },
        &device);
    return 0;
  });
  CHECK(text == "[test] so it is");
  CHECK(device.requested == std::vector<program::Dims>(4, {2, 2}));
  CHECK(device.given[2]->failed == "[test] so it is");
}

TEST_CASE("mesh: what a call leaves on the devices is not cut again") {
  Axis Batch{"batch", 8}, Embed{"embed", 6};
  const Mesh two{{{"data", 2}}};
  const Mapping params{{"embed", "data"}};
  // Sharded along its last axis, so a block is not contiguous.
  auto w = random::normal(random::key(1), {Batch, Embed});
  auto step = [](const NamedArray& w, const NamedArray& x) {
    return std::pair{w * 0.5 + x, sum(w)};
  };
  auto x = random::normal(random::key(2), {Batch, Embed});
  for (bool donate : {false, true}) {
    CAPTURE(donate);
    auto f = named_jit(step, {.donate = donate ? std::vector{0} : std::vector<int>{},
                              .mesh = two,
                              .axis_resources = params});
    auto mine = w + 0.;
    auto expected = mine.doubles();
    auto next = f(mine, x).first;
    CHECK(f.report().split_bytes == 2 * 8 * 6 * 4);  // both arguments, once
    auto result = f(next, x);
    CHECK(f.report().split_bytes == 8 * 6 * 4);  // only x
    auto xs = x.doubles(), got = result.first.doubles();
    f(result.first, donate ? x : next);
    CHECK(f.report().split_bytes == (donate ? 8 * 6 * 4 : 0));
    for (std::size_t i = 0; i < got.size(); ++i)
      CHECK(got[i] == doctest::Approx((expected[i] * 0.5 + xs[i]) * 0.5 + xs[i]));
    if (donate) {
      CHECK_THROWS_AS(next.doubles(), Error);
      // An array that was read on the host is still sharded on the devices, and later calls do not
      // change it.
    } else {
      auto before = next.doubles();
      f(next, x);
      CHECK(f.report().split_bytes == 8 * 6 * 4);
      CHECK(next.doubles() == before);
    }
  }
}

TEST_CASE("mesh: blocks that lie in one piece are read where they are") {
  Axis Batch{"batch", 8}, Embed{"embed", 6};
  auto x = random::normal(random::key(1), {Batch, Embed}),
       w = random::normal(random::key(2), Embed);
  auto f = named_jit([](const NamedArray& x, const NamedArray& w) { return sum(x * w, "embed"); },
                     {.mesh = Mesh{{{"data", 4}}}, .axis_resources = Mapping{{"batch", "data"}}});
  auto got = f(x, w).doubles();
  CHECK(f.report().split_bytes == 0);
  CHECK(got == sum(x * w, "embed").doubles());
}

TEST_CASE("mesh: an argument that is donated twice or lent out is copied first") {
  Axis Embed{"embed", 6};
  const Mesh two{{{"data", 2}}};
  auto add = named_jit(
      [](const NamedArray& a, const NamedArray& b) {
        return std::pair{a + 1., b * 2.};
      },
      {.donate = {0, 1}, .mesh = two, .axis_resources = Mapping{{"embed", "data"}}});
  auto make = named_jit([](const NamedArray& a) { return a + 0.; },
                        {.mesh = two, .axis_resources = Mapping{{"embed", "data"}}});
  auto a = make(arange(Embed).astype(DType::f32));
  auto [x, y] = add(a, a);
  CHECK(x.doubles() == std::vector<double>{1, 2, 3, 4, 5, 6});
  CHECK(y.doubles() == std::vector<double>{0, 2, 4, 6, 8, 10});
}
