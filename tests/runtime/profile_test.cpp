// Profiles of steps, and the trace file of HALIAX_PROFILE.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "haliax/haliax.h"
#include "haliax/profile.h"
#include "runtime/profile.h"
#include "support/output.h"
#include "support/raises.h"
#include "support/threads.h"

using namespace haliax;

namespace {

const Axis B("batch", 64), E("embed", 256), H("hidden", 512), T("time", 40);

struct Model {
  nn::Linear up;
};
Model model() {
  Model m{nn::Linear::init(E, H, random::key(0))};
  m.up.weight.eval();
  return m;
}
const StepProfile* found(const Profile& p, const std::string& kind,
                         const std::string& module = "") {
  auto is = [&](auto& s) { return s.kind == kind && (module.empty() || s.module == module); };
  auto at = std::find_if(p.steps.begin(), p.steps.end(), is);
  return at == p.steps.end() ? nullptr : &*at;
}
std::string here(int line) { return "profile_test.cpp:" + std::to_string(line); }

// The trace that a process running the case below writes, and its output.
struct Traced {
  std::string output;
  nlohmann::json file;
};
Traced traced(const std::string& what, const std::string& path, const std::string& read = "") {
  auto output =
      output_of("HALIAX_DEVICES=2 HALIAX_PROFILE=" + path + " WHAT=" + what + " /proc/" +
                std::to_string(getpid()) + "/exe --no-skip -tc='profile: a process' 2>&1");
  std::ifstream in(read.empty() ? path : read);
  return {output, nlohmann::json::parse(in, nullptr, false)};
}
std::string scratch_file(const char* name) {
  return (std::filesystem::temp_directory_path() / (std::to_string(getpid()) + name)).string();
}
NamedArray looped(const NamedArray& x) {
  return fold([](const NamedArray& state, const NamedArray& row) { return tanh(state + row); },
              "time")(zeros(E), x);
}

}  // namespace

TEST_CASE("profile: steps have line, module, bytes and FLOPs, and their times add up to the call") {
  const Axis Rows("batch", 2048), Wide("hidden", 1024);
  auto layer = nn::Linear::init(E, Wide, random::key(0));
  layer.weight.eval();
  Model model{layer};
  auto x = random::normal(random::key(1), {Rows, E}).eval();
  int line = 0;
  auto step = jit([&](const Model& m, const NamedArray& x) {
    line = __LINE__ + 1;
    return sum(exp(m.up(x)), Wide);
  });
  auto p = profile(step, model, x);
  CAPTURE(to_string(p));
  auto* product = found(p, "contract", "up");
  REQUIRE(product);
  CHECK(product->op == "dot");
  CHECK(product->calls == 1);
  CHECK(product->flops == 2. * 2048 * 256 * 1024);
  CHECK(product->read == 4. * (2048 * 256 + 256 * 1024));
  CHECK(product->written == 4. * 2048 * 1024);
  CHECK(product->shape == "2048 x 1024 x 256");
  CHECK(product->loops == 0);
  CHECK(product->share() > 0);
  CHECK(product->bound_s >= product->flops / p.machine.flops.at(0).second * 0.999);
  auto* kernel = found(p, "fused");
  REQUIRE(kernel);
  CHECK(kernel->where == here(line));
  CHECK(has(kernel->holds, "exp reduce_sum"));
  CHECK(kernel->read == 4. * (2048 * 1024 + 1024 * (model.up.bias ? 1 : 0)));
  CHECK(kernel->written == 4. * 2048);

  double steps = 0, kinds = 0;
  for (auto& s : p.steps) steps += s.seconds;
  for (auto& k : p.by_kind) kinds += k.seconds;
  CHECK(steps == doctest::Approx(p.steps_s));
  CHECK(kinds == doctest::Approx(p.steps_s));
  CHECK(p.steps_s <= p.wall_s);
  CHECK(p.steps_s > p.wall_s * 0.7);  // the rest allocates the result and creates its node
  CHECK(p.machine.read > 1e8);
  CHECK(p.machine.copy > 1e8);
  std::ostringstream table;
  table << p;
  for (auto* part : {"contract", "in up", "2048 x 1024 x 256", "a call takes", "kind", "module"})
    CHECK(has(table.str(), part));
}

