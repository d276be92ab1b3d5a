// The engine of the cuda backends on simulated GPUs: memory and copies, graphs, late errors, the
// options of HALIAX_CUDA, and the number of requests by the host.
#include <doctest/doctest.h>

#include <csignal>
#include <thread>

#include "backends/cuda/engine/sequence.h"
#include "backends/cuda/sim/machine.h"
#include "haliax/haliax.h"
#include "support/devices.h"
#include "support/ends_by.h"
#include "support/folder.h"
#include "support/raises.h"
#include "support/simulated.h"

using namespace haliax;
using namespace haliax::program;
using namespace haliax::testing;
using Doubles = std::vector<double>;
using Floats = std::vector<float>;

namespace {

const Axis N("n", 4), Batch("batch", 8), Embed("embed", 6);

// Requests to the machine since construction.
struct Since {
  cuda::SimulationCounts from = cuda::simulation_counts();
  std::int64_t operator()(std::int64_t cuda::SimulationCounts::*what) const {
    return cuda::simulation_counts().*what - from.*what;
  }
};
using cuda::SimulationCounts;
NamedArray numbers(const Axis& a, double from = 0) {
  return jit([=] { return arange(a, {.dtype = DType::f32}) + from; }, {.backend = "cpu"})();
}
// out[i] = x[i] + 1, `iterations` times in sequence.
Case adds_one(std::int64_t n, std::int64_t iterations = 1) {
  Case c(1);
  const auto x = c.view(false, DType::f32, {n}, Case::dense),
             out = c.view(true, DType::f32, {n}, Case::dense);
  Step s;
  s.op = "add";
  s.where = "model.cpp:3";
  s.fused.dims = {n};
  s.fused.outer = 1;
  s.fused.code = {load(x), constant(DType::f32, 1), op(Code::add, DType::f32, {0, 1}),
                  store(out, 2)};
  Step repeated = s;  // out += 1
  repeated.fused.code[0].view = out;
  Step loop{
      .kind = Kind::loop, .loop = {.variable = 0, .trips = iterations - 1}, .body = {repeated}};
  c.program.steps = {s, loop};
  c.program.loops = 1;
  c.program.called = "jit at there.cpp:7";
  return c;
}
// Runs the case on a device with these options, and reads the results.
struct Run {
  const Case& c;
  std::unique_ptr<Device> device;
  std::unique_ptr<Executable> executable = device->compile(std::make_shared<Program>(c.program));
  Memory x = put(*device, c.arguments[0]),
         out = device->allocate(std::int64_t(c.results[0].size()), 0);
  explicit Run(const Case& of, const char* words = "", const cuda::Api& api = cuda::simulated())
      : c(of), device(device_of(api, words)) {}
  void run() { executable->run({x.get()}, {out.get()}, nullptr, nullptr); }
  Bytes result() { return get(*device, out, c.results[0].size()); }
};

}  // namespace

TEST_CASE(
    "cuda engine: host access to GPU memory is a segmentation fault, and unwritten memory is NaN") {
  auto device = cuda::make_simulated_device();
  for (int repeat = 0; repeat < 2; ++repeat) {
    auto memory = device->allocate(4000, 0);
    CHECK(reinterpret_cast<std::uintptr_t>(memory.get()) % 256 == 0);
    CHECK(ends_by([&] { (void)*static_cast<const volatile float*>(memory.get()); }) == SIGSEGV);
    for (float v : floats_of(get(*device, memory, 4000))) REQUIRE(std::isnan(v));
    CHECK(ends_by([&] { *static_cast<volatile float*>(memory.get()) = 1; }) == SIGSEGV);
    const Floats ones(1000, 1);
    device->put(bytes_between(memory.get(), ones.data(), 4000), 0);
  }
}

