// Draws the measurements of the methods and chunk sizes as text and as an SVG file.
#include "picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "examples/memory_panel.h"

namespace chunked_loss {
namespace {

constexpr double mib = 1 << 20;
constexpr double left = examples::kNames, plot = examples::kPlot, right = examples::kNumbers;
constexpr double top = 56, panel = examples::kPanel, gap = examples::kPanelGap, sweep_height = 150;
using examples::svg_line;
using examples::svg_text;
const char* const red = "#aa3333";
const char* const blue = "#2266aa";

double most_of(const std::vector<Row>& rows, double Measured::*what) {
  double most = 0;
  for (auto& r : rows) most = std::max(most, r.measured.*what);
  return most;
}
// Draws the memory over time of one method. `bytes` and `span` are the limits of the panel.
std::string panel_of(const Row& row, double y, double bytes, double span) {
  auto& m = row.measured;
  if (!m.error.empty())
    return svg_line(left, y + panel, left + plot, y + panel, "stroke=\"#ccc\"") +
           svg_text(left - 10, y + panel / 2 + 4, row.name, "text-anchor=\"end\"") +
           svg_text(left + 6, y + panel - 6, "did not run", "fill=\"#aa3333\"");
  return examples::memory_panel(
      {row.name, m.curve, span > 0 ? m.span / span : 1, m.planned,
       fmt::format("{:.0f} MiB", m.peak / mib), fmt::format("{:.0f} ms", m.seconds * 1e3)},
      y, bytes);
}

// Draws one curve over the chunk sizes, on its own scale.
std::string curve_of(const std::vector<Row>& chunks, double Measured::*what, double unit,
                     double floor, const char* colour, const std::string& label, double label_y) {
  const double most = most_of(chunks, what), step = plot / double(chunks.size());
  std::string points, out;
  for (std::size_t i = 0; i < chunks.size() && most > 0; ++i) {
    const double v = chunks[i].measured.*what, x = left + step * (double(i) + 0.5),
                 y = floor - (sweep_height - 16) * v / most;
    points += fmt::format("{:.1f},{:.1f} ", x, y);
    out += svg_text(x, y - 5, fmt::format("{:.0f}", v / unit),
                    fmt::format("text-anchor=\"middle\" font-size=\"10\" fill=\"{}\"", colour));
  }
  out += fmt::format("<polyline fill=\"none\" stroke=\"{}\" points=\"{}\"/>\n", colour, points);
  return out + svg_text(left - 10, label_y, label,
                        fmt::format("text-anchor=\"end\" fill=\"{}\"", colour));
}

}  // namespace

std::string sparkline(const std::vector<double>& curve, double most, std::size_t width) {
  static const std::string levels = " .:-=+*#%@";
  std::string out(width, ' ');
  for (std::size_t i = 0; i < width && !curve.empty() && most > 0; ++i) {
    const auto first = i * curve.size() / width,
               last = std::max(first + 1, (i + 1) * curve.size() / width);
    const double here = *std::max_element(curve.begin() + std::ptrdiff_t(first),
                                          curve.begin() + std::ptrdiff_t(last));
    out[i] = levels[std::min(levels.size() - 1,
                             std::size_t(here / most * double(levels.size() - 1) + 0.5))];
  }
  return out;
}

void write_picture(const std::string& path, const std::string& title,
                   const std::vector<Row>& methods, const std::vector<Row>& chunks) {
  const double bytes =
      std::max(most_of(methods, &Measured::peak), most_of(methods, &Measured::planned));
  const double span = most_of(methods, &Measured::span), width = left + plot + right;
  const double bottom = top + double(methods.size()) * (panel + gap), sweep_top = bottom + 66;
  const double height = chunks.empty() ? bottom + 30 : sweep_top + sweep_height + 40;

  std::ofstream out(path);
  out << examples::svg_begin(width, height) << svg_text(16, 22, title, "font-size=\"14\"")
      << svg_text(16, 42,
                  "memory beyond the inputs, over the time of a first run; dashed: planned");
  for (std::size_t i = 0; i < methods.size(); ++i)
    out << panel_of(methods[i], top + double(i) * (panel + gap), bytes, span);
  out << svg_text(left, bottom + 8, "0")
      << svg_text(left + plot, bottom + 8, fmt::format("{:.0f} ms", span * 1e3),
                  "text-anchor=\"end\"");

  if (!chunks.empty()) {
    const double floor = sweep_top + sweep_height, step = plot / double(chunks.size());
    out << svg_text(16, sweep_top - 16, "by the chunk of tokens")
        << svg_line(left, floor, left + plot, floor, "stroke=\"#ccc\"")
        << curve_of(chunks, &Measured::planned, mib, floor, red, "planned MiB", sweep_top + 40)
        << curve_of(chunks, &Measured::seconds, 1e-3, floor, blue, "time in ms", sweep_top + 60);
    for (std::size_t i = 0; i < chunks.size(); ++i)
      out << svg_text(left + step * (double(i) + 0.5), floor + 16, chunks[i].name,
                      "text-anchor=\"middle\"");
  }
  out << "</svg>\n";
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
}

}  // namespace chunked_loss