TEST_CASE("profile: steps of parallel iterations have their share of the call") {
  const Axis Heads("heads", 12), Q("q", 1024), K("k", 1024), D("d", 64);
  auto x = random::normal(random::key(1), {Heads, Q, D}).eval(), y = rename(x, Q, K).eval();
  for (int threads : {1, 2, 3}) {
    const Threads some(threads);  // a plan depends on the thread count
    auto attend = jit([](const NamedArray& x, const NamedArray& y) {
      return nn::dot_product_attention("k", "d", x, y, y);
    });
    auto p = profile(attend, x, y);
    auto* product = found(p, "contract");
    REQUIRE(product);
    CHECK(product->side_by_side == threads);
    CHECK(has(to_string(p), "; " + std::to_string(threads) + " at a time") == (threads > 1));
    CHECK(p.steps_s <= p.wall_s);
    CHECK(p.steps_s > p.wall_s * 0.7);
    double iterations = 0;
    for (auto& s : p.steps)
      if (s.kind == "contract") iterations += s.calls;
    CHECK(iterations >= 12);
  }
}

TEST_CASE("profile: a loop counts its iterations, and their time once") {
  auto x = random::normal(random::key(1), {T, E}).eval();
  auto p = profile(jit(looped), x);
  CAPTURE(to_string(p));
  auto* loop = found(p, "loop");
  REQUIRE(loop);
  CHECK(loop->calls == 1);
  CHECK(loop->shape == "40 iterations");
  double inside = 0;
  for (auto& s : p.steps)
    if (s.loops == 1) {
      inside += s.seconds;
      CHECK(s.calls == 40);
    }
  CHECK(inside > 0);
  CHECK(loop->seconds + inside <= p.wall_s);
}

TEST_CASE("profile: a conditional is no loop") {
  auto x = random::normal(random::key(1), {T, E}).eval();
  auto either = jit([](const NamedArray& x) {
    return cond(
        sum(x) > 1e9, [](const NamedArray& v) { return cumsum(v, T); },
        [](const NamedArray& v) { return sort(v, T); })(x);
  });
  auto p = profile(either, x);
  CAPTURE(to_string(p));
  CHECK(has(either.compile(x).program, "\nif "));
  CHECK(std::any_of(p.steps.begin(), p.steps.end(), [](auto& s) { return s.calls == 1; }));
  for (auto& s : p.steps) CHECK(s.loops == 0);
}

TEST_CASE("profile: ops outside of layers belong to the module that contains the layers around") {
  struct Scores {
    nn::Linear query, key;
    NamedArray operator()(const NamedArray& x) const {
      return softmax(dot(query(x), rename(key(x), B, B.alias("key_batch")), H), "key_batch");
    }
  };
  struct Outer {
    Scores scores;
  };
  auto linear = [](int seed) { return nn::Linear::init(E, H, random::key(seed)); };
  auto step = jit([](const Outer& o, const NamedArray& x) {
    auto loss = [&](const Outer& o) { return sum(square(o.scores(x))); };
    return tree_map([](const NamedArray& w, const NamedArray& g) { return w - 0.1f * tanh(g); }, o,
                    grad(loss)(o));
  });
  auto p = profile(step, Outer{{linear(1), linear(2)}}, random::normal(random::key(3), {B, E}));
  CAPTURE(to_string(p));
  double of_scores = 0;
  for (auto& s : p.steps) {
    if (s.kind == "contract") CHECK(has(s.module, "scores"));
    if (s.kind == "contract" && s.module == "scores") of_scores += double(s.calls);
    if (has(s.holds, "tanh")) CHECK(s.module == "");  // the update of a parameter
  }
  CHECK(of_scores == 3);  // query * key, and its two gradients
}

