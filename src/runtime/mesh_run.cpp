#include "runtime/mesh_run.h"

#include <algorithm>
#include <atomic>

#include "compile/memory/memory.h"
#include "compile/verify.h"
#include "ops/prim.h"
#include "runtime/communicator.h"
#include "runtime/explain.h"

namespace haliax {
namespace {

using program::Dims;

// A device's block of a whole array: the box that it is there, and where in it the block begins.
struct DeviceBlock {
  program::Box in_whole;                         // of `from`, without addresses
  std::int64_t offset = 0;                       // in bytes
  bool in_one_piece = true;

  DeviceBlock(const Axes& axes, DType dtype, const Sharding& s, const Mesh& mesh, int device) {
    Dims sizes, start;
    for (auto& a : axes) {
      auto [from, size] = block_of(a, s.cut(a.name), mesh, device);
      sizes.push_back(a.size), start.push_back(from), in_whole.dims.push_back(size);
    }
    in_whole.width = bytes_of(dtype), in_whole.from_strides = program::row_major(sizes);
    std::int64_t outer = 1;                      // points of the dims before this one
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      offset += start[d] * in_whole.from_strides[d] * in_whole.width;
      in_one_piece &= outer == 1 || in_whole.dims[d] == sizes[d];
      outer *= in_whole.dims[d];
    }
  }
};

bool owns(const Sharding& s, const Mesh& mesh, int device) {   // of several devices with the same block, the first
  for (int x = 0; x < int(mesh.axes().size()); ++x)
    if (!s.cuts(x) && coordinate(mesh, device, x) != 0) return false;
  return true;
}

std::unique_ptr<Shards> shards(const Mesh& mesh, const Sharding& at, const Axes& axes, DType dtype,
                               std::vector<BufferPtr> blocks) {
  auto s = std::make_unique<Shards>();
  s->mesh = mesh, s->at = at, s->axes = axes, s->dtype = dtype, s->blocks = std::move(blocks);
  return s;
}

}  // namespace

void Shards::write(std::byte* whole) const {
  for (int d = 0; d < mesh.devices(); ++d) {
    if (!owns(at, mesh, d)) continue;
    DeviceBlock b(axes, dtype, at, mesh, d);
    auto box = b.in_whole;
    box.to = whole + b.offset, box.to_strides = std::move(box.from_strides);
    read(*blocks[std::size_t(d)], std::move(box));
  }
}

// One call: what each argument is on each device.
class MeshProgram::Call {
 public:
  Call(const MeshProgram& m, const std::vector<BufferPtr>& arguments, const std::vector<bool>& given)
      : m_(m), arguments_(arguments), given_(given), there_(m.inputs.size()), brought_(m.inputs.size()) {
    for (std::size_t k = 0; k < m.inputs.size(); ++k) {
      there_[k] = cut_as_wanted(k);
      if (!there_[k]) arguments[k]->data();      // put together here, not by every device
      brought_[k].resize(m.devices.size());
    }
  }
  // The block of an argument on a device.
  Given block(std::size_t device, std::size_t k) {
    auto& memory = m_.devices[device].memory;
    bool overwritten = m_.donated[k];            // by a result, or by what is made on the way
    auto keeps = there_[k] ? there_[k]->blocks[device] : nullptr;
    if (keeps && !overwritten) return {keeps, memory.address(*keeps)};
    if (keeps && given_[k] && held_by(arguments_[k], 1)) {
      keeps = memory.taken_over(*keeps);
    } else {
      auto& [axes, dtype] = m_.inputs[k];
      DeviceBlock b(axes, dtype, m_.in[k], m_.mesh, int(device));
      auto* first = keeps ? nullptr : arguments_[k]->data() + b.offset;
      if (first && !overwritten && memory.is_host() && b.in_one_piece) return {nullptr, first};
      b.in_whole.from = first;
      keeps = keeps ? memory.copied(*keeps) : memory.part(std::move(b.in_whole));
      copied_bytes += keeps->bytes();
      if (!overwritten) brought_[k][device] = keeps;
    }
    return {keeps, memory.address(*keeps)};
  }
  // What was brought to devices stays there, for the next call.
  void keep_brought() {
    for (std::size_t k = 0; k < brought_.size(); ++k) {
      auto& blocks = brought_[k];
      if (m_.devices[0].memory.is_host() || m_.donated[k] || there_[k]) continue;
      auto& [axes, dtype] = m_.inputs[k];
      arguments_[k]->keep(shards(m_.mesh, m_.in[k], axes, dtype, std::move(blocks)));
    }
  }
  std::atomic<std::int64_t> copied_bytes = 0;