TEST_CASE("cuda engine: boxes of any strides are copied to the GPU, back, and on the GPU") {
  auto device = cuda::make_simulated_device();
  for (unsigned seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    Case c(seed);
    const Dims dims{1 + c.random.below(5), 1 + c.random.below(40), 1 + c.random.below(3)};
    const auto d = all_dtypes[c.random.below(13)];
    const auto x = c.any_view(false, d, dims), y = c.any_view(true, d, dims),
               z = c.any_view(true, d, dims);
    auto at = [&](void* base, const View& v) {
      return static_cast<std::byte*>(base) + v.offset * bytes_of(d);
    };
    auto box = [&](void* to, const View& into, void* from, const View& of) {
      return Box{dims, bytes_of(d), at(to, into), into.strides, at(from, of), of.strides};
    };
    auto expected = c.results, got = c.results;
    copy_on_host(box(expected[0].data(), y, c.arguments[0].data(), x));
    copy_on_host(box(expected[1].data(), z, expected[0].data(), y));
    auto there = put(*device, c.results[0]), other = put(*device, c.results[1]);
    device->put(box(there.get(), y, c.arguments[0].data(), x), 0);
    device->copy(box(other.get(), z, there.get(), y), 0);
    CHECK(get(*device, there, expected[0].size()) == expected[0]);
    CHECK(get(*device, other, expected[1].size()) == expected[1]);
    device->get(box(got[1].data(), z, there.get(), y), 0);
    CHECK(got[1] == expected[1]);
  }
  Bytes large((std::size_t(9) << 20) + 5);  // in several parts
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = std::byte(i * 2654435761u >> 13);
  CHECK(get(*device, put(*device, large), large.size()) == large);
}

TEST_CASE("cuda engine: 100 small steps create at most 4 graphs, reuse memory, and never wait") {
  auto step = [](const NamedArray& w, const NamedArray& x) {
    auto loss = [&](const NamedArray& w) { return mean(square(dot(x, w, Embed) - 1.)); };
    auto [value, slope] = value_and_grad(loss)(w);
    return std::pair{w - slope * 0.01, value};
  };
  for (bool donate : {true, false}) {
    CAPTURE(donate);
    auto f =
        jit(step, {.donate = donate ? std::vector{0} : std::vector<int>{}, .backend = "cuda-sim"});
    auto w = numbers(Embed), x = random::normal(random::key(1), {Batch, Embed}).eval();
    auto first = f(w + 0., x);
    auto now = first.first, last = first.second;
    for (int k = 0; k < 4; ++k) std::tie(now, last) = f(now, x);
    Since since;
    for (int k = 0; k < 100; ++k) std::tie(now, last) = f(now, x);
    CHECK(since(&SimulationCounts::graphs) == 100);
    CHECK(since(&SimulationCounts::instances) <= 4);
    CHECK(since(&SimulationCounts::grown) == 0);
    CHECK(since(&SimulationCounts::waits) == 0);
    CHECK(since(&SimulationCounts::copies) == 0);
    CHECK(since(&SimulationCounts::kernels) == 0);  // not even captured again
    CHECK(last.item() < first.second.item());
    auto fed = [&](int k) {  // copies the batch to the GPU, and the loss back
      std::tie(now, last) = f(now, random::normal(random::key(k), {Batch, Embed}).eval());
      CHECK(std::isfinite(last.item()));
    };
    for (int k = 0; k < 4; ++k) fed(k);
    since = {};
    for (int k = 0; k < 100; ++k) fed(k);
    CHECK(since(&SimulationCounts::copies) == 200);
    CHECK(since(&SimulationCounts::instances) <= 4);
    CHECK(since(&SimulationCounts::grown) == 0);
  }
}

TEST_CASE("cuda engine: a graph for other addresses replaces the oldest one") {
  auto f = jit([](const NamedArray& x) { return x * 2. + 1.; }, {.backend = "cuda-sim"});
  std::vector<NamedArray> retained;
  auto x = numbers(N);
  Since since;
  for (int k = 0; k < 12; ++k) retained.push_back(f(x));  // each result has its own memory
  CHECK(since(&SimulationCounts::instances) == 4);
  CHECK(since(&SimulationCounts::updates) == 8);
  for (auto& y : retained) CHECK(y.doubles() == Doubles{1, 3, 5, 7});
}

