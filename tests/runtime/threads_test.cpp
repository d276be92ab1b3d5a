// Any function may be called from any thread, on any arrays. `tools/test --sanitize thread` must
// report nothing here.
#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <map>
#include <mutex>
#include <thread>

#include "graph/node.h"
#include "haliax/haliax.h"
#include "support/devices.h"
#include "support/raises.h"

using namespace haliax;

namespace {

// Runs f(0) ... f(n - 1) at once, each on its own thread, and returns the errors.
template <class F> std::string at_once(int n, const F& f) {
  std::barrier start(n);
  std::mutex lock;
  std::string wrong;
  std::vector<std::thread> threads;
  for (int k = 0; k < n; ++k)
    threads.emplace_back([&, k] {
      start.arrive_and_wait();
      auto mine = error_of([&] { return f(k); });
      std::lock_guard hold(lock);
      if (wrong.empty()) wrong = mine;
    });
  for (auto& t : threads) t.join();
  return wrong;
}
void must(bool holds, const char* what) {
  if (!holds) throw Error(std::string("[test] not so: ") + what);
}
const Axis I("i", 64), B("batch", 4), In("in", 8), Out("out", 3);

struct Batch {
  NamedArray x = random::normal(random::key(1), {B, In}),
             y = random::normal(random::key(2), {B, Out});
};
using Model = nn::Mlp;
Model model_of(int seed) { return Model::init(In, Out, 16, 1, random::key(seed)); }
NamedArray loss_of(const Model& m, const Batch& b) { return mean(square(m(b.x) - b.y)); }

}  // namespace

TEST_CASE("threads: two threads without shared arrays") {
  CHECK(at_once(2, [](int) {
          for (int i = 0; i < 300; ++i) {
            auto v = (arange(I) * 2. + 1.).floats();
            must(v[5] == 11 && v.size() == 64, "2 i + 1");
          }
          return 0;
        }) == "");
}

TEST_CASE("threads: many threads, each with its own programs") {
  CHECK(at_once(4, [](int k) {
          for (int i = 0; i < 40; ++i) {
            Axis n("n", 16 + (k + i) % 5);
            auto x = arange(n, {.dtype = DType::f32}) + double(k);
            auto y = sum(exp(x * 0.) + x - x, n).item();
            must(y == double(n.size), "a sum of ones");
            auto [values, at] = top_k(x, n, 2);
            must(values.floats()[0] == float(n.size - 1 + k), "the largest");
            must(sort(x * -1., n).floats()[0] == float(1 - n.size - k), "the least");
            auto scanned = scan(
                [](const NamedArray& c, const NamedArray& v) {
                  return std::pair{c + v, c * v};
                },
                n)(NamedArray(0.), x);
            must(scanned.first.item() == double(n.size * (n.size - 1) / 2 + k * n.size),
                 "a sum, turn by turn");
            must(take(x, n, array({1, 0}, Axis("two", 2)).astype(DType::i32)).floats()[0] ==
                     float(1 + k),
                 "taken");
          }
          return 0;
        }) == "");
}

TEST_CASE("threads: a lazy array that several threads read is computed once") {
  for (int round = 0; round < 30; ++round) {
    auto x = arange(I, {.dtype = DType::f32}) * double(round);
    auto y = sum(x * x + 1., I);
    std::vector<const std::byte*> where(4);
    CHECK(at_once(4, [&](int k) {
            must(y.item() == 85344. * round * round + 64, "the sum of squares");
            where[std::size_t(k)] = y.node()->value.get()->data();
            return 0;
          }) == "");
    for (auto* p : where) CHECK(p == where[0]);
  }
}

TEST_CASE("threads: a thread builds on an array while others evaluate it") {
  for (int round = 0; round < 30; ++round) {
    auto x = cos(arange(I, {.dtype = DType::f32}) * double(round));
    auto y = x * 2. + 1.;
    CHECK(at_once(4, [&](int k) {
            // Other threads evaluate y at the same time.
            auto g = grad([&](const NamedArray& v) { return sum(v * v * y); })(x);
            auto z = y - double(k);
            if (k % 2) y.eval();
            auto got = z.floats();
            auto twice = (y * 2.).floats();
            for (std::size_t i = 0; i < 64; ++i)
              must(std::abs(2 * (got[i] + float(k)) - twice[i]) < 1e-4, "2 y");
            must(std::abs(g.floats()[0] - 2 * x.floats()[0] * y.floats()[0]) < 1e-5, "2 x y");
            return 0;
          }) == "");
  }
}

TEST_CASE("threads: arrays may be destroyed in another thread than they were created in") {
  std::vector<NamedArray> handed(4);
  CHECK(at_once(4, [&](int k) {
          for (int i = 0; i < 20; ++i) {
            NamedArray x = ones(I).eval();
            for (int j = 0; j < 2000; ++j) x = x + 1.;  // a long chain that is never read
            handed[std::size_t(k)] = x;
            std::thread([x = std::move(x), next = std::move(handed[std::size_t(k)])]() mutable {
              next = {};
            }).join();
          }
          return 0;
        }) == "");
}

