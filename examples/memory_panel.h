// Memory over time as SVG: one panel for each compared program, on one scale.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace examples {

constexpr double kNames = 170, kPlot = 470, kNumbers = 110;  // columns: names, curves, numbers
constexpr double kPanel = 54, kPanelGap = 10;

inline std::string svg_text(double x, double y, const std::string& what,
                            const std::string& more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more, what);
}
inline std::string svg_line(double x1, double y1, double x2, double y2, const char* style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1,
                     x2, y2, style);
}
inline std::string svg_begin(double width, double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
}

struct MemoryPanel {
  std::string name;
  std::vector<double> curve = {};  // bytes, equally spaced in time
  double length = 1,
         line = 0;  // fraction of the width that the curve spans; bytes of the dashed line
  std::string above = {}, below = {};  // numbers to the right of the curve
};
// Draws a panel at height y; `bytes` is the top of its scale.
inline std::string memory_panel(const MemoryPanel& p, double y, double bytes) {
  const double floor = y + kPanel, middle = y + kPanel / 2, length = kPlot * p.length;
  auto height = [&](double b) { return floor - (bytes > 0 ? kPanel * b / bytes : 0); };
  auto out = svg_line(kNames, floor, kNames + kPlot, floor, "stroke=\"#ccc\"") +
             svg_text(kNames - 10, middle + 4, p.name, "text-anchor=\"end\"");
  auto points = fmt::format("{:.1f},{:.1f}", kNames, floor);
  for (std::size_t i = 0; i < p.curve.size(); ++i)
    points +=
        fmt::format(" {:.1f},{:.1f}", kNames + length * (double(i) + 0.5) / double(p.curve.size()),
                    height(p.curve[i]));
  out += fmt::format("<polygon points=\"{} {:.1f},{:.1f}\" fill=\"#9bbfe0\" stroke=\"#2266aa\"/>\n",
                     points, kNames + length, floor);
  out += svg_line(kNames, height(p.line), kNames + kPlot, height(p.line),
                  "stroke=\"#aa3333\" stroke-dasharray=\"4 3\"");
  return out + svg_text(kNames + kPlot + 8, middle - 2, p.above) +
         svg_text(kNames + kPlot + 8, middle + 14, p.below);
}
// Writes all panels, one below the other, to an SVG file. The largest dashed line sets the scale.
// Raises if the file cannot be written.
inline void write_panels(const std::string& path, const std::string& title, const std::string& note,
                         const std::vector<MemoryPanel>& panels) {
  constexpr double top = 56, width = kNames + kPlot + kNumbers, each = kPanel + kPanelGap;
  double most = 0;
  for (auto& p : panels) most = std::max(most, p.line);
  std::ofstream out(path);
  out << svg_begin(width, top + double(panels.size()) * each + 10)
      << svg_text(16, 22, title, "font-size=\"14\"") << svg_text(16, 42, note);
  for (std::size_t k = 0; k < panels.size(); ++k)
    out << memory_panel(panels[k], top + double(k) * each, most);
  out << "</svg>\n";
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
}

}  // namespace examples
