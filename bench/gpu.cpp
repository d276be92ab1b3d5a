// gpu table|bits|losses|steps [...]: the measurements that tools/gpu runs on a GPU.
// - `table` times the cases of docs/benchmarks/gpu.md and prints one line of JSON per case.
// - `bits` prints a hash of the results of programs whose results are bitwise identical on every
//   machine.
// - `losses` trains on the device and on the cpu.
// - `steps` reads lines with a number and runs this many steps of GPT-2.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>

#include "examples/command_line.h"
#include "examples/gpt2/train.h"
#include "haliax/haliax.h"
#include "measure.h"
#include "program/measured.h"
#include "runtime/run.h"

namespace {

using namespace haliax;
using nlohmann::json;

struct Options {
  std::string backend = "cuda", cases, file;
  bool small = false, write = false;
};
Options o;
std::int64_t size(std::int64_t n, std::int64_t small) { return o.small ? small : n; }

// ---- time ----
program::Device& device() { return backend(o.backend); }
program::Box bytes_between(void* to, const void* from, std::int64_t n) {
  return {{n}, 1, to, {1}, from, {1}};
}
// Blocks until the GPU has finished all work.
void wait() {
  static const auto memory = device().allocate(64, 0);
  std::array<char, 64> here{};
  device().get(bytes_between(here.data(), memory.get(), 64), 0);
}
// Returns the device's own clock (CUDA events), or nullptr.
program::Measured* measured() { return dynamic_cast<program::Measured*>(&device()); }
// Returns the seconds of one call. Queues `often` calls without synchronization in between, so that
// host overhead is hidden.
double seconds(const std::function<void()>& one, int often) {
  if (auto* clock = measured()) {
    const auto from = clock->now(0);
    for (int k = 0; k < often; ++k) one();
    return clock->seconds(from, clock->now(0)) / often;
  }
  const auto from = bench::wall_seconds();
  for (int k = 0; k < often; ++k) one();
  wait();
  return (bench::wall_seconds() - from) / often;
}
int samples() { return o.small ? 3 : 20; }
// Returns the number of calls per sample, after a warm-up.
int warm(const std::function<void()>& one) {
  seconds(one, 1);
  seconds(one, 2);
  return o.small ? 1 : int(std::clamp(0.03 / std::max(seconds(one, 1), 1e-9), 1., 1000.));
}
struct Times {
  double median = 0, spread = 0;  // seconds per call; middle 80 % range / median
  explicit Times(std::vector<double> each) : median(bench::median(each)) {
    std::sort(each.begin(), each.end());
    const auto n = each.size();
    spread = (each[n * 9 / 10] - each[n / 10]) / median;
  }
};
// A reference that is measured alternately with a case.
struct Baseline {
  std::string what;
  double amount;  // per call, in the units of the case
  std::function<void()> one;
};
struct Row {
  const char* name;
  std::string shape;
  double amount;     // per call: GB, TFLOP, tokens, nodes
  const char* unit;  // amount / second; "us": microseconds per unit of `amount`; "ms"
  std::function<void()> one;
  std::function<json()> facts = {};
  std::optional<Baseline> baseline = {};
};
json line_of(const Row& r, const Times& t) {
  const bool us = r.unit == std::string("us"), ms = r.unit == std::string("ms");
  const double value = us ? t.median * 1e6 / r.amount : ms ? t.median * 1e3 : r.amount / t.median;
  return {{"case", r.name},
          {"shape", r.shape},
          {"seconds", t.median},
          {"spread", t.spread},
          {"value", value},
          {"unit", r.unit},
          {"clock", measured() ? "events" : "host"}};
}
void print_line(const json& line) {
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}
void measure(const Row& r) {
  const int often = warm(r.one), baseline_often = r.baseline ? warm(r.baseline->one) : 0;
  for (int repetition = 0; repetition < 2; ++repetition) {  // twice, each time with the spread
    std::vector<double> mine, theirs;
    for (int k = 0; k < samples(); ++k) {
      mine.push_back(seconds(r.one, often));
      if (r.baseline) theirs.push_back(seconds(r.baseline->one, baseline_often));
    }
    const Times t(mine);
    auto line = line_of(r, t);
    if (r.baseline) {
      const Times b(theirs);
      line["beside"] = {{"what", r.baseline->what}, {"seconds", b.median}, {"spread", b.spread}};
      line["ratio"] = r.amount / t.median / (r.baseline->amount / b.median);  // 1: equally fast
    }
    if (r.facts) line.update(r.facts());
    print_line(line);
  }
}

// ---- the table ----
NamedArray draw(const AxisSpec& axes, int seed = 0, DType d = DType::f32) {
  return random::normal(random::key(seed), axes, d).eval();
}
template <class F, class... A> std::function<void()> call(F f, A... args) {
  return [f = jit(std::move(f)), args...] { f(args...); };
}
double gigabytes(double elements, int bytes = 4) { return elements * bytes / 1e9; }
// Returns the TFLOP of a matmul.
double product_size(std::int64_t m, std::int64_t k, std::int64_t n) {
  return 2e-12 * double(m) * double(k) * double(n);
}

void* place_of(const NamedArray& x) {
  return DeviceMemory(device(), 0).address(*x.node()->value.get());
}
Baseline a_copy() {  // GB, read and written
  const std::int64_t n = size(std::int64_t(1) << 30, 1 << 12);
  auto x = random::bits(random::key(9), Axis("n", n / 4)).eval();
  auto y = device().allocate(n, 0);
  return {fmt::format("a copy of {} bytes", n), gigabytes(2. * double(n), 1),
          [=] { device().copy(bytes_between(y.get(), place_of(x), n), 0); }};
}
Row copy() {
  auto c = a_copy();
  return {"copy", c.what, c.amount, "GB/s", c.one};
}
// Returns the fastest direct call of the vendor library for x (m, k) times w (k, n), or none if the
// device has no such library.
std::optional<Baseline> bare_product(const NamedArray& x, const NamedArray& w, std::int64_t m,
                                     std::int64_t k, std::int64_t n) {
  if (!measured()) return {};
  const auto d = DType::bf16;
  const program::Step s{.kind = program::Kind::contract,
                        .contract = {{},
                                     {m},
                                     {n},
                                     {k},
                                     {0, d, 0, {k, 0, 1}, {}},
                                     {1, d, 0, {0, 1, n}, {}},
                                     {2, d, 0, {n, 1, 0}, {}}}};
  const auto out = device().allocate(m * n * 2, 0);
  auto all = measured()->library_products(s, {place_of(x), place_of(w), out.get()}, 0);
  std::vector<double> times;
  for (auto& one : all) {
    seconds(one, 1);
    std::vector<double> few;
    for (int i = 0; i < 5; ++i) few.push_back(seconds(one, 2));
    times.push_back(bench::median(few));
  }
  if (all.empty()) return {};
  const auto best = std::size_t(std::min_element(times.begin(), times.end()) - times.begin());
  return Baseline{fmt::format("the bare call, by algorithm {} of {}", best + 1, all.size()),
                  product_size(m, k, n), [one = all[best], x, w, out] { one(); }};
}
Row gemm(std::int64_t m, std::int64_t k, std::int64_t n) {
  if (o.small) {
    m = 48;
    k = 32;
    n = 40;
  }

  const Axis M("m", m), K("k", k), N("n", n);
  auto x = draw({M, K}, 0, DType::bf16), w = draw({K, N}, 1, DType::bf16);
  return {"gemm",
          fmt::format("{}x{}x{} bf16", m, k, n),
          product_size(m, k, n),
          "TFLOP/s",
          call([](const NamedArray& x, const NamedArray& w) { return dot(x, w, "k"); }, x, w),
          {},
          bare_product(x, w, m, k, n)};
}
Row fused() {
  const Axis N("n", size(std::int64_t(1) << 28, 1000));
  auto f = [](const NamedArray& x, const NamedArray& y, const NamedArray& z) {
    return x * y + z * 0.5;
  };
  return {"fused", fmt::format("3 in, 1 out of {}", N.size), gigabytes(4. * double(N.size)),
          "GB/s",  call(f, draw(N), draw(N, 1), draw(N, 2)), {},
          a_copy()};
}
const char* const kRows = "rows of 4096";
Axis rows() { return {"rows", size(1 << 16, 8)}; }
Axis columns() { return {"columns", size(4096, 64)}; }
double of_rows(int arrays) {
  return gigabytes(double(arrays) * double(rows().size) * double(columns().size));
}
Row softmax_forward() {
  return {
      "softmax",
      kRows,
      of_rows(2),
      "GB/s",
      call([](const NamedArray& x) { return softmax(x, "columns"); }, draw({rows(), columns()})),
      {},
      a_copy()};
}
Row softmax_backward() {  // computed from the result: reads y and g, writes dx
  auto f = [](const NamedArray& y, const NamedArray& g) { return y * (g - sum(y * g, "columns")); };
  auto x = draw({rows(), columns()});
  return {"softmax_grad",
          kRows,
          of_rows(3),
          "GB/s",
          call(f, softmax(x, "columns").eval(), draw({rows(), columns()}, 1)),
          {},
          a_copy()};
}
NamedArray layer_norm(const NamedArray& x, const NamedArray& g, const NamedArray& b) {
  return nn::LayerNorm{columns(), g, b}(x);
}
Row norm_forward() {
  return {"layer_norm",
          kRows,
          of_rows(2),
          "GB/s",
          call(layer_norm, draw({rows(), columns()}), draw(columns(), 1), draw(columns(), 2)),
          {},
          a_copy()};
}
Row norm_backward() {
  auto f = [](const std::tuple<NamedArray, NamedArray, NamedArray>& in,
              const NamedArray& cotangent) {
    auto [y, pull] = vjp([](const auto& t) { return std::apply(layer_norm, t); }, in);
    return pull(cotangent);
  };
  return {"layer_norm_grad",
          kRows,
          of_rows(3),
          "GB/s",
          call(f, std::tuple(draw({rows(), columns()}), draw(columns(), 1), draw(columns(), 2)),
               draw({rows(), columns()}, 3)),
          {},
          a_copy()};
}

// GPT-2 124M as the example trains it, in bf16.
struct Gpt2 {
  using Optimizer = optim::AdamW;
  using Model = models::GPT2LMHeadModel;
  static models::GPT2Config config() {
    models::GPT2Config c;
    if (o.small) {
      c.vocab_size = 64;
      c.n_positions = 16;
      c.n_embd = 16;
      c.n_layer = 2;
      c.n_head = 2;
    }

    c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
    return c;
  }
  const Axis Batch{"batch", size(64, 2)};
  const Optimizer optimizer = optim::adamw({.learning_rate = 1e-4});
  Model model = jit([](const Key& k) { return Model::init(config(), k); })(random::key(0));
  gpt2::OptState<Optimizer> state = optimizer.init(model);
  std::int64_t parameters() const {
    std::int64_t n = 0;
    for (auto& a : flatten(model)) n += a.empty() ? 0 : a.size();
    return n;
  }
};
Row adamw() {
  auto g = std::make_shared<Gpt2>();
  auto step = jit(
      [optimizer = g->optimizer](const Gpt2::Model& m, const gpt2::OptState<Gpt2::Optimizer>& s,
                                 const Gpt2::Model& grads) {
        auto [updates, next] = optimizer.update(grads, s, m);
        return std::pair(optim::apply_updates(m, updates), next);
      },
      {.donate = {0, 1}});
  auto grads =
      tree_map([](const NamedArray& a) { return a.empty() ? a : draw(a.axes(), 7); }, g->model);
  const auto n = g->parameters();
  return {"adamw",
          fmt::format("{} parameters", n),
          gigabytes(7. * double(n)),
          "GB/s",
          [=] { std::tie(g->model, g->state) = step(g->model, g->state, grads); },
          {},
          a_copy()};
}
Row graph() {  // dependent iterations of a tiny kernel: one graph node each
  const Axis Iterations("turns", size(4000, 20)), N("n", 1024);
  auto f = [=](const NamedArray& x, const NamedArray& by) {
    return fold([](const NamedArray& x, const NamedArray& b) { return x * b + 0.5f; }, Iterations)(
        x, by);
  };
  return {"graph", fmt::format("{} iterations", Iterations.size), double(Iterations.size), "us",
          call(f, draw(N), draw(Iterations, 1))};
}
Row head() {
  const Axis Tokens("tokens", size(8192, 32)), Embed("embed", size(2304, 16)),
      Vocab("vocab", size(256128, 100));
  auto loss = [](const std::pair<NamedArray, NamedArray>& in, const NamedArray& ids) {
    return nn::linear_cross_entropy(in.first, in.second, ids, "embed", "vocab").loss;
  };
  auto f = jit(value_and_grad(loss));
  std::pair in(draw({Tokens, Embed}, 0, DType::bf16), draw({Vocab, Embed}, 1, DType::bf16));
  auto ids = random::randint(random::key(2), Tokens, 0, Vocab.size).eval();
  const auto gradients = 2 * (Tokens.size + Vocab.size) * Embed.size;
  return {"head",
          fmt::format("{}x{}x{} bf16", Tokens.size, Vocab.size, Embed.size),
          1,
          "ms",
          [=] { f(in, ids); },
          [=] {
            return json{{"bytes_over_gradients", f.report().peak_bytes - gradients}};
          }};
}
Row attention(bool backward) {
  const Axis Batch("batch", size(32, 2)), Heads("heads", size(16, 2)), Pos("pos", size(1024, 16)),
      KeyPos("key_pos", Pos.size), Size("head_size", size(64, 8));
  auto scores = [=](const std::tuple<NamedArray, NamedArray, NamedArray>& in) {
    auto& [q, k, v] = in;
    return nn::dot_product_attention(KeyPos, "head_size", q, k, v,
                                     {.mask = nn::causal_mask(Pos, KeyPos)});
  };
  auto q = draw({Batch, Heads, Pos, Size}, 0, DType::bf16),
       k = draw({Batch, Heads, KeyPos, Size}, 1, DType::bf16),
       v = draw({Batch, Heads, KeyPos, Size}, 2, DType::bf16),
       g = draw({Batch, Heads, Pos, Size}, 3, DType::bf16);
  // Two matmuls forward, five backward, half of each masked. The time of the backward pass alone is
  // the difference of this line and the forward line.
  const double once = 2e-12 * double(Batch.size * Heads.size) * double(Pos.size) *
                      double(Pos.size) * double(Size.size) / 2;
  const auto shape = fmt::format("{} sequences, {} heads, T={}, {} a head", Batch.size, Heads.size,
                                 Pos.size, Size.size);
  if (!backward)
    return {"attention", shape, 2 * once, "TFLOP/s", call(scores, std::tuple(q, k, v))};
  auto f = [=](const std::tuple<NamedArray, NamedArray, NamedArray>& in, const NamedArray& g) {
    auto [y, pull] = vjp(scores, in);
    return std::pair(y, pull(g));
  };
  return {"attention_both", shape, 7 * once, "TFLOP/s", call(f, std::tuple(q, k, v), g)};
}
Row gpt2_step() {
  auto g = std::make_shared<Gpt2>();
  const Axis Pos = Gpt2::config().Pos();
  // The default budget of the loss would launch ten times as many kernels.
  const ChunkOptions head{.memory = 4'000'000'000};
  auto step = jit(
      gpt2::make_train_step(g->optimizer, {.policy = Policy("p=f32,c=bf16,o=f32"), .chunks = head}),
      {.donate = {0, 1}});
  auto ids = random::randint(random::key(1), {g->Batch, Pos}, 0, Gpt2::config().vocab_size).eval();
  auto keys = random::split(random::key(2), g->Batch);
  auto loss = std::make_shared<NamedArray>();
  auto one = [=] {
    auto next = step(g->model, g->state, ids, keys);
    g->model = std::move(next.model);
    g->state = std::move(next.opt_state);
    *loss = std::move(next.loss);
  };
  return {"gpt2",
          fmt::format("{} parameters, B={}, T={}", g->parameters(), g->Batch.size, Pos.size),
          double(g->Batch.size * Pos.size),
          "tokens/s",
          one,
          [=] {
            return json{{"loss", loss->item()}, {"planned_bytes", step.report().peak_bytes}};
          }};
}
// Created one after the other, since the arrays of all cases exceed the memory of a GPU.
const std::vector<std::function<Row()>> table{copy,
                                              [] { return gemm(8192, 8192, 8192); },
                                              [] { return gemm(65536, 768, 2304); },
                                              [] { return gemm(65536, 768, 768); },
                                              [] { return gemm(65536, 768, 3072); },
                                              [] { return gemm(65536, 3072, 768); },
                                              [] { return gemm(8192, 768, 50257); },
                                              fused,
                                              softmax_forward,
                                              softmax_backward,
                                              norm_forward,
                                              norm_backward,
                                              adamw,
                                              graph,
                                              head,
                                              [] { return attention(false); },
                                              [] { return attention(true); },
                                              gpt2_step};
const std::vector<std::string> names{
    "copy",  "gemm",  "gemm",    "gemm",         "gemm",           "gemm",
    "gemm",  "fused", "softmax", "softmax_grad", "layer_norm",     "layer_norm_grad",
    "adamw", "graph", "head",    "attention",    "attention_both", "gpt2"};
int print_table() {
  const std::regex wanted(o.cases);
  for (std::size_t k = 0; k < table.size(); ++k)
    if (std::regex_search(names[k], wanted)) measure(table[k]());
  return 0;
}

// ---- losses: a small GPT-2, on the device and on the cpu ----
std::vector<double> losses_of(const std::string& backend, int steps) {
  models::GPT2Config c;
  c.vocab_size = 256;
  c.n_positions = 64;
  c.n_embd = 64;
  c.n_layer = 2;
  c.n_head = 2;
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
  if (o.small) {
    c.n_positions = 16;
    c.n_embd = 16;
  }

  const Axis Batch("batch", size(8, 2));
  const auto optimizer = optim::adamw({.learning_rate = 1e-3});
  const JitOptions here{.backend = "cpu"};  // both runs start bitwise identical
  auto model = jit([&](const Key& k) { return Gpt2::Model::init(c, k); }, here)(random::key(0));
  auto state = optimizer.init(model);
  auto step = jit(gpt2::make_train_step(optimizer), {.donate = {0, 1}, .backend = backend});
  std::vector<NamedArray> batches;
  for (int b = 0; b < 4; ++b)
    batches.push_back(jit(
        [&](const Key& k) {
          return random::randint(k, {Batch, c.Pos()}, 0, c.vocab_size);
        },
        here)(random::key(b + 1)));
  const auto keys = random::split(random::key(9), Batch);
  std::vector<double> out;
  for (int k = 0; k < steps; ++k) {
    auto next = step(model, state, batches[std::size_t(k % 4)], keys);
    model = std::move(next.model);
    state = std::move(next.opt_state);
    out.push_back(next.loss.item());
  }
  return out;
}
int compare_losses() {
  const int steps = o.small ? 8 : 100;
  constexpr double limit = 1e-4;  // relative difference of a loss
  set_default_backend("cpu");
  const auto got = losses_of(o.backend, steps), expected = losses_of("cpu", steps);
  double furthest = 0;
  for (std::size_t k = 0; k < got.size(); ++k)
    furthest = std::max(furthest, std::isfinite(got[k]) ? std::abs(got[k] / expected[k] - 1) : 1);
  print_line({{"case", "losses"},
              {"shape", "GPT-2, 2 layers of 64, 8 x 64 tokens, f32"},
              {"steps", steps},
              {"first", expected.front()},
              {"last", expected.back()},
              {"furthest", furthest},
              {"limit", limit}});
  return !(furthest <= limit && expected.back() < expected.front());
}

// ---- steps: alternating with another program ----
int make_steps() {
  const auto row = gpt2_step();
  seconds(row.one, 1);
  seconds(row.one, 2);
  print_line({{"ready", row.shape}, {"tokens", row.amount}});
  for (int n = 0; std::cin >> n && n > 0;) print_line({{"seconds", seconds(row.one, n)}});
  return 0;
}

// ---- bits: programs without library functions and matmuls, whose results are bitwise equal ----
using Program = std::function<NamedArray(const NamedArray&, const NamedArray&)>;
const std::vector<std::pair<const char*, Program>> programs{
    {"points",
     [](auto& x, auto& y) { return where(x > y, x * y + 0.25, x / (y * y + 1.)) - abs(y); }},
    {"sqrt", [](auto& x, auto& y) { return sqrt(abs(x)) - rsqrt(abs(y) + 1.); }},
    {"sum_last", [](auto& x, auto& y) { return sum(x * y, "b"); }},
    {"sum_first", [](auto& x, auto& y) { return sum(x - y, "a"); }},
    {"sum_all", [](auto& x, auto& y) { return sum(x * x + y); }},
    {"centred", [](auto& x, auto& y) { return (x - mean(x, "b")) * (y - mean(y, "b")); }},
    {"normed",
     [](auto& x, auto& y) {
       return nn::LayerNorm{x.axes()[1], mean(y, "a"), mean(x, "a")}(x);
     }},
    {"largest",
     [](auto& x, auto& y) {
       return max(x, "b") + min(y, "b") + astype(argmax(x, "b"), x.dtype());
     }},
    {"running", [](auto& x, auto& y) { return cumsum(x, "a") + y; }},
    {"sorted", [](auto& x, auto& y) { return sort(x, "b") * sort(y, "a"); }},
    {"turned", [](auto& x, auto& y) { return roll(x, 3, "b") + flip(y, "a"); }},
    {"drawn", [](auto& x, auto&) {
       return random::uniform(random::key(5), x.axes(), 0., 1., x.dtype()) + x;
     }}};

std::uint64_t hash_of(const NamedArray& a) {
  std::uint64_t h = 0xcbf29ce484222325;
  for (double v : a.doubles())
    for (auto bits = std::bit_cast<std::uint64_t>(v); auto byte : {0, 8, 16, 24, 32, 40, 48, 56})
      h = (h ^ (bits >> byte & 0xff)) * 0x100000001b3;
  return h;
}
int compare_bits() {
  std::ifstream known(o.file);
  std::ofstream out;
  if (o.write) out.open(o.file);
  int wrong = 0, all = 0;
  for (auto& [name, f] : programs)
    for (auto d : {DType::f32, DType::bf16})
      for (auto [a, b] : {std::pair{5, 7}, {33, 1030}, {300, 64}, {1, 5000}}) {
        const Axis A("a", a), B("b", b);
        set_default_backend("cpu");
        auto x = random::normal(random::key(1), {A, B}, d).eval(),
             y = random::normal(random::key(2), {A, B}, d).eval();
        const auto line = fmt::format("{} {} {}x{} {:016x}", name, name_of(d), a, b,
                                      hash_of(jit(f, {.backend = o.backend})(x, y)));
        std::string expected;
        if (o.write)
          out << line << "\n";
        else if (++all; !std::getline(known, expected) || expected != line) {
          ++wrong;
          fmt::print("got {}, expected {}\n", line, expected);
        }
      }
  if (!o.write) fmt::print("{} of {} are bitwise identical\n", all - wrong, all);
  return wrong > 0;
}

}  // namespace

int main(int argc, char** argv) {
  examples::CommandLine line("Measurements and checks that tools/gpu runs on a GPU.");
  auto& times = line.command("table", "print times, one JSON object per line, each case twice");
  times.option("--case", o.cases, "regular expression of case names; default: all cases");
  times.flag("--small", o.small, "use tiny arrays, as a smoke test");
  auto& bits = line.command("bits", "compare results bitwise with those in a file");
  bits.option("file", o.file, "file of hashes, one line per result").required();
  bits.flag("--write", o.write, "write the file; default: compare with it");
  auto& losses = line.command(
      "losses", "train a small GPT-2 on the device and on the cpu, and compare losses");
  losses.flag("--small", o.small, "use a smaller model and fewer steps");
  auto& steps = line.command(
      "steps", "for each input line, run that number of GPT-2 124M steps and print their time");
  steps.flag("--small", o.small, "use a tiny model");
  for (auto* command : {&times, &bits, &losses, &steps})
    command->option("--backend", o.backend, "backend, such as cuda or cuda-sim");
  if (auto status = line.parse(argc, argv)) return *status;
  try {
    if (times.given() || steps.given()) set_default_backend(o.backend);
    return times.given()    ? print_table()
           : losses.given() ? compare_losses()
           : steps.given()  ? make_steps()
                            : compare_bits();
  } catch (const Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
