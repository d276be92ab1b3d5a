// The contract between the compiler and a backend. A Program is a list of steps over slots of
// memory, without axes, names or graph ops.
//
// Every value is stored in a slot: an argument, a result, or a range of the arena at an offset that
// plan_memory chose. A View describes which elements of a slot a step accesses. A loop is a step
// with a body of steps. The loop index reaches the views and instructions of the body as a term:
// the offset grows by loop variable * stride.
//
// Terms of this file:
// - position: one point of the iteration space of a step, that is, an index along each of its dims
// - element: a unit of offsets and strides, unless bytes are stated
// - device: one device of a mesh, or the single device of a Program without a mesh
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "haliax/dtype.h"
#include "program/codes.h"

namespace haliax::program {

using Dims = std::vector<std::int64_t>;

enum class Monoid : std::uint8_t { sum, prod, max, min };

// One summand of a View's offset, in elements: either a loop variable or a scalar in memory, times
// `stride`.
struct Term {
  // loop variable, from 0 to trips - 1, in decreasing order if the loop is reversed; -1: none
  int loop = -1;
  // slot of a scalar (i32, i64 or u32) that is read when the step runs, and clamped to [0, limit];
  // -1: none
  int slot = -1;
  DType slot_dtype = DType::i32;
  std::int64_t slot_offset = 0, limit = 0;  // element of the scalar in its slot; largest value
  std::int64_t stride = 0;
  friend bool operator==(const Term&, const Term&) = default;
};
// The elements of a slot that a step accesses. The offset of position (i0, i1, ...) is offset +
// sum(i_d * strides[d]) + the sum of the terms, in elements.
struct View {
  int slot = -1;
  DType dtype = DType::f32;
  std::int64_t offset = 0;
  Dims strides;  // one per dim of the step; 0 is a broadcast; may be negative
  std::vector<Term> terms;
  friend bool operator==(const View&, const View&) = default;
};

// An instruction of a fused step.
struct Instr {
  Code code;
  DType dtype = DType::f32;
  int args[4] = {-1, -1, -1, -1};  // indices of earlier instructions
  // true: one value per inner position; false: one value per outer position
  bool inner = false;
  double number = 0;         // constant: the value of a float
  std::int64_t integer = 0;  // constant: the value of an integer or bool; iota: the start
  int dim = -1;              // iota: dim of the step
  std::int64_t stride = 1;   // iota: factor of the position
  View view = {};            // load and store: the elements; iota: only the loop terms
};

enum class Kind : std::uint8_t {
  fused,
  contract,
  gather,
  scatter,
  sort,
  cumulative,
  loop,
  collective,
  finish,
  copy,
  conditional,
  custom,
  host
};

// An elementwise step, with optional reductions. At each outer position the instructions run in
// order, and inner instructions run at all inner positions. `dims` are the outer dims, then the
// inner dims. A step may overwrite its own input: at each outer position, all loads come before all
// stores. Each instruction rounds its result to its dtype.
struct Fused {
  Dims dims;
  int outer = 0;  // number of outer dims
  std::vector<Instr> code;
};
// A matmul:
//   out[batch, m, n] = (accumulate ? out : 0) + sum over k of a[batch, m, k] * b[batch, k, n]
// Each of batch, m, n and k may be several dims. The strides of a view are in the order batch,
// m, n, k, with 0 for dims that the operand lacks. Sums are accumulated in f32 for bf16 and f16,
// else in the dtype of `out`.
struct Contract {
  // The blocks that must be computed. A skipped block contributes 0, or no step reads its part of
  // `out`. A backend may ignore the mask and compute all blocks.
  struct BlockMask {
    // The blocks along m, n or k.
    struct Flags {
      // positions per block; distance between flags, in elements
      std::int64_t size = 0, stride = 0;
      // Returns the number of blocks along a side with these dims, or 1 if the flags do not vary
      // along it.
      std::int64_t blocks(const Dims& side) const;
    };
    View flags;  // bool, true: compute; the same flags hold for the entire batch; slot -1: no mask
    Flags m, n, k;  // size 0: the flags do not vary along this side; else the side has one dim
    // true: in skipped blocks `out` must be 0, or unchanged if `accumulate`, since a later step
    // multiplies it by 0; false: skipped blocks of `out` are unread
    bool zero = false;
  };
  Dims batch, m, n, k;
  View a, b, out;
  bool accumulate = false;
  BlockMask block_mask = {};
};
// The value that a gather yields for an id out of range.
// - fill: NaN, or the smallest integer (the largest if unsigned or bool)
// - clamp: the element at the nearest position
// - zero: 0
enum class Outside : std::uint8_t { fill, clamp, zero };
// One dim of a table that ids select positions of.
struct Indexed {
  View ids;                           // over the dims of the step
  std::int64_t stride = 0, size = 0;  // stride and size of the dim in the table
};
// An indexed read: out[...] = table[...], with the indexed dims of the table replaced by ids.
// `dims` are the dims of `out`. Negative ids count from the end.
struct Gather {
  Dims dims;
  View table, out;
  std::vector<Indexed> indexed;
  Outside outside = Outside::fill;
};
enum class Update : std::uint8_t { set, add, mul, min, max };
// An indexed write: target[... at ids] op= updates, in row-major order of `dims`, the dims of
// `updates`. Ids out of range are dropped, or clamped if `clamp` is set.
struct Scatter {
  Dims dims;
  View updates, target;  // initialized by an earlier step
  std::vector<Indexed> indexed;
  Update update = Update::add;
  bool clamp = false;
};
// Stable ascending sort of x along the last dim; NaN is last. `out` (the values) or `indices` may
// be absent (slot -1).
struct Sort {
  Dims dims;
  View x, out, indices;
};
// Inclusive running sum, product, maximum or minimum along the last dim.
struct Cumulative {
  Dims dims;
  View x, out;
  Monoid monoid = Monoid::sum;
  bool reverse = false;
};
// Copy of a strided view to another one with the same dtype. Also passes a carry to the next
// iteration of a loop.
struct Copy {
  Dims dims;
  View x, out;
};
enum class CollectiveKind : std::uint8_t { all_reduce, reduce_scatter, all_gather, exchange };
// An array of a collective or of a host step.
struct Operand {
  Dims dims;  // on this device
  View view;
};
// A box of elements that one device sends to another device or to itself. The sends of device p to
// device q and the receives of q from p are in the same order.
struct BoxTransfer {
  int device = 0, array = 0;  // the other device; index in x (sends) or out (receives)
  Dims start, dims, step;     // in the sender's x, or in the receiver's out, where all steps are 1
};
// The transfers that an `exchange` may skip. Except for `nothing`, the last array of x is not sent.
// It is a flag of this device (bool, without dims), or the counts of `rows`.
enum class SkipFlag : std::uint8_t {
  nothing,
  unread,  // flag false: this device reads none of the data that it receives
  zeros,   // flag false: all data that this device sends is 0
  // counts (i64), whose dims are the first dims of x[0]: the elements of x[0] whose position along
  // the next dim is at or after the count are 0. A box sends as many positions as its largest
  // count.
  rows,
};
// A collective on one or more arrays, over a group of devices: those that differ only along the
// mesh axes in `over`, in rank order. An `exchange` lists its boxes; the other kinds compute out[k]
// from x[k].
struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::vector<int> over;  // mesh axes, major to minor
  int ranks = 1;          // number of devices in the group; unused by `exchange`
  Monoid monoid = Monoid::sum;
  std::vector<Operand> x, out;
  // per array: the dim that is split (reduce_scatter) or concatenated (all_gather)
  std::vector<int> dim;
  // per array: the unsharded size of that dim; a block has ceil(size / ranks) positions, the last
  // may be smaller
  std::vector<std::int64_t> size;
  std::vector<BoxTransfer> sends, receives;
  SkipFlag skip_flag = SkipFlag::nothing;  // may be ignored: sending everything is equally correct
  double sent_bytes = 0;                   // bytes that each device sends, if it runs as a ring
  // -1: the step blocks until the collective is done; else it only starts the collective, and the
  // Finish step with the same number waits for it
  int call = -1;
};
// Waits for the collective that was started last with this number, if there is one. Between the
// start and this step, no step writes x or accesses out. A backend without asynchronous collectives
// runs them when they start and does nothing here.
struct Finish {
  int call = 0;
  std::vector<View> x, out;  // the arrays of the collective, without dims
};
// Runs the steps of Step::body if the flag (bool, without dims) is true. Otherwise these steps
// leave memory unchanged.
struct Conditional {
  View flag;
};
// A user's function (haliax/custom_op.h) that runs once per position of the first `outer` dims. It
// receives the address of the first element of each array, the sizes of the other dims (at least
// 1), and the strides of each array along them. See program/custom.h.
using CustomRun = void (*)(void* const* data, const std::int64_t* sizes,
                           const std::int64_t* const* strides) noexcept;