TEST_CASE(
    "threads: a jitted function is traced once per signature, and its calls run in parallel") {
  std::atomic<int> traces = 0;
  auto f = jit([&](const NamedArray& x) {
    ++traces;
    return sum(exp(x) * 2., I);
  });
  std::map<std::int64_t, double> expected;
  for (std::int64_t n : {3, 5, 7})
    expected[n] = sum(exp(ones({I, Axis("n", n)})) * 2., I).doubles()[0];
  CHECK(at_once(4, [&](int k) {
          for (int i = 0; i < 60; ++i) {
            std::int64_t n = 3 + 2 * ((k + i) % 3);
            must(std::abs(f(ones({I, Axis("n", n)})).doubles()[0] - expected[n]) < 1e-3, "the sum");
          }
          return 0;
        }) == "");
  CHECK(traces == 3);
  CHECK(f.report().traces == 3);
}

// The calls run at once, or this would time out.
TEST_CASE("threads: a custom kernel may wait for another call of the same program") {
  static std::atomic<int> inside;
  inside = 0;
  static const auto wait_for_two =
      custom_op({.name = "wait_for_two",
                 .along = {AxisRule::whole},
                 .cpu = {[](Strided<const float> x, Strided<float> out) {
                   ++inside;
                   for (int i = 0; inside < 2 && i < 5000; ++i)
                     std::this_thread::sleep_for(std::chrono::milliseconds(1));
                   for (std::int64_t i = 0; i < x.size(0); ++i) out(i) = float(inside >= 2) + x(i);
                 }}});
  auto f = jit([](const NamedArray& x) { return wait_for_two(x, "i"); });
  f.compile(ones(I));
  CHECK(at_once(2, [&](int k) {
          must(f(full(I, double(k)).astype(DType::f32)).floats()[3] == float(1 + k),
               "two calls at once");
          return 0;
        }) == "");
}

TEST_CASE("threads: concurrent training runs match sequential ones") {
  auto train = [](int seed, int steps) {
    auto optimizer = optim::adamw({.learning_rate = 1e-2});
    auto start = jit([&](const Key& key) { return Model::init(In, Out, 16, 1, key); });
    auto model = start(random::key(seed));
    auto state = optimizer.init(model);
    Batch batch;
    auto step = jit(
        [&](const Model& m, const decltype(state)& s, const Batch& b) {
          auto [loss, g] =
              value_and_grad([](const Model& q, const Batch& c) { return loss_of(q, c); })(m, b);
          auto [updates, next] = optimizer.update(g, s, m);
          return std::tuple{optim::apply_updates(m, updates), next, loss};
        },
        {.donate = {0, 1}});
    double last = 0;
    for (int i = 0; i < steps; ++i) {
      auto [m, s, loss] = step(model, state, batch);
      model = m;
      state = s;
      last = loss.item();
    }
    return last;
  };
  std::vector<double> alone, beside(3);
  for (int k = 0; k < 3; ++k) alone.push_back(train(k / 2, 8));  // the first two are equal
  CHECK(at_once(3, [&](int k) { return beside[std::size_t(k)] = train(k / 2, 8); }) == "");
  CHECK(alone == beside);
}

TEST_CASE("threads: eager gradients, chunks, checkpoints and vmap with shared parameters") {
  auto model = model_of(3);  // lazy: computed by the first thread that reads it
  Batch batch;
  auto expected =
      flatten(grad([&](const Model& m) { return loss_of(m, batch); })(model_of(3)))[0].floats();
  CHECK(at_once(4, [&](int k) {
          for (int i = 0; i < 3; ++i) {
            auto by_chunks = [&](const Model& m) {
              return chunked_reduce(B, {.chunk = 1 + k % 2}, [](const Model& q, const Batch& b) {
                return loss_of(q, b);
              })(m, batch);
            };
            auto checkpointed =
                checkpoint([](const Model& q, const Batch& b) { return loss_of(q, b); });
            auto g = k % 2 ? grad(by_chunks)(model)
                           : grad([&](const Model& m) { return checkpointed(m, batch); })(model);
            auto got = flatten(g)[0].floats();
            for (std::size_t j = 0; j < expected.size(); ++j)
              must(std::abs(got[j] - expected[j]) < 1e-5, "the gradient");
            auto each =
                vmap([&](const NamedArray& x) { return sum(model(x), Out); }, B)(batch.x).floats();
            must(std::abs(each[0] - sum(model(batch.x), Out).floats()[0]) < 1e-4, "one by one");
          }
          return 0;
        }) == "");
}

