// Converts trees of arrays to strings: one line per array, or a table of modules.
#include <algorithm>
#include <ostream>

#include "graph/node.h"
#include "haliax/tree.h"
#include "report/explain.h"

namespace haliax::detail {
namespace {

struct Sums {
  std::int64_t arrays = 0, elements = 0, frozen = 0, bytes = 0;
  void add(const Node& n, bool is_frozen) {
    ++arrays;
    elements += n.size();
    bytes += n.bytes();
    if (is_frozen) frozen += n.size();
  }
};
std::string count(std::int64_t n) {  // 1,234,567
  auto s = std::to_string(n);
  for (auto at = std::ptrdiff_t(s.size()) - 3; at > 0; at -= 3) s.insert(std::size_t(at), 1, ',');
  return s;
}
std::string plural(std::int64_t n, const char* what) {
  return count(n) + " " + what + (n == 1 ? "" : "s");
}

std::string lines(const std::vector<std::vector<std::string>>& rows) {
  auto text = table(rows);
  text.pop_back();  // the caller ends the last line
  return text;
}

}  // namespace

std::ostream& write(std::ostream& out, const std::string& text) { return out << text; }

std::string tree_text(const Walk& w) {
  note_fields(w);
  std::vector<std::vector<std::string>> rows;
  Sums all;
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& a = *w.arrays[k];
    auto path = w.paths[k].empty() ? "(the array)" : w.paths[k];
    if (a.empty()) {
      rows.push_back({path, "empty"});
      continue;
    }
    all.add(*a.node(), w.frozen[k]);
    rows.push_back({path, std::string(name_of(a.dtype())) + " " + to_string(a.axes()),
                    count(a.size()), bytes_text(double(a.nbytes())), w.frozen[k] ? "frozen" : ""});
  }
  rows.push_back({plural(all.arrays, "array"), "", plural(all.elements, "element"),
                  bytes_text(double(all.bytes))});
  return lines(rows);
}

std::string summary(const Walk& w, int depth) {
  note_fields(w);
  // Modules in order; each module precedes its parts.
  std::vector<std::pair<std::string, Sums>> modules{{"", {}}};
  bool any_frozen = false;
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    if (w.arrays[k]->empty()) continue;
    auto& path = w.paths[k];
    int level = 0;
    for (std::size_t end = 0; end != path.npos; end = path.find('.', end + 1), ++level) {
      if (depth >= 0 && level > depth) break;
      auto name = path.substr(0, end);
      auto at =
          std::find_if(modules.begin(), modules.end(), [&](auto& m) { return m.first == name; });
      if (at == modules.end()) at = modules.insert(at, {name, {}});
      at->second.add(*w.arrays[k]->node(), w.frozen[k]);
    }
    any_frozen = any_frozen || w.frozen[k];
  }
  std::vector<std::vector<std::string>> rows{
      {"module", "arrays", "parameters", "bytes", any_frozen ? "frozen" : ""}};
  for (auto& [name, s] : modules) {
    auto dot = name.rfind('.');
    auto indent = std::size_t(name.empty() ? 0 : 1 + std::count(name.begin(), name.end(), '.'));
    auto shown = name.empty() ? "(all)" : dot == name.npos ? name : name.substr(dot + 1);
    rows.push_back({std::string(2 * indent, ' ') + shown, count(s.arrays), count(s.elements),
                    bytes_text(double(s.bytes)), s.frozen ? count(s.frozen) : ""});
  }
  return lines(rows);
}

}  // namespace haliax::detail
