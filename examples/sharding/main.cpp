// sharding: the steps of the Levanter introduction, on virtual devices. One model and one training
// script; only two mappings differ.
#include <cmath>
#include <cstdio>

#include "examples/command_line.h"
#include "picture.h"
#include "script.h"

using namespace sharding;

namespace {

struct Command {
  int devices = 8, model_axis_size = 2, steps = 3;
  std::int64_t seq_len = 32, hidden_dim = 64, layers = 2, heads = 4, vocab = 256, batch = 16;
  bool no_xl = false;
  std::string svg = "sharding.svg";

  Sizes sizes() const {
    return {{.vocab_size = vocab,
             .n_positions = seq_len,
             .n_embd = hidden_dim,
             .n_layer = layers,
             .n_head = heads},
            Axis("batch", batch)};
  }
};

void chapter(const std::string& title, const std::string& text) {
  std::printf("\n==== %s ====\n%s\n\n", title.c_str(), text.c_str());
}
void show(const std::string& text) { std::printf("%s\n", text.c_str()); }
std::string kib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f KiB", bytes / 1024);
  return text;
}
std::int64_t parameters(const Sizes& s) {
  std::int64_t n = 0;
  for (auto& a : flatten(eval_shape([&] { return Model::init(s.config, random::key(0)); })))
    n += !a.empty() ? a.size() : 0;
  return n;
}

struct Row {
  std::string name;
  RunResult result;
};
Row trained(const Layout& layout, const Command& c) {
  Row row{layout.name, run(layout, c.sizes(), c.steps)};
  show("parameters " + (layout.params ? to_string(*layout.params) : "replicated") +
       ", inside the loss " +
       (layout.compute ? to_string(*layout.compute) : "sharded as the arguments") + ", on " +
       (layout.mesh ? "the mesh " + to_string(*layout.mesh) : "one device") + "\n");
  show(row.result.step.explain);
  for (std::size_t i = 0; i < row.result.losses.size(); ++i)
    std::printf("step %zu loss: %.6f\n", i, row.result.losses[i]);
  return row;
}
void compare(const std::vector<Row>& rows) {
  std::printf("%-18s %14s %14s %12s %6s   %s\n", "on each device", "parameters", "step's peak",
              "comm.", "calls", "last loss");
  for (auto& [name, r] : rows)
    std::printf("%-18s %14s %14s %12s %6.0f   %.6f\n", name.c_str(),
                kib(double(r.state.argument_bytes)).c_str(),
                kib(double(r.step.argument_bytes + r.step.peak_bytes)).c_str(),
                kib(r.step.sent_bytes).c_str(), r.step.calls, r.losses.back());
  for (auto& [name, r] : rows) {
    const double tolerance = name.starts_with("mixed") ? 1e-2 : 1e-4,
                 first = rows[0].result.losses.back();
    if (!(std::abs(r.losses.back() - first) <= tolerance * first))
      throw Error("[sharding] the loss of " + name + " differs");
  }
}

// Plans a model of 1.5 billion parameters without running it: 16 bytes each, for the parameter, its
// gradient and two moments.
void largest(const Command& c) {
  const Sizes xl{{.n_positions = 1024,
                  .n_embd = 1600,
                  .n_layer = 48,
                  .n_head = 25,
                  .gradient_checkpointing = true},
                 Axis("batch", 8)};
  const double n = double(parameters(xl)), gb = 1e9;
  std::printf(
      "%.2f billion parameters: 16 bytes each are %.1f GB on one device, %.1f GB on each of %d\n",
      n / 1e9, 16 * n / gb, 16 * n / gb / c.devices, c.devices);
  std::printf("\n%-18s %10s %10s %10s %12s %10s %10s   %s\n", "GB on each device", "parameters",
              "optimizer", "gradients", "activations", "all", "comm.", "planned in");
  for (auto& layout : {data_parallel(), fully_sharded(), mixed_precision(), wider_sums(),
                       tensor_parallel(c.model_axis_size)}) {
    auto r = plan(layout, xl);
    auto held = [&](const std::string& purpose) {
      double bytes = 0;
      for (auto& m : r.memory)
        if (m.purpose == purpose) bytes += double(m.bytes);
      return bytes / gb;
    };
    std::printf("%-18s %10.2f %10.2f %10.2f %12.2f %10.2f %10.2f   %.1f s\n", layout.name.c_str(),
                held("parameters"), held("optimizer"), held("gradients"), held("activations"),
                double(r.argument_bytes + r.peak_bytes) / gb, r.sent_bytes / gb,
                r.trace_s + r.compile_s);
    std::fflush(stdout);
  }
}

