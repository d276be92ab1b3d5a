// The report of a compiled function: collectives, memory and estimated time.
#include "report/explain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/where.h"
#include "compile/memory/memory.h"
#include "runtime/mesh_run.h"
#include "compile/sharding/report/collective_names.h"
#include "program/peak.h"

namespace haliax {
namespace {

// Returns the memory by purpose. Arguments are resident throughout, results that replace no
// argument from the start, and slots of the arena at the peak.
std::vector<MemoryReport> memory_of(const program::Program& p) {
  std::map<std::string, std::int64_t> bytes;
  for (int s : p.argument_slots) bytes[p.slot(s).purpose] += p.slot(s).bytes;
  const std::set<int> donated(p.donated.begin(), p.donated.end());
  for (int r = 0; r < p.results; ++r)
    if (!donated.count(r)) {
      auto& slot = p.slot(p.result_slots[std::size_t(r)]);
      bytes[slot.purpose] += slot.bytes;
    }
  for (auto& use : p.at_peak) bytes[use.purpose] += use.bytes;
  std::vector<MemoryReport> out;
  for (const char* purpose : {"parameters", "optimizer", "inputs", "gradients", "activations",
                              "results", "gathered", "scratch", "gaps"})
    if (bytes[purpose] > 0) out.push_back({purpose, bytes[purpose]});
  return out;
}

// Returns the estimated time in seconds. A ring of n devices runs n - 1 steps, and twice as many
// for an all-reduce. The slowest link determines the speed.
double seconds(const PlannedCollective& m, const Mesh& mesh, const MachineSpeed& speed) {
  double per_byte = 0, latency = 0;
  for (int x : m.over) {
    const LinkSpeed* link = nullptr;
    for (auto& l : speed.links)
      if (l.axis == mesh.axes()[std::size_t(x)].first || (l.axis.empty() && !link)) link = &l;
    if (!link) continue;
    if (link->bytes_per_s > 0) per_byte = std::max(per_byte, 1 / link->bytes_per_s);
    latency = std::max(latency, link->latency_s);
  }
  double ring_steps =
      m.kind == PlannedCollective::Kind::permute || m.kind == PlannedCollective::Kind::ring
          ? 1
          : ranks(mesh, m.over) - 1;
  if (m.kind == PlannedCollective::Kind::all_reduce) ring_steps *= 2;
  return m.iterations * (m.bytes * per_byte + ring_steps * latency);
}

std::string size_of(double bytes) {
  const char* const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t u = 0;
  while (bytes >= 999.5 && u < 5) {
    bytes /= 1000;
    ++u;
  }
  return fmt::format("{:.{}f} {}", bytes,
                     u == 0 || bytes >= 99.95 ? 0
                     : bytes >= 9.995         ? 1
                                              : 2,
                     units[u]);
}
std::string number_of(double n) {
  return n >= 1e9   ? fmt::format("{:.4g} billion", n / 1e9)
         : n >= 1e6 ? fmt::format("{:.4g} million", n / 1e6)
                    : fmt::format("{:.0f}", n);
}
std::string seconds_of(double s) {
  return s >= 1 ? fmt::format("{:.2f} s", s) : fmt::format("{:.3g} ms", s * 1e3);
}

// Returns the text, without its middle if it has more than `most` characters.
std::string shortened(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  const auto tail = most / 3, head = most - tail - 3;
  return text.substr(0, head) + "..." + text.substr(text.size() - tail);
}

// Returns "op file:line, in module", without the middle of the module if the text is longer than
// `most`.
std::string short_place(const std::string& text, std::size_t most) {
  const auto module = text.find(", in ");
  if (text.size() <= most || module == text.npos) return text;
  const auto head = text.substr(0, module);
  return head + shortened(text.substr(module),
                          std::max<std::size_t>(16, most - std::min(most, head.size())));
}

std::string calls_text(double calls) {
  return fmt::format("{:.0f} {}", calls, calls == 1 ? "call" : "calls");
}

void add_collectives(JitReport& r, const MeshProgram& m, const MachineSpeed& speed) {
  r.sent_bytes = m.sent_bytes;
  r.calls = m.calls;
  std::vector<std::vector<std::string>> rows{
      {"collective", "over", "bytes", "times", "array", "for", "requested by"}};
  std::map<std::string, std::pair<double, double>> by_kind;  // (collectives, bytes)
  for (auto& c : m.collectives) {
    auto names = listed(c.arrays, [](auto& a) { return name_of(a); });
    auto axes = listed(c.arrays, [](auto& a) { return to_string(a.axes); });
    r.collectives.push_back(
        {name_of(c.kind), to_string(m.mesh, c.over), names, axes, int(c.arrays.size()), c.bytes,
         c.iterations, c.at_most, loops_of(c, m.mesh), cause_of(c), where_of(c.origin),
         is_requested(c.reason) ? name_of(c.reason) : "", seconds(c, m.mesh, speed)});
    auto& report = r.collectives.back();
    r.sending_s += report.seconds;
    auto times = report.turns == 1 ? "1" : fmt::format("{:.0f} ({})", report.turns, report.loop);
    std::string reason = c.gathers() ? name_of(c.reason) : "";
    if (c.unmapped) reason = fmt::format("none (axis {} is unmapped)", c.unmapped.text());
    auto cause = report.cause + (report.where.empty() ? "" : "; " + report.where);
    rows.push_back({report.kind, report.over,
                    (report.at_most ? "at most " : "") + size_of(report.bytes), times,
                    shortened(array_of(c), 64), shortened(cause, 64), reason});
    auto& [calls, bytes] = by_kind[report.kind];
    calls += report.turns;
    bytes += report.turns * report.bytes;
  }
  auto& out = r.explain;
  out += fmt::format("on a mesh of {} ({} devices), for each device:\n\n", to_string(m.mesh),
                     m.mesh.devices());
  out += m.collectives.empty() ? "no communication\n" : table(rows);
  for (auto& [kind, sum] : by_kind)
    out += fmt::format("{}: {}, {}\n", kind, calls_text(sum.first), size_of(sum.second));
  out += fmt::format("total: {}, {} communicated\n\n", calls_text(r.calls), size_of(r.sent_bytes));
  if (auto lines = overlap_report(*m.devices[m.largest_device].program); !lines.empty())
    out += fmt::format("overlapped with computation:\n  {}\n\n", fmt::join(lines, "\n  "));
  if (m.uneven) out += "no communication is overlapped: the blocks of an axis are uneven\n\n";
}

// Appends the memory of one of `devices` devices. inputs: the unsharded arguments.
void add_memory(JitReport& r, const program::Program& p, const Nodes& inputs, int devices) {
  auto& out = r.explain;
  std::vector<std::vector<std::string>> rows{{"memory at the peak", ""}};
  bool trains = false;
  for (auto& [purpose, bytes] : r.memory) {
    rows.push_back({purpose, size_of(double(bytes))});
    trains |= purpose == "gradients";
  }
  rows.push_back({"total", size_of(double(r.argument_bytes + r.peak_bytes))});
  out += table(rows);
  // Training stores three things per parameter: its value, a gradient of equal size, and the state
  // of the optimizer.
  double count = 0, unsharded = 0, mine = 0;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    auto& slot = p.slot(p.argument_slots[k]);
    std::string purpose = slot.purpose;
    double times = purpose == "parameters"  ? 2
                   : purpose == "optimizer" ? 1
                                            : 0,
           size = double(inputs[k]->size());
    if (purpose == "parameters") count += size;
    unsharded += times * size * bytes_of(inputs[k]->dtype);
    mine += times * double(slot.bytes);
  }
  if (trains && count > 0)
    out += fmt::format(
        "{} parameters x {:.3g} bytes (values, gradients, optimizer): {} on one device{}\n",
        number_of(count), unsharded / count, size_of(unsharded),
        devices > 1 ? fmt::format(", {} on each of {}", size_of(mine), devices) : "");
  if (r.compute_s > 0 || r.sending_s > 0)
    out += fmt::format(
        "\nestimated: {} for {:.3g} floating-point operations of matmuls, {} for "
        "communication\n",
        seconds_of(r.compute_s), r.flops, seconds_of(r.sending_s));
}

// Appends the slots that fill the arena at its peak: the largest ones, and the rest as one row.
void add_peak(JitReport& r, const program::Program& p) {
  constexpr std::size_t most = 8;
  const auto peak = peak_of(p);
  if (peak.slots.empty()) return;
  std::vector<std::vector<std::string>> rows{
      {"slot", "bytes", "purpose", "written by", "last used by"}};
  std::int64_t rest = 0;
  for (std::size_t k = 0; k < peak.slots.size(); ++k) {
    auto& s = peak.slots[k];
    if (k >= most) {
      rest += s.bytes;
      continue;
    }
    rows.push_back({s.slot < 0 ? "" : std::to_string(s.slot), size_of(double(s.bytes)), s.purpose,
                    short_place(s.first_write, 48), short_place(s.last_use, 48)});
  }
  if (rest > 0)
    rows.push_back({"", size_of(double(rest)), fmt::format("{} others", peak.slots.size() - most)});
  r.explain +=
      fmt::format("\nslots of the arena at the peak, during {}:\n{}", peak.step, table(rows));
}

}  // namespace

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> width;
  for (auto& r : rows)
    for (std::size_t c = 0; c < r.size(); ++c) {
      width.resize(std::max(width.size(), r.size()));
      width[c] = std::max(width[c], r[c].size());
    }
  std::string out;
  for (auto& r : rows) {
    std::string line;
    for (std::size_t c = 0; c < r.size(); ++c) line += fmt::format("{:<{}}  ", r[c], width[c]);
    line.erase(line.find_last_not_of(' ') + 1);
    if (!line.empty()) out += line + "\n";
  }
  return out;
}

void describe(JitReport& r, const Compilation& c, const MeshProgram* m, const MachineSpeed& speed) {
  auto& p = m ? *m->devices[m->largest_device].program : *c.program;
  r.arena_bytes = p.arena_bytes;
  r.peak_bytes = p.peak_bytes;
  r.argument_bytes = argument_bytes(p);
  r.contractions = count_contractions(p.steps);
  r.loops = p.loops;
  r.flops = 2 * multiplications(p.steps);
  r.compute_s = speed.flops > 0 ? r.flops / speed.flops : 0;
  r.memory = memory_of(p);
  r.memory_over_time = arena_in_use(p);
  for (auto& bytes : r.memory_over_time) bytes += r.argument_bytes + p.peak_bytes - p.arena_bytes;
  r.collectives.clear();
  r.sent_bytes = r.calls = r.sending_s = 0;
  if (m)
    add_collectives(r, *m, speed);
  else
    r.explain += "on one device, no collectives\n\n";
  add_memory(r, p, c.inputs, m ? m->mesh.devices() : 1);
  add_peak(r, p);
}

}  // namespace haliax
