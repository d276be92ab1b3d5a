// Runs and compiles the Programs of a mesh.
#include "runtime/mesh_run.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <set>

#include "compile/memory/memory.h"
#include "compile/verify.h"
#include "devices/communicator.h"
#include "devices/shards.h"
#include "haliax/fmt.h"
#include "program/plugin.h"
#include "runtime/profile.h"
#include "runtime/strict.h"

namespace haliax {
namespace {

// One call: the blocks of each argument on each device.
class MeshCall {
 public:
  MeshCall(const MeshProgram& m, const std::vector<BufferPtr>& arguments,
           const std::vector<bool>& may_overwrite)
      : m_(m), arguments_(arguments), may_overwrite_(may_overwrite),
        placed_blocks_(m.inputs.size()), copied_blocks_(m.inputs.size()) {
    for (std::size_t k = 0; k < m.inputs.size(); ++k) {
      placed_blocks_[k] = shards_as_requested(k);
      if (!placed_blocks_[k]) arguments[k]->data();  // concatenated once, not by every device
      copied_blocks_[k].resize(m.devices.size());
    }
  }
  // Returns the block of an argument on a device of this process.
  ArgumentValue block(std::size_t device, std::size_t k) {
    auto& memory = m_.devices[device].memory;
    bool overwritten = m_.donated[k];  // by a result or by an intermediate
    auto owner = placed_blocks_[k] ? placed_blocks_[k]->blocks[device] : nullptr;
    if (owner && !overwritten) return {owner, memory.address(*owner)};
    if (owner && may_overwrite_[k] && has_use_count(arguments_[k], 1)) {
      owner = memory.donate(*owner);
    } else {
      auto& [axes, dtype] = m_.inputs[k];
      DeviceBlock b(axes, dtype, m_.in[k], m_.mesh, m_.first + int(device));
      auto* first = owner ? nullptr : arguments_[k]->data() + b.offset;
      if (first && !overwritten && memory.is_host() && b.in_one_piece) return {nullptr, first};
      b.in_full_array.from = first;
      owner = owner ? memory.copy(*owner) : memory.copy_part(std::move(b.in_full_array));
      copied_bytes += owner->bytes();
      if (!overwritten) copied_blocks_[k][device] = owner;
    }
    return {owner, memory.address(*owner)};
  }
  // Attaches the copied blocks to the arguments, so that the next call reuses them.
  void attach_copies() {
    for (std::size_t k = 0; k < copied_blocks_.size(); ++k) {
      auto& blocks = copied_blocks_[k];
      if (m_.devices[0].memory.is_host() || m_.donated[k] || placed_blocks_[k]) continue;
      auto& [axes, dtype] = m_.inputs[k];
      arguments_[k]->attach(shards(m_.mesh, m_.in[k], axes, dtype, m_.first, std::move(blocks)));
    }
  }
  std::atomic<std::int64_t> copied_bytes = 0;

