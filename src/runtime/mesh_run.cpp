#include "runtime/mesh_run.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "compile/memory/memory.h"
#include "compile/verify.h"
#include "ops/prim.h"
#include "runtime/communicator.h"
#include "runtime/explain.h"
#include "runtime/walk_dims.h"

namespace haliax {
namespace {

using program::Dims;

// Where a device's block of a whole array lies in it, in elements. The block is runs of elements that lie together, one for each
// point of `outer`.
struct DeviceBlock {
  std::vector<std::int64_t> start, dims, strides;
  Dims outer;
  std::int64_t run = 1, first = 0;

  DeviceBlock(const Axes& axes, const Sharding& s, const Mesh& mesh, int device) : strides(axes.size()) {
    std::int64_t n = 1;
    for (std::size_t i = axes.size(); i-- > 0;) strides[i] = n, n *= axes[i].size;
    for (auto& a : axes) {
      auto [from, size] = block_of(a, s.cut(a.name), mesh, device);
      start.push_back(from), dims.push_back(size);
    }
    auto d = axes.size();
    while (d > 0) {
      --d;
      run *= dims[d];
      if (dims[d] != axes[d].size) break;
    }
    outer.assign(dims.begin(), dims.begin() + std::ptrdiff_t(d));
    for (std::size_t k = 0; k < axes.size(); ++k) first += start[k] * strides[k];
  }
  bool in_one_piece() const {
    return std::all_of(outer.begin(), outer.end(), [](auto d) { return d == 1; });
  }
  // copy(offset in the whole, offset in the block)
  template <class F> void runs(F copy) const {
    std::int64_t at_part = 0;
    each_point(outer, [&](const Dims& at) {
      auto o = first;
      for (std::size_t k = 0; k < at.size(); ++k) o += at[k] * strides[k];
      copy(o, at_part), at_part += run;
    });
  }
};

bool owns(const Sharding& s, const Mesh& mesh, int device) {   // of several devices with the same block, the first
  for (int x = 0; x < int(mesh.axes().size()); ++x)
    if (!s.cuts(x) && coordinate(mesh, device, x) != 0) return false;
  return true;
}

}  // namespace

void Shards::write(std::byte* whole) const {
  auto width = std::size_t(bytes_of(dtype));
  for (int d = 0; d < mesh.devices(); ++d) {
    if (!owns(at, mesh, d)) continue;
    DeviceBlock b(axes, at, mesh, d);
    auto* mine = blocks[std::size_t(d)]->data();
    b.runs([&](std::int64_t o, std::int64_t p) {
      std::memcpy(whole + std::size_t(o) * width, mine + std::size_t(p) * width, std::size_t(b.run) * width);
    });
  }
}

MeshProgram::Made MeshProgram::run(const std::vector<BufferPtr>& arguments, const std::vector<bool>& given) const {
  auto n = devices.size();
  std::vector<const Shards*> there(inputs.size());   // cut already as it is wanted
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    auto* s = dynamic_cast<const Shards*>(arguments[k]->pieces());
    if (s && s->mesh == mesh && s->at == in[k] && s->axes == inputs[k].first && s->dtype == inputs[k].second) there[k] = s;
    else arguments[k]->data();   // put together here, not by every device
  }
  std::atomic<std::int64_t> bytes = 0;   // copied
  // The block of an argument on a device.
  auto given_to = [&](int device, std::size_t k) -> Given {
    bool overwritten = donated[k];   // by a result, or by what is made on the way
    BufferPtr keeps;
    if (there[k]) {
      auto& block = there[k]->blocks[std::size_t(device)];
      bool nobody_else = given[k] && held_by(arguments[k], 1);
      if (!overwritten || nobody_else) return {block, block->data()};
      keeps = copied(*block);
    } else {
      auto& [axes, dtype] = inputs[k];
      DeviceBlock b(axes, in[k], mesh, device);
      auto width = std::size_t(bytes_of(dtype));
      auto* whole = arguments[k]->data();
      if (!overwritten && b.in_one_piece()) return {nullptr, whole + std::size_t(b.first) * width};
      keeps = memory(program::points(b.dims) * bytes_of(dtype));
      b.runs([&](std::int64_t o, std::int64_t q) {
        std::memcpy(keeps->data() + std::size_t(q) * width, whole + std::size_t(o) * width, std::size_t(b.run) * width);
      });
    }
    bytes += keeps->bytes();
    return {keeps, keeps->data()};
  };
  std::vector<std::vector<BufferPtr>> made(n);
  on_devices(mesh, [&](int device, program::Communicator& communicator) {
    auto d = std::size_t(device);
    std::vector<Given> mine;
    for (std::size_t k = 0; k < inputs.size(); ++k) mine.push_back(given_to(device, k));
    made[d] = call(devices[d], mine, &communicator);
  });
  std::vector<BufferPtr> out;
  for (std::size_t r = 0; r < results.size(); ++r) {
    auto s = std::make_shared<Shards>();
    s->mesh = mesh, s->at = this->out[r], s->axes = results[r].first, s->dtype = results[r].second;
    for (auto& of_device : made) s->blocks.push_back(std::move(of_device[r]));
    out.push_back(std::make_shared<Buffer>(axis_size(s->axes) * bytes_of(s->dtype), std::move(s)));
  }
  return {std::move(out), bytes};
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
