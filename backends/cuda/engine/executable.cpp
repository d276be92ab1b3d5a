// The executable of a Program. A run queues all operations of its sequence and returns. If no
// operation needs the host, the first run captures the operations as a graph, and later runs at the
// same addresses run this graph. For other addresses, the operations are captured again, and the
// graph replaces the least recently used instance (Api::update). The steps are the same, and
// creating an instance is many times as expensive.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <utility>

#include "../cache.h"
#include "engine.h"
#include "../kernels/nest.h"
#include "sequence.h"

namespace haliax::cuda {
namespace {

using namespace program;

constexpr std::int64_t kMostInGraph = 20000;  // steps; larger programs are queued step by step
constexpr std::size_t kMostInstances = 4;     // per Program, at different addresses

std::int64_t number(const void* p) { return std::int64_t(reinterpret_cast<std::intptr_t>(p)); }

// The parts of an executable that all its runs use.
struct RunState {
  DeviceContext& context;
  const Program& program;
  const bool sync;  // waits after each operation (CudaOptions::sync)
  Memory flags = {}, shadow = {};
  int* marks = nullptr;  // with `sync`: the running steps of a nest
};

// Queues the operations of one run, or of one graph.
class Call {
 public:
  Call(const RunState& state, Handle stream, Handle side, const std::vector<void*>& arguments,
       const std::vector<void*>& results, void* arena, Rank* rank)
      : state_(state), api_(state.context.api), program_(state.program), stream_(stream),
        side_(side), arena_(static_cast<std::byte*>(arena)), rank_(rank),
        loops_(std::size_t(program_.loops)) {
    for (int k = 0; k < int(program_.slots.size()); ++k) {
      auto* root = &program_.slot(program_.memory(k));
      auto index = std::size_t(root->index);
      auto* at = root->home == Home::argument ? arguments.at(index)
                 : root->home == Home::result ? results.at(index)
                                              : arena;
      slots_.push_back(
          {static_cast<std::byte*>(at) + (at && root->home == Home::arena ? root->offset : 0),
           root->bytes});
    }
  }
  ~Call() {  // also after an error
    try {
      end();
    } catch (const Error&) {}
  }
  void run(const std::vector<Item>& items) {
    for (auto& i : items) {
      switch (i.kind) {
        case Item::Kind::loop:
          loop(i);
          break;
        case Item::Kind::host:
          host_call(i);
          break;
        case Item::Kind::collective:
          collective(i);
          break;
        case Item::Kind::conditional:
          conditional(i);
          break;
        default:
          queue(i);
      }
    }
  }
  // Makes the main stream wait for all collectives.
  void end() {
    for (auto& p : started_) api_.follow(stream_, p.finished);
    started_.clear();
  }

 private:
  struct Range {
    std::byte* at = nullptr;
    std::int64_t bytes = 0;
    bool meets(const Range& o) const { return at < o.at + o.bytes && o.at < at + bytes; }
  };
  // A collective that may be in flight.
  struct StartedCollective {
    Handle finished = nullptr;
    std::vector<Range> ranges = {};
  };

  std::int64_t value_of(const KernelArgument& w) const {
    auto v = w.value;
    for (auto& [loop, stride] : w.loops) v += loops_[std::size_t(loop)] * stride;
    if (w.slot == kArenaSlot) return number(arena_) + v;
    if (w.slot == kMarksSlot) return number(state_.marks);
    if (w.slot == kFlagSlot) return number(state_.flags.get()) + v;
    if (w.slot == kShadowSlot) return number(state_.shadow.get()) + v;
    return w.slot < 0 ? v : number(slots_[std::size_t(w.slot)].at) + v;
  }
  // Returns the address of the first element. No scalar in memory may move the view.
  std::byte* place(const View& v) const {
    KernelArgument w{v.slot, v.offset * bytes_of(v.dtype)};
    for (auto& t : v.terms) w.loops.push_back({t.loop, t.stride * bytes_of(v.dtype)});
    return reinterpret_cast<std::byte*>(value_of(w));
  }

