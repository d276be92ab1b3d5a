// The device `separate-memory`, tested alone: memory that the host must not access, queued work,
// late errors.
#include <doctest/doctest.h>

#include <csignal>

#include "support/allocations.h"
#include "support/ends_by.h"
#include "support/programs.h"
#include "support/raises.h"

using namespace haliax;
using namespace haliax::program;
using namespace haliax::testing;

namespace {

using Floats = std::vector<float>;
constexpr int kUnit = 40;  // a device that no other test uses

struct SeparateMemory {
  std::unique_ptr<Device> device = separate_memory::make_separate_memory_device();
  Memory put(const Floats& values) {
    auto memory = device->allocate(std::int64_t(values.size()) * 4, kUnit);
    device->put({{std::int64_t(values.size())}, 4, memory.get(), {1}, values.data(), {1}}, kUnit);
    return memory;
  }
  Floats get(const Memory& memory, std::int64_t n) {
    Floats out(static_cast<std::size_t>(n));
    device->get({{n}, 4, out.data(), {1}, memory.get(), {1}}, kUnit);
    return out;
  }
  // out[i] = x[i] + 1, `iterations` times in sequence.
  std::unique_ptr<Executable> adds_one(std::int64_t n, std::int64_t iterations = 1) {
    auto p = std::make_shared<Program>();
    p->slots = {{n * 4, Home::argument, 0}, {n * 4, Home::result, 0}};
    p->arguments = p->results = 1;
    p->argument_slots = {0};
    p->result_slots = {1};
    p->donated = {-1};
    p->device = p->backend_device = kUnit;
    p->called = "jit at there.cpp:7";
    View x{0, DType::f32, 0, {1}, {}}, out{1, DType::f32, 0, {1}, {}};
    Step s;
    s.fused.dims = {n};
    Instr load{Code::load, DType::f32}, one{Code::constant, DType::f32},
        add{Code::add, DType::f32, {0, 1}};
    Instr store{Code::store, DType::f32, {2}};
    load.inner = add.inner = store.inner = true;
    load.view = x;
    store.view = out;
    one.number = 1;
    s.fused.code = {load, one, add, store};
    Step loop;
    loop.kind = Kind::loop;
    loop.loop = {.trips = iterations};
    loop.body = {s};
    p->loops = 1;
    p->steps = {loop};
    return device->compile(p);
  }
  void run(Executable& e, const Memory& x, const Memory& out) {
    e.run({x.get()}, {out.get()}, nullptr, nullptr);
  }
};

}  // namespace

TEST_CASE(
    "separate memory: host access is a segmentation fault, "
    "for reads and writes, before and after runs") {
  SeparateMemory a;
  auto x = a.put({1, 2, 3}), y = a.put({0, 0, 0});
  auto touch = [&] { (void)*static_cast<const volatile float*>(x.get()); };
  auto write = [&] { *static_cast<volatile float*>(x.get()) = 1; };
  CHECK(ends_by([] {}) == 0);
  CHECK(ends_by(touch) == SIGSEGV);
  auto f = a.adds_one(3);
  a.run(*f, x, y);
  CHECK(a.get(y, 3) == Floats{2, 3, 4});
  CHECK(ends_by(touch) == SIGSEGV);
  CHECK(ends_by(write) == SIGSEGV);
}

TEST_CASE("separate memory: boxes are copied to the device, back, and on the device") {
  SeparateMemory a;
  const Floats from{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};  // (3, 4)
  auto all = a.put(from), turned = a.device->allocate(48, kUnit);
  a.device->copy({{4, 3}, 4, turned.get(), {3, 1}, all.get(), {1, 4}}, kUnit);
  CHECK(a.get(turned, 12) == Floats{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11});
  Floats part(4);
  a.device->get({{2, 2}, 4, part.data(), {2, 1}, static_cast<float*>(all.get()) + 5, {4, 1}},
                kUnit);
  CHECK(part == Floats{5, 6, 9, 10});
  a.device->put(
      {{2, 1, 2}, 4, static_cast<float*>(all.get()) + 1, {8, 0, 2}, part.data(), {1, 7, 2}}, kUnit);
  CHECK(a.get(all, 12) == Floats{0, 5, 2, 9, 4, 5, 6, 7, 8, 6, 10, 10});
  a.device->get({{0, 2}, 4, nullptr, {2, 1}, all.get(), {2, 1}}, kUnit);
}

TEST_CASE("separate memory: unwritten memory is NaN, also in memory that is reused") {
  SeparateMemory a;
  for (int repeat = 0; repeat < 2; ++repeat) {
    auto memory = a.device->allocate(4000, kUnit);
    CHECK(reinterpret_cast<std::uintptr_t>(memory.get()) % 64 == 0);
    for (float v : a.get(memory, 1000)) REQUIRE(std::isnan(v));
    const Floats ones(1000, 1);
    a.device->put({{1000}, 4, memory.get(), {1}, ones.data(), {1}}, kUnit);
  }
}

TEST_CASE("separate memory: memory is reused only after the work that reads it") {
  SeparateMemory a;
  const std::int64_t n = 1 << 19;  // large enough that the system reclaims it at once
  auto before = separate_memory::counts(kUnit).bytes;
  auto out = a.device->allocate(n * 4, kUnit);
  {
    auto x = a.put(Floats(std::size_t(n), 1));
    CHECK(separate_memory::counts(kUnit).bytes == before + 2 * n * 4);
    a.run(*a.adds_one(n, 50), x, out);  // the program is destroyed before it has run
  }
  auto other = a.put(Floats(std::size_t(n), 7));  // in the memory of x, once it is free
  CHECK(a.get(out, n) == Floats(std::size_t(n), 2));
  CHECK(a.get(other, n) == Floats(std::size_t(n), 7));
  out = other = nullptr;
  CHECK(separate_memory::counts(kUnit).bytes == before);
  CHECK(error_of([&] { return a.device->allocate(std::int64_t(1) << 50, kUnit); }) ==
        "[memory] 1125899906842624 bytes are requested, "
        "but not available on separate-memory device 40");
}

TEST_CASE("separate memory: a late error is raised by the next run or get, and by all later ones") {
  SeparateMemory a;
  auto x = a.put({1}), y = a.put({1});
  auto f = a.adds_one(1);
  separate_memory::inject_error(kUnit, "exp (model.cpp:3) has met a planted fault");
  a.run(*f, x, y);  // returns
  const std::string expected =
      "[separate-memory] device 40 has failed in the call of jit at there.cpp:7: "
      "exp (model.cpp:3) has met a planted fault; it cannot run any more programs";
  CHECK(error_of([&] { return a.get(y, 1); }) == expected);
  CHECK(error_of([&] {
          a.run(*f, x, y);
          return 0;
        }) == expected);
  CHECK(error_of([&] { return a.get(x, 1); }) == expected);
  separate_memory::inject_error(kUnit, nullptr);
  a.run(*f, x, y);
  CHECK(a.get(y, 1) == Floats{2});
}

TEST_CASE("separate memory: failed host allocations leak no device memory") {
  if (!owns_operator_new) return;
  SeparateMemory a;
  auto before = separate_memory::counts(kUnit).bytes;
  for (long n = 0, failed = 1; failed; ++n) {
    REQUIRE(n < 100);
    FailingAllocation one(n);
    error_of([&] { return a.device->allocate(100, kUnit); });
    failed = one.happened();
  }
  auto memory = a.device->allocate(100, kUnit);
  {
    FailingAllocation next(0);
    memory = nullptr;
  }
  CHECK(separate_memory::counts(kUnit).bytes == before);
}