TEST_CASE("threads: concurrent calls on meshes use devices of their own") {
  Devices devices(4);
  const Mesh mesh{{{"data", 2}, {"model", 2}}};
  auto f = named_jit(
      [](const Model& m, const Batch& b) {
        return grad([&](const Model& q) { return loss_of(q, b); })(m);
      },
      {.mesh = mesh, .axis_resources = Mapping{{"batch", "data"}, {"mlp", "model"}}});
  auto expected =
      flatten(grad([&](const Model& q) { return loss_of(q, Batch()); })(model_of(0)))[0].floats();
  CHECK(at_once(3, [&](int) {
          for (int i = 0; i < 5; ++i) {
            auto got = flatten(f(model_of(0), Batch()))[0].floats();
            for (std::size_t j = 0; j < expected.size(); ++j)
              must(std::abs(got[j] - expected[j]) < 1e-5, "the gradient on a mesh");
          }
          return 0;
        }) == "");
  auto shards = named_jit(
      [](const NamedArray& x) { return x * 2.; },
      {.mesh = mesh, .axis_resources = Mapping{{"i", "data"}}})(arange(I, {.dtype = DType::f32}));
  CHECK(at_once(4, [&](int) {  // one thread assembles the value
          must(shards.floats()[5] == 10, "2 i");
          return 0;
        }) == "");
}

TEST_CASE("threads: an array is donated to one call, and the others raise or read its value") {
  for (int round = 0; round < 20; ++round) {
    auto x = arange(I, {.dtype = DType::f32}).eval();
    auto f = jit([](const NamedArray& v) { return v + 1.; }, {.donate = {0}});
    f.compile(x);
    std::atomic<int> given = 0, read = 0, refused = 0;
    CHECK(at_once(4, [&](int k) {
            try {
              if (k < 2) {
                must(f(x).floats()[9] == 10, "i + 1");
                ++given;
              } else {
                must((k == 2 ? x : x * 1.).floats()[9] == 9, "i");
                ++read;
              }

            } catch (const Error& e) {
              must(has(e.what(), "was donated to the call of jit"), e.what());
              ++refused;
            }
            return 0;
          }) == "");
    CHECK(given == 1);
    CHECK(given + read + refused == 4);
  }
}

TEST_CASE("threads: a traced function may wait for other threads") {
  auto x = ones(I).eval();
  auto elsewhere = [&] {  // would deadlock if a lock were held around the function
    double got = 0;
    std::thread([&] {
      got = sum(exp(ones({I, Axis("n", 2)}) * 0.), I).floats()[0] + (x + 1.).eval().floats()[0];
    }).join();
    return got;
  };
  auto f = [&](const NamedArray& v) { return v * elsewhere(); };
  CHECK(jit(f)(x).floats()[0] == 66);
  CHECK(vmap(f, I)(x).floats()[0] == 66);
  CHECK(checkpoint(f)(x).floats()[0] == 66);
  CHECK(grad([&](const NamedArray& v) { return sum(f(v)); })(x).floats()[0] == 66);
  CHECK(jvp(f, x, x).second.floats()[0] == 66);
  CHECK(scan(
            [&](const NamedArray& c, const NamedArray& v) {
              return std::pair{c, f(v)};
            },
            I)(NamedArray(0.), x)
            .second.floats()[0] == 66);
  CHECK(chunked_reduce(I, {.chunk = 8}, f)(x).floats()[0] == 66);
  CHECK(eval_shape(f, x).size() == 64);
  auto by_hand = custom_vjp([](const NamedArray& v) { return v * 1.; },
                            [&](const auto&, const auto&, const NamedArray& g) { return f(g); });
  CHECK(grad([&](const NamedArray& v) { return sum(by_hand(v)); })(x).floats()[0] == 66);
}

TEST_CASE("threads: an exception of a custom kernel on a worker reaches the caller") {
  static const auto refuses = custom_op({.name = "refuses",
                                         .along = {AxisRule::whole},
                                         .cpu = {[](Strided<const float> x, Strided<float> out) {
                                           for (std::int64_t i = 0; i < x.size(0); ++i) {
                                             if (x(i) == 77) throw Error("[refuses] no 77");
                                             out(i) = x(i);
                                           }
                                         }}});
  const Axis Many("many", 4096);
  auto x = broadcast_axis(arange(I, {.dtype = DType::f32}), Many),
       bad = x + 20. * (arange(Many) % 64. == 63.);
  for (auto* backend : {"cpu", "reference"}) {
    auto f = jit([](const NamedArray& v) { return refuses(v, "i"); }, {.backend = backend});
    CHECK(error_of([&] { return f(bad); }).starts_with("[refuses] no 77; threads_test.cpp:"));
    CHECK(f(x).floats()[7] == 7);  // the next call works
  }
  CHECK(error_of([&] {
          return refuses(bad, "i").eval();
        }).starts_with("[refuses] no 77; threads_test.cpp:"));
  Devices devices(4);
  auto f = named_jit([](const NamedArray& v) { return refuses(v, "i"); },
                     {.mesh = Mesh{{{"data", 4}}}, .axis_resources = Mapping{{"many", "data"}}});
  CHECK(error_of([&] { return f(bad); }).starts_with("[refuses] no 77; threads_test.cpp:"));
  CHECK(f(x).floats()[7] == 7);
}
