// Shows the block of each device of a sharded array, as a table or an SVG picture.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "graph/node.h"
#include "haliax/shard.h"
#include "report/explain.h"
#include "transforms/sharding.h"

namespace haliax {
namespace {

// The blocks of an array. Rows are blocks of its first sharded axis, columns are blocks of all
// other sharded axes.
struct Grid {
  struct Edge {
    std::vector<std::string> labels;  // "embed 0..191"
    std::vector<double> extents;      // fractions of the full size
    std::string title;                // "embed=768 by data"
  };
  Edge rows, columns;
  std::vector<std::vector<std::vector<int>>> devices;  // [row][column]
};

int block_number(const MeshAxes& mesh_axes, const Mesh& mesh, int device) {
  int n = 0;
  for (int x : mesh_axes) n = n * mesh.axes()[std::size_t(x)].second + coordinate(mesh, device, x);
  return n;
}
Grid::Edge side_of(const Axes& axes, const Sharding& at, const Mesh& mesh) {
  Grid::Edge s{{""}, {1}, ""};
  for (auto& a : axes) {
    auto mesh_axes = at.mesh_axes(a.name);
    const std::int64_t blocks = ranks(mesh, mesh_axes), step = (a.size + blocks - 1) / blocks;
    auto name = std::string(a.name.text());
    s.title += (s.title.empty() ? "" : ", ") + to_string(a) + " by " + to_string(mesh, mesh_axes);
    Grid::Edge finer{{}, {}, s.title};
    for (std::size_t k = 0; k < s.labels.size(); ++k)
      for (std::int64_t b = 0; b < blocks; ++b) {
        auto from = std::min(a.size, b * step), to = std::min(a.size, from + step);
        auto text = from == to       ? name + " none"
                    : to == from + 1 ? fmt::format("{} {}", name, from)
                                     : fmt::format("{} {}..{}", name, from, to - 1);
        finer.labels.push_back(s.labels[k] + (s.labels[k].empty() ? "" : ", ") + text);
        finer.extents.push_back(s.extents[k] * double(to - from) /
                                double(std::max<std::int64_t>(1, a.size)));
      }
    s = std::move(finer);
  }
  return s;
}
Grid grid_of(const Axes& axes, const Sharding& at, const Mesh& mesh) {
  Axes sharded;
  for (auto& a : axes)
    if (!at.mesh_axes(a.name).empty()) sharded.push_back(a);
  Axes first(sharded.begin(), sharded.begin() + (sharded.empty() ? 0 : 1)),
      others(sharded.begin() + (sharded.empty() ? 0 : 1), sharded.end());
  Grid g{side_of(first, at, mesh), side_of(others, at, mesh), {}};
  g.devices.assign(g.rows.labels.size(), std::vector<std::vector<int>>(g.columns.labels.size()));
  for (int d = 0; d < mesh.devices(); ++d) {
    int row = 0, column = 0;
    for (auto& a : first) row = block_number(at.mesh_axes(a.name), mesh, d);
    for (auto& a : others)
      column =
          column * ranks(mesh, at.mesh_axes(a.name)) + block_number(at.mesh_axes(a.name), mesh, d);
    g.devices[std::size_t(row)][std::size_t(column)].push_back(d);
  }
  return g;
}

// "0-3 8-11", shortened if there are many runs
std::string list_of(const std::vector<int>& devices) {
  std::string out;
  std::size_t runs = 0;
  for (std::size_t i = 0; i < devices.size(); ++runs) {
    std::size_t j = i;
    while (j + 1 < devices.size() && devices[j + 1] == devices[j] + 1) ++j;
    if (runs == 8) return out + fmt::format(" ... ({} devices)", devices.size());
    out += (out.empty() ? "" : " ") +
           (j - i > 1 ? fmt::format("{}-{}", devices[i], devices[j]) : std::to_string(devices[i]));
    i = j - i > 1 ? j + 1 : i + 1;
  }
  return out;
}
// Returns the rows or columns that are shown: the first ones and the last one.
std::vector<std::size_t> shown(std::size_t n, std::size_t most) {
  std::vector<std::size_t> out;
  for (std::size_t k = 0; k < n; ++k)
    if (n <= most || k + 2 < most || k + 1 == n) out.push_back(k);
  return out;
}
std::string share(const Axes& axes, const Sharding& at, const Mesh& mesh) {
  auto mine = local_axes(axes, at, mesh, 0);
  return "each device holds " + to_string(mine) + (mine == axes ? ", replicated" : "");
}

std::string table_of(const Grid& g) {
  constexpr std::size_t kMaxRows = 18, kMaxColumns = 8;
  auto rows = shown(g.rows.labels.size(), kMaxRows),
       columns = shown(g.columns.labels.size(), kMaxColumns);
  std::vector<std::vector<std::string>> cells{{""}};
  for (auto c : columns) cells[0].push_back(g.columns.labels[c]);
  std::size_t last = 0;
  for (auto r : rows) {
    if (r > last + 1) cells.push_back({"..."});
    cells.push_back({g.rows.labels[r]});
    for (auto c : columns) cells.back().push_back(list_of(g.devices[r][c]));
    last = r;
  }
  if (columns.size() < g.columns.labels.size())
    for (auto& line : cells)
      if (line.size() > 1) line.insert(line.end() - 1, "...");
  return table(cells);
}

// ---- the picture ----
std::string escaped(const std::string& s) {
  std::string out;
  for (char c : s)
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}
std::string text_at(double x, double y, const std::string& what, const std::string& more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more, escaped(what));
}
// Returns a light color for block k of n, or gray for a single block.
std::string color(std::size_t k, std::size_t n) {
  if (n == 1) return "#e2e2e2";
  auto channel = [&](double shift) {
    const double hue = std::fmod(double(k) / double(n) + shift, 1.) * 6;
    const double part = std::clamp(std::abs(hue - 3) - 1, 0., 1.);
    return int(std::lround(190 + 56 * part));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", channel(0), channel(2. / 3), channel(1. / 3));
}
std::string picture_of(const Grid& g, const std::string& title, const std::string& below) {
  constexpr double left = 150, plot = 520, top = 92, right = 20;
  auto rows = shown(g.rows.labels.size(), 18), columns = shown(g.columns.labels.size(), 10);
  auto total = [](const Grid::Edge& s, const std::vector<std::size_t>& which) {
    double sum = 0;
    for (auto k : which) sum += s.extents[k];
    return sum > 0 ? sum : 1;
  };
  const double height = std::clamp(34. * double(rows.size()), 170., 440.);
  const double rows_all = total(g.rows, rows), columns_all = total(g.columns, columns);
  auto out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      left + plot + right, top + height + 40);
  out += text_at(16, 24, title, "font-size=\"14\"") + text_at(16, 44, below, "fill=\"#555\"");
  out += text_at(left + plot / 2, 66, g.columns.title, "text-anchor=\"middle\" fill=\"#555\"");
  out += text_at(16, top - 8, g.rows.title, "fill=\"#555\"");
  double y = top;
  std::size_t before = 0;
  for (auto r : rows) {
    const double h = height * g.rows.extents[r] / rows_all;
    if (r > before + 1) out += text_at(left - 10, y + 4, "...", "text-anchor=\"end\"");
    before = r;
    if (h > 0) out += text_at(left - 10, y + h / 2 + 4, g.rows.labels[r], "text-anchor=\"end\"");
    double x = left;
    for (auto c : columns) {
      const double w = plot * g.columns.extents[c] / columns_all;
      if (w <= 0 || h <= 0) continue;
      if (r == rows[0] && w > 40)
        out += text_at(x + w / 2, top - 8, g.columns.labels[c], "text-anchor=\"middle\"");
      const auto columns_in_all = g.columns.labels.size();
      auto all = list_of(g.devices[r][c]);
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" "
          "stroke=\"white\" stroke-width=\"2\"/>\n",
          x, y, w, h, color(r * columns_in_all + c, g.rows.labels.size() * columns_in_all));
      if (w > 16 && h > 10)
        out += text_at(x + w / 2, y + h / 2 + 4, all,
                       fmt::format("text-anchor=\"middle\" font-size=\"{}\"",
                                   double(all.size()) * 7 > w ? 8 : 12));
      x += w;
    }
    y += h;
  }
  out += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" "
      "stroke=\"#888\"/>\n",
      left, top, plot, height);
  return out +
         text_at(left + plot / 2, top + height + 24, "in each block: the devices that hold it",
                 "text-anchor=\"middle\" fill=\"#555\"") +
         "</svg>\n";
}

