// Plan and run: the CPU device, and its executables, which are lists of compiled steps.
#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "backends/cpu/loops/loop_code.h"
#include "base/object_pool.h"
#include "base/thread_pool.h"
#include "cpu.h"
#include "haliax/error.h"
#include "kernels.h"
#include "step.h"
#include "workspace.h"

namespace haliax::cpu {

using program::Home;
using program::Kind;
using program::Program;
using program::Slot;
using program::Step;

Place::Place(const program::View& view)
    : slot_(view.slot), bytes_(haliax::bytes_of(view.dtype)), terms_(view.terms) {
  offset_ = view.offset * bytes_;
}
std::int64_t Place::loop_offset(const Frame& frame) const {
  std::int64_t sum = 0;
  for (const program::Term& term : terms_) {
    std::int64_t value = 0;
    if (term.slot >= 0) {
      const std::byte* p =
          frame.slots[term.slot] + term.slot_offset * haliax::bytes_of(term.slot_dtype);
      value = term.slot_dtype == DType::i64 ? *reinterpret_cast<const std::int64_t*>(p)
              : term.slot_dtype == DType::u32
                  ? std::int64_t(*reinterpret_cast<const std::uint32_t*>(p))
                  // the cast avoids the conversion of a negative i32 to u32
                  : *reinterpret_cast<const std::int32_t*>(p);
      value = std::max<std::int64_t>(0, std::min(value, term.limit));
    } else if (term.loop >= 0) {
      value = frame.loops[term.loop];
    }
    sum += value * term.stride;
  }
  return sum;
}

Scratch::Scratch(const Step& step, int arena_slot, std::int64_t bytes)
    : arena_slot_(arena_slot), offset_(step.scratch) {
  if (bytes == 0 || (step.scratch >= 0 && step.scratch_bytes >= bytes)) return;
  own_ = std::make_unique<std::byte[]>(static_cast<std::size_t>(bytes) + 64);
  aligned_ = own_.get() + (64 - reinterpret_cast<std::uintptr_t>(own_.get()) % 64) % 64;
}

// Allocated separately, because the static thread-local block has no space for it if the library is
// loaded at run time (Python). Code that runs while a thread exits may find it freed, and allocates
// it again.
std::byte* workspace() {
  constinit static thread_local std::byte* memory = nullptr;
  struct End {
    ~End() { std::free(std::exchange(memory, nullptr)); }
  };
  if (!memory) {
    static thread_local End end;
    static_cast<void>(&end);
    memory = static_cast<std::byte*>(std::aligned_alloc(4096, workspace_bytes));
    if (!memory) throw std::bad_alloc();
  }
  return memory;
}

namespace {

int root_of(const Program& program, int slot) {
  for (std::size_t links = 0; program.slots.at(static_cast<std::size_t>(slot)).alias >= 0;
       slot = program.slots[static_cast<std::size_t>(slot)].alias)
    if (++links > program.slots.size()) throw Error("[compile] slots alias each other in a cycle");
  return slot;
}

}  // namespace

bool Context::overlap(int slot_a, int slot_b) const {
  if (slot_a < 0 || slot_b < 0) return false;
  const int root_a = root_of(program, slot_a), root_b = root_of(program, slot_b);
  if (root_a == root_b) return true;
  const Slot &a = program.slots[static_cast<std::size_t>(root_a)],
             &b = program.slots[static_cast<std::size_t>(root_b)];
  if (a.home != b.home) return false;
  if (a.home != Home::arena) return a.index == b.index;
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}
bool Context::same(int slot_a, int slot_b) const {
  return slot_a == slot_b ||
         (slot_a >= 0 && slot_b >= 0 && root_of(program, slot_a) == root_of(program, slot_b));
}

namespace {

class CollectiveStep final : public CompiledStep {
 public:
  CollectiveStep(const Step& step, const Context& context)
      : collective_(step.collective), from_(collective_.x.size()), to_(collective_.out.size()),
        scratch_(step, context.arena_slot, 0), scratch_bytes_(step.scratch_bytes) {
    for (auto& o : collective_.x) x_.emplace_back(o.view);
    for (auto& o : collective_.out) out_.emplace_back(o.view);
  }
  void run(Frame& frame) override {
    if (!frame.communicator)
      throw Error(
          "[collective] the program communicates with other devices, "
          "but there is no communicator; run it on a mesh");
    for (std::size_t k = 0; k < x_.size(); ++k) from_[k] = x_[k].at(frame);
    for (std::size_t k = 0; k < out_.size(); ++k) to_[k] = out_[k].at(frame);
    auto* scratch = scratch_bytes_ > 0 ? scratch_.at(frame) : nullptr;
    if (collective_.call < 0)
      frame.communicator->run(collective_, from_.data(), to_.data(), scratch, scratch_bytes_);
    else
      frame.calls[collective_.call] =
          frame.communicator->start(collective_, from_.data(), to_.data(), scratch, scratch_bytes_);
  }