// The same function for GPUs: statements of CUDA C++ that compute one element of the result. They
// run once per position of the outer dims and of the inner dims `dims`, concurrently, and use
//   Word array[k]        the address of the first element of array k at this outer position
//   I size[d]            the size of inner dim d
//   I stride[k][d]       the stride of array k along inner dim d, in elements
//   I at[d]              the position along inner dim d; 0 if d is not in `dims`
//   S0, S1, ...          the element types of the arrays
// and the functions of backends/cuda/device/kernel.h.
struct CustomText {
  const char* statements = nullptr;  // null: only the host runs the step
  std::vector<int> dims;
};
struct Custom {
  Dims dims;
  int outer = 0;
  std::vector<View> arrays;  // the operands, then the result, which shares no memory with them
  CustomRun run = nullptr;
  CustomText text = {};
  bool uses_threads = false;  // the function splits its work over the threads itself
};
// An action of the host on values, such as printing them. An exception ends the run of the program.
struct HostCall {
  virtual ~HostCall() = default;
  // `data` holds the address of element (0, 0, ...) of each array.
  virtual void run(const std::vector<Operand>&, const void* const* data) const = 0;
};
struct Host {
  std::vector<Operand> arrays;
  std::shared_ptr<const HostCall> call;
  bool once = true;  // true: only the first device of a mesh runs it; false: each device runs it
};
// A loop over the steps of Step::body. If `parallel_slots` > 0, its iterations access disjoint
// memory, and up to that many may run concurrently, each in its own parallel slot. A parallel slot
// is memory for the values and the scratch of one iteration: slot k has `parallel_slot_bytes` bytes
// of the arena, at offset `parallel_slot_start` + k * `parallel_slot_bytes`. Offsets of slots and
// scratch in the body refer to slot 0. If the body is a single loop with parallel slots, the inner
// loop has no memory of its own, and all iterations of both loops may run concurrently. A backend
// without parallel execution runs all iterations in slot 0.
struct Loop {
  int variable = 0;  // loop variable in terms
  std::int64_t trips = 0;
  bool reverse = false;
  // true: runs the iterations that the loop before skipped; estimates count both loops as one
  bool continues_previous = false;
  int parallel_slots = 0;  // largest number of concurrent iterations; 0: sequential
  std::int64_t parallel_slot_start = -1, parallel_slot_bytes = 0;  // set by plan_memory
};

