#include "picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

namespace chunked_loss {
namespace {

constexpr double mib = 1 << 20;
constexpr double left = 170, plot = 470, right = 110;  // columns: names, curves, numbers
constexpr double top = 56, panel = 54, gap = 10, sweep_height = 150;
const char* const red = "#aa3333";
const char* const blue = "#2266aa";

double most_of(const std::vector<Row>& rows, double Measured::*what) {
  double most = 0;
  for (auto& r : rows) most = std::max(most, r.measured.*what);
  return most;
}
std::string text(double x, double y, const std::string& what, const std::string& more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, more, what);
}
std::string line(double x1, double y1, double x2, double y2, const char* style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, style);
}

// Memory over time of one method; `bytes` and `span` fill the panel.
std::string panel_of(const Row& row, double y, double bytes, double span) {
  auto& m = row.measured;
  const double floor = y + panel, middle = y + panel / 2;
  auto height = [&](double b) { return floor - (bytes > 0 ? panel * b / bytes : 0); };
  auto out =
      line(left, floor, left + plot, floor, "stroke=\"#ccc\"") + text(left - 10, middle + 4, row.name, "text-anchor=\"end\"");
  if (!m.error.empty()) return out + text(left + 6, floor - 6, "did not run", "fill=\"#aa3333\"");
  const double length = span > 0 ? plot * m.span / span : plot;
  auto points = fmt::format("{:.1f},{:.1f}", left, floor);
  for (std::size_t i = 0; i < m.curve.size(); ++i)
    points += fmt::format(" {:.1f},{:.1f}", left + length * (double(i) + 0.5) / double(m.curve.size()), height(m.curve[i]));
  out +=
      fmt::format("<polygon points=\"{} {:.1f},{:.1f}\" fill=\"#9bbfe0\" stroke=\"{}\"/>\n", points, left + length, floor, blue);
  out += line(left, height(m.planned), left + plot, height(m.planned), "stroke=\"#aa3333\" stroke-dasharray=\"4 3\"");
  out += text(left + plot + 8, middle - 2, fmt::format("{:.0f} MiB", m.peak / mib));
  return out + text(left + plot + 8, middle + 14, fmt::format("{:.0f} ms", m.seconds * 1e3));
}

// One curve over the chunks, on a scale of its own.
std::string curve_of(const std::vector<Row>& chunks, double Measured::*what, double unit, double floor, const char* colour,
                     const std::string& label, double label_y) {
  const double most = most_of(chunks, what), step = plot / double(chunks.size());
  std::string points, out;
  for (std::size_t i = 0; i < chunks.size() && most > 0; ++i) {
    const double v = chunks[i].measured.*what, x = left + step * (double(i) + 0.5), y = floor - (sweep_height - 16) * v / most;
    points += fmt::format("{:.1f},{:.1f} ", x, y);
    out += text(x, y - 5, fmt::format("{:.0f}", v / unit),
                fmt::format("text-anchor=\"middle\" font-size=\"10\" fill=\"{}\"", colour));
  }
  out += fmt::format("<polyline fill=\"none\" stroke=\"{}\" points=\"{}\"/>\n", colour, points);
  return out + text(left - 10, label_y, label, fmt::format("text-anchor=\"end\" fill=\"{}\"", colour));
}

}  // namespace

std::string sparkline(const std::vector<double>& curve, double most, std::size_t width) {
  static const std::string levels = " .:-=+*#%@";
  std::string out(width, ' ');
  for (std::size_t i = 0; i < width && !curve.empty() && most > 0; ++i) {
    const auto first = i * curve.size() / width, last = std::max(first + 1, (i + 1) * curve.size() / width);
    const double here = *std::max_element(curve.begin() + std::ptrdiff_t(first), curve.begin() + std::ptrdiff_t(last));
    out[i] = levels[std::min(levels.size() - 1, std::size_t(here / most * double(levels.size() - 1) + 0.5))];
  }
  return out;
}

void write_picture(const std::string& path, const std::string& title, const std::vector<Row>& methods,
                   const std::vector<Row>& chunks) {
  const double bytes = std::max(most_of(methods, &Measured::peak), most_of(methods, &Measured::planned));
  const double span = most_of(methods, &Measured::span), width = left + plot + right;
  const double bottom = top + double(methods.size()) * (panel + gap), sweep_top = bottom + 66;
  const double height = chunks.empty() ? bottom + 30 : sweep_top + sweep_height + 40;

  std::ofstream out(path);
  out << fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" font-family=\"sans-serif\" "
             "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
             width, height)
      << text(16, 22, title, "font-size=\"14\"")
      << text(16, 42, "memory beyond the inputs, over the time of a first run; dashed: planned");
  for (std::size_t i = 0; i < methods.size(); ++i) out << panel_of(methods[i], top + double(i) * (panel + gap), bytes, span);
  out << text(left, bottom + 8, "0")
      << text(left + plot, bottom + 8, fmt::format("{:.0f} ms", span * 1e3), "text-anchor=\"end\"");

  if (!chunks.empty()) {
    const double floor = sweep_top + sweep_height, step = plot / double(chunks.size());
    out << text(16, sweep_top - 16, "by the chunk of tokens") << line(left, floor, left + plot, floor, "stroke=\"#ccc\"")
        << curve_of(chunks, &Measured::planned, mib, floor, red, "planned MiB", sweep_top + 40)
        << curve_of(chunks, &Measured::seconds, 1e-3, floor, blue, "time in ms", sweep_top + 60);
    for (std::size_t i = 0; i < chunks.size(); ++i)
      out << text(left + step * (double(i) + 0.5), floor + 16, chunks[i].name, "text-anchor=\"middle\"");
  }
  out << "</svg>\n";
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
}

}  // namespace chunked_loss
