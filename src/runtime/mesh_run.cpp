#include "runtime/mesh_run.h"

#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "base/scalar.h"
#include "ops/prim.h"

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
  std::vector<std::pair<const Collective*, const std::byte*>> given;

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
  void run(const Collective& c, const void* x, void* out) override {
    meeting_.given[std::size_t(device_)] = {&c, static_cast<const std::byte*>(x)};
    meeting_.wait();
    auto group = group_of(c);
    std::size_t rank = 0;
    while (group[rank] != device_) ++rank;
    auto* to = static_cast<std::byte*>(out);
    auto width = bytes_of(c.x.dtype);
    std::int64_t step = c.wire == Wire::reduce_scatter ? (c.split_size + std::int64_t(group.size()) - 1) / std::int64_t(group.size())
                        : c.wire == Wire::all_gather   ? (c.concat_size + std::int64_t(group.size()) - 1) / std::int64_t(group.size())
                                                       : 0;
    each(c.out_dims, [&](const Dims& at) {
      auto* target = to + offset(c.out, at) * width;
      if (c.wire == Wire::all_gather) {
        Dims from = at;
        auto d = std::size_t(c.concat);
        auto owner = std::size_t(at[d] / step);
        from[d] = at[d] % step;
        auto& [theirs, data] = meeting_.given[std::size_t(group[owner])];
        std::memcpy(target, data + offset(theirs->x, from) * width, std::size_t(width));
        return;
      }
      Dims from = at;
      if (c.wire == Wire::reduce_scatter) from[std::size_t(c.split)] += std::int64_t(rank) * step;
      auto value = [&](std::size_t k) {
        auto& [theirs, data] = meeting_.given[std::size_t(group[k])];
        return scalar::load(c.x.dtype, data + offset(theirs->x, from) * width);
      };
      if (is_float(c.x.dtype)) {
        double sum = as_float(value(0), c.x.dtype);
        for (std::size_t k = 1; k < group.size(); ++k) {
          double v = as_float(value(k), c.x.dtype);
          sum = c.x.dtype == DType::f64 ? folded(c.monoid, sum, v) : double(folded(c.monoid, float(sum), float(v)));
        }
        store_float(target, c.x.dtype, sum);
      } else {
        auto sum = value(0);
        for (std::size_t k = 1; k < group.size(); ++k) sum = integer_fold(c.monoid, sum, value(k));
        scalar::store(c.x.dtype, target, sum);
      }
    });
    meeting_.wait();
  }

 private:
  static double as_float(const scalar::Value& v, DType) { return v.real; }
  static void store_float(std::byte* p, DType d, double v) {
    scalar::Value x{};
    x.real = v;
    scalar::store(d, p, x);
  }
  static scalar::Value integer_fold(Monoid m, scalar::Value a, scalar::Value b) {
    a.whole = folded(m, a.whole, b.whole);
    return a;
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
    auto* cut = s.cut(a.name);
    auto [from, size] = cut ? block_of(a, *cut, mesh, device) : std::pair{std::int64_t(0), a.size};
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
  for (int x = 0; x < int(mesh.axes.size()); ++x) {
    bool cuts = false;
    for (auto& d : s.dims) for (int c : d.second) cuts |= c == x;
    if (!cuts && coordinate(mesh, device, x) != 0) return false;
  }
  return true;
}

}  // namespace

void MeshProgram::run(const std::vector<const std::byte*>& arguments, const std::vector<std::byte*>& outs) {
  int n = mesh.devices();
  Meeting meeting(n);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(n));
  auto work = [&](int d) {
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
      for (auto s : p.result_slots) out.push_back(buffer(p.slots[std::size_t(s)].bytes));
      ThreadCommunicator communicator(meeting, mesh, d);
      mine.executable->run(in, out, buffer(p.arena_bytes), &communicator);
      for (std::size_t k = 0; k < results.size(); ++k)
        if (owns(this->out[k], mesh, d)) copy_block(results[k].first, results[k].second, this->out[k], mesh, d, outs[k], static_cast<std::byte*>(out[k]), false);
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
                             const std::string& name) {
  MeshProgram m;
  m.mesh = mesh, m.in = in, m.out = out;
  for (auto& n : inputs) m.inputs.push_back({n->axes, n->dtype});
  for (auto& n : roots) m.results.push_back({n->axes, n->dtype});
  for (int d = 0; d < mesh.devices(); ++d) {
    std::vector<PartitionInput> given;
    Nodes local;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      local.push_back(prim::input(local_axes(inputs[k]->axes, in[k], mesh, d), inputs[k]->dtype, inputs[k]->origin.module));
      given.push_back({inputs[k], local.back(), in[k]});
    }
    auto part = partition(roots, out, given, mesh, d);
    m.devices.push_back(compile(part.roots, local, name, {}));
    auto& p = *m.devices.back().program;
    m.arena_bytes = std::max(m.arena_bytes, p.arena_bytes), m.peak_bytes = std::max(m.peak_bytes, p.peak_bytes);
    if (d > 0) continue;
    m.moves = part.moves;
    for (auto& move : m.moves) m.sent_bytes += move.bytes * move.turns;
    m.contractions = count_contractions(p.steps), m.loops = p.loops;
  }
  return m;
}

}  // namespace haliax