struct Step {
  Kind kind = Kind::fused;
  // `kind` selects the member that holds the step. The members are no variant: a backend reads them
  // by name, and a Program is small.
  Fused fused = {};
  Contract contract = {};
  Gather gather = {};
  Scatter scatter = {};
  Sort sort = {};
  Cumulative cumulative = {};
  Copy copy = {};
  Collective collective = {};
  Finish finish = {};
  Custom custom = {};
  Host host = {};
  Loop loop = {};
  Conditional conditional = {};
  std::vector<Step> body = {};  // the steps in a loop or a conditional
  const char* op = "";          // name of the op that the step computes
  std::string where = {};       // file:line and module path, for reports
  // byte offset in the arena, aligned, of `scratch_bytes` bytes that only this step uses while it
  // runs
  std::int64_t scratch = -1;
  std::int64_t scratch_bytes = 0;
};

// alignment of the arena and of offsets in it, in bytes
inline constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
// The memory that a slot belongs to.
enum class Home : std::uint8_t { argument, result, arena };
struct Slot {
  std::int64_t bytes = 0;
  Home home = Home::arena;
  int index = -1;            // index of the argument or result
  std::int64_t offset = -1;  // byte offset in the arena, aligned; set by plan_memory
  // slot whose memory this slot shares (an in-place update, a donated argument); -1: its own memory
  int alias = -1;
  const char* purpose = "";  // parameters, activations, ...: for reports
  // true: received by an all-gather or a ring step, read in the same iteration and never saved (see
  // check_gathered)
  bool gathered = false;
};