TEST_CASE("profile: the time of a module includes its submodules") {
  struct Outer {
    Model block;
  };
  auto f = jit([](const Outer& o, const NamedArray& x) { return o.block.up(x); });
  auto p = profile(f, Outer{model()}, ones({B, E}).eval());
  auto seconds_of = [&](const std::string& name) {
    for (auto& m : p.by_module)
      if (m.name == name) return m.seconds;
    return 0.;
  };
  CHECK(seconds_of("block.up") > 0);
  CHECK(seconds_of("block") >= seconds_of("block.up"));
}

TEST_CASE("profile: arguments that would be donated stay valid, and results do not change") {
  auto f = jit([](const NamedArray& x) { return x * 2.; }, {.donate = {0}});
  auto x = ones({B, E}).eval();
  auto p = profile(f, x);
  CHECK(p.runs == 3);
  REQUIRE(found(p, "fused"));
  CHECK(found(p, "fused")->calls == 1);
  CHECK(sum(f(x)).item() == 2. * 64 * 256);
  CHECK(has(error_of([&] {
              x.eval();
              sum(x).item();
            }),
            "was donated"));
}

TEST_CASE("profile: functions without jit and eager reads are profiled") {
  auto p = profile([](const NamedArray& x) { return sum(exp(x)).item() > 0; }, ones({B, E}).eval());
  REQUIRE(found(p, "fused"));
  CHECK(has(found(p, "fused")->holds, "exp"));
  auto lazy = profile([](const NamedArray& x) { return exp(x); }, ones({B, E}).eval());
  CHECK(found(lazy, "fused"));
}

TEST_CASE("profile: all devices of a mesh are included") {
  const Mesh mesh({{"data", 2}});
  auto f = named_jit(
      [](const NamedArray& x, const NamedArray& w) { return sum(dot(x, w, "embed"), "batch"); },
      {.mesh = mesh, .axis_resources = Mapping{{"batch", "data"}}});
  auto p = profile(f, ones({B, E}).eval(), ones({E, H}).eval());
  auto* product = found(p, "contract");
  REQUIRE(product);
  CHECK(product->calls == 2);
  CHECK(product->flops == 2. * 64 * 256 * 512);
  CHECK(found(p, "collective"));
}

TEST_CASE("profile: other backends report the time of a call, and their trace is empty") {
  auto f = jit([](const NamedArray& x) { return x + 1.; }, {.backend = "reference"});
  auto p = profile(f, ones(B).eval());
  CHECK(p.steps.empty());
  CHECK(p.wall_s > 0);
  CHECK(has(error_of([&] {
              jit([&](const NamedArray& x) {
                profile(f, x);
                return x;
              })(ones(B));
            }),
            "[profile] programs do not run inside"));
}

TEST_CASE("profile: a first call counts if it is the only one") {
  const Axis X("x", 64);
  auto f = jit([](const NamedArray& x) { return exp(x) * 2.f; });
  auto x = arange(X).astype(DType::f32).eval();
  Profiler p;
  Profiling profiling(&p);
  for (int calls : {1, 1, 2}) {
    f(x);
    auto s = p.summary(0, 0);
    REQUIRE(s.steps.size() == 1);
    CHECK(s.steps[0].calls == calls);
    CHECK(s.steps[0].seconds > 0);
  }
  f(x);
  p.forget_times();
  f(x);
  CHECK(p.summary(1, 0).steps[0].calls == 1);
}
TEST_CASE("profile: bytes moved by each kind of step") {
  using namespace program;
  Program p;
  for (auto bytes : {4000, 400, 80}) p.slots.push_back({.bytes = bytes});
  auto view = [](int slot, DType type, Dims strides) {
    return View{slot, type, 0, std::move(strides), {}};
  };
  Step pick{.kind = program::Kind::gather};  // 5 rows of 20 out of 50
  pick.gather = {{5, 20},
                 view(0, DType::f32, {0, 1}),
                 view(1, DType::f32, {20, 1}),
                 {{view(2, DType::i64, {1, 0}), 20, 50}}};
  CHECK(traffic_of(pick, p).read == 4. * 100 + 8 * 5);
  CHECK(traffic_of(pick, p).written == 400);
  Step windows{.kind = program::Kind::copy};  // 90 windows of 11 out of 100 elements
  windows.copy = {{90, 11}, view(1, DType::f32, {1, 1}), view(0, DType::f32, {11, 1})};
  CHECK(traffic_of(windows, p).read == 400);
  CHECK(traffic_of(windows, p).written == 3960);
  Step adds;  // x is loaded twice and written once
  adds.fused = {{20}, 1, {}};
  for (int k = 0; k < 2; ++k)
    adds.fused.code.push_back({.code = Code::load, .view = view(1, DType::f32, {1})});
  adds.fused.code.push_back(
      {.code = Code::store_add, .args = {0, -1, -1, -1}, .view = view(2, DType::f32, {1})});
  CHECK(traffic_of(adds, p).read == 160);
  CHECK(traffic_of(adds, p).written == 80);
}

