// Arrays on devices whose memory is separate from the host: when they are copied, and which copies
// are valid.
#include <doctest/doctest.h>

#include <thread>

#include "graph/node.h"
#include "haliax/haliax.h"
#include "program/devices.h"
#include "devices/device_memory.h"
#include "support/devices.h"
#include "support/raises.h"

using namespace haliax;
using Doubles = std::vector<double>;

namespace {

const Axis N("n", 4), Batch("batch", 8), Embed("embed", 6);
// Counts the requests to a device since its construction.
struct Since {
  explicit Since(int d = 0) : device(d), at(separate_memory::counts(d)) {}
  separate_memory::Counts operator()() const {
    auto now = separate_memory::counts(device);
    return {now.runs - at.runs, now.puts - at.puts, now.gets - at.gets, now.copies - at.copies,
            now.bytes - at.bytes};
  }
  int device;
  separate_memory::Counts at;
};
struct Backend {  // Sets the default backend during its lifetime.
  explicit Backend(const char* name) { set_default_backend(name); }
  ~Backend() { set_default_backend(before); }
  std::string before = default_backend();
};
NamedArray counted(const Axis& a, double from = 0) {  // an array on the host
  Backend cpu("cpu");
  return (arange(a, {.dtype = DType::f32}) + from).eval();
}
NamedArray twice(const NamedArray& x) { return x * 2.; }
NamedArray next(const NamedArray& x) { return x + 1.; }
auto on(const char* backend, NamedArray (*f)(const NamedArray&)) {
  return jit(f, {.backend = backend});
}
auto giving(const char* backend, NamedArray (*f)(const NamedArray&)) {
  return jit(f, {.donate = {0}, .backend = backend});
}
// Returns an array with a valid copy on the host and on the device.
NamedArray on_both(double from) {
  auto x = counted(N, from);
  on("separate-memory", next)(x).doubles();
  return x;
}

}  // namespace

TEST_CASE(
    "device memory: arguments are copied to the device once, "
    "and results back once when they are read") {
  auto x = counted(N), w = counted(N, 1);
  auto f = jit([](const NamedArray& x, const NamedArray& w) { return x * w + 1.; },
               {.backend = "separate-memory"});
  Since since;
  for (int k = 0; k < 10; ++k) f(x, w);
  CHECK(since().puts == 2);
  CHECK(since().runs == 10);
  auto y = f(f(x, w), w);  // nothing is copied back between the calls
  CHECK(since().gets == 0);
  CHECK(y.doubles() == Doubles{2, 7, 22, 53});
  CHECK(y.floats()[2] == 22);
  CHECK(since().gets == 1);
  CHECK(on("cpu", next)(y).doubles() == Doubles{3, 8, 23, 54});
  CHECK(since().gets == 1);
  CHECK(f(y, w).doubles()[1] == 15);
  CHECK(since().puts == 2);
}

TEST_CASE("device memory: captured arrays are copied to the device once") {
  auto w = counted(N, 1);
  auto f = jit([w](const NamedArray& x) { return x * w; }, {.backend = "separate-memory"});
  auto x = counted(N);
  Since since;
  for (int k = 0; k < 3; ++k) CHECK(f(x).doubles() == Doubles{0, 2, 6, 12});
  CHECK(since().puts == 2);
}

TEST_CASE("device memory: a donated array leaves no stale copy on the other side") {
  for (const char* first : {"separate-memory", "cpu"})
    for (const char* second : {"separate-memory", "cpu"})
      for (bool read : {false, true}) {
        CAPTURE(first);
        CAPTURE(second);
        CAPTURE(read);
        auto x = on_both(10);
        auto y = giving(first, next)(x);  // overwrites the memory of x on that side
        if (read) CHECK(y.doubles() == Doubles{11, 12, 13, 14});
        auto z = giving(second, twice)(y);
        if (read) CHECK(z.doubles() == Doubles{22, 24, 26, 28});
        CHECK(on("separate-memory", next)(z).doubles() == Doubles{23, 25, 27, 29});
        CHECK(on("cpu", next)(z).doubles() == Doubles{23, 25, 27, 29});
        CHECK(z.doubles() == Doubles{22, 24, 26, 28});
        CHECK_THROWS_AS(x.doubles(), Error);
      }
}