// Bytes of the arena that serve one purpose.
struct Use {
  const char* purpose = "";
  std::int64_t bytes = 0;
};

// A compiled graph for one device. The caller provides memory for every result, unless the slot of
// the result aliases a donated argument.
struct Program {
  std::vector<Slot> slots;
  std::vector<Step> steps;
  int arguments = 0, results = 0;  // counts
  std::vector<int> argument_slots, result_slots;
  std::vector<int> donated;      // per argument: the result that reuses its memory, or -1
  std::int64_t arena_bytes = 0;  // memory for all other slots, and scratch
  std::int64_t peak_bytes = 0;   // arena_bytes, plus results that alias no argument
  // the arena by purpose when most of it is in use; with the entry "gaps", the sum is arena_bytes
  std::vector<Use> at_peak;
  int loops = 0;                   // number of loop variables
  int calls = 0;                   // number of Collective::call numbers
  int device = 0;                  // device of the mesh that this program is for
  int backend_device = 0;          // device of the backend that runs the program
  std::vector<std::int64_t> mesh;  // sizes of the mesh axes; empty: no mesh
  // the caller for late error messages, for example "jit at train.cpp:12"
  std::string called = {};
  Slot& slot(int k) { return slots[std::size_t(k)]; }
  const Slot& slot(int k) const { return slots[std::size_t(k)]; }
  // Returns the slot that owns the memory of a slot (Slot::alias).
  int memory(int slot) const {
    while (slots[std::size_t(slot)].alias >= 0) slot = slots[std::size_t(slot)].alias;
    return slot;
  }
};

std::string to_string(const Program&);
// Returns the number of positions, that is, the product of the sizes.
std::int64_t points(const Dims&);
// Returns the strides of a contiguous array.
Dims row_major(const Dims&);
// Returns the dims over which all views of a step iterate; empty for kinds whose views have dims of
// their own or none.
Dims dims_of(const Step&);
// Returns how often the body of a step runs: once per iteration of a loop, at most once for a
// conditional. Returns 0 for other steps, and for a loop with Loop::continues_previous, whose
// iterations count with the previous loop.
std::int64_t body_runs(const Step&);
// Calls f(step, runs) for each step, including the steps in bodies. runs: how often it runs.
template <class F>
void each_step_run(const std::vector<Step>& steps, const F& f, std::int64_t runs = 1) {
  for (auto& s : steps) {
    f(s, runs);
    each_step_run(s.body, f, runs * body_runs(s));
  }
}
// Returns a loop and the loops with parallel slots that are perfectly nested in it, outermost
// first. All their iterations may run concurrently.
std::vector<const Step*> parallel_nest(const Step& outermost);
// Returns the multiplications of all contractions, over all iterations of loops, if all flags are
// true.
double multiplications(const std::vector<Step>&);
// Returns the number of contract steps, with each loop body counted once.
int count_contractions(const std::vector<Step>&);