TEST_CASE("profile: a process" * doctest::skip()) {
  std::string what = std::getenv("WHAT") ? std::getenv("WHAT") : "";
  auto x = random::normal(random::key(1), {T, E});
  std::printf("says: %s.\n", error_of([&] { x.eval(); }).c_str());
  if (what == "loop") jit(looped)(x);
  if (what == "mesh") {
    named_jit([](const NamedArray& x) { return sum(x, "time") + 1.; },
              {.mesh = Mesh({{"data", 2}}), .axis_resources = Mapping{{"time", "data"}}})(x);
  }
  if (what == "turns") {
    const Threads two(2);
    // Long enough that both start.
    const Axis Heads("heads", 64), Q("q", 1024), K("k", 1024), D("d", 64);
    auto x = random::normal(random::key(1), {Heads, Q, D}).eval(), y = rename(x, Q, K).eval();
    jit([](const NamedArray& x, const NamedArray& y) {
      return nn::dot_product_attention("k", "d", x, y, y);
    })(x, y);
  }
  if (what == "masked") {
    const Axis Q("q", 512), K("k", 512), D("d", 32);
    auto draw = [](int seed, const Axis& a, const Axis& b) {
      return random::normal(random::key(seed), {a, b}).eval();
    };
    jit(
        [=](const NamedArray& q, const NamedArray& k) {
          return nn::dot_product_attention("k", "d", q, k, k, {.mask = nn::causal_mask(Q, K)});
        },
        {.scores_budget = 0})(draw(1, Q, D), draw(2, K, D));
  }
  if (what == "long") {
    auto f = jit([](const NamedArray& x) {
      return fold([](const NamedArray& s, const NamedArray& r) { return tanh(s + r); }, "many")(
          sum(x), ones(Axis("many", 9000)));
    });
    for (int k = 0; k < 30; ++k) f(x);
  }
}

TEST_CASE("profile: HALIAX_PROFILE writes a trace with steps nested in loops, and loops in calls") {
  auto path = scratch_file("loop.json");
  auto [output, trace] = traced("loop", path);
  std::filesystem::remove(path);
  CHECK(has(output, "says: ."));
  CHECK(has(output, "the trace is in " + path));
  REQUIRE(!trace.is_discarded());
  nlohmann::json loop, call;
  int inside = 0;
  for (auto& e : trace["traceEvents"]) {
    if (e["ph"] == "M") continue;
    CHECK(e["ph"] == "X");
    if (e["cat"] == "loop") loop = e;
    if (e["cat"] == "call") call = e;  // the last one
  }
  REQUIRE(loop.is_object());
  auto is_within = [](const nlohmann::json& e, const nlohmann::json& around) {
    double from = e["ts"], to = from + double(e["dur"]), first = around["ts"],
           last = first + double(around["dur"]);
    return from >= first && to <= last + 0.01 && e["pid"] == around["pid"] &&
           e["tid"] == around["tid"];
  };
  for (auto& e : trace["traceEvents"])
    if (e["ph"] == "X" && e["cat"] == "fused" && is_within(e, loop)) ++inside;
  CHECK(inside >= 40);
  CHECK(is_within(loop, call));
  CHECK(has(call["name"].get<std::string>(), "jit at profile_test.cpp:"));
  CHECK(trace["otherData"]["left_out"] == 0);
}

