// How tokens and experts are split over the devices of a mesh.
#include "nn/expert_parallel.h"

#include <algorithm>

#include "graph/axes.h"
#include "graph/fail.h"
#include "graph/node.h"
#include "haliax/fmt.h"
#include "haliax/ops.h"
#include "transforms/sharding.h"

namespace haliax::nn {
namespace {

using MeshNames = std::vector<std::string>;

bool overlap(const MeshNames& a, const MeshNames& b) {
  return std::any_of(a.begin(), a.end(),
                     [&](auto& x) { return std::count(b.begin(), b.end(), x); });
}
std::int64_t devices_of(const Mesh& mesh, const MeshNames& names) {
  std::int64_t n = 1;
  for (auto& [name, size] : mesh.axes())
    if (std::count(names.begin(), names.end(), name)) n *= size;
  return n;
}

}  // namespace

std::optional<ExpertParallel> expert_parallel(const Axis& Experts, const Axes& tokens,
                                              const Axes& features) {
  auto mesh = current_mesh();
  auto mapping = current_mapping();
  if (!mesh || !mapping || context().tracing == 0) return {};
  const auto names = physical_axis_name(Experts);
  const auto devices = devices_of(*mesh, names);
  if (devices == 1) return {};
  if (Experts.size % devices != 0)
    fail("moe",
         "the mapping shards {} over the {} devices of mesh axes {}, which do not divide the "
         "experts; use a multiple of {} experts, or shard another axis, such as the hidden one",
         Experts, devices, fmt::format("{}", fmt::join(names, ", ")), devices);
  for (auto& a : features)
    if (overlap(physical_axis_name(a), names)) return {};

  ExpertParallel e{{"sender of moe", devices},
                   {"receiver of moe", devices},
                   {"local expert of moe", Experts.size / devices},
                   {},
                   {},
                   {},
                   {}};
  std::vector<Mapping::Entry> shared;  // entries for sent and received arrays
  for (auto& a : features)
    if (auto* by = mapping->find(a.name)) shared.emplace_back(a.name, *by);
  bool placed = false;  // the sender is part of an axis
  for (auto& a : tokens) {
    auto by = physical_axis_name(a);
    bool has_senders = overlap(by, names);
    if (has_senders) {
      // The devices of the experts must be the innermost of the axis.
      const auto first = std::ptrdiff_t(by.size()) - std::ptrdiff_t(names.size());
      if (placed || first < 0 || !std::equal(names.begin(), names.end(), by.begin() + first))
        return {};
      by.resize(std::size_t(first));
      placed = true;
    }
    const auto outer = devices_of(*mesh, by), inner = has_senders ? devices : 1;
    if (a.size % (outer * inner) != 0) return {};
    Axes parts;
    if (outer > 1) {
      parts.emplace_back("shard of " + std::string(a.name.text()), outer);
      shared.emplace_back(parts.back().name, by);
    }
    if (has_senders) parts.push_back(e.sender);
    parts.emplace_back("part of " + std::string(a.name.text()), a.size / outer / inner);
    e.parts.push_back(std::move(parts));
  }
  // Tokens that the mapping replicates over the devices of the experts: each device takes a part.
  for (auto& parts : e.parts) {
    auto& rest = parts.back();
    if (placed || rest.size % devices != 0) continue;
    const auto each = rest.resize(rest.size / devices);
    parts.back() = e.sender;
    parts.push_back(each);
    placed = true;
  }
  if (!placed) return {};
  for (auto& parts : e.parts) e.local.push_back(parts.back());
  auto with = [&](const Axis& device) {
    auto entries = shared;
    entries.emplace_back(device.name, names);
    return Mapping::of(std::move(entries));
  };
  e.sent = with(e.sender);
  e.received = with(e.receiver);
  return e;
}

std::int64_t ExpertParallel::local_tokens() const { return axis_size(local); }
NamedArray ExpertParallel::split(const NamedArray& x, const Axes& tokens, const Axis& Token) const {
  auto out = x;
  for (std::size_t k = 0; k < tokens.size(); ++k) out = unflatten_axis(out, tokens[k], parts[k]);
  return flatten_axes(out, names_of(local), Token);
}
NamedArray ExpertParallel::joined(const NamedArray& x, const Axes& tokens,
                                  const Axis& Token) const {
  auto out = unflatten_axis(x, Token, local);
  for (std::size_t k = 0; k < tokens.size(); ++k)
    out = flatten_axes(out, names_of(parts[k]), tokens[k]);
  return out;
}

}  // namespace haliax::nn
