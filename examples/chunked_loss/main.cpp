// chunked_loss: computes one cross entropy by each method of the library. Reports planned and
// resident memory and time, and draws a picture.
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "examples/command_line.h"
#include "picture.h"

using namespace chunked_loss;

namespace {

struct Command {
  Sizes sizes;
  int threads = 0, runs = 3;
  double memory_mib = 0;
  bool no_sweep = false;
  std::string only, svg = "chunked_loss.svg";
};

// Overwrites one line on a terminal with the current measurement.
void show_progress(const std::string& name, std::size_t done, std::size_t all) {
  if (!isatty(STDERR_FILENO)) return;
  constexpr std::size_t width = 30;
  const std::string bar(done * width / std::max<std::size_t>(1, all), '#');
  std::fprintf(stderr, "\r[%-30s] %zu of %zu  %s\x1b[K", bar.c_str(), done, all, name.c_str());
  if (done == all) std::fprintf(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

void print_row(const Row& r, double most) {
  auto& m = r.measured;
  if (isatty(STDERR_FILENO)) {
    std::fprintf(stderr, "\r\x1b[K");
    std::fflush(stderr);
  }

  if (!m.error.empty()) {
    std::printf("%-22s  %s\n", r.name.c_str(), m.error.c_str());
  } else {
    std::printf("%-22s %8.1f %8.1f %8.0f %5d %5d  |%s|\n", r.name.c_str(), m.planned / (1 << 20),
                m.peak / (1 << 20), m.seconds * 1e3, m.contractions, m.loops,
                sparkline(m.curve, most, 40).c_str());
  }
  std::fflush(stdout);
}

// Checks that all methods agree on the loss.
void check_losses(const std::vector<Row>& rows) {
  const Measured* first = nullptr;
  for (auto& r : rows) {
    if (!r.measured.error.empty()) continue;
    if (!first) first = &r.measured;
    if (!(std::abs(r.measured.loss - first->loss) <= 1e-3 * std::abs(first->loss)))
      throw std::runtime_error("the loss of \"" + r.name + "\" is " +
                               std::to_string(r.measured.loss) + ", not " +
                               std::to_string(first->loss));
  }
}

void run(const Command& c) {
  auto named = [&](std::vector<Method> all) {
    std::erase_if(all, [&](auto& m) { return m.name.find(c.only) == m.name.npos; });
    return all;
  };
  const auto ways = named(methods(c.sizes)),
             chunks = c.no_sweep ? std::vector<Method>{} : sweep(c.sizes);
  auto& s = c.sizes;
  const auto title = std::to_string(s.tokens) + " tokens, embed " + std::to_string(s.embed) +
                     ", vocabulary " + std::to_string(s.vocab) + ", " + s.dtype + ", chunks of " +
                     std::to_string(s.chunk);
  std::printf("%s; all logits: %.1f MiB, gradients: %.1f MiB\n", title.c_str(),
              double(s.tokens * s.vocab) * 4 / (1 << 20),
              double((s.tokens + s.vocab) * s.embed * haliax::bytes_of(haliax::dtype_of(s.dtype))) /
                  (1 << 20));
  std::printf("%-22s %8s %8s %8s %5s %5s   memory over time\n", "", "planned", "real MiB", "ms",
              "dots", "loops");
  std::fflush(stdout);

  std::size_t done = 0;
  double most = 0;  // the first method that ran sets the scale
  auto measured = [&](const std::vector<Method>& list) {
    std::vector<Row> rows;
    for (auto& m : list) {
      show_progress(m.name, done++, ways.size() + chunks.size());
      rows.push_back({m.name, measure(m, c.sizes, c.threads, c.runs)});
      if (most == 0) most = rows.back().measured.peak;
      print_row(rows.back(), most);
    }
    return rows;
  };
  const auto by_method = measured(ways);
  if (!chunks.empty()) std::printf("chunks of tokens\n");
  const auto by_chunk = measured(chunks);
  show_progress("", done, done);
  check_losses(by_method);
  check_losses(by_chunk);
  if (!c.svg.empty()) {
    write_picture(c.svg, title, by_method, by_chunk);
    std::printf("picture: %s\n", c.svg.c_str());
  }
}

int parse_and_run(int argc, char** argv) {
  Command c;
  auto& s = c.sizes;
  examples::CommandLine line(
      "Compares ways to compute a cross entropy: memory, time, and a picture of both.");
  const auto most = double(std::int64_t(1) << 31);
  line.option("--tokens", s.tokens, "number of tokens").range(1, most);
  line.option("--embed", s.embed, "size of the hidden states").range(1, most);
  line.option("--vocab", s.vocab, "vocabulary size").range(1, most);
  line.option("--chunk", s.chunk, "tokens per chunk; must divide --tokens").range(1, most);
  line.option("--memory", c.memory_mib, "memory budget in MiB; 0: chosen by the library")
      .not_negative();
  line.option("--dtype", s.dtype, "dtype of hidden states and head").one_of({"f32", "bf16"});
  line.option("--threads", c.threads, "number of threads; 0: one per core").range(0, 1024);
  line.option("--runs", c.runs, "timed runs, of which the median is reported").range(1, 1000);
  line.option("--only", c.only, "run only methods whose name contains this");
  line.flag("--no-sweep", c.no_sweep, "skip the chunks of 64 ... 8192 tokens");
  line.option("--svg", c.svg, "file for the picture; \"\": no picture");
  if (auto status = line.parse(argc, argv)) return *status;
  if (s.tokens % s.chunk) {
    std::fprintf(
        stderr,
        "chunked_loss: --chunk %lld does not divide --tokens %lld, as a scan over blocks needs\n",
        static_cast<long long>(s.chunk), static_cast<long long>(s.tokens));
    return 2;
  }
  s.memory = std::int64_t(c.memory_mib * (1 << 20));
  run(c);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "chunked_loss: %s\n", e.what());
    return 1;
  }
}
