// Checks that all devices of a mesh run matching collectives.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "compile/memory/memory.h"
#include "program/views.h"
#include "haliax/error.h"

namespace haliax {
namespace {

using program::Dims;
using program::Kind;
using program::Monoid;
using program::Program;
using program::Step;

// A collective of a Program, in order, or the start or end of a body that contains collectives.
struct ListedCollective {
  std::string text;
  const Step* step = nullptr;  // null: the start or end of a body
};
std::vector<ListedCollective> collectives_of(const std::vector<Step>& steps) {
  std::vector<ListedCollective> out;
  for (auto& s : steps) {
    if (s.kind == Kind::collective) {
      std::string text = name_of(s.collective.kind);
      for (int x : s.collective.over) text += " " + std::to_string(x);
      if (auto m = s.collective.monoid; m != Monoid::sum)
        text += fmt::format(", monoid {}", int(m));
      if (auto skip_flag = s.collective.skip_flag; skip_flag != program::SkipFlag::nothing)
        text += fmt::format(", skip flag {}", int(skip_flag));
      out.push_back({fmt::format("{} of {}; {}", text, s.collective.out.size(), s.where), &s});
    } else if (auto body = collectives_of(s.body); !body.empty()) {
      const bool is_loop = s.kind == Kind::loop;
      out.push_back({is_loop ? std::to_string(s.loop.trips) + " iterations" : "a conditional"});
      out.insert(out.end(), body.begin(), body.end());
      out.push_back({is_loop ? "the end of the iterations" : "the end of the conditional"});
    }
  }
  return out;
}
std::string box(DType d, const Dims& dims) {
  return fmt::format("{} ({})", name_of(d), fmt::join(dims, ", "));
}
// Returns the properties that are equal on all devices of a collective: the arrays that are summed,
// or concatenated from blocks.
std::string shared_properties(const program::Collective& c) {
  std::string out = name_of(c.kind);
  for (std::size_t k = 0; k < c.x.size(); ++k) {
    auto& full = c.kind == program::CollectiveKind::all_gather ? c.out[k] : c.x[k];
    out += (k ? ", " : " of ") + box(full.view.dtype, full.dims);
    if (c.kind != program::CollectiveKind::all_reduce) out += fmt::format(" along {}", c.dim[k]);
  }
  return out;
}
struct CollectivesCheck {
  const std::vector<const Program*>& devices;
  std::vector<std::vector<ListedCollective>> listed = {};  // by device

  // Checks that every device runs the same collectives, including the ones of other groups.
  void order() {
    for (auto* p : devices) listed.push_back(collectives_of(p->steps));
    auto& first = listed[0];
    for (std::size_t d = 1; d < listed.size(); ++d) {
      auto& mine = listed[d];
      std::size_t k = 0, all = std::min(mine.size(), first.size());
      while (k < all && mine[k].text == first[k].text) ++k;
      if (k < std::max(mine.size(), first.size()))
        differs(k, d, text_at(mine, k), 0, text_at(first, k));
    }
  }
  static std::string text_at(const std::vector<ListedCollective>& all, std::size_t k) {
    return k < all.size() ? all[k].text : "nothing";
  }
  using Text = const std::string&;
  [[noreturn]] static void differs(std::size_t k, std::size_t d, Text mine, std::size_t other,
                                   Text theirs) {
    throw Error(fmt::format("[verify] collective {} of device {} is {}, that of device {} is {}", k,
                            d, mine, other, theirs));
  }
  // Returns the coordinates of a device without the mesh axes of a collective. Devices of one group
  // have the same coordinates.
  Dims place(std::size_t d, const std::vector<int>& over) const {
    Dims at;
    auto left = std::int64_t(devices[d]->device);
    auto& mesh = devices[d]->mesh;
    for (auto x = int(mesh.size()); x-- > 0; left /= mesh[std::size_t(x)])
      if (std::count(over.begin(), over.end(), x) == 0) at.push_back(left % mesh[std::size_t(x)]);
    return at;
  }
  void arrays(std::size_t k) const {
    if (!listed[0][k].step) return;
    auto of = [&](std::size_t d) -> auto& { return listed[d][k].step->collective; };
    if (of(0).kind == program::CollectiveKind::exchange) return boxes(k);
    std::map<Dims, std::size_t> first;  // first device at each place
    for (std::size_t d = 0; d < devices.size(); ++d) {
      auto other = first.try_emplace(place(d, of(d).over), d).first->second;
      auto mine = shared_properties(of(d)), theirs = shared_properties(of(other));
      if (mine != theirs) differs(k, d, mine, other, theirs);
    }
  }
  // Checks that each box that a device sends matches the box that is received.
  void boxes(std::size_t k) const {
    std::map<std::pair<int, int>, std::vector<std::string>> sent, taken;  // by sender and receiver
    for (std::size_t d = 0; d < devices.size(); ++d) {
      auto& c = listed[d][k].step->collective;
      auto here = [&](const program::BoxTransfer& p) {
        return p.device < int(devices.size()) && program::points(p.dims) > 0;
      };
      for (auto& p : c.sends)
        if (here(p))
          sent[{int(d), p.device}].push_back(box(c.x[std::size_t(p.array)].view.dtype, p.dims));
      for (auto& p : c.receives)
        if (here(p))
          taken[{p.device, int(d)}].push_back(box(c.out[std::size_t(p.array)].view.dtype, p.dims));
    }
    for (auto& t : taken) sent[t.first];
    for (auto& [way, mine] : sent) {
      auto& theirs = taken[way];
      std::size_t n = 0;
      while (n < mine.size() && n < theirs.size() && mine[n] == theirs[n]) ++n;
      auto at = [&](auto& all) { return n < all.size() ? all[n] : "nothing"; };
      if (n == std::max(mine.size(), theirs.size())) continue;
      throw Error(
          fmt::format("[verify] collective {}: device {} sends {} to device {}, which expects {}",
                      k, way.first, at(mine), way.second, at(theirs)));
    }
  }
  void run() {
    order();
    for (std::size_t k = 0; k < listed[0].size(); ++k) arrays(k);
  }
};

}  // namespace

std::string collectives_text(const Program& p) {
  std::string out;
  for (auto& c : collectives_of(p.steps)) out += c.text + "\n";
  return out;
}
void verify_collectives(const std::vector<const Program*>& devices) {
  CollectivesCheck{devices}.run();
}

}  // namespace haliax
