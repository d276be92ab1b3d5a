// Trains the Llama in every mode, prints a table of the costs and draws the planned memory.
#include "modes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "examples/memory_panel.h"

namespace llama {
namespace {

constexpr double kMib = 1 << 20;

struct Row {
  Mode mode;
  Trained trained;
  double bytes() const { return double(trained.report.argument_bytes + trained.report.peak_bytes); }
};

// Returns the largest relative difference of a loss.
double difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]) / std::abs(b[i]);
    worst = d <= worst ? worst : d;  // NaN is not less, so it stays
  }
  return worst;
}
void write_picture(const std::string& path, const std::string& title,
                   const std::vector<Row>& rows) {
  std::vector<examples::MemoryPanel> panels;
  for (auto& row : rows) {
    auto& r = row.trained.report;
    panels.push_back({.name = row.mode.name, .line = row.bytes()});
    panels.back().curve.assign(r.memory_over_time.begin(), r.memory_over_time.end());
    panels.back().above = fmt::format("{:.2f} MiB", row.bytes() / kMib);
    panels.back().below = fmt::format("{:.0f} kB communicated", r.sent_bytes / 1e3);
  }
  examples::write_panels(
      path, title, "planned memory of a device over the steps of the program; dashed: its peak",
      panels);
}

}  // namespace

void compare_modes(const Run& given, const Mesh& mesh, const std::string& svg) {
  Run run = given;
  run.mesh.reset();
  run.verbose = false;
  const bool reports = this_rank() == 0;
  const double tolerance = Policy(run.policy).compute == DType::f32 ? 1e-5 : 5e-2;
  const auto one = train(run);
  if (reports) {
    std::printf("%d steps, %s; one device: %.2f MiB, %.1f ms, last loss %.6f\n", run.steps,
                to_string(mesh).c_str(),
                double(one.report.argument_bytes + one.report.peak_bytes) / kMib, one.seconds * 1e3,
                one.losses.back());
    std::printf("%-36s %8s %8s %6s %8s   %s\n", "on each device", "MiB", "comm. kB", "calls", "ms",
                "losses differ by");
  }
  std::vector<Row> rows;
  run.mesh = mesh;
  for (auto& mode : modes()) {
    run.mode = mode;
    rows.push_back({mode, train(run)});
    auto& [_, t] = rows.back();
    const double differs = difference(t.losses, one.losses);
    if (reports) {
      std::printf("%-36s %8.2f %8.1f %6.0f %8.1f   %.1e\n", mode.name.c_str(),
                  rows.back().bytes() / kMib, t.report.sent_bytes / 1e3, t.report.calls,
                  t.seconds * 1e3, differs);
      std::fflush(stdout);
    }
    if (!(differs <= tolerance))
      throw Error("[llama] " + mode.name + ": the losses differ from those of one device");
  }
  if (svg.empty() || !reports) return;
  auto& c = run.config;
  write_picture(
      svg,
      fmt::format("a Llama of {} layers, embed {}, {} positions, a batch of {}, {}, on the mesh {}",
                  c.model.num_hidden_layers, c.model.hidden_size, c.Pos.size, c.Batch.size,
                  run.policy, to_string(mesh)),
      rows);
  std::printf("memory over time: %s\n", svg.c_str());
}

}  // namespace llama