 private:
  const program::Collective& collective_;
  std::vector<Place> x_, out_;
  std::vector<const void*> from_;
  std::vector<void*> to_;
  Scratch scratch_;
  std::int64_t scratch_bytes_;
};

class FinishStep final : public CompiledStep {
 public:
  explicit FinishStep(int call) : call_(call) {}
  void run(Frame& frame) override {
    if (auto call = std::exchange(frame.calls[call_], 0)) frame.communicator->finish(call);
  }

 private:
  int call_;
};

// Compiled steps, run in order.
class Steps {
 public:
  Steps(const std::vector<Step>&, const Context&);
  void run(Frame& frame) {
    for (std::size_t k = 0; k < compiled_.size(); ++k) {
      if (frame.recorder) frame.recorder->begin(steps_[k]);
      compiled_[k]->run(frame);
      if (frame.recorder) frame.recorder->end(steps_[k], compiled_[k]->computed_fraction(frame));
    }
  }

 private:
  const std::vector<Step>& steps_;
  std::vector<std::unique_ptr<CompiledStep>> compiled_;
};

std::unique_ptr<CompiledStep> compile_one(const Step&, const Context&);

// The steps of a loop: one function of machine code if there is one, else step by step.
class LoopBody {
 public:
  LoopBody(std::span<const Step> code, const std::vector<Step>& steps, const Context& context)
      : steps_(&steps), context_(context), function_(compile_steps(code, context, compile_one)) {
    if (!function_) one_by_one_.emplace(steps, context);
  }
  bool has_function(const Frame& frame) const { return function_ && !frame.recorder; }
  void run_function(Frame& frame) { function_->run(frame); }
  void run_steps(Frame& frame) {
    if (!one_by_one_) one_by_one_.emplace(*steps_, context_);  // for a profile
    one_by_one_->run(frame);
  }

 private:
  const std::vector<Step>* steps_;
  Context context_;
  std::unique_ptr<StepsFunction> function_;
  std::optional<Steps> one_by_one_;  // without a function, and for profiles
};

class LoopStep final : public CompiledStep {
 public:
  LoopStep(const Step& step, const Context& context)
      : variable_(step.loop.variable), trips_(step.loop.trips), reverse_(step.loop.reverse),
        body_({&step, 1}, step.body, context) {
    if (variable_ < 0 || variable_ >= context.program.loops)
      throw Error("[loop] unknown loop variable");
  }
  void run(Frame& frame) override {
    if (body_.has_function(frame)) return body_.run_function(frame);  // runs all iterations
    for (std::int64_t iteration = 0; iteration < trips_; ++iteration) {
      frame.loops[variable_] = reverse_ ? trips_ - 1 - iteration : iteration;
      body_.run_steps(frame);
    }
  }