  // Calls f for each memory range that an item accesses. The plan assumes that steps run one
  // after another, so other steps must not access the ranges of a collective in flight.
  void each_range(const Item& i, const std::function<void(const Range&)>& f) const {
    auto of_word = [&](const KernelArgument& w) {
      if (w.slot >= 0) f(slots_[std::size_t(w.slot)]);
      if (w.slot != kArenaSlot) return;
      auto& l = i.step->loop;  // in parallel slots
      if (i.step->kind == Kind::loop)
        f({arena_ + l.parallel_slot_start, l.parallel_slot_bytes * l.parallel_slots});
      else
        f({arena_ + i.step->scratch, i.step->scratch_bytes});
    };
    for (auto& w : i.launch.arguments) of_word(w);
    for (auto& m : i.messages) of_word(m.at);
    for (auto& part : i.body) each_range(part, f);
  }
  // Makes the stream wait for the last collective in flight whose memory the item accesses.
  void wait_for_collectives(const Item& i) {
    if (started_.empty()) return;
    std::vector<Range> mine;
    each_range(i, [&](const Range& r) { mine.push_back(r); });
    auto meets = [&](const StartedCollective& b) {
      return std::any_of(b.ranges.begin(), b.ranges.end(), [&](auto& r) {
        return std::any_of(mine.begin(), mine.end(), [&](auto& o) { return o.meets(r); });
      });
    };
    // earlier collectives have ended, too
    auto last = std::find_if(started_.rbegin(), started_.rend(), meets).base();
    if (last == started_.begin()) return;
    api_.follow(stream_, std::prev(last)->finished);
    started_.erase(started_.begin(), last);
  }
  void collective(const Item& i) {
    if (!is_requested(i)) return;
    api_.record(i.ready, stream_);
    api_.follow(side_, i.ready);
    const auto main = std::exchange(stream_, side_);
    auto others = std::exchange(started_, {});
    run(i.body);
    started_ = std::move(others);
    stream_ = main;
    api_.record(i.finished, side_);
    StartedCollective mine{i.finished};
    each_range(i, [&](const Range& r) { mine.ranges.push_back(r); });
    // the collective of the previous iteration ends before this one
    std::erase_if(started_, [&](auto& b) { return b.finished == i.finished; });
    started_.push_back(std::move(mine));
  }

  // Queues a launch, a matmul, or transfers between devices.
  void queue(const Item& i) {
    wait_for_collectives(i);
    if (i.kind == Item::Kind::exchange) {
      std::vector<Transfer> all;
      for (auto& m : i.messages)
        all.push_back({m.peer, m.sends, reinterpret_cast<void*>(value_of(m.at)), m.bytes});
      rank_->exchange(stream_, all);
    } else {
      if (state_.marks && !i.launch.parts.empty()) std::fill_n(state_.marks, kMarks, 0);
      set_values(i);
      auto at = [&](std::size_t k) { return reinterpret_cast<void*>(std::intptr_t(values_[k])); };
      if (i.kind == Item::Kind::launch)
        api_.launch(stream_, i.created, i.launch, values_.data());
      else
        api_.multiply(stream_, i.created, at(0), at(1), at(2), state_.context.workspace());
    }
    if (state_.sync) wait_for(i);
  }
  // Sets `values_` to the arguments of a launch.
  void set_values(const Item& i) {
    values_.clear();
    for (auto& w : i.launch.arguments) values_.push_back(value_of(w));
  }
  void conditional(const Item& i) {  // only in sequences without collectives
    set_values(i);
    const auto outside =
        std::exchange(stream_, api_.begin_if(stream_, i.created, i.launch, values_.data()));
    const auto end = [&] { api_.end_if(std::exchange(stream_, outside)); };
    try {
      run(i.body);
    } catch (...) {
      try {
        end();
      } catch (const Error&) {}  // the first error is raised
      throw;
    }
    end();
  }
  void wait_for(const Item& i) {
    try {
      api_.wait(stream_);
    } catch (const Lost&) {
      throw;
    } catch (const Fault& f) {
      if (!i.launch.parts.empty())
        throw Fault(
            fmt::format("{} has failed: {}", failed_part(i.launch, state_.marks), f.what()));
      throw Fault(fmt::format("{} ({}) has failed: {}", i.step->op, i.step->where, f.what()));
    }
  }
  void loop(const Item& i) {
    auto& l = i.step->loop;
    for (std::int64_t t = 0; t < l.trips; ++t) {
      loops_[std::size_t(l.variable)] = l.reverse ? l.trips - 1 - t : t;
      run(i.body);
    }
  }

  // ---- operations of the host, which waits for the device ----
  template <class T> std::vector<T> read(const void* from, std::int64_t n) {
    std::vector<T> out(static_cast<std::size_t>(n));
    const std::unique_ptr<void, void (*)(void*)> here(
        api_.allocate_host(n * std::int64_t(sizeof(T))), api_.release_host);
    api_.get(stream_, here.get(), from, n * std::int64_t(sizeof(T)));
    api_.wait(stream_);
    std::memcpy(out.data(), here.get(), std::size_t(n) * sizeof(T));
    return out;
  }
  bool is_requested(const Item& i) {
    if (i.flag < 0) return true;
    return read<char>(static_cast<std::byte*>(state_.flags.get()) + i.flag, 1)[0] != 0;
  }
  void host_call(const Item& i) {
    end();
    if (!is_requested(i)) return;
    auto arrays = i.step->host.arrays;
    std::vector<std::vector<std::byte>> bytes;
    std::vector<const void*> data;
    for (auto& a : arrays) {  // the full range that contains its elements
      std::int64_t low = 0, high = 0, width = bytes_of(a.view.dtype);
      for (std::size_t d = 0; d < a.dims.size(); ++d)
        (a.view.strides[d] < 0 ? low : high) +=
            a.view.strides[d] * std::max<std::int64_t>(a.dims[d] - 1, 0);
      const auto n = points(a.dims) > 0 ? (high - low + 1) * width : 0;
      bytes.push_back(read<std::byte>(place(a.view) + low * width, n));
      data.push_back(bytes.back().data() - low * width);
    }
    i.step->host.call->run(arrays, data.data());
  }

