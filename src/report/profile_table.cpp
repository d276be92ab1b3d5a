// Prints a profile as tables.
#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "haliax/profile.h"

namespace haliax {
namespace {

std::string rate_text(double per_s) {
  return per_s > 0 ? fmt::format("{:.4g}", per_s * 1e-9) : "-";
}
std::string percent_text(double share) {
  return share > 0 ? fmt::format("{:.0f} %", share * 100) : "-";
}
std::string cost_text(const ProfileCost& c, double all) {
  return fmt::format("{:>10.3f} {:>6} {:>8.6g} {:>8} {:>8} {:>7}", c.seconds * 1e3,
                     percent_text(all > 0 ? c.seconds / all : 0), c.calls,
                     rate_text(c.bytes_per_s()), rate_text(c.flops_per_s()),
                     percent_text(c.share()));
}
constexpr const char* kCostHead = "        ms  share    calls     GB/s  GFLOP/s  of peak";

std::string sums_text(const std::vector<ProfileSum>& sums, const char* what, double all) {
  constexpr std::size_t most = 24;
  std::string out = fmt::format("\n{}  {}\n", kCostHead, what);
  for (std::size_t k = 0; k < std::min(most, sums.size()); ++k)
    out += fmt::format("{}  {}\n", cost_text(sums[k], all),
                       sums[k].name.empty() ? "(none)" : sums[k].name);
  if (sums.size() > most) out += fmt::format("and {} more\n", sums.size() - most);
  return out;
}
std::string step_text(const StepProfile& s) {
  auto out = fmt::format("{:<10} {}", s.kind, s.op);
  if (!s.holds.empty() && s.holds != s.op) out += " (" + s.holds + ")";
  if (!s.shape.empty()) out += "; " + s.shape;
  if (s.side_by_side > 1) out += fmt::format("; {} at a time", s.side_by_side);
  if (!s.where.empty()) out += "; " + s.where;
  if (!s.module.empty()) out += ", in " + s.module;
  return out;
}

}  // namespace

std::string to_string(const Profile& p) {
  auto out = p.runs > 0 ? fmt::format("a call takes {:.3f} ms (mean of {}), its steps",
                                      p.wall_s * 1e3, p.runs)
                        : fmt::format("all calls take {:.3f} ms, their steps", p.wall_s * 1e3);
  out += fmt::format(" {:.3f} ms\n", p.steps_s * 1e3);
  out += fmt::format("this machine, in GB/s: reads {}, copies {}; in GFLOP/s: matmuls",
                     rate_text(p.machine.read), rate_text(p.machine.copy));
  for (auto& [dtype, rate] : p.machine.flops) out += fmt::format(" {} {}", dtype, rate_text(rate));
  out += p.machine.flops.empty() ? " -\n" : "\n";
  out += sums_text(p.by_kind, "kind", p.steps_s) + sums_text(p.by_module, "module", p.steps_s);
  constexpr std::size_t most = 40;
  std::vector<const StepProfile*> slowest;
  for (auto& s : p.steps) slowest.push_back(&s);
  std::stable_sort(slowest.begin(), slowest.end(),
                   [](auto* a, auto* b) { return a->seconds > b->seconds; });
  out += fmt::format("\n{}  step\n", kCostHead);
  for (std::size_t k = 0; k < std::min(most, slowest.size()); ++k)
    out += fmt::format("{}  {}\n", cost_text(*slowest[k], p.steps_s), step_text(*slowest[k]));
  if (slowest.size() > most) out += fmt::format("and {} more\n", slowest.size() - most);
  return out;
}
std::ostream& operator<<(std::ostream& out, const Profile& p) { return out << to_string(p); }

}  // namespace haliax