TEST_CASE(
    "cuda engine: a program with too many steps for a graph launches step by step, without waits") {
  for (auto [iterations, graphs] : {std::pair{100, 1}, {20000, 1}, {20001, 0}}) {
    const auto c = adds_one(3, iterations);
    Run r(c);
    Since since;
    r.run();
    CHECK(since(&SimulationCounts::graphs) == graphs);
    CHECK(since(&SimulationCounts::waits) == 0);
    const auto offset = std::size_t(c.program.steps[0].fused.code[3].view.offset);
    const auto from = std::size_t(c.program.steps[0].fused.code[0].view.offset);
    CHECK(floats_of(r.result())[offset] ==
          doctest::Approx(floats_of(c.arguments[0])[from] + iterations));
  }
}

TEST_CASE(
    "cuda engine: the GPU decides which iterations are skipped, "
    "by conditional nodes of a graph or by flags") {
  auto both = [](const NamedArray& x, const NamedArray& flag) {
    return cond(
        flag, [](const NamedArray& v) { return dot(v, v, N) + v; },
        [](const NamedArray& v) { return v * 3.; })(x);
  };
  auto f = jit(both, {.backend = "cuda-sim"}), on_host = jit(both, {.backend = "cpu"});
  auto x = numbers(N, 1);
  Since from_start;
  for (bool flag : {true, false, true}) {
    auto which = jit([=](const NamedArray& v) { return sum(v) > (flag ? 0. : 1000.); },
                     {.backend = "cpu"})(x);
    auto expected = on_host(x, which).doubles();
    f(x, which);
    Since since;
    auto y = f(x, which);
    CHECK(since(&SimulationCounts::graphs) == 1);
    CHECK(since(&SimulationCounts::waits) == 0);
    CHECK(y.doubles() == expected);
  }
  CHECK(from_start(&SimulationCounts::ifs) > 0);
}

namespace {

// Matmuls in iterations of which some are skipped. With every fourth
// seed, an inner conditional skips them, too.
Case skipped_products(unsigned seed, DType d) {
  Case c(seed);
  const std::int64_t iterations = 5;
  const auto flags = c.view(false, DType::boolean, {iterations}, Case::dense);
  for (std::int64_t t = 0; t < iterations; ++t)
    c.arguments[0][std::size_t(flags.offset + t)] = std::byte(c.random.coin());
  random_contract(c, {2}, {3}, {4}, {5}, d, d, c.random.coin(), seed % 3 == 0);
  auto step = c.program.steps[0];
  step.scratch = -1;
  const Term iteration{.loop = 0, .stride = 1};
  Step conditional{.kind = Kind::conditional,
                   .conditional = {{flags.slot, DType::boolean, flags.offset, {}, {iteration}}}};
  if (seed % 4 == 3) {  // in an inner conditional
    Step inner = conditional;
    inner.conditional.flag.terms[0].stride = -1;
    inner.conditional.flag.offset += iterations - 1;
    inner.body = {step};
    step = inner;
  }
  conditional.body = {step};
  c.program.steps = {
      {.kind = Kind::loop, .loop = {.variable = 0, .trips = iterations}, .body = {conditional}}};
  c.program.loops = 1;
  return c;
}

}  // namespace

TEST_CASE("cuda engine: matmuls of skipped iterations leave visible memory unchanged") {
  for (unsigned seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    const auto d = seed % 2 ? DType::bf16 : DType::f32;
    const auto c = skipped_products(seed, d);
    const auto expected = c.run(*reference::make_reference_device());
    for (bool ifs : {true, false}) {
      CAPTURE(ifs);
      auto& api = faulty();
      if (!ifs) api.has_ifs = [] { return false; };
      Since since;
      const auto got = c.run(*device_of(api));
      CHECK(difference(d, got[0], expected[0], 5 * tolerance(d)) == "");
      CHECK((since(&SimulationCounts::ifs) > 0) == ifs);
    }
  }
}

TEST_CASE(
    "cuda engine: graphs with conditional nodes are updated for other addresses, and run again") {
  const auto c = skipped_products(3, DType::f32);
  const auto device = device_of(cuda::simulated());
  auto executable = device->compile(std::make_shared<const Program>(c.program));
  const auto expected = c.run(*reference::make_reference_device());
  const auto arena = device->allocate(c.program.arena_bytes, 0);
  std::vector<Memory> retained;
  for (int k = 0; k < 7; ++k) {  // more than the cache holds
    std::vector<void*> in, out;
    for (auto* all : {&c.arguments, &c.results})
      for (auto& b : *all) {
        retained.push_back(put(*device, b));
        (all == &c.results ? out : in).push_back(retained.back().get());
      }

    Since since;
    executable->run(in, out, arena.get(), nullptr);
    CHECK(since(&SimulationCounts::updates) == (k < 4 ? 0 : 1));
    const auto got = get(*device, retained.back(), c.results.back().size());
    CHECK(difference(DType::f32, got, expected.back(), 5 * tolerance(DType::f32)) == "");
  }
}