// Returns the placement of an array. The default is the mapping and the mesh in scope, or one
// device.
Placement placement_or_scope(const NamedArray& a) {
  if (auto placed = placement(a)) return *placed;
  auto mesh = current_mesh();
  auto mapping = current_mapping();
  if (!mesh) return {};
  return {*mesh, mapping ? *mapping : Mapping()};
}

}  // namespace

std::string bytes_text(double b) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int u = 0;
  while (b >= 1024 && u < 4) {
    b /= 1024;
    ++u;
  }
  return u == 0 ? fmt::format("{:.0f} B", b) : fmt::format("{:.1f} {}", b, units[u]);
}

std::string visualize_sharding(const AxisSpec& spec, const Mapping& mapping, const Mesh& mesh,
                               const std::string& svg, SourceLocation at) {
  CallSite here(at);
  auto sharding = sharding_for(spec, mapping, mesh, "an array");
  auto g = grid_of(spec, sharding, mesh);
  std::vector<Mapping::Entry> own;
  for (auto& a : spec.axes())
    if (auto* to = mapping.find(a.name)) own.push_back({a.name, *to});
  const auto title = to_string(spec.axes()), held = share(spec, sharding, mesh);
  const auto where = mesh.axes().empty() ? "one device" : "the mesh " + to_string(mesh);
  const auto how = "by " + to_string(Mapping::of(own)) + " on " + where;
  if (!svg.empty()) {
    std::ofstream file(svg);
    file << picture_of(g, title, how + "; " + held);
    file.close();
    if (!file) fail("visualize_sharding", "cannot write " + svg);
  }
  return title + " " + how + "\n" + table_of(g) + held + "\n";
}
std::string visualize_sharding(const NamedArray& a, const std::string& svg, SourceLocation at) {
  CallSite here(at);
  if (a.empty()) fail("visualize_sharding", "the NamedArray is empty; assign a value to it first");
  auto p = placement_or_scope(a);
  return visualize_sharding(a.axes(), p.mapping, p.mesh, svg, at);
}