 private:
  int variable_;
  std::int64_t trips_;
  bool reverse_;
  LoopBody body_;
};

// Runs iterations in parallel: those of one loop, or of loops that are perfectly nested. Each
// worker has its own compiled steps and its own parallel slot.
class ParallelLoopStep final : public CompiledStep {
 public:
  ParallelLoopStep(const Step& outermost, const Context& context)
      : start_(outermost.loop.parallel_slot_start), bytes_(outermost.loop.parallel_slot_bytes) {
    const auto nest = program::parallel_nest(outermost);
    for (const Step* loop : nest) {
      loops_.push_back({.variable = loop->loop.variable,
                        .trips = loop->loop.trips,
                        .reverse = loop->loop.reverse});
      iterations_ *= loop->loop.trips;
    }
    const auto& program = context.program;
    for (std::size_t s = 0; s < program.slots.size(); ++s) {
      const Slot& slot =
          program.slots[static_cast<std::size_t>(root_of(program, static_cast<int>(s)))];
      if (slot.home == Home::arena && slot.offset >= start_ && slot.offset < start_ + bytes_)
        private_slots_.push_back(s);
    }
    private_slots_.push_back(static_cast<std::size_t>(context.arena_slot));  // scratch
    Context one_worker = context;
    one_worker.workers = 1;
    const auto workers = std::clamp<std::int64_t>(
        iterations_, 1, std::min(outermost.loop.parallel_slots, context.workers));
    for (std::int64_t w = 0; w < workers; ++w)
      workers_.push_back(
          {.body = LoopBody(nest.back()->body, nest.back()->body, one_worker),
           .slots = std::vector<std::byte*>(program.slots.size() + 1),
           .loops = std::vector<std::int64_t>(static_cast<std::size_t>(program.loops) + 1)});
  }
  void run(Frame& frame) override {
    for (std::size_t w = 0; w < workers_.size(); ++w) {
      Worker& state = workers_[w];
      std::copy_n(frame.slots, state.slots.size(), state.slots.begin());
      std::copy_n(frame.loops, state.loops.size(), state.loops.begin());
      for (auto s : private_slots_) state.slots[s] += static_cast<std::int64_t>(w) * bytes_;
      state.recorder = frame.recorder ? &frame.recorder->for_worker(static_cast<int>(w)) : nullptr;
    }
    parallel_for(
        iterations_, static_cast<int>(workers_.size()), [&](std::int64_t iteration, int worker) {
          Worker& state = workers_[static_cast<std::size_t>(worker)];
          for (auto l = loops_.rbegin(); l != loops_.rend(); ++l) {
            state.loops[static_cast<std::size_t>(l->variable)] =
                l->reverse ? l->trips - 1 - iteration % l->trips : iteration % l->trips;
            iteration /= l->trips;
          }
          Frame mine{
              .slots = state.slots.data(), .loops = state.loops.data(), .recorder = state.recorder};
          if (state.body.has_function(mine))
            state.body.run_function(mine);
          else
            state.body.run_steps(mine);
        });
  }

 private:
  struct Nested {
    int variable;
    std::int64_t trips;
    bool reverse;
  };
  struct Worker {
    LoopBody body;
    std::vector<std::byte*> slots;
    std::vector<std::int64_t> loops;
    program::Recorder* recorder = nullptr;
  };
  std::vector<Nested> loops_;  // outermost first
  std::int64_t iterations_ = 1;
  std::int64_t start_, bytes_;
  std::vector<std::size_t> private_slots_;  // slots with one copy per worker
  std::vector<Worker> workers_;
};

class ConditionalStep final : public CompiledStep {
 public:
  ConditionalStep(const Step& step, const Context& context)
      : flag_(step.conditional.flag), body_(step.body, context) {}
  void run(Frame& frame) override {
    if (*flag_.at(frame) != std::byte{0}) body_.run(frame);
  }

 private:
  Place flag_;
  Steps body_;
};

class HostStep final : public CompiledStep {
 public:
  HostStep(const program::Host& host, const Context& context)
      : host_(host), idle_(host.once && context.program.device > 0) {
    for (auto& array : host.arrays) arrays_.emplace_back(array.view);
  }
  void run(Frame& frame) override {
    if (idle_) return;
    std::vector<const void*> data;
    for (auto& array : arrays_) data.push_back(array.at(frame));
    host_.call->run(host_.arrays, data.data());
  }

