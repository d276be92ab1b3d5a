// Faults planted into the source code of kernels, into matmul descriptions for the library, and
// into requests to a simulated GPU: each must be found.
#include <doctest/doctest.h>

#include "backends/cuda/sim/machine.h"
#include "support/raises.h"
#include "support/simulated.h"

using namespace haliax;
using namespace haliax::program;
using namespace haliax::testing;

namespace {

constexpr int device = 42;  // used by no other test

// Returns the results of a step's kernels for the case's arguments, after `plant` has changed the
// source code. Raises the errors of the device.
std::vector<Bytes> made(const Case& c,
                        const std::function<std::string(std::string)>& plant = nullptr) {
  auto& api = cuda::simulated();
  cuda::inject_fault(device, "");
  static const auto stream = api.make_stream(device);
  struct Pieces : std::vector<void*> {
    ~Pieces() {
      for (auto* m : *this) cuda::simulated().release(stream, m);
    }
  } memory;
  for (auto* all : {&c.arguments, &c.results})
    for (auto& b : *all) {
      memory.push_back(api.allocate(stream, std::int64_t(b.size())));
      const std::unique_ptr<void, void (*)(void*)> host(api.allocate_host(std::int64_t(b.size())),
                                                        api.release_host);
      std::memcpy(host.get(), b.data(), b.size());
      api.put(stream, memory.back(), host.get(), std::int64_t(b.size()));
      api.wait(stream);
    }
  memory.push_back(
      api.allocate(stream, std::max<std::int64_t>(c.program.steps[0].scratch_bytes, 1)));
  auto place = [&](int slot) {
    if (slot == cuda::kArenaSlot) return memory.back();
    auto& s = c.program.slots[std::size_t(slot)];
    return memory[std::size_t(s.index) + (s.home == Home::result ? c.arguments.size() : 0)];
  };
  for (auto l : cuda::launches_of(c.program.steps[0])) {
    if (plant) l.source = plant(l.source);
    std::vector<std::int64_t> words;
    for (auto& w : l.arguments)
      words.push_back(
          w.value +
          (w.slot == -1 ? 0 : std::int64_t(reinterpret_cast<std::intptr_t>(place(w.slot)))));
    api.launch(stream, api.compile(device, {cuda::named(l.source)})[0], l, words.data());
  }
  std::vector<Bytes> out;
  for (std::size_t k = 0; k + 1 < memory.size(); ++k) {
    auto& b = k < c.arguments.size() ? c.arguments[k] : c.results[k - c.arguments.size()];
    const std::unique_ptr<void, void (*)(void*)> host(api.allocate_host(std::int64_t(b.size())),
                                                      api.release_host);
    api.get(stream, host.get(), memory[k], std::int64_t(b.size()));
    api.wait(stream);
    auto* from = static_cast<std::byte*>(host.get());
    out.emplace_back(from, from + b.size());
  }
  return out;
}
// Rows of x (8, n), divided by their sums in place, and the sum of the distances to the maximum.
Case rows(std::int64_t n = 1000) {
  Case c(1);
  const auto x = c.view(false, DType::f32, {8, n}, Case::dense);
  auto total = c.view(true, DType::f32, {8}, Case::dense);
  auto& f = c.add(Kind::fused).fused;
  f.dims = {8, n};
  f.outer = 1;
  f.code = {load(x, true),
            op(Code::reduce_sum, DType::f32, {0}),
            op(Code::div, DType::f32, {0, 1}, true),
            op(Code::reduce_max, DType::f32, {2}),
            op(Code::sub, DType::f32, {2, 3}, true),
            op(Code::reduce_sum, DType::f32, {4}),
            store(x, 2, true),
            store(total, 5)};
  return c;
}
// out (m, n) = x (m, k) y (k, n), from an offset of 16 elements.
Case product(DType d = DType::f32) {
  Case c(2);
  const std::int64_t m = 5, n = 6, k = 7;
  auto view = [&](bool result, const Dims& dims, Dims strides) {
    View v{c.slot(result, d, 16 + points(dims)), d, 16, std::move(strides), {}};
    return v;
  };
  const auto x = view(false, {m, k}, {k, 0, 1}), y = view(false, {k, n}, {0, 1, n}),
             out = view(true, {m, n}, {n, 1, 0});
  c.add(Kind::contract).contract = {{}, {m}, {n}, {k}, x, y, out, false};
  return c;
}
// Returns true if the fault is found: by an error, or by results that are not bitwise identical.
bool is_found(const Case& c, const cuda::Api& api) {
  const auto expected = c.run(*cuda::make_simulated_device());
  std::vector<Bytes> got;
  const auto message = error_of([&] {
    got = c.run(*device_of(api));
    return 0;
  });
  cuda::inject_fault(0, "");
  return !message.empty() || got != expected;
}
// Changes a matmul before the library receives it.
std::function<void(cuda::Product&)> change_product;
cuda::Api& telling(std::function<void(cuda::Product&)> change) {
  change_product = std::move(change);
  auto& api = faulty();
  api.make_product = [](int d, const cuda::Product& p, const cuda::CudaOptions& w) {
    auto other = p;
    change_product(other);
    return cuda::simulated().make_product(d, other, w);
  };
  return api;
}

}  // namespace