TEST_CASE("profile: a trace counts the matmuls that ran, as tables do") {
  auto path = scratch_file("masked.json");
  auto trace = traced("masked", path).file;
  std::filesystem::remove(path);
  REQUIRE(!trace.is_discarded());
  double products = 0;  // in units of 512 x 512 x 32
  for (auto& e : trace["traceEvents"])
    if (e["ph"] == "X" && e["cat"] == "contract") {
      products += double(e["dur"]) * double(e["args"]["GFLOP/s"]) * 1e3 / (2. * 512 * 512 * 32);
      CHECK(double(e["args"]["of peak"]) > 0);
    }
  CHECK(products > 1);
  CHECK(products < 1.7);  // causal, out of two
}

TEST_CASE("profile: in a trace threads that run parallel iterations are rows") {
  auto path = scratch_file("turns.json");
  auto trace = traced("turns", path).file;
  std::filesystem::remove(path);
  REQUIRE(!trace.is_discarded());
  std::map<int, double> products;  // milliseconds, by row
  std::vector<std::string> names;
  nlohmann::json call, loop;
  for (auto& e : trace["traceEvents"]) {
    if (e["name"] == "thread_name") names.push_back(e["args"]["name"]);
    if (e["ph"] == "X" && e["cat"] == "call") call = e;
    if (e["ph"] == "X" && e["cat"] == "loop") loop = e;
    if (e["ph"] == "X" && e["cat"] == "contract") products[e["tid"]] += double(e["dur"]) * 1e-3;
  }
  std::sort(names.begin(), names.end());
  CHECK(names == std::vector<std::string>{"thread 0", "thread 1"});
  CHECK(products.size() == 2);
  CHECK(loop["tid"] == call["tid"]);
  for (auto& [row, ms] : products) CHECK(ms <= double(loop["dur"]) * 1e-3);
}

TEST_CASE("profile: in a trace the devices of a mesh are processes") {
  auto path = scratch_file("mesh.json");
  auto trace = traced("mesh", path).file;
  std::filesystem::remove(path);
  REQUIRE(!trace.is_discarded());
  std::vector<std::string> names;
  std::vector<int> collectives;
  for (auto& e : trace["traceEvents"]) {
    if (e["name"] == "process_name") names.push_back(e["args"]["name"]);
    if (e["ph"] == "X" && e["cat"] == "collective") collectives.push_back(e["pid"]);
  }
  std::sort(collectives.begin(), collectives.end());
  CHECK(names == std::vector<std::string>{"device 0", "device 1"});
  CHECK(collectives == std::vector<int>{0, 1});
}

TEST_CASE("profile: a long trace is truncated, with a message") {
  auto path = scratch_file("long.json");
  auto trace = traced("long", path).file;
  std::filesystem::remove(path);
  REQUIRE(!trace.is_discarded());
  CHECK(trace["otherData"]["left_out"] > 0);
  CHECK(trace["traceEvents"].size() < 110'000);
  CHECK(has(trace["traceEvents"].back()["name"].get<std::string>(), "truncated: "));
}

TEST_CASE(
    "profile: a trace file that cannot be written is named, "
    "and without the variable nothing is profiled") {
  auto output = traced("", "/no/such/folder/trace.json").output;
  CHECK(has(output,
            "says: [environment] HALIAX_PROFILE is /no/such/folder/trace.json; it must be a file "
            "that can be written (No such "
            "file or directory); profile_test.cpp:"));
  CHECK(!has(traced("loop", "''", "/dev/null").output, "the trace is in"));
  CHECK(profiler() == nullptr);
}