 private:
  const program::Host& host_;
  bool idle_;
  std::vector<Place> arrays_;
};

std::unique_ptr<CompiledStep> compile_one(const Step& step, const Context& context) {
  switch (step.kind) {
    case Kind::fused:
      return make_fused(step, context);
    case Kind::contract:
      return make_contract(step, context);
    case Kind::gather:
      return make_gather(step, context);
    case Kind::scatter:
      return make_scatter(step, context);
    case Kind::sort:
      return make_sort(step, context);
    case Kind::cumulative:
      return make_cumulative(step, context);
    case Kind::copy:
      return make_copy(step, context);
    case Kind::conditional:
      return std::make_unique<ConditionalStep>(step, context);
    case Kind::custom:
      return make_custom(step);
    case Kind::host:
      return std::make_unique<HostStep>(step.host, context);
    case Kind::collective:
      return std::make_unique<CollectiveStep>(step, context);
    case Kind::finish:
      return std::make_unique<FinishStep>(step.finish.call);
    case Kind::loop:
      if (step.loop.parallel_slots > 0) return std::make_unique<ParallelLoopStep>(step, context);
      return std::make_unique<LoopStep>(step, context);
  }
  throw Error("[compile] unknown kind of step");
}
Steps::Steps(const std::vector<Step>& steps, const Context& context) : steps_(steps) {
  compiled_.reserve(steps.size());
  for (const Step& step : steps) compiled_.push_back(compile_one(step, context));
}

// The state of one run at a time: the compiled steps, some of which hold state, and the addresses
// of all slots.
class Run {
 public:
  explicit Run(const Program& program)
      : slots_(program.slots.size() + 1), loops_(static_cast<std::size_t>(program.loops) + 1),
        calls_(static_cast<std::size_t>(program.calls)),
        steps_(program.steps, Context{.program = program,
                                      .arena_slot = static_cast<int>(program.slots.size()),
                                      .workers = threads()}) {
    for (std::size_t s = 0; s < program.slots.size(); ++s) {
      const Slot& slot =
          program.slots[static_cast<std::size_t>(root_of(program, static_cast<int>(s)))];
      sources_.push_back({slot.home, slot.home == Home::arena ? slot.offset : slot.index});
    }
  }
  void operator()(const std::vector<void*>& arguments, const std::vector<void*>& results,
                  void* arena, program::Communicator* communicator, program::Recorder* recorder) {
    std::byte* const memory = static_cast<std::byte*>(arena);
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      const Source& source = sources_[s];
      const std::size_t at = static_cast<std::size_t>(source.at);
      slots_[s] = source.home == Home::arena      ? memory + source.at
                  : source.home == Home::argument ? static_cast<std::byte*>(arguments[at])
                                                  : static_cast<std::byte*>(results[at]);
    }
    slots_.back() = memory;
    Frame frame{.slots = slots_.data(),
                .loops = loops_.data(),
                .communicator = communicator,
                .calls = calls_.data(),
                .recorder = recorder};
    try {
      steps_.run(frame);
    } catch (...) {
      for (auto call : calls_) wait_for(communicator, call);
      throw;
    }
  }

 private:
  // Waits for a collective that is still in flight, because its memory is about to be released.
  static void wait_for(program::Communicator* communicator, std::int64_t call) {
    try {
      if (call) communicator->finish(call);
    } catch (...) {}  // the first error is raised
  }
  struct Source {
    Home home;
    std::int64_t at;  // offset in the arena, or index of the argument or result
  };
  std::vector<std::byte*> slots_;
  std::vector<std::int64_t> loops_, calls_;
  std::vector<Source> sources_;
  Steps steps_;
};

// A call that finds all Run objects in use creates another one.
class CpuExecutable final : public program::Executable, public program::Recordable {
 public:
  explicit CpuExecutable(std::shared_ptr<const Program> program) : program_(std::move(program)) {
    runs_.put(std::make_unique<Run>(*program_));
  }
  void run(const std::vector<void*>& arguments, const std::vector<void*>& results, void* arena,
           program::Communicator* communicator) override {
    start(arguments, results, arena, communicator, nullptr);
  }
  void run(const std::vector<void*>& arguments, const std::vector<void*>& results, void* arena,
           program::Communicator* communicator, program::Recorder& recorder) override {
    start(arguments, results, arena, communicator, &recorder);
  }