 private:
  const Shards* shards_as_requested(std::size_t k) const {
    for (auto* p = arguments_[k]->device_storage(); p; p = p->next.get()) {
      auto* s = dynamic_cast<const Shards*>(p);
      bool here =
          s && s->mesh == m_.mesh && s->first == m_.first && s->blocks.size() == m_.devices.size();
      bool same = here && s->at == m_.in[k] && s->axes == m_.inputs[k].first;
      if (same && s->dtype == m_.inputs[k].second) return s;
    }
    return nullptr;
  }
  const MeshProgram& m_;
  const std::vector<BufferPtr>& arguments_;
  const std::vector<bool>& may_overwrite_;
  std::vector<const Shards*> placed_blocks_;  // blocks that already have the required sharding
  std::vector<std::vector<BufferPtr>> copied_blocks_;  // by argument, then by device
};

}  // namespace

MeshProgram::Created MeshProgram::run(const std::vector<BufferPtr>& arguments,
                                      const std::vector<bool>& may_overwrite) const {
  MeshCall mine(*this, arguments, may_overwrite);
  std::vector<std::vector<BufferPtr>> created(devices.size());
  auto work = [&, profiler = scoped_profiler()](int device, program::Communicator& communicator) {
    Profiling scope(profiler);
    auto d = std::size_t(device - first);
    std::vector<ArgumentValue> blocks;
    for (std::size_t k = 0; k < inputs.size(); ++k) blocks.push_back(mine.block(d, k));
    created[d] = call(devices[d], blocks, &communicator);
  };
  on_devices(mesh, work, &devices[0].memory.device(), devices[0].program->called);
  mine.attach_copies();
  std::vector<BufferPtr> out;
  for (std::size_t r = 0; r < results.size(); ++r) {
    auto& [axes, dtype] = results[r];
    std::vector<BufferPtr> blocks;
    for (auto& of_device : created) blocks.push_back(std::move(of_device[r]));
    auto storage = shards(mesh, this->out[r], axes, dtype, first, std::move(blocks));
    out.push_back(std::make_shared<Buffer>(axis_size(axes) * bytes_of(dtype), std::move(storage)));
  }
  return {std::move(out), mine.copied_bytes};
}

namespace {

// Returns the environment variables of the library, except for variables that may differ between
// ranks.
std::string environment() {
  std::set<std::string> all;
  for (auto** v = environ; v && *v; ++v) {
    std::string variable = *v;
    auto name = variable.substr(0, variable.find('='));
    bool own = name == "HALIAX_THREADS" || name == "HALIAX_PRINT" || name == "HALIAX_CACHE" ||
               name == "HALIAX_PLUGINS" || name == "HALIAX_PROFILE";
    if (name.starts_with("HALIAX_") && !own) all.insert(std::move(variable));
  }
  return all.empty() ? "nothing" : fmt::format("{}", fmt::join(all, " "));
}
// Compares the call between all ranks. Ranks with different Programs would wait for each other
// forever.
void compare_with_ranks(Peers& ranks, const MeshProgram& m, const Compilation& c) {
  std::string in, out;
  for (std::size_t k = 0; k < m.inputs.size(); ++k)
    in += fmt::format("{} {} {}; ", m.inputs[k].first, name_of(m.inputs[k].second),
                      to_string(m.in[k]));
  for (std::size_t k = 0; k < m.results.size(); ++k)
    out += fmt::format("{} {} {}; ", m.results[k].first, name_of(m.results[k].second),
                       to_string(m.out[k]));
  auto hash = [](const std::string& text) {
    return std::to_string(std::hash<std::string>()(text));
  };
  Peers::JointCall joint(ranks, "the first call of a function");
  ranks.agree(
      {{"version of haliax", std::string(program::library_version()) + " " + program::abi_hash()},
       {"environment", environment()},
       {"call", c.options.called},
       {"mesh", to_string(m.mesh)},
       {"arguments", hash(in), false},
       {"results", hash(out), false},
       {"plan", hash(c.partition->text()), false}});
}

// Compares the collectives between all ranks. With overlap, they have other positions than in the
// plan.
void agree_on_collectives(Peers& ranks, const MeshProgram& m) {
  Peers::JointCall joint(ranks, "the first call of a function");
  const auto text = collectives_text(*m.devices[0].program);
  ranks.agree({{"calls", std::to_string(std::hash<std::string>()(text)), false}});
}
// Checks that the collectives of all devices match. Also plans the devices of other ranks.
void verify_all_devices(const Compilation& c, const MeshProgram& m, const LocalDevices& here,
                        const std::string& backend, bool simulated) {
  std::vector<Compiled> of_other_ranks;
  for (int d = 0; here.ranks && d < m.mesh.devices(); ++d) {
    if (d >= here.first && d < here.first + here.count) continue;
    auto local = on_device(c, d);
    of_other_ranks.push_back(finish(local, backend, false));
  }
  std::vector<const program::Program*> programs(simulated ? 1 : std::size_t(m.mesh.devices()));
  for (auto* compiled : {&m.devices, &std::as_const(of_other_ranks)})
    for (auto& d : *compiled) programs.at(std::size_t(d.program->device)) = d.program.get();
  verify_collectives(programs);
}

}  // namespace

MeshProgram compile_for_mesh(Compilation& c, const std::string& backend, bool simulated) {
  auto& mesh = *c.options.mesh;
  MeshProgram m;
  m.mesh = mesh;
  m.in = c.options.in;
  m.out = c.options.out;
  m.donated = c.options.donated;
  m.donated.resize(c.inputs.size());
  for (auto& n : c.inputs) m.inputs.push_back({n->axes, n->dtype});
  for (auto& n : c.roots) m.results.push_back({n->axes, n->dtype});
  m.collectives = c.partition->collectives();
  m.sent_bytes = c.partition->sent_bytes();
  for (auto& collective : m.collectives) m.calls += collective.iterations;
  m.uneven = c.options.partition.overlap && !c.partition->has_even_blocks();
  if (c.options.partition.strict) refuse_gathers(m.collectives, mesh);
  auto here = simulated ? LocalDevices() : local_devices(mesh);
  if (here.ranks) compare_with_ranks(*here.ranks, m, c);
  m.first = here.first;
  std::int64_t most = -1;
  std::vector<PassReport> largest_log;
  for (int d = here.first; d < here.first + here.count; ++d) {
    auto local = on_device(c, d);
    m.devices.push_back(finish(local, backend, !simulated));
    auto& p = *m.devices.back().program;
    if (auto bytes = p.peak_bytes + argument_bytes(p); bytes > most) {
      most = bytes;
      m.largest_device = m.devices.size() - 1;
      largest_log = local.log;
    }
  }
  c.log.insert(c.log.end(), largest_log.begin(), largest_log.end());
  if (here.ranks && c.options.partition.overlap) agree_on_collectives(*here.ranks, m);
  if (c.options.debug.verify) verify_all_devices(c, m, here, backend, simulated);
  return m;
}

}  // namespace haliax