  const RunState& state_;
  const Api& api_;
  const Program& program_;
  Handle stream_, side_;
  std::byte* arena_;
  Rank* rank_;
  std::vector<std::int64_t> loops_, values_;  // loop variables; arguments of a launch
  std::vector<Range> slots_;
  std::vector<StartedCollective> started_;
};

class CudaExecutable final : public Executable {
 public:
  CudaExecutable(std::shared_ptr<DeviceContext> context, const CudaOptions& options,
                 std::shared_ptr<const Program> p)
      : context_owner_(std::move(context)), context_(*context_owner_), api_(context_.api),
        options_(options), program_(std::move(p)), shared_limit_(shared_limit_of(context_.sm)),
        sequence_(sequence_of(*program_, shared_limit_, {.marks = options_.sync})),
        state_{context_, *program_, options_.sync} {
    if (options_.sync) state_.marks = static_cast<int*>(api_.allocate_host(kMarks * sizeof(int)));
    if (sequence_.flags > 0 && !sequence_.communicates && fits_in_graph() && api_.has_ifs())
      sequence_ = sequence_of(*program_, shared_limit_,
                              {.marks = options_.sync, .conditional_nodes = true});
    require_memory();
    if (!options_.sync) join_equal(sequence_, *program_);  // sync reports faults by step
    create_kernels(sequence_.items);
    if (options_.keep) write_sources();
    auto kernels = api_.compile(context_.device, kernels_);
    for (std::size_t k = 0; k < kernels.size(); ++k) waiting_[k]->created = kernels[k];
    kernels_.clear();
    waiting_.clear();
    if (sequence_.flags > 0) state_.flags = context_.allocate(sequence_.flags);
    if (sequence_.shadow_bytes > 0) state_.shadow = context_.allocate(sequence_.shadow_bytes);
    in_graphs_ = fits_in_graph();
  }
  ~CudaExecutable() override {
    context_.settle(last_run_);
    for (auto& i : instances_) api_.end_instance(i.handle);
    for (auto e : events_) api_.end_event(e);
    if (state_.marks) api_.release_host(state_.marks);
  }

  void run(const std::vector<void*>& arguments, const std::vector<void*>& results, void* arena,
           Communicator* comm) override {
    auto* rank = dynamic_cast<Rank*>(comm);
    if (sequence_.communicates && !rank)
      throw Error(fmt::format(
          "[{}] the program communicates with other devices, but has no communicator for them; "
          "run it on a mesh",
          api_.name));
    std::lock_guard hold(context_.running);
    context_.checked_call([&] {
      DeviceContext::Run queued(context_,
                                program_);  // a fault of its operations names this program
      last_run_ = queued.number;
      // Transfers that meet on the host cannot be captured in a graph.
      const bool in_graph = in_graphs_ && !(sequence_.communicates && rank->meets_on_host());
      if (in_graph) {
        run_graph(arguments, results, arena, rank);
      } else {
        Call call(state_, context_.stream, context_.side, arguments, results, arena, rank);
        call.run(sequence_.items);
        call.end();
      }
      queued.end();
      if (sequence_.needs_host || options_.sync) api_.wait(context_.stream);
    });
  }

