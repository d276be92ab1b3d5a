// Prints the communication volume of the programs of tests/golden/comm, one JSON line each. Nothing
// runs; the programs are planned for virtual meshes.
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <regex>

#include "examples/command_line.h"
#include "programs.h"

namespace comm {

Axes::Axes(const Sizes& z)
    : B("batch", z.batch), S("position", z.position), E("embed", z.embed), F("mlp", z.mlp),
      H("heads", z.heads), D("head_size", z.head_size), V("vocab", z.vocab), Q("qkv", 3),
      L("layers", z.layers) {}

Mapping operator+(const Mapping& a, const Mapping& b) {
  auto all = a.entries();
  all.insert(all.end(), b.entries().begin(), b.entries().end());
  return Mapping::of(std::move(all));
}
const haliax::Mesh& mesh_of(const std::string& name) {
  static const haliax::Mesh data{{{"data", 8}}}, model{{{"model", 8}}},
      tall{{{"data", 4}, {"model", 2}}}, wide{{{"data", 2}, {"model", 4}}};
  return name == "8d" ? data : name == "8m" ? model : name == "42" ? tall : wide;
}
double lacking(const std::vector<Along>& axes) {
  constexpr int devices = 8;
  double all = 0;
  for (int device = 0; device < devices; ++device) {
    double wanted = 1, there = 1;
    for (auto& a : axes) {
      std::int64_t needed = 0, both = 0;
      for (std::int64_t i = 0; i < a.size; ++i)
        if (a.needs(device, i)) {
          ++needed;
          both += a.has(device, i);
        }

      wanted *= double(needed);
      there *= double(both);
    }
    all += wanted - there;
  }
  return all / devices;
}
Holds in_blocks(std::int64_t size, std::int64_t blocks,
                std::function<std::int64_t(std::int64_t)> coordinate) {
  auto step = std::max<std::int64_t>(1, (size + blocks - 1) / blocks);
  return [=](std::int64_t device, std::int64_t i) {
    return i / step == (coordinate ? coordinate(device) : device);
  };
}
Holds everywhere() {
  return [](std::int64_t, std::int64_t) { return true; };
}
std::vector<Program> programs(const Sizes& z) {
  std::vector<Program> out;
  add_layers(out, z);
  add_moves(out, z);
  add_gpt2(out, z);
  return out;
}

}  // namespace comm

namespace {

int complain(const std::string& what) {
  std::cerr << "comm: " << what << "\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  examples::CommandLine line(
      "Prints the planned communication of the programs of tests/golden/comm, one JSON object per "
      "line.");
  std::string only;
  bool regather = false, explain = false;
  int losses = 0;
  comm::Sizes z;
  line.option("--only", only, "regular expression of program names; default: all programs");
  line.flag("--regather", regather,
            "gather weights of layers again in the backward pass; default: save gathered weights");
  line.flag("--explain", explain, "print every collective to standard error");
  line.option("--losses", losses,
              "training steps of the GPT-2 programs, on the mesh and on one device; 0: print the "
              "communication instead")
      .not_negative();
  line.option("--batch", z.batch, "examples per step").positive();
  line.option("--position", z.position, "positions per example").positive();
  line.option("--embed", z.embed, "size of the hidden states").positive();
  line.option("--mlp", z.mlp, "size of the hidden layer of an MLP").positive();
  line.option("--heads", z.heads, "number of attention heads").positive();
  line.option("--head-size", z.head_size, "size of an attention head").positive();
  line.option("--vocab", z.vocab, "vocabulary size").positive();
  line.option("--layers", z.layers, "number of layers").positive();
  if (auto status = line.parse(argc, argv)) return *status;
  std::regex wanted;
  try {
    wanted = std::regex(only);
  } catch (const std::regex_error& error) {
    return complain("--only '" + only + "' is not a regular expression: " + error.what());
  }

  int failed = 0, found = 0;
  for (auto& p : comm::programs(z)) {
    if (!std::regex_search(p.name, wanted) || (losses > 0 && !p.losses)) continue;
    ++found;
    nlohmann::ordered_json row;
    row["program"] = p.name;
    for (auto& [name, size] : p.mesh.axes()) row["mesh"][name] = size;
    try {
      if (losses > 0) {
        row["losses"] = p.losses(losses);
        row["unsharded"] = p.unsharded(losses);
        std::cout << row.dump() << std::endl;
        continue;
      }
      auto report = p.plan(regather);
      row["calls"] = std::llround(report.calls);
      row["sent_bytes"] = std::llround(report.sent_bytes);
      row["min_bytes"] = std::llround(p.min_bytes);
      if (p.min_regather_bytes) row["min_regather_bytes"] = std::llround(*p.min_regather_bytes);
      row["peak_bytes"] = report.argument_bytes + report.peak_bytes;
      if (explain) std::cerr << p.name << "\n" << report.explain;
    } catch (const haliax::Error& error) {
      row["error"] = error.what();
      ++failed;
    }
    std::cout << row.dump() << std::endl;
  }
  const std::string programs = losses > 0 ? "program that trains" : "program";
  if (found == 0) return complain("no " + programs + " matches --only '" + only + "'");
  return failed != 0;
}
