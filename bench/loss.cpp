// loss: time and memory of the cross entropy of dot(x, w) and of its gradients, unchunked and in
// every chunked form. docs/benchmarks/cpu.md explains the lines.
#include <fmt/format.h>
#include <malloc.h>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "examples/command_line.h"
#include "base/buffer.h"
#include "haliax/haliax.h"
#include "measure.h"
#include "numpy.h"

namespace {

using namespace haliax;
using nlohmann::json;

struct Options {
  std::string mode = "chunked", against, dtype = "f32";
  std::int64_t n = 1024, e = 768, v = 50257, chunk = 0;
  double memory = 0, masked = 0;  // MiB; the random share of masked tokens
  int threads = 0, reps = 5, pairs = 15, seed = 0;
};
struct Head {
  NamedArray x, w;  // (tokens, embed), (vocab, embed)
};

// ---- the data of other scripts: x ~ N(0, 1), w ~ N(0, 1) / sqrt(embed), ids uniform ----
struct Data {
  Head head;
  NamedArray ids;  // (tokens)
};
Data data_of(const Options& o, std::int64_t n, std::int64_t e, std::int64_t v) {
  bench::NumpyRandom random{std::uint32_t(o.seed)};
  Axis Tokens("tokens", n), Embed("embed", e), Vocab("vocab", v);
  auto draw = [&](const Axis& Rows, float scale) {
    std::vector<float> values(std::size_t(Rows.size * e));
    for (auto& x : values) x = random.normal() * scale;
    return astype(array(values, {Rows, Embed}), dtype_of(o.dtype)).eval();
  };
  auto x = draw(Tokens, 1), w = draw(Vocab, float(1 / std::sqrt(double(e))));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (auto& id : ids) id = random.below(std::uint32_t(v));
  if (o.masked > 0)
    for (auto& id : ids)
      if (double(random.below(1u << 30)) < o.masked * (1u << 30)) id = -1;
  return {{x, w}, array(ids, Tokens).eval()};
}

// ---- the modes ----
using Results = std::vector<NamedArray>;  // loss, dx, dw, if computed
struct Compiled {
  std::function<Results(const Head&, const NamedArray& ids)> call;
  std::function<JitReport()> report;
};
template <class F> Compiled compiled(F f) {
  auto j = jit(std::move(f));
  return {[j](const Head& h, const NamedArray& ids) { return j(h, ids); },
          [j] { return j.report(); }};
}

NamedArray mean_loss(const NamedArray& x, const NamedArray& w, const NamedArray& ids) {
  auto logits = dot(x, w, "embed", {.preferred_element_type = DType::f32});
  return nn::cross_entropy_loss(logits, "vocab", ids);
}
template <class F> Compiled with_gradients(F loss) {
  return compiled([=](const Head& h, const NamedArray& ids) {
    auto [l, g] = value_and_grad(
        [=](const Head& q, const NamedArray& t) { return loss(q.x, q.w, t); })(h, ids);
    return Results{l, g.x, g.w};
  });
}
// The loss of a head. The mask depends on values: tokens with the ignored id do not count.
Compiled head_mode(const ChunkOptions& chunks, std::optional<std::int64_t> ignored) {
  return with_gradients([=](const NamedArray& x, const NamedArray& w, const NamedArray& ids) {
    return nn::linear_cross_entropy(x, w, ids, "embed", "vocab",
                                    {.chunks = chunks, .ignore_index = ignored})
        .loss;
  });
}
Compiled mode_of(const std::string& name, const ChunkOptions& chunks) {
  auto walking = [&](const AxisSelection& axes) { return chunked_reduce(axes, chunks, mean_loss); };
  if (name == "product")
    return compiled(
        [](const Head& h, const NamedArray&) { return Results{dot(h.x, h.w, "embed")}; });
  if (name == "gemm")  // only the three matmuls
    return compiled([](const Head& h, const NamedArray&) {
      auto z = dot(h.x, h.w, "embed");
      return Results{NamedArray(0.), dot(z, h.w, "vocab"), dot(z, h.x, "tokens")};
    });
  if (name == "full") return with_gradients(mean_loss);
  if (name == "head") return head_mode(chunks, {});
  if (name == "masked") return head_mode(chunks, -1);
  if (name == "chunked") return with_gradients(walking("tokens"));
  if (name == "vocabulary") return with_gradients(walking("vocab"));
  if (name == "tile") return with_gradients(walking({"vocab", "tokens"}));
  if (name == "forward")
    return compiled([f = walking("tokens")](const Head& h, const NamedArray& ids) {
      return Results{f(h.x, h.w, ids)};
    });
  throw Error("[loss] there is no mode " + name +
              "; expected `product`, `gemm`, `full`, `chunked`, `head`, `masked`, `vocabulary`, "
              "`tile`, `forward`");
}

// ---- measuring ----
class Measured {
 public:
  Measured(const std::string& mode, const Options& o, const Data& data, const Data& tiny)
      : mode_(mode), o_(o), data_(data) {
    ChunkOptions chunks{.memory = std::int64_t(o.memory * (1 << 20))};
    if (o.chunk) chunks.chunk = o.chunk;
    mode_of(mode, {}).call(tiny.head, tiny.ids);  // allocates the workspace of the library first
    trim();
    auto before = bench::resident_bytes();
    run_ = mode_of(mode, chunks);
    run();
    trim();
    bench::reset_peak();
    auto results = run();
    peak_ = bench::peak_bytes() - before;
    for (auto& r : results) out_ += r.ndim() ? r.size() * bytes_of(r.dtype()) : 0;
    if (results.size() == 1 && results[0].ndim()) return;
    loss_ = results[0].item();
    if (results.size() == 3) {
      gx_ = norm(results[1]);
      gw_ = norm(results[2]);
    }
  }
  Results run() const { return run_.call(data_.head, data_.ids); }
  double timed_run() {
    auto cpu = bench::cpu_seconds(), wall = bench::wall_seconds();
    run();
    wall_.push_back(bench::wall_seconds() - wall);
    cpu_.push_back(bench::cpu_seconds() - cpu);
    return wall_.back();
  }
  json line() const {
    auto rounded = [](double v, int digits) {
      return std::stod(fmt::format("{:.{}g}", v, digits));
    };
    auto mib = [&](std::int64_t bytes) { return std::round(double(bytes) / (1 << 20) * 10) / 10; };
    auto report = run_.report();
    return {{"mode", mode_},
            {"n", o_.n},
            {"e", o_.e},
            {"v", o_.v},
            {"dtype", o_.dtype},
            {"form", form()},
            {"chunk", chunk()},
            {"wall_s", rounded(bench::median(wall_), 4)},
            {"cpu_s", rounded(bench::median(cpu_), 4)},
            {"peak_mib", mib(peak_)},
            {"out_mib", mib(out_)},
            {"loss", rounded(loss_, 8)},
            {"gx", rounded(gx_, 6)},
            {"gw", rounded(gw_, 6)},
            {"planned_mib", mib(report.arena_bytes)},
            {"contractions", report.contractions},
            {"reps", wall_.size()}};
  }