 private:
  bool fits_in_graph() const {
    return !options_.eager && !options_.sync && !sequence_.needs_host &&
           steps_in_graph(sequence_.items) <= kMostInGraph;
  }
  // Checks, before anything runs, that the free memory suffices for the plan, and for flags and
  // shadow results (sequence.h).
  void require_memory() const {
    const auto free = api_.free_bytes(context_.device),
               left_out = sequence_.flags + sequence_.shadow_bytes;
    auto& p = *program_;
    if (p.peak_bytes + left_out <= free) return;
    auto uses = p.at_peak;
    if (left_out > 0) uses.push_back({"matmuls of skipped iterations", left_out});
    std::stable_sort(uses.begin(), uses.end(), [](auto& a, auto& b) { return a.bytes > b.bytes; });
    std::string largest;
    for (std::size_t k = 0; k < std::min<std::size_t>(uses.size(), 3); ++k)
      largest += fmt::format("{}{} {}", k ? ", " : "; at its peak these are ", uses[k].purpose,
                             uses[k].bytes);
    throw Error(
        fmt::format("[memory] {} requires {} bytes in addition to its arguments, but device {} of "
                    "{} has {} free{}",
                    p.called, p.peak_bytes + left_out, context_.device, api_.name, free, largest));
  }
  // Writes each source once, to the folder HALIAX_CACHE or the current folder. Names identify
  // sources, and most programs share most kernels.
  void write_sources() const {
    static std::mutex mutex;
    static std::set<std::filesystem::path> written;
    const auto cache = cache_folder(), folder = cache.empty() ? "." : cache;
    const std::lock_guard lock(mutex);
    for (auto& k : kernels_)
      if (auto file = folder / (k.name + ".cu"); written.insert(file).second)
        std::ofstream(file) << source_for_gpu(k);
  }
  // Creates the kernels, matmuls and events of the items.
  void create_kernels(std::vector<Item>& items) {
    for (auto& i : items) {
      if (i.kind == Item::Kind::launch || i.kind == Item::Kind::conditional) {
        kernels_.push_back(named(i.launch.source));
        waiting_.push_back(&i);
      }

      if (i.kind == Item::Kind::product)
        i.created = api_.make_product(context_.device, *i.launch.product, options_);
      if (i.kind == Item::Kind::collective)
        for (auto* e : {&i.ready, &i.finished})
          events_.push_back(*e = api_.make_event(context_.device));
      create_kernels(i.body);
    }
  }

  // ---- graphs ----
  struct Instance {
    std::vector<std::int64_t> at;  // addresses of arguments, results, arena; communicator number
    Handle handle = nullptr;
    std::int64_t used = 0;  // last run that used it
  };
  void run_graph(const std::vector<void*>& arguments, const std::vector<void*>& results,
                 void* arena, Rank* rank) {
    at_.clear();
    for (auto* all : {&arguments, &results})
      for (auto* p : *all) at_.push_back(number(p));
    at_.push_back(number(arena));
    at_.push_back(sequence_.communicates ? rank->number : 0);
    auto known =
        std::find_if(instances_.begin(), instances_.end(), [&](auto& i) { return i.at == at_; });
    if (known == instances_.end()) known = capture_graph(arguments, results, arena, rank);
    known->used = ++runs_;
    api_.run_graph(context_.stream, known->handle);
  }
  std::vector<Instance>::iterator capture_graph(const std::vector<void*>& arguments,
                                                const std::vector<void*>& results, void* arena,
                                                Rank* rank) {
    // allocated before, because a capture must not allocate
    if (sequence_.multiplies) context_.workspace();
    api_.begin_graph(context_.graph);
    try {
      Call call(state_, context_.graph, context_.graph_side, arguments, results, arena, rank);
      call.run(sequence_.items);
      call.end();
    } catch (...) {
      try {
        api_.drop_graph(api_.end_graph(context_.graph));
      } catch (const Error&) {}  // the first error is raised
      throw;
    }
    const auto graph = api_.end_graph(context_.graph);
    const std::unique_ptr<void, void (*)(Handle)> dropped(graph, api_.drop_graph);
    auto at = std::min_element(instances_.begin(), instances_.end(),
                               [](auto& a, auto& b) { return a.used < b.used; });
    if (instances_.size() < kMostInstances) {
      instances_.push_back({at_, api_.instantiate(graph)});
      return instances_.end() - 1;
    }
    at->at.clear();
    if (!api_.update(at->handle, graph)) {
      auto next = api_.instantiate(graph);
      api_.end_instance(std::exchange(at->handle, next));
    }
    at->at = at_;
    return at;
  }

  const std::shared_ptr<DeviceContext> context_owner_;
  DeviceContext& context_;
  const Api& api_;
  const CudaOptions options_;
  const std::shared_ptr<const Program> program_;
  const std::int64_t shared_limit_;
  Sequence sequence_;
  RunState state_;
  std::vector<Kernel> kernels_;  // used during construction
  std::vector<Item*> waiting_;
  bool in_graphs_ = false;
  std::vector<Handle> events_;
  std::vector<Instance> instances_;
  std::vector<std::int64_t> at_;
  std::int64_t runs_ = 0;
  std::int64_t last_run_ = 0;  // last run, as numbered by the device context
};

}  // namespace

std::unique_ptr<Executable> make_executable(std::shared_ptr<DeviceContext> context,
                                            const CudaOptions& options,
                                            std::shared_ptr<const Program> p) {
  return std::make_unique<CudaExecutable>(std::move(context), options, std::move(p));
}

}  // namespace haliax::cuda