TEST_CASE("cuda faults: without a planted fault, none is found") {
  CHECK(made(rows()) == made(rows()));
  CHECK_FALSE(is_found(product(), cuda::simulated()));
  CHECK_FALSE(is_found(product(), telling([](auto&) {})));
}
TEST_CASE("cuda faults: a missing barrier is found") {
  const std::string without = R"(
template <int group, class T, class F> inline T hasty(T x, F f, unsigned char* shared) {
  for (int by = 1; by < group && by < 32; by *= 2) x = f(x, exchanged(x, by));
  constexpr unsigned warps = group / 32;
  auto* of_warp = reinterpret_cast<T*>(shared);
  if (threadIdx_x % 32 == 0) of_warp[threadIdx_x / 32] = x;
  x = of_warp[threadIdx_x / group * warps + threadIdx_x % warps];
  for (unsigned by = 1; by < warps; by *= 2) x = f(x, exchanged(x, by));
  return x;
}
)";
  const auto got = made(rows(), [&](std::string text) {
    return without + changed(std::move(text), "folded<256>", "hasty<256>");
  });
  CHECK(got != made(rows()));
}
TEST_CASE("cuda faults: a store past the end is found") {
  Case c(3);
  const auto x = c.view(false, DType::f32, {499}, Case::dense),
             out = c.view(true, DType::f32, {499}, Case::dense);
  auto tight = [](View v, Case& in) {
    in.program.slot(v.slot).bytes = (v.offset + 499) * 4;
    return v;
  };
  tight(out, c);
  c.results[0].resize(std::size_t(out.offset + 499) * 4);
  auto& f = c.add(Kind::fused).fused;
  f.dims = {499};
  f.outer = 1;
  f.code = {load(x), op(Code::exp, DType::f32, {0}), store(out, 1)};
  CHECK(error_of([&] {
          made(c);
          return 0;
        }) == "");
  const auto message = error_of([&] {
    made(c, [](std::string text) {
      return changed(std::move(text), "few_there<4>(", "few_there<4>(1 + ");
    });
    return 0;
  });
  CHECK(has(message, "past the end of"));
}
TEST_CASE("cuda faults: a store one pass early is found") {
  // more than registers or shared memory hold: each pass reads the rows again
  const std::int64_t many = 30000;
  const auto early = [](std::string text) {
    const auto from = text.rfind("store_few("), to = text.find(", y6, here", from),
               fold = text.find("Max()(fold3");
    REQUIRE(to != text.npos);
    REQUIRE(fold != text.npos);
    const auto store =
        "if (there) store<float>(" + text.substr(from + 10, to - from - 10) + " + k, v2);";
    return text.insert(text.find('\n', fold) + 1, store);
  };
  CHECK(made(rows(many), early) != made(rows(many)));
  CHECK(made(rows(), early) == made(rows()));  // these rows stay in registers
}
TEST_CASE("cuda faults: reordered parts of a reduction, and a part that is too short, are found") {
  Case c(4);
  const std::int64_t n = 300000;
  const auto x = c.view(false, DType::f32, {n}, Case::dense),
             out = c.view(true, DType::f32, {}, Case::dense);
  auto& f = c.add(Kind::fused).fused;
  f.dims = {n};
  f.outer = 0;
  f.code = {load(x, true), op(Code::reduce_sum, DType::f32, {0}), store(out, 1)};
  c.program.steps[0].scratch_bytes =
      cuda::make_simulated_device()->scratch_bytes(c.program.steps[0], 0);
  c.program.steps[0].scratch = 0;
  const auto both = cuda::launches_of(c.program.steps[0]);
  REQUIRE(both.size() == 2);
  const auto planted = [&](const char* what, const std::string& by) {
    return made(c, [=](std::string text) {
      return text.find(what) == text.npos ? text : changed(text, what, by);
    });
  };
  CHECK(made(c) == made(c));
  CHECK(planted("piece = row", "piece = " + std::to_string(both[0].blocks - 1) + " - row") !=
        made(c));
  CHECK(planted("next = from + ", "next = from - 1 + ") != made(c));
}
TEST_CASE("cuda faults: a wrong leading dimension is found") {
  CHECK(is_found(product(), telling([](auto& p) { ++p.a.ld; })));
  CHECK(is_found(product(), telling([](auto& p) { ++p.b.ld; })));
  CHECK(is_found(product(), telling([](auto& p) { ++p.out.ld; })));
  CHECK(is_found(product(), telling([](auto& p) { p.a.ld = p.a.rows - 1; })));
}
TEST_CASE("cuda faults: a false alignment of 256 bytes is found") {
  CHECK(is_found(product(), telling([](auto& p) { p.a.alignment = 256; })));
  CHECK(is_found(product(), telling([](auto& p) { p.b.alignment = 256; })));
  CHECK(is_found(product(), telling([](auto& p) { p.out.alignment = 256; })));
}
TEST_CASE("cuda faults: partial sums in the dtype of the result are found") {
  // 256 + 1 + 1 + ...: in bf16 each 1 is lost.
  Case c = product(DType::bf16);
  for (auto& b : c.arguments)
    for (std::size_t i = 0; i < b.size(); i += 2) scalar::store(DType::bf16, &b[i], {1, 0});
  for (std::size_t i = 0; i < 5; ++i)
    scalar::store(DType::bf16, &c.arguments[0][(16 + 7 * i) * 2], {256, 0});
  static cuda::Product full;  // in columns: a is (n, k), b is (k, m)
  auto& api = telling([](auto& p) { full = p; });
  api.multiply = [](cuda::Handle s, cuda::Handle, const void* a, const void* b, void* out,
                    void* workspace) {
    auto part = full;
    part.a.cols = part.b.rows = 1;
    for (std::int64_t k = 0; k < full.b.rows; ++k) {
      part.accumulate = k > 0;
      part.a.alignment = part.b.alignment = 2;
      cuda::simulated().multiply(s, cuda::simulated().make_product(0, part, {}),
                                 static_cast<const char*>(a) + k * part.a.ld * 2,
                                 static_cast<const char*>(b) + k * 2, out, workspace);
    }
  };
  CHECK(is_found(c, api));
}
TEST_CASE("cuda faults: allocations and host waits during graph capture are found") {
  auto& api = cuda::simulated();
  const auto stream = api.make_stream(device), other = api.make_stream(device);
  cuda::inject_fault(device, "");
  api.begin_graph(stream);
  CHECK(has(error_of([&] { return api.allocate(stream, 4); }),
            "captures a graph and allocates memory"));
  CHECK(
      has(error_of([&] { return api.allocate_host(4); }), "captures a graph and allocates memory"));
  CHECK(has(error_of([&] {
              api.wait(other);
              return 0;
            }),
            "captures a graph and waits"));
  api.drop_graph(api.end_graph(stream));
  // A stream that joins, and that no stream waits for.
  const auto event = api.make_event(device);
  auto* memory = api.allocate(other, 256);
  api.begin_graph(stream);
  api.record(event, stream);
  api.follow(other, event);
  api.copy(other, static_cast<char*>(memory) + 128, memory, 128);
  CHECK(has(error_of([&] { return api.end_graph(stream); }), "was not joined"));
  api.wait(other);
  api.release(other, memory);
  CHECK(has(error_of([&] {
              api.put(stream, memory, &api, 8);
              return 0;
            }),
            "not allocated for it"));
  api.end_event(event);
  api.end_stream(stream);
  api.end_stream(other);
}