// ---- backends ----
// A backend compiles a Program into an Executable. The classes below are the entire interface.

// Memory of a device: an address, 64-byte aligned. The host must not access it unless
// Device::is_host() is true. The memory is freed when its last holder releases it, in order with
// the device's work: work that was queued before may still use it.
using Memory = std::shared_ptr<void>;
// A copy of the elements at all positions of `dims` between two arrays that share no memory.
// Strides are in elements, relative to element (0, 0, ...).
struct Box {
  Dims dims;
  std::int64_t width = 1;  // bytes per element
  void* to = nullptr;
  Dims to_strides;
  const void* from = nullptr;
  Dims from_strides;
};
void copy_on_host(const Box&);

// The cost model of a device, for estimates. Costs are in units of one f32 multiplication.
struct Machine {
  double multiplications_per_byte = 8;  // cost per byte of memory traffic
  // cost per byte of data that is reused soon, but exceeds `core_cache`
  double multiplications_per_far_byte = 4;
  double cache = 8 << 20;  // bytes; data of each iteration that fits stays cached
  // bytes in the caches of the cores that a step leaves for the next step
  double core_cache = 2 << 20;
  // largest memory of one iteration in a parallel slot, in bytes; 0: no slots, no masked matmuls
  double max_parallel_slot_bytes = 0;
  // true: an iteration tiles the keys of attention scores itself, so that the keys need no loop of
  // their own
  bool tiles_score_rows = false;
  double relative_cost_16bit = 1. / 3;  // cost of a bf16 or f16 multiplication
  // block sizes, in positions, at which kernels of f32 and bf16 matmuls skip masked blocks
  // (Contract::BlockMask); 0: kernels skip none, but a loop over scores may run a matmul per block
  int mask_block = 0, mask_block_bf16 = 0;
  int mask_block_vector = 0;  // the same for matmuls of a vector and a matrix, f32 or bf16
  double step_cost = 0;       // fixed cost of each step
  // bytes; rows of large arrays that matmuls access are aligned to a multiple of it
  int row_alignment = 1;
};