 private:
  static void trim() {
    release_pool();
    malloc_trim(0);
  }
  static double norm(const NamedArray& a) {
    return std::sqrt(sum(square(astype(a, DType::f64))).item());
  }
  std::string form() const {
    auto loops = run_.report().chunked;
    return loops.empty() ? "whole" : loops[0].form;
  }
  std::int64_t chunk() const {
    auto loops = run_.report().chunked;
    return loops.empty() ? 0 : loops[0].chunk;
  }

  std::string mode_;
  const Options& o_;
  const Data& data_;
  Compiled run_;
  std::int64_t peak_ = 0, out_ = 0;
  double loss_ = 0, gx_ = 0, gw_ = 0;
  std::vector<double> wall_, cpu_;
};

void measure(const Options& o) {
  set_threads(o.threads);
  auto tiny = data_of(o, 4, 8, 16), data = data_of(o, o.n, o.e, o.v);
  Measured a(o.mode, o, data, tiny);
  if (o.against.empty()) {
    for (int i = 0; i < o.reps; ++i) a.timed_run();
    fmt::print("{}\n", a.line().dump());
    return;
  }
  Measured b(o.against, o, data, tiny);
  std::vector<double> ratios;
  for (int i = 0; i < o.pairs; ++i) {
    auto first = a.timed_run();
    ratios.push_back(first / b.timed_run());
  }
  fmt::print("{}\n{}\n", a.line().dump(), b.line().dump());
  fmt::print(
      "{}\n",
      json{{"ratio", std::round(bench::median(ratios) * 1e4) / 1e4}, {"pairs", o.pairs}}.dump());
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  const auto most = double(std::int64_t(1) << 40);
  examples::CommandLine line("Times a linear head with cross entropy and its gradients.");
  line.option(
      "--mode", o.mode,
      "computation: `product`, `gemm`, `full`, `chunked`, `head`, `masked`, `vocabulary`, `tile` "
      "or `forward`");
  line.option(
      "--against", o.against,
      "second mode; runs alternate, and the median ratio of times is printed; default: none");
  line.option("--n", o.n, "number of tokens").range(1, most);
  line.option("--e", o.e, "size of the hidden states").range(1, most);
  line.option("--v", o.v, "vocabulary size").range(1, most);
  line.option("--dtype", o.dtype, "dtype of x and w: f32 or bf16").one_of({"f32", "bf16"});
  const auto memory =
      line.option("--memory", o.memory,
                  "memory in MiB in addition to the results; 0: chosen by the library")
          .range(0., 1e9);
  line.option("--masked", o.masked, "share of tokens with id -1, which mode masked skips")
      .range(0., 1.);
  line.option("--chunk", o.chunk, "tokens or ids per chunk; 0: chosen by --memory")
      .range(1, most)
      .excludes(memory);
  line.option("--reps", o.reps, "number of timed runs").range(1, 1000000);
  line.option("--pairs", o.pairs, "number of pairs of timed runs, with --against")
      .range(1, 1000000);
  line.option("--threads", o.threads, "number of threads; 0: one per core").range(0, 1024);
  line.option("--seed", o.seed, "seed of the inputs").not_negative();
  if (auto status = line.parse(argc, argv)) return *status;
  try {
    measure(o);
  } catch (const std::exception& e) {
    fmt::print(stderr, "loss: {}\n", e.what());
    return 1;
  }
  return 0;
}