TEST_CASE("cuda engine: collectives and conditional nodes do not share a graph") {
  auto& api = cuda::simulated();
  const auto stream = api.make_stream(50);
  auto* memory = api.allocate(stream, 256);
  const auto join = api.join(api.make_id(), 1, 0, 50, {});
  api.wait(stream);
  api.begin_graph(stream);
  api.exchange(join, stream, {{0, true, memory, 64}, {0, false, memory, 64}});
  cuda::Launch condition{.source =
                             "struct NAME_words { Word w[1]; };\nextern \"C\" void "
                             "cudaGraphSetConditional(unsigned long long, "
                             "unsigned);\nextern \"C\" void NAME(const NAME_words a) { "
                             "cudaGraphSetConditional(a.w[0], 1); }\n",
                         .arguments = {cuda::KernelArgument{}}};
  std::int64_t words[1] = {};
  const auto inside =
      api.begin_if(stream, api.compile(50, {cuda::named(condition.source)})[0], condition, words);
  api.copy(inside, memory, static_cast<char*>(memory) + 128, 64);
  api.end_if(inside);
  CHECK(has(error_of([&] { return api.end_graph(stream); }), "NCCL does not support this"));
  api.leave(join);
  api.release(stream, memory);
  api.end_stream(stream);
}

TEST_CASE(
    "cuda engine: a late error names the call, with HALIAX_CUDA=sync the step, and persists") {
  const auto c = adds_one(3);
  auto& api = faulty();
  api.launch = [](cuda::Handle s, cuda::Handle, const cuda::Launch&, const std::int64_t*) {
    cuda::sim::Machine::instance().enqueue(static_cast<cuda::sim::Stream*>(s),
                                           {.run = [] { throw Error("a planted fault"); }});
  };
  {
    Run good(c), bad(c, "", api);
    good.run();
    bad.run();  // returns
    const std::string expected =
        "[cuda-sim] device 0 has failed in the call of jit at there.cpp:7: a planted fault; it "
        "cannot run any more programs; "
        "HALIAX_CUDA=sync finds the step";
    CHECK(error_of([&] { return bad.result(); }) == expected);
    CHECK(error_of([&] {
            bad.run();
            return 0;
          }) == expected);
    CHECK(error_of([&] { return bad.device->allocate(4, 0); }) == expected);
  }
  cuda::inject_fault(0, "");
  {
    Run bad(c, "sync", api);
    CHECK(error_of([&] {
            bad.run();
            return 0;
          }) ==
          "[cuda-sim] device 0 has failed in the call of jit at there.cpp:7: add "
          "(model.cpp:3) has failed: a planted fault; it cannot run any more programs");
  }
  cuda::inject_fault(0, "");
  Run good(c);
  good.run();
  CHECK(floats_of(good.result()).size() > 0);
}