// Communication of one device with the others of its mesh. The devices of a collective follow from
// the Collective and from the mesh and the device of the Program: all devices that differ only
// along the mesh axes in `over`, in rank order. Every device runs its collectives in the order of
// its Program. Collectives over other mesh axes may run in between. Implementations exist for the
// threads of one process, for processes, and for accelerators with a communication library. A
// simulated mesh has no Communicator: it is planned and never run.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // Runs a collective. `x` and `out` hold the address of element (0, 0, ...) of each array; `out`
  // shares no memory with `x`. `scratch` has the size that Device::scratch_bytes returned for the
  // step. Runs in order with the device's work: blocks until the collective is done, or queues it
  // on the device. Supports all strides, by packing if necessary, and keeps no pointer afterwards.
  // Sums are accumulated in the dtype of the arrays, or in f32 for bf16 and f16. The order of a sum
  // is unspecified, but results are bitwise identical on all ranks and in every run (between
  // threads, the order is rank order). Raises if another device has failed, instead of waiting for
  // it.
  virtual void run(const Collective&, const void* const* x, void* const* out, void* scratch,
                   std::int64_t scratch_bytes) = 0;
  // Starts a collective that may run concurrently with other work. May return before `x` is read
  // and `out` is written; the caller accesses neither before finish() has returned for this call.
  // Collectives run in the order in which they are started or run. Returns the number of the call,
  // which increases with each call. The default runs the collective at once.
  virtual std::int64_t start(const Collective& c, const void* const* x, void* const* out,
                             void* scratch, std::int64_t scratch_bytes) {
    run(c, x, out, scratch, scratch_bytes);
    return 0;
  }
  // Waits until all calls up to this number are done. Raises their errors.
  virtual void finish([[maybe_unused]] std::int64_t call) {}
  // Announces that this device runs no more collectives because of an error. Collectives of other
  // devices that wait for it raise.
  virtual void fail(const char* why) = 0;
};
// A compiled Program.
class Executable {
 public:
  virtual ~Executable() = default;  // may be called while work is still queued
  // Runs the program. `arguments` and `results` hold the address of each array, in the memory of
  // the device; null for a result that aliases a donated argument. `arena` has Program::arena_bytes
  // bytes, 64-byte aligned.
  //
  // Several threads may call it concurrently, each with its own arena. It allocates memory only if
  // more threads call it concurrently than ever before.
  //
  // On a device that is not the host, it may return early; `get`, `copy` and later runs follow in
  // order. An error that is detected late raises at the next run or get on the device, and at all
  // that follow. The message names Program::called and the step, if known. The run of a
  // Program with a step of kind host, or with a Communicator that blocks, returns when it is done.
  virtual void run(const std::vector<void*>& arguments, const std::vector<void*>& results,
                   void* arena, Communicator*) = 0;
};
class RankGroup;  // program/ranks.h
// One or more devices of one kind. Program::backend_device selects the device that runs a Program:
// device d of a mesh runs on backend device d. If ranks share the mesh, each host numbers its own
// devices.
class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const = 0;
  // Returns true if the device can run the step. Called for each step before plan_memory; a Program
  // with an unsupported step is rejected. The default rejects custom steps, since users' functions
  // require host memory.
  virtual bool supports(const Step& s) const { return s.kind != Kind::custom; }
  // Returns the scratch memory that a step needs, in bytes, for example for packed operands or
  // partial sums. Called before plan_memory. `workers` is the number of threads to plan for; 0
  // selects the current number.
  virtual std::int64_t scratch_bytes(const Step&, [[maybe_unused]] int workers) const { return 0; }
  // Returns how many iterations of a loop run concurrently, each in a parallel slot of about
  // `parallel_slot_bytes` bytes; 0 if they run one after another. Called for loops whose iterations
  // access disjoint memory. `iterations` counts those of all loops of the nest if the body is a
  // single such loop. `workers` is the same as for scratch_bytes.
  virtual int parallel_slots([[maybe_unused]] const Step& loop,
                             [[maybe_unused]] std::int64_t iterations,
                             [[maybe_unused]] std::int64_t parallel_slot_bytes,
                             [[maybe_unused]] int workers) const {
    return 0;
  }
  virtual Machine machine() const { return {}; }
  // Returns false if the compiler skips the optional passes, so that Programs compute each
  // node of the graph as written. For a backend that is an oracle.
  virtual bool runs_optional_passes() const { return true; }
  virtual std::unique_ptr<Executable> compile(std::shared_ptr<const Program>) = 0;

  // Returns true if the memory of the device is host memory. A mesh may then have any number of
  // these devices, runs return when they are done, and the functions below are not called.
  virtual bool is_host() const { return true; }
  // Returns the number of devices.
  virtual int devices() const { return 1; }
  // The functions below select a device by its number and are thread safe. put, get and copy run in
  // order with the runs of the device, and raise the same errors.

  // Allocates uninitialized memory. Raises if the device has too little.
  virtual Memory allocate(std::int64_t bytes, int device);
  // Copies from the host. The host memory may change as soon as put returns.
  virtual void put(const Box&, int device);
  // Copies to the host. Waits for work that was queued before.
  virtual void get(const Box&, int device);
  // Copies within the memory of the device.
  virtual void copy(const Box&, int device);
  // Returns the communicator of `device` of a mesh with these axis sizes, or null if the runtime
  // communicates through the host. All devices of the mesh call it at the same time. `number` is
  // the backend device that runs mesh device `device`. `ranks` are the ranks that share the mesh;
  // null if all devices belong to this process.
  virtual std::shared_ptr<Communicator> communicator([[maybe_unused]] const Dims& mesh,
                                                     [[maybe_unused]] int device,
                                                     [[maybe_unused]] int number,
                                                     [[maybe_unused]] RankGroup* ranks) {
    return nullptr;
  }
};

}  // namespace haliax::program
