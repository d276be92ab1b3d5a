// The rendezvous of processes; see rendezvous.h.
#include "rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace haliax::cuda {
namespace {

std::string in_hex(const std::string& bytes) {
  std::string out;
  for (unsigned char c : bytes) out += fmt::format("{:02x}", c);
  return out;
}
std::string from_hex(const std::string& text) {
  std::string out;
  for (std::size_t k = 0; k + 1 < text.size(); k += 2)
    out += char(std::stoi(text.substr(k, 2), nullptr, 16));
  return out;
}
std::string process_text(const ProcessGpus& s) {
  return fmt::format("{}\n{}\n{}\n{}\n", in_hex(s.id), s.host, fmt::join(s.used, " "),
                     fmt::join(s.visible, " "));
}
ProcessGpus parse_process(const std::string& text) {
  std::istringstream in(text);
  auto line = [&] {
    std::string one;
    std::getline(in, one);
    return one;
  };
  auto words = [&] {
    std::istringstream in_line(line());
    std::vector<std::string> all;
    for (std::string word; in_line >> word;) all.push_back(word);
    return all;
  };
  ProcessGpus s;
  s.id = from_hex(line());
  s.host = line();
  s.used = words();
  s.visible = words();
  return s;
}
std::string counted(std::size_t n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

void refuse_shared_gpus(const Api& api, const std::vector<ProcessGpus>& all) {
  for (auto& one : all) {
    std::set<std::string> used, visible;
    std::size_t ranks = 0, devices = 0;
    for (auto& s : all) {
      if (s.host != one.host) continue;
      ++ranks;
      devices += s.used.size();
      used.insert(s.used.begin(), s.used.end());
      visible.insert(s.visible.begin(), s.visible.end());
    }
    if (used.size() == devices) continue;
    const auto of_each =
        one.used.size() > 1 ? fmt::format(" with {} devices each", one.used.size()) : "";
    throw Error(fmt::format(
        "[{}] host {} has {}{}, but {}: each device of a mesh of several processes "
        "requires a GPU of its own; start fewer ranks there (mpirun --map-by ppr:{}:node), "
        "or set CUDA_VISIBLE_DEVICES so that each has its own",
        api.name, one.host, counted(ranks, "rank"), of_each, counted(visible.size(), "GPU"),
        std::max<std::size_t>(visible.size() / one.used.size(), 1)));
  }
}

}  // namespace

std::string rendezvous(const Api& api, program::RankGroup& group, const ProcessGpus& mine) {
  std::vector<ProcessGpus> all;
  for (auto& text : group.all_gather_text(process_text(mine))) all.push_back(parse_process(text));
  refuse_shared_gpus(api, all);
  return all[0].id;
}

}  // namespace haliax::cuda