TEST_CASE("cuda engine: the options of HALIAX_CUDA take effect") {
  const auto c = adds_one(3);
  for (auto* words : {"eager", "sync"}) {
    Run r(c, words);
    Since since;
    r.run();
    CHECK(since(&SimulationCounts::graphs) == 0);
    CHECK(since(&SimulationCounts::kernels) == 1);
    CHECK((since(&SimulationCounts::waits) > 0) == (std::string(words) == "sync"));
  }
  // keep: source code as the compiler of a GPU reads it.
  Folder folder;
  const std::string before = std::getenv("HALIAX_CACHE") ? std::getenv("HALIAX_CACHE") : "";
  ::setenv("HALIAX_CACHE", folder.path.c_str(), 1);
  { Run r(c, "keep"); }
  before.empty() ? ::unsetenv("HALIAX_CACHE") : ::setenv("HALIAX_CACHE", before.c_str(), 1);
  int texts = 0;
  for (auto& f : std::filesystem::directory_iterator(folder.path))
    texts += f.path().extension() == ".cu";
  CHECK(texts == 1);
  // tf32 has a mantissa of 10 bits, so 1 + 2^-12 rounds to 1.
  Case product(2);
  const auto x = product.view(false, DType::f32, {4, 4}, Case::dense),
             y = product.view(false, DType::f32, {4, 4}, Case::dense);
  const auto out = product.view(true, DType::f32, {4, 4}, Case::dense);
  auto at = [](View v, Dims strides) {
    v.strides = std::move(strides);
    return v;
  };
  product.add(Kind::contract).contract = {
      {}, {4}, {4}, {4}, at(x, {4, 0, 1}), at(y, {0, 1, 4}), at(out, {4, 1, 0}), false};
  for (std::size_t k : {0, 1})
    for (std::size_t i = 0; i < product.arguments[k].size(); i += 4)
      scalar::store(DType::f32, &product.arguments[k][i], {k ? 1 : 1 + std::exp2(-12), 0});
  auto first = [&](const char* words) {
    return floats_of(product.run(*device_of(cuda::simulated(), words))[0])[std::size_t(out.offset)];
  };
  CHECK(first("") == float(4 + std::exp2(-10)));
  CHECK(first("tf32") == 4);
}

TEST_CASE("cuda engine: insufficient memory raises before anything runs") {
  const std::int64_t all = std::int64_t(32) << 30;
  auto f = [] {
    return jit([](const NamedArray& x) { return exp(x) * 2.; }, {.backend = "cuda-sim"});
  };
  auto x = numbers(Axis("n", 1 << 20));
  auto here = f();
  here(x);
  cuda::set_simulated_memory(0, 0);
  auto there = f();
  Since since;
  const auto message = error_of([&] { return there(x); });
  CHECK(has(message, "[memory] jit at cuda_engine_test.cpp"));
  CHECK(has(message, " bytes in addition to its arguments"));
  CHECK(has(message, "device 0 of cuda-sim has"));
  CHECK(since(&SimulationCounts::kernels) == 0);
  CHECK(
      has(error_of([&] { return here(x); }), "bytes are requested, but device 0 of cuda-sim has"));
  cuda::set_simulated_memory(0, all);
  CHECK(there(x).doubles()[0] == 2);
}

// Without conditional nodes of a graph, a matmul of a skipped iteration runs unused, into memory of
// its own.
TEST_CASE("cuda engine: memory for matmuls of skipped iterations is counted before anything runs") {
  const std::int64_t all = std::int64_t(32) << 30;
  auto c = skipped_products(3, DType::f32);
  c.program.peak_bytes = 1 << 20;
  auto& api = faulty();
  api.has_ifs = [] { return false; };
  const auto device = device_of(api);
  auto program = std::make_shared<const Program>(c.program);
  const auto more = cuda::sequence_of(*program, 0, {}).shadow_bytes;
  REQUIRE(more > 0);
  cuda::set_simulated_memory(0, cuda::simulated_memory(0).now + c.program.peak_bytes);
  const auto message = error_of([&] { device->compile(program); });
  cuda::set_simulated_memory(0, all);
  CHECK(has(message, "matmuls of skipped iterations "));
  device->compile(program);
}

TEST_CASE("cuda engine: a plan that is too large reports its largest purposes") {
  auto c = adds_one(3);
  c.program.arena_bytes = 0;
  c.program.peak_bytes = std::int64_t(1) << 50;
  c.program.at_peak = {{"scratch", 5}, {"activations", 900}, {"gradients", 70}, {"gaps", 1}};
  const auto message = error_of(
      [&] { return cuda::make_simulated_device()->compile(std::make_shared<Program>(c.program)); });
  CHECK(has(message,
            "jit at there.cpp:7 requires 1125899906842624 bytes in addition to its arguments"));
  CHECK(has(message, "activations 900, gradients 70, scratch 5"));
}