void draw(const Command& c, const Layout& dp, const Layout& fsdp, const Layout& tp) {
  const auto sizes = c.sizes();
  const AxisSpec batch{sizes.Batch, sizes.config.Pos()},
      c_fc{sizes.config.Embed(), sizes.config.Mlp()};
  const AxisSpec hidden{sizes.Batch, sizes.config.Pos(), sizes.config.Mlp()};
  write_picture(c.svg, {{"data parallel: the batch", batch, Mapping{{"batch", "data"}}, *dp.mesh},
                        {"data parallel: c_fc", c_fc, {}, *dp.mesh},
                        {"fully sharded: c_fc, as it is stored", c_fc, *fsdp.params, *fsdp.mesh},
                        {"fully sharded: c_fc, where it is used", c_fc, *fsdp.compute, *fsdp.mesh},
                        {"tensor parallel: c_fc, as it is stored", c_fc, *tp.params, *tp.mesh},
                        {"tensor parallel: the output of c_fc", hidden, *tp.compute, *tp.mesh}});
  std::printf("placement of arrays: %s\n", c.svg.c_str());
}

void report(const Command& c) {
  set_devices(c.devices);
  const auto sizes = c.sizes();
  const auto Position = sizes.config.Pos(), Embed = sizes.config.Embed(), Mlp = sizes.config.Mlp();
  const auto dp = data_parallel(), fsdp = fully_sharded(), tp = tensor_parallel(c.model_axis_size);
  std::printf("GPT-2 of %lld parameters, a batch of %lld, on %d virtual devices\n",
              static_cast<long long>(parameters(sizes)), static_cast<long long>(c.batch),
              devices());
  if (!c.svg.empty()) draw(c, dp, fsdp, tp);

  chapter("one device", "The unchanged script.");
  std::vector<Row> rows{trained(one_device(), c)};

  chapter("data parallel",
          "Every device has the full model and a shard of the batch; gradients are all-reduced.");
  show(visualize_sharding({sizes.Batch, Position}, Mapping{{"batch", "data"}}, *dp.mesh));
  show(visualize_sharding({Embed, Mlp}, {}, *dp.mesh));
  rows.push_back(trained(dp, c));

  chapter(
      "fully sharded",
      "Parameters, gradients and optimizer are sharded along embed. Inside the loss the batch is "
      "sharded and weights are replicated:\n"
      "each is all-gathered before its use, and its gradient is reduce-scattered.");
  show(visualize_sharding({Embed, Mlp}, *fsdp.params, *fsdp.mesh));
  rows.push_back(trained(fsdp, c));
  show("\n" + visualize_shardings(rows.back().result.model, *fsdp.params, *fsdp.mesh));

  chapter("mixed precision",
          "The same, computed in bf16: a weight is cast before it is communicated.");
  rows.push_back(trained(mixed_precision(), c));
  std::printf(
      "Each device rounds its part of a gradient to bf16. With r=f32 in the policy the parts are "
      "summed in f32.\n");
  rows.push_back(trained(wider_sums(), c));

  chapter("tensor parallel",
          "A second mesh axis shards the heads and the hidden "
          "units of each layer, within one example.");
  show(visualize_sharding({Embed, Mlp}, *tp.params, *tp.mesh));
  show(visualize_sharding({sizes.Batch, Position, Mlp}, *tp.compute, *tp.mesh));
  rows.push_back(trained(tp, c));

  chapter("side by side", "The model and its training script are the same in all of them.");
  compare(rows);
  if (c.no_xl) return;
  chapter("1.5 billion parameters", "Planned for the same devices, without allocating memory.");
  largest(c);
}

}  // namespace

int main(int argc, char** argv) {
  Command c;
  examples::CommandLine line(
      "GPT-2 trained on virtual devices: data parallel, "
      "fully sharded, in mixed precision, tensor parallel");
  line.option("--devices", c.devices, "virtual devices").range(1, 64);
  line.option("--model-axis-size", c.model_axis_size,
              "size of the mesh axis for the model; must divide --devices")
      .range(1, 64);
  line.option("--steps", c.steps, "training steps per layout").range(1, 1000);
  line.option("--batch", c.batch, "examples").range(1, 1 << 20);
  line.option("--seq-len", c.seq_len, "positions").range(2, 1 << 20);
  line.option("--embed", c.hidden_dim, "size of the hidden states").range(1, 1 << 20);
  line.option("--layers", c.layers, "layers").range(1, 1 << 20);
  line.option("--heads", c.heads, "attention heads").range(1, 1 << 20);
  line.option("--vocab", c.vocab, "ids").range(1, 1 << 20);
  line.flag("--no-xl", c.no_xl, "skip the plan for 1.5 billion parameters");
  line.option("--svg", c.svg, "file for the picture; empty: no picture");
  if (auto status = line.parse(argc, argv)) return *status;
  try {
    report(c);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
