#include "meet.h"

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
std::string text_of(const Said& s) {
  return fmt::format("{}\n{}\n{}\n{}\n", in_hex(s.id), s.host, fmt::join(s.taken, " "),
                     fmt::join(s.seen, " "));
}
Said said_in(const std::string& text) {
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
  Said s;
  s.id = from_hex(line());
  s.host = line();
  s.taken = words();
  s.seen = words();
  return s;
}
std::string counted(std::size_t n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

void refuse_shared_cards(const Api& api, const std::vector<Said>& all) {
  for (auto& one : all) {
    std::set<std::string> taken, seen;
    std::size_t ranks = 0, devices = 0;
    for (auto& s : all) {
      if (s.host != one.host) continue;
      ++ranks;
      devices += s.taken.size();
      taken.insert(s.taken.begin(), s.taken.end());
      seen.insert(s.seen.begin(), s.seen.end());
    }
    if (taken.size() == devices) continue;
    const auto of_each =
        one.taken.size() > 1 ? fmt::format(" with {} devices each", one.taken.size()) : "";
    throw Error(fmt::format(
        "[{}] host {} has {}{}, and {}: each device of a mesh of several processes takes a GPU of "
        "its own; "
        "start fewer ranks there (mpirun --map-by ppr:{}:node), or let CUDA_VISIBLE_DEVICES show "
        "each "
        "its own",
        api.name, one.host, counted(ranks, "rank"), of_each, counted(seen.size(), "GPU"),
        std::max<std::size_t>(seen.size() / one.taken.size(), 1)));
  }
}

}  // namespace

std::string met(const Api& api, program::RankGroup& group, const Said& mine) {
  std::vector<Said> all;
  for (auto& text : group.say(text_of(mine))) all.push_back(said_in(text));
  refuse_shared_cards(api, all);
  return all[0].id;
}

}  // namespace haliax::cuda