 private:
  void start(const std::vector<void*>& arguments, const std::vector<void*>& results, void* arena,
             program::Communicator* communicator, program::Recorder* recorder) {
    if (static_cast<int>(arguments.size()) != program_->arguments ||
        static_cast<int>(results.size()) != program_->results)
      throw Error("[run] the program has " + std::to_string(program_->arguments) +
                  " arguments and " + std::to_string(program_->results) + " results; got " +
                  std::to_string(arguments.size()) + " and " + std::to_string(results.size()));
    auto mine = runs_.take();
    if (!mine) mine = std::make_unique<Run>(*program_);
    // a Run that has raised is not reused
    (*mine)(arguments, results, arena, communicator, recorder);
    runs_.put(std::move(mine));
  }

  std::shared_ptr<const Program> program_;
  ObjectPool<Run> runs_;
};

// bytes per parallel slot: limit in Machine; limit while slots share no memory yet
constexpr std::int64_t max_slot_bytes = 5 << 18, max_shared_slot_bytes = 32 << 20;

constexpr double few_multiplications = 4 << 20;  // per matmul: a small one
// Iterations with large matmuls run in parallel if they keep at least this percentage of the
// threads busy, on average.
constexpr std::int64_t min_busy_percent = 80;

// Returns the number of blocks into which a block mask splits a contraction.
double blocks_of(const program::Contract& c) {
  return double(c.block_mask.m.blocks(c.m)) * double(c.block_mask.n.blocks(c.n)) *
         double(c.block_mask.k.blocks(c.k));
}
double matmuls_run(const std::vector<Step>& steps) {
  double n = 0;
  program::each_step_run(steps, [&](const Step& s, std::int64_t runs) {
    if (s.kind == Kind::contract) n += static_cast<double>(runs) * blocks_of(s.contract);
  });
  return n;
}

class CpuDevice final : public program::Device {
 public:
  const char* name() const override { return "cpu"; }
  bool supports(const Step&) const override { return true; }
  std::int64_t scratch_bytes(const Step& step, int workers) const override {
    if (workers == 0) workers = threads();
    switch (step.kind) {
      case Kind::fused:
        return fused_scratch(step);
      case Kind::contract:
        return contract_scratch(step, workers);
      case Kind::sort:
        return sort_scratch(step, workers);
      default:
        return 0;
    }
  }
  program::Machine machine() const override {
    program::Machine m;
    m.max_parallel_slot_bytes = max_slot_bytes;
    auto mask_block_of = [](const MatmulKernel* k) { return k && !k->only_small ? 32 : 0; };
    m.mask_block = mask_block_of(matmul_kernel(DType::f32));
    m.mask_block_bf16 = mask_block_of(matmul_kernel(DType::bf16));
    m.mask_block_vector = 64;
    return m;
  }
  // Runs iterations in parallel if the values of an iteration fit into the cache of a core, and
  // either its matmuls are small or nearly all threads are busy until the end.
  int parallel_slots(const Step& loop, std::int64_t iterations, std::int64_t parallel_slot_bytes,
                     int workers) const override {
    const double matmuls = matmuls_run(loop.body);
    if (iterations < 2 || parallel_slot_bytes > max_shared_slot_bytes || matmuls == 0) return 0;
    if (workers == 0) workers = threads();
    const std::int64_t rounds = (iterations + workers - 1) / workers;
    const bool small = program::multiplications(loop.body) / matmuls < few_multiplications;
    if (!small && 100 * iterations < min_busy_percent * rounds * workers) return 0;
    return static_cast<int>(std::min<std::int64_t>(iterations, workers));
  }
  std::unique_ptr<program::Executable> compile(std::shared_ptr<const Program> program) override {
    return std::make_unique<CpuExecutable>(std::move(program));
  }
};

}  // namespace

std::unique_ptr<program::Device> make_cpu_device(int threads) {
  if (threads > 0) set_threads(threads);
  return std::make_unique<CpuDevice>();
}
void set_threads(int count) { haliax::set_threads(count, SourceLocation()); }

}  // namespace haliax::cpu