TEST_CASE(
    "device memory: a donated array's memory is reused, "
    "and copied on the device first if it is referenced") {
  auto f = giving("separate-memory", next);
  auto x = on("separate-memory", next)(counted(N));
  f(on("separate-memory", next)(counted(N)));  // traces and allocates an arena
  Since since;
  for (int k = 0; k < 5; ++k) x = f(x);
  CHECK(since().copies == 0);
  CHECK(since().bytes == 0);
  auto held = x.node()->value.get();
  x = f(x);
  CHECK(since().copies == 1);
  CHECK(since().gets == 0);
  CHECK(x.doubles() == Doubles{7, 8, 9, 10});
  CHECK(*reinterpret_cast<float*>(held->data()) == 6);
}

TEST_CASE("device memory: memory is freed when its last reference is gone") {
  Since since;
  {
    auto f = jit([](const NamedArray& x) { return x * sum(x); }, {.backend = "separate-memory"});
    auto x = counted(Axis("n", 1000));
    auto y = f(f(x));
    CHECK(since().bytes >= 2 * 4032);
  }
  CHECK(since().bytes == 0);
}

TEST_CASE("device memory: eager evaluation computes on the device") {
  Backend separate("separate-memory");
  auto x = counted(N);
  Since since;
  auto y = (x * 2. + 1.).eval();
  CHECK(since().gets == 0);
  CHECK((y * y).doubles() == Doubles{1, 9, 25, 49});
  CHECK(since().gets == 1);
}

TEST_CASE("device memory: a late error names the call, and persists until the device is reset") {
  auto f = jit(twice, {.backend = "separate-memory", .at = SourceLocation::current()});
  const auto line = std::to_string(__LINE__ - 1);
  auto x = counted(N), y = f(x);
  separate_memory::inject_error(0, "planted");
  auto bad = f(x);  // returns without an error
  const auto expected =
      "[separate-memory] device 0 has failed in the call of jit at device_memory_test.cpp:" + line +
      ": planted; it cannot run any more programs";
  CHECK(error_of([&] { return bad.doubles(); }) == expected);
  CHECK(error_of([&] { return f(x); }) == expected);
  CHECK(error_of([&] { return y.doubles(); }) == expected);
  CHECK(on("cpu", next)(x).doubles()[0] == 1);
  separate_memory::inject_error(0, nullptr);
  CHECK(y.doubles() == Doubles{0, 2, 4, 6});
  Backend separate("separate-memory");
  separate_memory::inject_error(0, "planted");
  auto z = (x * 3.).eval();
  const auto of_eval = std::to_string(__LINE__ - 1);
  CHECK(has(error_of([&] { return z.doubles(); }),
            "in the call of eval at device_memory_test.cpp:" + of_eval));
  separate_memory::inject_error(0, nullptr);
}

TEST_CASE("device memory: prints are in order, and complete when the call returns") {
  static std::vector<std::string> lines;
  auto x = counted(N);
  auto printing = [](const NamedArray& x) {
    debug::print("x {}", sum(x));
    auto y = x * 2.;
    debug::print("y {}", y);
    return y;
  };
  auto f = jit(printing, {.backend = "separate-memory"}), on_host = jit(printing);
  debug::set_output([](std::string_view line) { lines.emplace_back(line); });
  on_host(on_host(x));
  const auto expected = std::exchange(lines, {});
  f(f(x));
  CHECK(expected.size() == 4);
  CHECK(lines == expected);
  auto checked = jit(
      [](const NamedArray& x) {
        debug::check(sum(x) < 5., "too much");
        return x;
      },
      {.backend = "separate-memory"});
  CHECK(has(error_of([&] { return checked(x); }), "[check] too much"));
  CHECK(f(x).doubles()[3] == 6);  // the failed check left the device usable
  debug::set_output(nullptr);
}