TEST_CASE(
    "cuda engine: prints are in order and complete after the call, "
    "and a failed check leaves the GPU usable") {
  static std::vector<std::string> lines;
  auto printing = [](const NamedArray& x) {
    debug::print("x {}", x.slice("n", 1, 2));
    auto y = x * 2.;
    debug::print("y {}", y);
    debug::check(sum(y) < 100., "too much");
    return y;
  };
  auto f = jit(printing, {.backend = "cuda-sim"}), on_host = jit(printing, {.backend = "cpu"});
  auto x = numbers(N);
  debug::set_output([](std::string_view line) { lines.emplace_back(line); });
  on_host(on_host(x));
  const auto expected = std::exchange(lines, {});
  f(f(x));
  CHECK(expected.size() == 4);
  CHECK(lines == expected);
  CHECK(has(error_of([&] { return f(x * 100.); }), "[check] too much"));
  CHECK(f(x).doubles() == Doubles{0, 2, 4, 6});
  debug::set_output(nullptr);
}

TEST_CASE(
    "cuda engine: a call uses exactly the planned bytes, on one GPU and on each GPU of a mesh") {
  const Axis Wide("embed", 48), Rows("batch", 32), Inner("inner", 64);
  auto step = [=](const std::pair<NamedArray, NamedArray>& w, const NamedArray& x) {
    auto loss = [&](const std::pair<NamedArray, NamedArray>& v) {
      return mean(square(dot(tanh(dot(x, v.first, "embed")), v.second, "inner") - x));
    };
    auto [value, slope] = value_and_grad(loss)(w);
    return std::pair{std::pair{w.first - slope.first * 0.1, w.second - slope.second * 0.1}, value};
  };
  for (int devices : {1, 4}) {
    CAPTURE(devices);
    JitOptions options{.donate = {0}, .backend = "cuda-sim"}, there{.backend = "cuda-sim"};
    if (devices > 1)
      for (auto* o : {&options, &there}) {
        o->mesh = Mesh{{{"data", devices}}};
        o->axis_resources = Mapping{{"batch", "data"}};
      }

    auto with_product = [](const NamedArray& x) {  // allocates the workspace
      return sum(dot(x, x.rename({{x.axes()[1].name, "other"}}), x.axes()[0].name)) * 0. + x;
    };
    auto place = devices > 1 ? named_jit(with_product, there) : jit(with_product, there);
    auto placed = [&](const Axes& axes, int seed) {
      return place(random::normal(random::key(seed), axes));
    };
    auto x = placed({Rows, Wide}, 1), also = placed({Rows, Wide}, 2);
    auto w = jit(
        [=] {
          return std::pair{random::normal(random::key(3), {Wide, Inner}),
                           random::normal(random::key(4), {Wide, Inner})};
        },
        {.backend = "cpu"})();
    auto f = devices > 1 ? named_jit(step, options) : jit(step, options);
    w = std::pair{place(w.first), place(w.second)};
    // calls are queued: waits for their results
    for (auto& a : {x, also, w.first, w.second}) a.doubles();
    std::vector<std::int64_t> before;
    for (int d = 0; d < devices; ++d)
      before.push_back((cuda::simulated_memory(d), cuda::simulated_memory(d).now));
    auto out = f(w, x);
    std::int64_t most = 0;  // the plan describes the device that needs most
    for (int d = 0; d < devices; ++d)
      most = std::max(most, cuda::simulated_memory(d).most - before[std::size_t(d)]);
    CHECK(most == f.report().peak_bytes);
    out = f(out.first, also);
    CHECK(std::isfinite(out.second.item()));
  }
}

