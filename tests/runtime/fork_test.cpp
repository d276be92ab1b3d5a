// Processes that fork, and processes that exit while threads compute.
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
// Never destroyed, since threads may still compute during exit.
const Mesh& mesh = *new Mesh{{{"data", 2}, {"model", 2}}};

// Runs f in a child and returns its exit status: 0, or not 0 for an error. A child that hangs is
// ended.
template <class F> int in_child(const F& f) {
  std::fflush(nullptr);  // otherwise the child prints buffered output again
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
// Computes a value of each kind: eager, jit, matmul, thread pool, mesh.
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

TEST_CASE("fork: a child uses jitted functions, threads and devices of its parent") {
  Devices devices(4);
  auto f = jit(&doubled);
  compute(f);
  CHECK(in_child([&] { compute(f); }) == 0);
  CHECK(in_child([&] {  // a child of the child
          if (in_child([&] { compute(f); }) != 0) throw Error("[test] the child of a child");
        }) == 0);
  CHECK(in_child([&] {
          set_threads(3);
          compute(f);
        }) == 0);
  compute(f);
}

TEST_CASE("fork: a child works if other threads were computing and tracing") {
#if defined(__SANITIZE_ADDRESS__)
  // The memory lock of this sanitizer stays locked in the child if another thread held it.
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

TEST_CASE("fork: a child can call a function that another thread of the parent is tracing") {
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

TEST_CASE("exit: a process exits while threads compute, and static destructors may compute") {
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
