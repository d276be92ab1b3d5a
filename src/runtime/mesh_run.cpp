#include "runtime/mesh_run.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "base/scalar.h"
#include "ops/prim.h"
#include "runtime/explain.h"

namespace haliax {
namespace {

using program::Collective;
using program::Dims;
using program::Wire;

// What the threads of a mesh share: each says where its operand lies, all wait, each makes its own result, all wait again. A sum is taken
// in rank order, so that every device has the same bits.
struct Meeting {
  std::mutex lock;
  std::condition_variable turn;
  int devices, waiting = 0;
  std::uint64_t round = 0;
  bool failed = false;
  std::vector<std::pair<const Collective*, const void* const*>> given;

  explicit Meeting(int n) : devices(n), given(std::size_t(n)) {}
  void wait() {
    std::unique_lock hold(lock);
    if (failed) throw Error("[mesh] another device has failed");
    if (++waiting == devices) {
      waiting = 0, ++round;
      turn.notify_all();
      return;
    }
    auto mine = round;
    turn.wait(hold, [&] { return round != mine || failed; });
    if (round == mine) throw Error("[mesh] another device has failed");
  }
  void fail_all() {
    std::lock_guard hold(lock);
    failed = true;
    turn.notify_all();
  }
};

template <class F> void each(const Dims& dims, F f) {   // f(index)
  Dims at(dims.size(), 0);
  for (auto d : dims) if (d == 0) return;
  for (;;) {
    f(at);
    std::size_t d = dims.size();
    while (d > 0 && ++at[d - 1] == dims[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}
std::int64_t offset(const program::View& v, const Dims& at) {
  std::int64_t o = 0;
  for (std::size_t d = 0; d < at.size(); ++d) o += at[d] * v.strides[d];
  return o;
}

template <class T> T folded(Monoid m, T a, T b) {
  switch (m) {
    case Monoid::sum: return T(a + b);
    case Monoid::prod: return T(a * b);
    case Monoid::max: return a != a || a > b ? a : b;
    case Monoid::min: return a != a || a < b ? a : b;
  }
  return a;
}

class ThreadCommunicator final : public program::Communicator {
 public:
  ThreadCommunicator(Meeting& m, const Mesh& mesh, int device) : meeting_(m), mesh_(mesh), device_(device) {}
  void run(const Collective& c, const void* const* x, void* const* out) override {
    meeting_.given[std::size_t(device_)] = {&c, x};
    meeting_.wait();
    if (c.wire == Wire::exchange) {
      exchange(c, out);
    } else {
      auto group = group_of(c);
      for (std::size_t k = 0; k < c.out.size(); ++k) c.wire == Wire::all_gather ? gather(c, k, group, out[k]) : reduce(c, k, group, out[k]);
    }
    meeting_.wait();
  }

 private:
  // Where element `at` of array k of another device lies.
  const std::byte* theirs(int device, std::size_t k, const Dims& at) const {
    auto& [how, x] = meeting_.given[std::size_t(device)];
    auto& view = how->x[k].view;
    return static_cast<const std::byte*>(x[k]) + offset(view, at) * bytes_of(view.dtype);
  }
  void gather(const Collective& c, std::size_t k, const std::vector<int>& group, void* out) const {
    auto& to = c.out[k];
    auto width = bytes_of(to.view.dtype);
    auto d = std::size_t(c.dim[k]);
    auto step = (c.size[k] + std::int64_t(group.size()) - 1) / std::int64_t(group.size());
    each(to.dims, [&](const Dims& at) {
      Dims from = at;
      from[d] = at[d] % step;
      std::memcpy(static_cast<std::byte*>(out) + offset(to.view, at) * width, theirs(group[std::size_t(at[d] / step)], k, from), std::size_t(width));
    });
  }
  void reduce(const Collective& c, std::size_t k, const std::vector<int>& group, void* out) const {
    auto& to = c.out[k];
    auto dtype = to.view.dtype;
    auto width = bytes_of(dtype);
    std::int64_t start = 0;
    if (c.wire == Wire::reduce_scatter) {
      auto rank = std::find(group.begin(), group.end(), device_) - group.begin();
      start = rank * ((c.size[k] + std::int64_t(group.size()) - 1) / std::int64_t(group.size()));
    }
    each(to.dims, [&](const Dims& at) {
      Dims from = at;
      if (c.wire == Wire::reduce_scatter) from[std::size_t(c.dim[k])] += start;
      auto value = [&](std::size_t g) { return scalar::load(dtype, theirs(group[g], k, from)); };
      auto sum = value(0);
      for (std::size_t g = 1; g < group.size(); ++g) {
        auto v = value(g);
        if (!is_float(dtype)) sum.whole = folded(c.monoid, sum.whole, v.whole);
        else sum.real = dtype == DType::f64 ? folded(c.monoid, sum.real, v.real) : double(folded(c.monoid, float(sum.real), float(v.real)));
      }
      scalar::store(dtype, static_cast<std::byte*>(out) + offset(to.view, at) * width, sum);
    });
  }
  void exchange(const Collective& c, void* const* out) const {
    std::vector<std::size_t> next(meeting_.given.size());   // of what each device sends to this one
    for (auto& got : c.receives) {
      auto& sends = meeting_.given[std::size_t(got.device)].first->sends;
      auto& at = next[std::size_t(got.device)];
      while (sends[at].device != device_) ++at;
      auto& sent = sends[at++];
      auto& to = c.out[std::size_t(got.array)];
      auto width = bytes_of(to.view.dtype);
      each(got.dims, [&](const Dims& i) {
        Dims from = sent.start, mine = got.start;
        for (std::size_t d = 0; d < i.size(); ++d) from[d] += i[d] * sent.step[d], mine[d] += i[d];
        std::memcpy(static_cast<std::byte*>(out[std::size_t(got.array)]) + offset(to.view, mine) * width,
                    theirs(got.device, std::size_t(sent.array), from), std::size_t(width));
      });
    }
  }
  std::vector<int> group_of(const Collective& c) const {   // in rank order: the mesh axes in `over`, major to minor
    std::vector<int> group{device_};
    for (int axis : c.over) {
      std::vector<int> wider;
      int size = mesh_.axes[std::size_t(axis)].second, stride = 1;
      for (std::size_t k = std::size_t(axis) + 1; k < mesh_.axes.size(); ++k) stride *= mesh_.axes[k].second;
      for (int g : group)
        for (int r = 0; r < size; ++r) wider.push_back(g + (r - coordinate(mesh_, g, axis)) * stride);
      group = wider;
    }
    return group;
  }
  Meeting& meeting_;
  const Mesh& mesh_;
  int device_;
};

// A device's block of a whole array, in or out.
void copy_block(const Axes& axes, DType dtype, const Sharding& s, const Mesh& mesh, int device, std::byte* whole, std::byte* part, bool in) {
  auto width = std::size_t(bytes_of(dtype));
  Dims start, dims, strides(axes.size());
  std::int64_t n = 1;
  for (std::size_t i = axes.size(); i-- > 0;) strides[i] = n, n *= axes[i].size;
  for (auto& a : axes) {
    auto [from, size] = block_of(a, s.cut(a.name), mesh, device);
    start.push_back(from), dims.push_back(size);
  }
  std::size_t run = 1;   // elements that lie together
  std::size_t d = axes.size();
  while (d > 0) {
    --d;
    run *= std::size_t(dims[d]);
    if (dims[d] != axes[d].size) break;
  }
  Dims outer(dims.begin(), dims.begin() + std::ptrdiff_t(d));
  std::size_t at_part = 0;
  each(outer, [&](const Dims& at) {
    std::int64_t o = 0;
    for (std::size_t k = 0; k < axes.size(); ++k) o += ((k < at.size() ? at[k] : 0) + start[k]) * strides[k];
    auto *w = whole + std::size_t(o) * width, *p = part + at_part * width;
    if (in) std::memcpy(p, w, run * width);
    else std::memcpy(w, p, run * width);
    at_part += run;
  });
}

bool owns(const Sharding& s, const Mesh& mesh, int device) {   // of several devices with the same block, the first writes it
  for (int x = 0; x < int(mesh.axes.size()); ++x)
    if (!s.cuts(x) && coordinate(mesh, device, x) != 0) return false;
  return true;
}

}  // namespace

void MeshProgram::run(const std::vector<const std::byte*>& arguments, const std::vector<std::byte*>& outs) {
  int n = mesh.devices();
  Meeting meeting(n);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  const Scopes scopes;
  auto work = [&](int d) {
    use_scopes here(scopes);
    try {
      auto& mine = devices[std::size_t(d)];
      auto& p = *mine.program;
      std::vector<std::unique_ptr<Buffer>> memory;
      auto buffer = [&](std::int64_t bytes) { return memory.emplace_back(std::make_unique<Buffer>(bytes))->data(); };
      std::vector<void*> in, out;
      for (std::size_t k = 0; k < inputs.size(); ++k) {
        auto* part = buffer(p.slots[std::size_t(p.argument_slots[k])].bytes);
        copy_block(inputs[k].first, inputs[k].second, this->in[k], mesh, d, const_cast<std::byte*>(arguments[k]), part, true);
        in.push_back(part);
      }
      for (auto& c : mine.captured) in.push_back(c->value->data());
      std::vector<void*> made(p.result_slots.size());
      for (std::size_t k = 0; k < p.donated.size(); ++k) if (p.donated[k] >= 0) made[std::size_t(p.donated[k])] = in[k];
      for (std::size_t r = 0; r < made.size(); ++r) {
        out.push_back(made[r] ? nullptr : buffer(p.slots[std::size_t(p.result_slots[r])].bytes));
        if (!made[r]) made[r] = out[r];
      }
      ThreadCommunicator communicator(meeting, mesh, d);
      mine.executable->run(in, out, buffer(p.arena_bytes), &communicator);
      for (std::size_t k = 0; k < results.size(); ++k)
        if (owns(this->out[k], mesh, d)) copy_block(results[k].first, results[k].second, this->out[k], mesh, d, outs[k], static_cast<std::byte*>(made[k]), false);
    } catch (...) {
      errors[std::size_t(d)] = std::current_exception();
      meeting.fail_all();
    }
  };
  std::vector<std::thread> threads;
  for (int d = 1; d < n; ++d) threads.emplace_back(work, d);
  work(0);
  for (auto& t : threads) t.join();
  for (auto& e : errors) if (e) std::rethrow_exception(e);
}

MeshProgram compile_for_mesh(const Nodes& roots, const Nodes& inputs, const std::vector<Sharding>& in, const std::vector<Sharding>& out, const Mesh& mesh,
                             const MeshOptions& options) {
  MeshProgram m;
  m.mesh = mesh, m.in = in, m.out = out;
  std::vector<PartitionInput> given;
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    m.inputs.push_back({inputs[k]->axes, inputs[k]->dtype});
    given.push_back({inputs[k], in[k]});
  }
  for (auto& n : roots) m.results.push_back({n->axes, n->dtype});
  Partition part(roots, out, given, mesh, options.partition);
  m.moves = part.moves(), m.sent_bytes = part.sent_bytes(), m.calls = part.calls();
  if (options.strict) refuse_gathers(m.moves, mesh);
  std::int64_t most = -1;
  for (int d = 0; d < (options.simulated ? 1 : mesh.devices()); ++d) {
    auto local = part.on(d);
    m.devices.push_back(compile(local.roots, local.inputs, options.backend, options.donated, !options.simulated));
    auto& p = *m.devices.back().program;
    std::int64_t bytes = p.peak_bytes;
    for (int s : p.argument_slots) bytes += p.slots[std::size_t(s)].bytes;
    if (bytes > most) most = bytes, m.fullest = std::size_t(d);
  }
  return m;
}

}  // namespace haliax