TEST_CASE("cuda engine: a mesh communicates the planned bytes, and requests each collective once") {
  auto step = [](const NamedArray& w, const NamedArray& x) {
    auto [value, slope] =
        value_and_grad([&](const NamedArray& v) { return mean(square(dot(x, v, "embed"))); })(w);
    return std::pair{w - slope * 0.01, value};
  };
  const Axis Wide("embed", 64), Rows("batch", 32);
  for (auto* sharded_axis : {"batch", "embed"}) {
    CAPTURE(sharded_axis);
    auto f = named_jit(step, {.donate = {0},
                              .backend = "cuda-sim",
                              .mesh = Mesh{{{"data", 4}}},
                              .axis_resources = Mapping{{sharded_axis, "data"}}});
    auto x = random::normal(random::key(1), {Rows, Wide}).eval();
    auto now = f(numbers(Wide), x).first;
    for (int k = 0; k < 3; ++k) now = f(now, x).first;
    now.doubles();
    // a block that is freed late leads to another address, and so to another graph
    bool all_there = false;
    for (int attempt = 0; attempt < 8 && !all_there; ++attempt) {
      Since since;
      for (int k = 0; k < 5; ++k) now = f(now, x).first;
      CHECK(since(&SimulationCounts::waits) == 0);
      CHECK(since(&SimulationCounts::graphs) == 5 * 4);
      all_there =
          since(&SimulationCounts::exchanges) == 0;  // the collectives are in existing graphs
      now.doubles();
      CHECK(f.report().sent_bytes > 0);
      CHECK(double(since(&SimulationCounts::sent)) == 5 * 4 * f.report().sent_bytes);
    }
    CHECK(all_there);
  }
}

TEST_CASE("cuda engine: several devices of a mesh share one GPU on request") {
  const Axis Rows("rows", 9);
  const Mesh three{{{"first", 3}}};
  auto f = named_jit(
      [](const NamedArray& x) {
        return std::pair{cumsum(x, "rows"), sum(x)};
      },
      {.backend = "cuda-sim", .mesh = three, .axis_resources = Mapping{{"rows", "first"}}});
  auto x = numbers(Rows, 1);
  cuda::set_simulated_gpus(1);
  const auto message = error_of([&] { return f(x); });
  CHECK(has(message,
            "[named_jit] the mesh (first=3) has 3 devices, but backend cuda-sim has 1; "
            "set_devices(3) or HALIAX_DEVICES=3 "
            "adds them there"));
  Devices requested(3);
  Since since;
  for (int k = 0; k < 3; ++k) {
    auto [running, total] = f(x);
    CHECK(running.doubles() == Doubles{1, 3, 6, 10, 15, 21, 28, 36, 45});
    CHECK(total.item() == 45);
  }
  CHECK(since(&SimulationCounts::exchanges) == 0);  // no communicator of the machine
  CHECK(since(&SimulationCounts::graphs) == 0);
  cuda::set_simulated_gpus(64);
}

TEST_CASE("cuda engine: an array that one backend donated has no old value on the other") {
  auto next = [](const NamedArray& x) { return x + 1.; };
  for (const char* first : {"cuda-sim", "cpu"})
    for (const char* second : {"cuda-sim", "cpu"}) {
      CAPTURE(first);
      CAPTURE(second);
      auto x = numbers(N, 10);
      jit(next, {.backend = "cuda-sim"})(x).doubles();  // resides on both
      auto y = jit(next, {.donate = {0}, .backend = first})(x);
      auto z = jit(next, {.donate = {0}, .backend = second})(y);
      for (const char* reader : {"cuda-sim", "cpu"})
        CHECK(jit(next, {.backend = reader})(z).doubles() == Doubles{13, 14, 15, 16});
      CHECK(z.doubles() == Doubles{12, 13, 14, 15});
      CHECK_THROWS_AS(x.doubles(), Error);
    }
}

TEST_CASE("cuda engine: several threads use one GPU concurrently, together with a mesh") {
  auto f = jit([](const NamedArray& x) { return x * 2. + 1.; }, {.backend = "cuda-sim"});
  auto on_mesh = named_jit([](const NamedArray& x) { return sum(x); },
                           {.backend = "cuda-sim",
                            .mesh = Mesh{{{"data", 4}}},
                            .axis_resources = Mapping{{"n", "data"}}});
  std::vector<std::thread> threads;
  std::vector<std::string> wrong(4);
  for (int k = 0; k < 4; ++k)
    threads.emplace_back([&, k] {
      wrong[std::size_t(k)] = error_of([&] {
        for (int i = 0; i < 20; ++i) {
          auto x = numbers(N, k);
          if (f(f(x)).doubles()[3] != 4. * (k + 3) + 3) throw Error("[test] wrong");
          if (on_mesh(x).item() != 6 + 4 * k) throw Error("[test] wrong on a mesh");
        }
        return 0;
      });
    });
  for (auto& t : threads) t.join();
  CHECK(wrong == std::vector<std::string>(4));
}
