// gpt2 train [paths...]: trains a small GPT-2 on the bytes of text, prints losses and a sample.
// gpt2 sample --weights FILE: prints samples only.
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <numbers>

#include <haliax/ranks.h>

#include "examples/command_line.h"
#include "data.h"
#include "examples/progress.h"
#include "run.h"

namespace {

struct Command {
  gpt2::RunOptions run;
  std::vector<std::string> paths;
  std::string weights, save, curve = "loss.svg", prompt = "\n", checkpoint, rank_logs;
  std::int64_t steps = 0, sample_seed = 0, every = 100;
  double seconds = 0, temperature = 0.8, loss_mib = 0;
  int tokens = 400, keep = 3;
  bool resume = false;
};

// Handles Ctrl-C and a scheduler's warning: SIGTERM, or SIGUSR1, the only signal for which mpirun
// waits for its ranks. The current step is finished and saved. A second signal ends the program at
// once.
volatile std::sig_atomic_t stopped_by = 0;
void stop_at(int signal) {
  struct sigaction action {};
  action.sa_handler = [](int s) { stopped_by = s; };
  action.sa_flags = int(SA_RESETHAND | SA_RESTART);
  sigaction(signal, &action, nullptr);
}

// Returns the learning rate: a linear warm-up over 20 steps, then half a cosine down to a tenth.
double rate(double peak, double done, std::size_t step) {
  double up = std::min(1.0, double(step + 1) / 20);
  return peak * up * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * done)));
}

std::string printable(const std::vector<std::int32_t>& tokens) {
  std::string text;
  for (auto t : tokens)
    text += t == '\n' || t == '\t' || (t >= ' ' && t < 256 && t != 127) ? char(t) : '?';
  return text;
}
void print_sample(const gpt2::Run& run, const Command& c) {
  std::vector<std::int32_t> prompt;
  for (unsigned char b : c.prompt) prompt.push_back(b);
  auto text = printable(run.sample(prompt, c.tokens, c.temperature, c.sample_seed));
  std::printf("%s%s\n", c.prompt.c_str(), text.c_str());
}

void print_planned(const gpt2::Run& run, const gpt2::RunOptions& o) {
  auto [chunked, full] = run.planned();
  auto mib = [](std::int64_t bytes) { return double(bytes) / (1 << 20); };
  auto logits = mib(o.batch * o.seq_len * o.vocab * 4);
  std::printf(
      "planned memory of a step: %.1f MiB with a chunked loss%s, "
      "%.1f MiB with all %.1f MiB of logits%s\n",
      mib(chunked), o.full_logits ? "" : " (this run)", mib(full), logits,
      o.full_logits ? " (this run)" : "");
}

void print_losses(const std::vector<double>& losses, std::int64_t before) {
  std::printf("losses:");
  for (std::size_t i = 0; i < 10; ++i)
    if (auto step = i * (losses.size() - 1) / 9; i == 0 || step > (i - 1) * (losses.size() - 1) / 9)
      std::printf("  %.3f (step %lld)", losses[step],
                  static_cast<long long>(before) + static_cast<long long>(step));
  std::printf("\n");
}

// Returns the losses of the remaining steps.
std::vector<double> train_steps(gpt2::Run& run, gpt2::Batches& batches, const gpt2::RunOptions& o,
                                const Command& c, std::int64_t before) {
  const bool saves = !c.checkpoint.empty();
  examples::Progress progress(c.steps, c.seconds, o.batch * o.seq_len, before);
  auto stops = [] {  // all ranks stop at the same step, even if only one received the signal
    if (!haliax::on_any_rank(stopped_by != 0)) return false;
    if (!stopped_by) stopped_by = SIGTERM;
    return true;
  };
  while (!stops() && (progress.step() == 0 || progress.done() < 1)) {
    double loss = run.step(batches.next(),
                           rate(o.learning_rate, progress.done(), std::size_t(progress.step())));
    progress.add(loss);
    if (!std::isfinite(loss)) {
      progress.finish();
      throw std::runtime_error("the loss is not finite after " + std::to_string(progress.step()) +
                               " steps; try a smaller --lr");
    }
    if (saves && progress.step() % c.every == 0) run.save_checkpoint(batches.position());
  }
  progress.finish();
  if (saves && !progress.losses().empty() && progress.step() % c.every != 0)
    run.save_checkpoint(batches.position());
  if (saves) run.finish_checkpoints();
  if (stopped_by)
    std::printf(
        "stopped by signal %d after step %lld; "
        "the same command with --resume continues from there\n",
        int(stopped_by), static_cast<long long>(progress.step()));
  return progress.losses();
}

