// bench [--case REGEX] [--json] ...: the median time of each case after a warm-up.
// docs/benchmarks/cpu.md explains the cases.
#include <fmt/format.h>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>

#include "examples/command_line.h"
#include "base/buffer.h"
#include "base/thread_pool.h"
#include "bench.h"
#include "measure.h"

namespace {

using namespace bench;
using nlohmann::json;

struct Options {
  std::string pattern, dtype = "f32", backend = "cpu", sizes;
  int threads = 0, runs = 0;
  double seconds = 0.2;
  bool as_json = false, list = false, serve = false, all = false;
};

double rounded(double v) { return std::stod(fmt::format("{:.4g}", v)); }

json record(const Case& c, const Prepared& p, double first_s, double median_s) {
  double rate = c.unit == "s"       ? median_s
                : c.unit == "us/op" ? median_s * 1e6 / c.amount
                : median_s > 0      ? c.amount / median_s
                                    : 0;
  json r = {{"peer", "haliax_cpp"},
            {"case", c.name},
            {"shape", c.shape},
            {"dtype", haliax::name_of(c.dtype)},
            {"threads", haliax::threads()},
            {"median_s", rounded(median_s)},
            {"rate", rounded(rate)},
            {"unit", c.unit},
            {"peak_bytes", peak_bytes()},
            {"first_s", rounded(first_s)}};
  if (p.facts) r.update(p.facts());
  if (r.contains("bound_s") && median_s > 0)
    r["share"] = rounded(r["bound_s"].get<double>() / median_s);
  return r;
}
void print(const json& r, bool as_json) {
  if (as_json)
    fmt::print("{}\n", r.dump());
  else {
    auto text = [&](const char* key) { return r[key].get<std::string>(); };
    auto number = [&](const char* key) { return r[key].get<double>(); };
    auto share = r.contains("share") ? fmt::format("  {:.3f} ms of matmuls, share {:.2f}",
                                                   number("bound_s") * 1e3, number("share"))
                                     : "";
    fmt::print("{:<24} {:<30} {:<5} {:>2} threads {:>11.3f} ms {:>10.4g} {:<9} {:>6.0f} MiB{}\n",
               text("case"), text("shape"), text("dtype"), r["threads"].get<int>(),
               number("median_s") * 1e3, number("rate"), text("unit"),
               number("peak_bytes") / (1 << 20), share);
  }
  std::fflush(stdout);
}

// Measures warm runs, as many as the options specify.
void measure(const Case& c, const Options& o) {
  auto p = c.prepare();
  double first = p.run();
  std::vector<double> times;
  auto least = std::size_t(o.runs ? o.runs : c.least_runs), most = std::max<std::size_t>(least, 50);
  // Limits the total time, including parts of a case that are not counted.
  auto run = timed([&] { times.push_back(p.run()); });
  for (double sum = 0; times.size() < least || (sum < o.seconds && times.size() < most);)
    sum += run();
  print(record(c, p, first, median(times)), o.as_json);
}
// Runs the case once for each line "run" that it reads. A short run follows an untimed one (SHORT
// in tools/compare, the only client). Any other line, or the end of input, ends the case.
void serve(const Case& c) {
  auto p = c.prepare();
  double first = p.run();
  p.run();
  std::vector<double> times;
  json ready{{"ready", c.name}};
  if (p.spec) ready.update(p.spec());
  fmt::print("{}\n", ready.dump());
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line) && line == "run";) {
    if (!times.empty() && times.back() < 0.05) p.run();
    times.push_back(p.run());
    fmt::print("{}\n", json{{"seconds", times.back()}}.dump());
    std::fflush(stdout);
  }
  print(record(c, p, first, median(times)), true);
}

int run(const Options& o) {
  haliax::set_default_backend(o.backend);
  haliax::set_threads(o.threads);
  auto dtype = haliax::dtype_of(o.dtype);
  if (!haliax::is_float(dtype)) throw haliax::Error("[bench] " + o.dtype + " is not a float dtype");
  std::regex pattern(o.pattern);
  std::vector<std::vector<Case>> kinds;
  if (o.all)
    kinds = {all_op_cases(dtype, o.sizes)};
  else
    kinds = {op_cases(dtype), gemm_cases(dtype), layer_cases(dtype),   overhead_cases(),
             loop_cases(),    gpt2_cases(dtype), generate_cases(dtype)};
  std::vector<Case> cases;
  for (auto& kind : kinds)
    for (auto& c : kind)
      if (std::regex_search(c.name, pattern)) cases.push_back(c);
  if (cases.empty())
    throw haliax::Error("[bench] there is no case " + o.pattern + "; --list prints all");

  int failed = 0;
  for (auto& c : cases) {
    if (o.list) {
      fmt::print("{:<24} {}\n", c.name, c.shape);
      continue;
    }
    haliax::release_pool();  // frees the memory of the previous case
    reset_peak();
    try {
      o.serve ? serve(c) : measure(c, o);
    } catch (const std::exception& e) {
      fmt::print(stderr, "{}: {}\n", c.name, e.what());
      ++failed;
    }
  }
  return failed ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  examples::CommandLine line("Times the library: GPT-2 steps, ops, contractions, calls.");
  line.option("--case", o.pattern, "regular expression of case names; default: all cases");
  line.option("--dtype", o.dtype,
              "float dtype of the arrays, and compute dtype of GPT-2, such as bf16");
  line.option("--backend", o.backend, "backend: cpu or reference");
  line.option("--threads", o.threads, "number of threads; 0: one per core").range(0, 1024);
  line.option("--runs", o.runs, "minimum number of timed runs; 0: 5, or 3 for the longest cases")
      .range(0, 1000000);
  line.option("--seconds", o.seconds, "minimum total time of short cases, in seconds")
      .not_negative();
  line.flag("--all", o.all, "time every op by its test entry, forward and gradient");
  line.option("--size", o.sizes, "sizes of --all: large, middle, tiny; default: all three");
  line.flag("--json", o.as_json, "print one JSON object per line; default: a table");
  line.flag("--list", o.list, "print only the names of the cases");
  line.flag("--serve", o.serve, "wait for a line `run` before each run, as tools/compare requires");
  if (auto status = line.parse(argc, argv)) return *status;
  try {
    return run(o);
  } catch (const std::regex_error&) {
    fmt::print(stderr, "bench: --case {} is not a regular expression\n", o.pattern);
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench: {}\n", e.what());
  }
  return 1;
}
