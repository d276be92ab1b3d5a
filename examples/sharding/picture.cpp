// Writes one SVG file from several pictures of visualize_sharding, two per row.
#include "picture.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iterator>

namespace sharding {

void write_picture(const std::string& path, const std::vector<Panel>& panels) {
  constexpr double width = 540, height = 336;
  std::string body;
  for (std::size_t k = 0; k < panels.size(); ++k) {
    auto& p = panels[k];
    haliax::visualize_sharding(p.axes, p.mapping, p.mesh, path);
    std::ifstream in(path);
    const std::string svg(std::istreambuf_iterator<char>(in), {});
    const double x = width * double(k % 2), y = height * double(k / 2);
    body += fmt::format(
        "<text x=\"{:.0f}\" y=\"{:.0f}\" font-size=\"15\" font-weight=\"bold\">{}</text>\n", x + 12,
        y + 24, p.title);
    body += fmt::format(
        "<svg x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" "
        "preserveAspectRatio=\"xMinYMin\" {}",
        x, y + 32, width - 10, height - 42, svg.substr(svg.find("viewBox")));
  }
  std::ofstream out(path);
  out << fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" "
             "font-family=\"sans-serif\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
             2 * width, height * double((panels.size() + 1) / 2))
      << body << "</svg>\n";
  out.close();
  if (!out) throw haliax::Error("[sharding] cannot write " + path);
}

}  // namespace sharding