int train(Command c) {
  const int ranks = haliax::rank_count();
  if (ranks > 1 && c.steps <= 0)
    throw std::runtime_error("several ranks require --steps, as their clocks differ");
  if (c.steps <= 0 && c.seconds <= 0) c.seconds = 60;
  if (ranks > 1) c.seconds = 0;
  examples::speak_alone(c.rank_logs);
  auto text = gpt2::read_text(c.paths);
  auto size = text.size();
  auto o = c.weights.empty() ? c.run : gpt2::sizes_of(c.weights, c.run);
  o.loss_memory = std::int64_t(c.loss_mib * (1 << 20));
  gpt2::Batches batches(std::move(text), o.batch, o.seq_len, o.seed);
  gpt2::Run run(o);
  if (!c.weights.empty()) run.load(c.weights);
  std::int64_t before = 0, position = 0;
  if (!c.checkpoint.empty()) {
    before = run.open_checkpoints(c.checkpoint, c.keep, c.resume, position);
    batches.seek(position);
    stop_at(SIGINT);
    stop_at(SIGTERM);
    stop_at(SIGUSR1);
  }
  std::printf(
      "%.2f MB of text; %lld layers, %lld heads, "
      "embed %lld, %lld positions: %.2f million parameters\n",
      double(size) / 1e6, static_cast<long long>(o.layers), static_cast<long long>(o.heads),
      static_cast<long long>(o.embed), static_cast<long long>(o.seq_len),
      double(run.parameters()) / 1e6);
  print_planned(run, o);
  if (before > 0) std::printf("resumed after step %lld\n", static_cast<long long>(before));
  std::fflush(stdout);

  auto losses = train_steps(run, batches, o, c, before);
  if (!losses.empty()) print_losses(losses, before);
  if (stopped_by) return 128 + int(stopped_by);
  const bool writes = haliax::this_rank() == 0;
  if (writes && !c.curve.empty() && !losses.empty()) {
    examples::write_loss_curve(c.curve, losses);
    std::printf("loss curve: %s\n", c.curve.c_str());
  }

  if (!c.save.empty()) {
    run.save(c.save);
    std::printf("weights: %s\n", c.save.c_str());
  }

  if (c.tokens > 0) {
    std::printf("---- a sample ----\n");
    print_sample(run, c);
  }

  return 0;
}

void add_common(examples::CommandLine& line, Command& c) {
  line.option("--prompt", c.prompt, "text that the sample continues");
  line.option("--tokens", c.tokens, "length of the sample in bytes").range(0, 1000000);
  line.option("--temperature", c.temperature, "sampling temperature; 0: the most likely byte")
      .not_negative();
  line.option("--sample-seed", c.sample_seed, "seed of the sample");
  line.option("--threads", c.run.threads, "number of threads; 0: one per core").range(0, 1024);
  line.option("--backend", c.run.backend, "backend: cpu, reference, cuda or cuda-sim");
}

int run(int argc, char** argv) {
  Command c;
  examples::CommandLine line("Trains and samples a small GPT-2 on the bytes of text.");
  const auto most = double(std::int64_t(1) << 31);
  auto& t = line.command("train", "train on files and folders, then print a sample");
  t.option("paths", c.paths, "files, or folders of text files").required();
  t.option("--steps", c.steps, "number of training steps").range(1, most);
  t.option("--seconds", c.seconds, "training time in seconds (60, if --steps is not given)")
      .positive();
  t.option("--layers", c.run.layers, "number of blocks").range(1, most);
  t.option("--heads", c.run.heads, "heads per block; must divide --embed").range(1, most);
  t.option("--embed", c.run.embed, "size of the hidden states").range(1, most);
  t.option("--vocab", c.run.vocab, "vocabulary size; at least the 256 bytes").range(256, 1 << 24);
  t.option("--seq", c.run.seq_len, "positions per example").range(2, 1 << 20);
  t.option("--batch", c.run.batch, "examples per step").range(1, most);
  t.option("--lr", c.run.learning_rate, "peak learning rate").positive();
  t.option("--weight-decay", c.run.weight_decay, "weight decay of AdamW").not_negative();
  t.option("--dropout", c.run.dropout, "share of activations set to zero").range(0.0, 1.0);
  t.option("--policy", c.run.policy, "dtypes, as p=f32,c=bf16,o=f32");
  t.option("--activation", c.run.activation, "activation function of the MLP");
  t.option("--checkpointing", c.run.checkpointing,
           "activations that the backward pass recomputes: none, carries, nested");
  t.option("--mesh", c.run.mesh,
           "mesh, as data=4,model=2, of threads or of the ranks that mpirun starts");
  t.option("--rank-logs", c.rank_logs, "folder for the output of all ranks except the first");
  t.flag("--untied", c.run.untied, "use a separate head instead of the token embeddings");
  t.flag("--full-logits", c.run.full_logits, "materialize all logits of a batch");
  t.option("--loss-memory", c.loss_mib,
           "MiB of logits per chunk of the loss; 0: chosen by the library")
      .not_negative();
  t.option("--seed", c.run.seed, "seed of the weights, the batches and dropout");
  t.option("--weights", c.weights,
           "start from these weights (safetensors); the file sets the sizes");
  t.option("--save", c.save, "file for the weights (safetensors, with Hugging Face's names)");
  const auto folder = t.option(
      "--checkpoint", c.checkpoint,
      "folder for checkpoints: every --every steps, on Ctrl-C and SIGTERM, and at the end");
  t.option("--every", c.every, "steps between checkpoints").range(1, most).needs(folder);
  t.option("--keep", c.keep, "number of latest checkpoints to keep; 0: all")
      .range(0, 1000000)
      .needs(folder);
  t.flag("--resume", c.resume, "continue from the last complete checkpoint, if there is one")
      .needs(folder);
  t.option("--curve", c.curve, "file for a plot of the losses; \"\": no plot");
  add_common(t, c);

  auto& s = line.command("sample", "print text that the model generates");
  s.option("--weights", c.weights, "weights file of train --save").required();
  add_common(s, c);

  if (auto status = line.parse(argc, argv)) return *status;
  if (t.given()) return train(c);
  gpt2::Run run(gpt2::sizes_of(c.weights, c.run));
  run.load(c.weights);
  print_sample(run, c);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpt2: %s\n", e.what());
    return 1;
  }
}