TEST_CASE("device memory: four threads use one device, and read each other's results") {
  auto f = jit([](const NamedArray& x, const NamedArray& w) { return x * w + 1.; },
               {.backend = "separate-memory"});
  auto w = counted(Axis("n", 1000), 1);
  std::vector<std::thread> threads;
  std::vector<std::string> wrong(4);
  for (int k = 0; k < 4; ++k)
    threads.emplace_back([&, k] {
      wrong[std::size_t(k)] = error_of([&] {
        for (int i = 0; i < 100; ++i) {
          auto x = f(counted(Axis("n", 1000), k), w);
          x = giving("separate-memory", next)(x);
          if (x.doubles()[999] != (999 + k) * 1000. + 2)
            throw Error("[test] " + std::to_string(x.doubles()[999]));
        }
        return 0;
      });
    });
  for (auto& t : threads) t.join();
  CHECK(wrong == std::vector<std::string>(4));
}

TEST_CASE(
    "device memory: on a mesh each device receives its block once and retains it between calls") {
  const Mesh two{{{"data", 2}}};
  auto w = random::normal(random::key(1), {Batch, Embed}),
       x = random::normal(random::key(2), {Batch, Embed});
  auto ws = w.doubles(), xs = x.doubles();
  for (bool donate : {false, true}) {
    CAPTURE(donate);
    auto f = named_jit(
        [](const NamedArray& w, const NamedArray& x) {
          return std::pair{w * 0.5 + x, sum(w)};
        },
        {.donate = donate ? std::vector{0} : std::vector<int>{},
         .backend = "separate-memory",
         .mesh = two,
         .axis_resources = Mapping{{"embed", "data"}}});
    Since since(1);
    auto mine = (w + 0.).eval();
    auto [y, total] = f(mine, x);
    f(f(y, x).first, x);
    CHECK(since().puts ==
          (donate ? 1 : 2));  // `mine` unless it is donated, and x in the first call
    CHECK(since().gets == 0);
    auto result = f(donate ? f(w + 0., x).first : y, x);
    auto got = result.first.doubles();
    CHECK(since().gets == 1);
    CHECK(result.first.doubles() == got);
    CHECK(since().gets == 1);
    for (std::size_t i = 0; i < got.size(); ++i)
      CHECK(got[i] == doctest::Approx((ws[i] * 0.5 + xs[i]) * 0.5 + xs[i]));
    double sum_of_w = 0;
    for (auto v : ws) sum_of_w += v;
    CHECK(total.item() == doctest::Approx(sum_of_w));
    auto unsharded =
        on("separate-memory", next)(result.first);  // moves blocks of two devices to one device
    CHECK(unsharded.doubles()[3] == doctest::Approx(got[3] + 1));
  }
}

TEST_CASE("device memory: a mesh with more devices than the backend raises") {
  Devices many(100);
  auto f = named_jit(twice, {.backend = "separate-memory",
                             .mesh = Mesh{{{"data", 65}}},
                             .axis_resources = Mapping{{"n", "data"}}});
  raises([&] { return f(counted(N)); },
         {"[named_jit] the mesh (data=65) has 65 devices, but backend separate-memory has 64; "
          "JitOptions::backend or HALIAX_BACKEND selects another",
          "device_memory_test.cpp"});
  CHECK_NOTHROW(f.plan(counted(N)));
}

TEST_CASE("device memory: loops and chunks run on the device, and a CPU custom op raises") {
  auto x = random::normal(random::key(3), {Batch, Embed}).eval();
  auto loss = [](const NamedArray& x) {
    return chunked_reduce("batch", {.chunk = 2},
                          [](const NamedArray& x) { return sum(exp(x)); })(x);
  };
  auto walk = [](const NamedArray& x) {
    return fold([](const NamedArray& sum, const NamedArray& row) { return sum * 0.5 + row; },
                "batch")(zeros(Embed), x);
  };
  CHECK(jit(loss, {.backend = "separate-memory"})(x).item() ==
        doctest::Approx(jit(loss)(x).item()));
  CHECK(jit(walk, {.backend = "separate-memory"})(x).doubles() == jit(walk)(x).doubles());
  static const CustomFunction mine = custom_op({
      .name = "mine",
      .along = {AxisRule::whole},
      .cpu = {[](Strided<const float> x, Strided<float> y) {
        for (std::int64_t i = 0; i < x.size(); ++i) y(i) = x(i);
      }},
  });
  raises(
      [&] {
        return jit([](const NamedArray& x) { return mine(x, "n"); },
                   {.backend = "separate-memory"})(counted(N));
      },
      {"[mine] backend separate-memory does not support this step", "device_memory_test.cpp"});
}