 private:
  const Shards* cut_as_wanted(std::size_t k) const {
    for (auto* p = arguments_[k]->pieces(); p; p = p->next.get()) {
      auto* s = dynamic_cast<const Shards*>(p);
      bool same = s && s->mesh == m_.mesh && s->at == m_.in[k] && s->axes == m_.inputs[k].first;
      if (same && s->dtype == m_.inputs[k].second) return s;
    }
    return nullptr;
  }
  const MeshProgram& m_;
  const std::vector<BufferPtr>& arguments_;
  const std::vector<bool>& given_;
  std::vector<const Shards*> there_;             // cut already as it is wanted
  std::vector<std::vector<BufferPtr>> brought_;  // of each argument, by device
};

MeshProgram::Made MeshProgram::run(const std::vector<BufferPtr>& arguments, const std::vector<bool>& given) const {
  Call mine(*this, arguments, given);
  std::vector<std::vector<BufferPtr>> made(devices.size());
  auto work = [&](int device, program::Communicator& communicator) {
    auto d = std::size_t(device);
    std::vector<Given> blocks;
    for (std::size_t k = 0; k < inputs.size(); ++k) blocks.push_back(mine.block(d, k));
    made[d] = call(devices[d], blocks, &communicator);
  };
  on_devices(mesh, work, &devices[0].memory.device());
  mine.keep_brought();
  std::vector<BufferPtr> out;
  for (std::size_t r = 0; r < results.size(); ++r) {
    auto& [axes, dtype] = results[r];
    std::vector<BufferPtr> blocks;
    for (auto& of_device : made) blocks.push_back(std::move(of_device[r]));
    auto whole = shards(mesh, this->out[r], axes, dtype, std::move(blocks));
    out.push_back(std::make_shared<Buffer>(axis_size(axes) * bytes_of(dtype), std::move(whole)));
  }
  return {std::move(out), mine.copied_bytes};
}

MeshProgram compile_for_mesh(Compilation& c, const std::string& backend, bool simulated) {
  auto& mesh = *c.options.mesh;
  MeshProgram m;
  m.mesh = mesh, m.in = c.options.in, m.out = c.options.out, m.donated = c.options.donated;
  m.donated.resize(c.inputs.size());
  for (auto& n : c.inputs) m.inputs.push_back({n->axes, n->dtype});
  for (auto& n : c.roots) m.results.push_back({n->axes, n->dtype});
  run(c, Stage::sharding, Stage::sharding);
  m.moves = c.partition->moves(), m.sent_bytes = c.partition->sent_bytes();
  for (auto& move : m.moves) m.calls += move.turns;
  if (c.options.partition.strict) refuse_gathers(m.moves, mesh);
  std::int64_t most = -1;
  std::vector<PassReport> of_fullest;
  for (int d = 0; d < (simulated ? 1 : mesh.devices()); ++d) {
    auto local = on_device(c, d);
    m.devices.push_back(finish(local, backend, !simulated));
    auto& p = *m.devices.back().program;
    if (auto bytes = p.peak_bytes + argument_bytes(p); bytes > most)
      most = bytes, m.fullest = std::size_t(d), of_fullest = local.log;
  }
  c.log.insert(c.log.end(), of_fullest.begin(), of_fullest.end());
  if (verifies()) {
    std::vector<const program::Program*> programs;
    for (auto& d : m.devices) programs.push_back(d.program.get());
    verify_calls(programs);
  }
  return m;
}

}  // namespace haliax