namespace detail {

// Returns the table of the arrays. placement_of(array): its mesh and mapping.
template <class F>
static std::string table_of_leaves(const Leaves& leaves, const std::vector<std::string>& paths,
                                   const F& placement_of) {
  std::vector<std::vector<std::string>> rows;
  double total = 0, per_device = 0;
  auto add = [&](const std::string& path, const std::string& axes, const std::string& spec,
                 double all, double each) {
    rows.push_back({path, axes, spec, fmt::format("{:>10}", bytes_text(all)),
                    fmt::format("{:>10} a device", bytes_text(each))});
  };
  for (std::size_t k = 0; k < leaves.size(); ++k) {
    if (leaves[k].empty()) continue;
    auto axes = leaves[k].axes();
    const auto [mesh, mapping] = placement_of(leaves[k]);
    auto sharding = sharding_for(axes, mapping, mesh, paths[k].empty() ? "an array" : paths[k]);
    std::string spec;
    for (auto& a : axes)
      if (auto mesh_axes = sharding.mesh_axes(a.name); !mesh_axes.empty())
        spec += fmt::format("{}{} by {}", spec.empty() ? "" : ", ", a.name.text(),
                            to_string(mesh, mesh_axes));
    auto bytes = [&](const Axes& of) {
      return double(axis_size(of)) * bytes_of(leaves[k].dtype());
    };
    // device 0 has the largest block
    auto all = bytes(axes), each = bytes(local_axes(axes, sharding, mesh, 0));
    add(paths[k], to_string(axes), spec.empty() ? "replicated" : spec, all, each);
    total += all;
    per_device += each;
  }
  add("all", "", "", total, per_device);
  return table(rows);
}
std::string sharding_table(const Leaves& leaves, const std::vector<std::string>& paths,
                           const Mapping& mapping, const Mesh& mesh, SourceLocation at) {
  CallSite here(at);
  return table_of_leaves(leaves, paths, [&](auto&) { return Placement{mesh, mapping}; });
}
std::string placement_table(const Leaves& leaves, const std::vector<std::string>& paths,
                            SourceLocation at) {
  CallSite here(at);
  return table_of_leaves(leaves, paths, placement_or_scope);
}

}  // namespace detail
}  // namespace haliax
