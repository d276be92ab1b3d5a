// Processes that fork, and processes that end while threads compute.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "haliax/haliax.h"
#include "support/child.h"
#include "support/devices.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis I("i", 64), J("j", 64);
// never destroyed: threads that compute at exit read it
const Mesh& mesh = *new Mesh{{{"data", 2}, {"model", 2}}};

// How a child that does f ends: 0, or what is wrong with it. One that hangs is ended.
template <class F> int in_child(const F& f) {
  std::fflush(nullptr);  // or what waits to be written is written twice
  auto child = fork();
  if (child == 0) {
    alarm(60);
    test::is_child = true;
    test::leave_old_stacks();
    auto wrong = error_of([&] {
      f();
      return 0;
    });
    if (!wrong.empty()) static_cast<void>(!write(2, wrong.c_str(), wrong.size()));
    _exit(wrong.empty() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}
// Something of each kind.
void compute(const Jitted<NamedArray (*)(const NamedArray&)>& f) {
  auto check = [](bool holds, const char* what) {
    if (!holds) throw Error(what);
  };
  auto x = arange(I, {.dtype = DType::f32});
  check((x * 2. + 1.).floats()[5] == 11, "[test] eager");
  check(f(x).floats()[1] == 2, "[test] what the parent traced");
  check(jit([](const NamedArray& v) { return v * 3.; })(x).floats()[2] == 6, "[test] jit");
  check(dot(ones({I, J}), ones({J, Axis("k", 64)}), J).floats()[7] == 64, "[test] dot");
  check(sum(ones({I, Axis("wide", 1 << 16)})).item() == double(64 << 16), "[test] the pool");
  auto on_mesh = named_jit([](const NamedArray& v) { return sum(v); },
                           {.mesh = mesh, .axis_resources = Mapping{{"i", "data"}}});
  check(on_mesh(x).item() == 2016, "[test] mesh");
}
NamedArray doubled(const NamedArray& v) { return v * 2.; }

}  // namespace

TEST_CASE("fork: a child uses what its parent has used") {
  Devices devices(4);
  auto f = jit(&doubled);
  compute(f);
  CHECK(in_child([&] { compute(f); }) == 0);
  CHECK(in_child([&] {  // and its child
          if (in_child([&] { compute(f); }) != 0) throw Error("[test] the child of a child");
        }) == 0);
  CHECK(in_child([&] {
          set_threads(3);
          compute(f);
        }) == 0);
  compute(f);
}

TEST_CASE("fork: while other threads compute and trace") {
#if defined(__SANITIZE_ADDRESS__)
  // this sanitizer's own memory is locked in the child for good, if another thread was just asking
  // for some
  return;
#endif
  Devices devices(4);
  auto f = jit(&doubled);
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int k = 0; k < 3; ++k)
    threads.emplace_back([&] {
      while (!stop) compute(f);
    });
  for (int i = 0; i < 10; ++i) CHECK(in_child([&] { compute(f); }) == 0);
  stop = true;
  for (auto& t : threads) t.join();
}

TEST_CASE(
    "fork: a function that another thread is tracing, or an array that it computes, is there for "
    "the child") {
  std::atomic<bool> inside = false, go_on = false;
  auto f = jit([&](const NamedArray& v) {
    inside = true;
    while (!go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return v + 1.;
  });
  std::thread tracing([&] { f(ones(I)); });
  while (!inside) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(in_child([&] {
          go_on = true;
          if (f(ones(I)).floats()[0] != 2) throw Error("[test] traced anew");
        }) == 0);
  go_on = true;
  tracing.join();
  CHECK(f.report().traces == 1);
}

TEST_CASE("exit: while threads compute, and in what runs at the end") {
  static struct AtEnd {
    NamedArray x;
    ~AtEnd() {
      if (!x.empty() && (x * 2.).floats()[0] != 2) std::abort();  // computes after main
    }
  } at_end;
  for (int i = 0; i < 5; ++i)
    CHECK(in_child([&] {
            Devices devices(4);
            at_end.x = ones(I);
            for (int k = 0; k < 3; ++k)
              std::thread([] {
                auto f = jit(&doubled);
                for (;;) compute(f);
              }).detach();
            std::this_thread::sleep_for(std::chrono::milliseconds(20 * i));
            std::exit(0);
          }) == 0);
}
