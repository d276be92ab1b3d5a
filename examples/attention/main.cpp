// attention: the memory of causal attention and its gradients over the sequence length: with all
// scores, as compiled, and with positions sharded over devices. The values are planned, so nothing
// runs. Prints a table and draws a picture.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "examples/command_line.h"
#include "examples/memory_panel.h"
#include "haliax/haliax.h"
#include "step.h"

using namespace haliax;

namespace {

constexpr double kMib = 1 << 20;

struct Command {
  std::int64_t heads = 12, size = 64, from = 1024, to = 65536;
  int devices = 8;
  std::string peers, svg = "attention.svg", step, backend = "cpu";
};
struct Curve {
  std::string name;
  std::vector<std::pair<double, double>>
      points;  // positions; MiB in addition to arguments and results
};
using Three = std::array<NamedArray, 3>;  // queries, keys, values (heads, pos, size)

// Returns the MiB on one device in addition to arguments and results.
double planned(const Command& c, std::int64_t positions, const JitOptions& options) {
  const Axis Heads("heads", c.heads), Pos("pos", positions), KeyPos = Pos.alias("key_pos"),
                                                             Size("size", c.size);
  auto gradients = [=](const Three& x, const NamedArray& cotangent) {
    auto attend = [=](const Three& x) {
      auto keys = rename(x[1], Pos, KeyPos), values = rename(x[2], Pos, KeyPos);
      return nn::dot_product_attention(KeyPos, Size, x[0], keys, values,
                                       {.mask = nn::causal_mask(Pos, KeyPos)});
    };
    auto [y, pull] = vjp(attend, x);
    return std::pair{y, pull(cotangent)};
  };
  auto shape = eval_shape([&] { return zeros({Heads, Pos, Size}); });
  return double(named_jit(gradients, options).plan(Three{shape, shape, shape}, shape).arena_bytes) /
         kMib;
}
std::vector<Curve> curves(const Command& c) {
  const JitOptions all_scores{.scores_budget = most_bytes};
  JitOptions sharded{.mesh = Mesh{{{"context", c.devices}}},
                     .axis_resources = Mapping{{"pos", "context"}},
                     .ring = true};
  const std::pair<std::string, JitOptions> ways[] = {
      {"all scores", all_scores},
      {"as compiled", {}},
      {fmt::format("on each of {} devices", c.devices), sharded}};
  std::vector<Curve> out;
  for (auto& [name, options] : ways) {
    out.push_back({name, {}});
    for (auto positions = c.from; positions <= c.to; positions *= 2)
      out.back().points.push_back({double(positions), planned(c, positions, options)});
  }
  return out;
}
// Reads measurements of other libraries: lines {"peer": "PyTorch sdpa", "positions": 1024, "mib":
// 5.2}.
void add_peers(std::vector<Curve>& all, const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path);
  for (std::string line; std::getline(in, line);) {
    auto j = nlohmann::json::parse(line);
    auto name = j.at("peer").get<std::string>() + ", measured";
    if (all.back().name != name) all.push_back({name, {}});
    all.back().points.push_back({j.at("positions").get<double>(), j.at("mib").get<double>()});
  }
}

void print(const std::vector<Curve>& all) {
  for (auto& c : all) {
    std::printf("%s\n", c.name.c_str());
    for (auto [positions, mib] : c.points)
      std::printf("%10.0f positions %12.1f MiB\n", positions, mib);
  }
}
// Draws the curves, with logarithmic scales to base 2.
void draw(const std::vector<Curve>& all, const Command& c) {
  const char* const colours[] = {"#aa3333", "#2266aa", "#338844", "#777777", "#b07a20", "#8844aa"};
  constexpr double left = 70, top = 56, width = 520, height = 320, names = 200;
  double least = 1, most = 1;
  for (auto& curve : all)
    for (auto [_, mib] : curve.points) {
      least = std::min(least, mib);
      most = std::max(most, mib);
    }

  const double low = std::floor(std::log2(least)), high = std::ceil(std::log2(most));
  const double first = std::log2(double(c.from)),
               last = std::max(std::log2(double(c.to)), first + 1);
  auto x = [&](double positions) {
    return left + width * (std::log2(positions) - first) / (last - first);
  };
  auto y = [&](double mib) { return top + height * (high - std::log2(mib)) / (high - low); };

  std::ofstream out(c.svg);
  out << examples::svg_begin(left + width + names, top + height + 40)
      << examples::svg_text(
             16, 22,
             fmt::format("causal attention, {} heads of {}, f32, forward and backward", c.heads,
                         c.size),
             "font-size=\"14\"")
      << examples::svg_text(16, 42, "MiB in addition to arguments and results, over positions");
  for (double e = low; e <= high; e += 2)
    out << examples::svg_line(left, y(std::exp2(e)), left + width, y(std::exp2(e)),
                              "stroke=\"#eee\"")
        << examples::svg_text(left - 8, y(std::exp2(e)) + 4, fmt::format("{:g}", std::exp2(e)),
                              "text-anchor=\"end\"");
  for (double e = first; e <= last; ++e)
    out << examples::svg_text(x(std::exp2(e)), top + height + 18,
                              fmt::format("{:g}k", std::exp2(e - 10)), "text-anchor=\"middle\"");
  double label = top;
  for (std::size_t k = 0; k < all.size(); ++k) {
    auto* colour = colours[k % std::size(colours)];
    std::string points;
    for (auto [positions, mib] : all[k].points)
      points += fmt::format("{:.1f},{:.1f} ", x(positions), y(mib));
    out << fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"{}\"/>\n",
                       colour, points)
        << examples::svg_text(left + width + 12, label += 20, all[k].name,
                              fmt::format("fill=\"{}\"", colour));
  }
  out << "</svg>\n";
  out.close();
  if (!out) throw std::runtime_error("cannot write " + c.svg);
  std::printf("picture: %s\n", c.svg.c_str());
}

int parse_and_run(int argc, char** argv) {
  Command c;
  examples::CommandLine line(
      "Memory of attention over the sequence length: a table and a picture.");
  line.option("--heads", c.heads, "number of heads").range(1, 1024);
  line.option("--size", c.size, "size of a head").range(1, 1024);
  line.option("--from", c.from, "least number of positions; doubled up to --to").range(64, 1 << 24);
  line.option("--to", c.to, "largest number of positions").range(64, 1 << 24);
  line.option("--devices", c.devices, "devices over which positions are sharded").range(2, 32);
  line.option(
      "--peers", c.peers,
      "file with measurements of other libraries, one JSON object per line: peer, positions, mib");
  line.option("--svg", c.svg, "file for the picture; \"\": no picture");
  line.option("--step", c.step, "only write a picture of a GPT-2 124M training step to this file");
  line.option("--backend", c.backend, "backend that --step is planned for");
  if (auto status = line.parse(argc, argv)) return *status;
  if (!c.step.empty()) {
    draw_step(c.step, c.backend);
    std::printf("picture: %s\n", c.step.c_str());
    return 0;
  }
  auto all = curves(c);
  if (!c.peers.empty()) add_peers(all, c.peers);
  print(all);
  if (!c.svg.empty()) draw(all, c);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "attention: %s\n", e.what());
    return 1;
  }
}
