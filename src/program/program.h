// What a backend may see: steps over slots of memory. No axis, no name and no op of the graph is
// left here.
//
// Every value lives in a slot. A slot is an argument, a result, or a range of the arena whose place
// plan_memory has fixed. A View says how a step walks over a slot. Loops are steps that hold steps.
// Numbers of a loop (its turns) reach the views and the instructions inside it as terms: offset +=
// value of the loop variable * stride.
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

// offset of element (i0, i1, ...) = offset + sum(i * strides) + sum over terms; all in elements.
struct Term {
  // a loop variable: its value, 0 ... trips-1 (counting down when the loop is reversed), times
  // stride
  int loop = -1;
  // or a scalar in memory (i32, i64 or u32) when the step runs, clamped to [0, limit], times stride
  int slot = -1;
  DType slot_dtype = DType::i32;
  std::int64_t slot_offset = 0, limit = 0;
  std::int64_t stride = 0;
  friend bool operator==(const Term&, const Term&) = default;
};
struct View {
  int slot = -1;
  DType dtype = DType::f32;
  std::int64_t offset = 0;
  Dims strides;  // one for each dimension of the step; 0 = broadcast; may be negative
  std::vector<Term> terms;
  friend bool operator==(const View&, const View&) = default;
};

struct Instr {
  Code code;
  DType dtype = DType::f32;
  int args[4] = {-1, -1, -1, -1};  // earlier instructions
  bool inner = false;  // one value for each inner point (else: one for each outer point)
  double number = 0;
  std::int64_t integer = 0;
  int dim = -1;             // iota
  std::int64_t stride = 1;  // iota
  View view = {};           // load, store; of iota only the loop terms
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
  skip,
  custom,
  host
};

// For each outer point, runs the instructions in order; inner ones over all inner points. dims =
// outer dims, then inner dims.
struct Fused {
  Dims dims;
  int outer = 0;  // how many of dims are outer
  std::vector<Instr> code;
};
// out[batch, m, n] = (accumulate ? out : 0) + sum over k of a[batch, m, k] * b[batch, k, n]. Each
// of batch, m, n, k may be several dims; view strides are in the order batch, m, n, k (0 where the
// operand lacks it). Sums are f32 for bf16 and f16, else of out's dtype.
struct Contract {
  // Which blocks of a product are worth making: what the others add is 0, or nobody reads their
  // part of out. Who does not ask makes all.
  struct BlockMask {
    struct Flags {
      std::int64_t size = 0, stride = 0;  // positions of a block; from its flag to the next one's
      // that they are of; 1 where they do not go along it
      std::int64_t blocks(const Dims& side) const;
    };
    View flags;     // bool: the first, for all points; slot -1: all blocks are
    Flags m, n, k;  // along the only dim of each; size 0: the flags do not go along it
    // out has to be 0, or what it is, where the flags say no: somebody multiplies it with 0
    bool zero = false;
  };
  Dims batch, m, n, k;
  View a, b, out;
  bool accumulate = false;
  BlockMask block_mask = {};
};
// out[...] = table[... with the indexed dims at the ids]. dims = the dims of out. For each indexed
// table axis: ids view (over dims), the stride of that axis in the table, its size. Outside: what
// an index outside of [0, size) gives; negative ones count from the end. fill: NaN, or the least
// integer (largest if unsigned)
enum class Outside : std::uint8_t { fill, clamp, zero };
struct Indexed {
  View ids;
  std::int64_t stride = 0, size = 0;
};
struct Gather {
  Dims dims;
  View table, out;
  std::vector<Indexed> indexed;
  Outside outside = Outside::fill;
};
// target[... at ids] op= updates, in row-major order of the dims, which are those of updates.
// Indices outside are dropped (or clamped).
enum class Update : std::uint8_t { set, add, mul, min, max };
struct Scatter {
  Dims dims;
  View updates, target;  // the target holds its start value already
  std::vector<Indexed> indexed;
  Update update = Update::add;
  bool clamp = false;
};
// Stable ascending sort of x along the last dim of dims; NaN last. `out` (values) and `indices` may
// each be absent (slot -1).
struct Sort {
  Dims dims;
  View x, out, indices;
};
// Inclusive running sum, product, max or min along the last dim.
struct Cumulative {
  Dims dims;
  View x, out;
  Monoid monoid = Monoid::sum;
  bool reverse = false;
};
// Plain copy of a strided view (dtypes equal). Also how a carry moves on to the next turn.
struct Copy {
  Dims dims;
  View x, out;
};
enum class CollectiveKind : std::uint8_t { all_reduce, reduce_scatter, all_gather, exchange };
struct Operand {
  Dims dims;  // on this device
  View view;
};
// A box of elements that goes from one device to another. To and from itself too: `sends` and
// `receives` of two devices that are about each other stand in the same order.
struct BoxTransfer {
  int device = 0, array = 0;  // the other one; which of x (sends) or out (receives)
  Dims start, dims, step;     // in the sender's x, or in the receiver's out, where all steps are 1
};
// What an exchange may leave out: but for `nothing`, a flag of this device (bool, without dims)
// stands behind its arrays in x.
enum class SkipFlag : std::uint8_t {
  nothing,
  unread,  // where the flag is false, nothing of what the device receives is read
  zeros,   // where it is false, all that the device sends is 0
};
// Several arrays at once, over the devices of one group of a mesh: all those that differ only along
// the mesh axes in `over`, in rank order. An exchange is said box by box; the others make out[k] of
// x[k].
struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::vector<int> over;  // mesh axes, major to minor
  int ranks = 1;          // how many devices their product is (of an exchange: not said)
  Monoid monoid = Monoid::sum;
  std::vector<Operand> x, out;
  // for each array: which dim is cut (reduce_scatter) or joined (all_gather)
  std::vector<int> dim;
  // and its whole size: blocks are ceil(size / ranks), the last may be short
  std::vector<std::int64_t> size;
  std::vector<BoxTransfer> sends, receives;
  SkipFlag skip_flag = SkipFlag::nothing;  // who does not ask sends all, which is as right
  double sent_bytes = 0;                   // per device on a ring
  // only started here: done where the step Finish of this number is; -1: done here
  int call = -1;
};
// Waits for the call of this number that was started last, if one was. From its start to here no
// step writes x or touches out. Who has no calls that go on beside the work makes them where they
// start, and has nothing to do here.
struct Finish {
  int call = 0;
  std::vector<View> x, out;  // the call's arrays, without dims
};
// The rest of a loop's turn is left out where the flag (bool, without dims) is false.
struct Skip {
  View unless;
};
// A function of the user's (haliax/custom_op.h), called at each point of the first `outer` dims
// with the elements there of all arrays, the sizes of the other dims, none of which is 0, and each
// array's strides along those. See program/custom.h.
using CustomRun = void (*)(void* const* data, const std::int64_t* sizes,
                           const std::int64_t* const* strides) noexcept;
struct Custom {
  Dims dims;
  int outer = 0;
  std::vector<View> arrays;  // operands, and last the result, which shares no memory with them
  CustomRun run = nullptr;
};
// What the host is asked to do with values, such as to print them. It may raise; the program ends
// then.
struct HostCall {
  virtual ~HostCall() = default;
  // of each, its element (0, 0, ...)
  virtual void run(const std::vector<Operand>&, const void* const* data) const = 0;
};
struct Host {
  std::vector<Operand> arrays;
  std::shared_ptr<const HostCall> call;
  bool once = true;  // by the first device of a mesh; else by each
};
struct Step;
// Turns of a loop with lanes touch nothing of each other's: several may run at a time, each in a
// lane. What lives within a turn, and scratch of the steps in it, lies in `parallel_slot_bytes` of
// the arena from `parallel_slot_start` on; lane k has those bytes k * parallel_slot_bytes further
// on. If the body is one loop with lanes, that has none of its own, and all turns of both may run
// at a time. Who has no lanes runs turn by turn, in the first one.
struct Loop {
  // the number that terms refer to; -1: none do, it is a part of a turn that may end by itself
  int variable = 0;
  std::int64_t trips = 0;
  bool reverse = false;
  // its turns are those of the loop before, which were left out there: counted with it
  bool continues_previous = false;
  std::vector<Step> body;  // (without an initializer: clang wants the whole type for one)
  int parallel_slots = 0;  // at most so many turns at a time; 0: one after another
  std::int64_t parallel_slot_start = -1, parallel_slot_bytes = 0;  // set by plan_memory
};

struct Step {
  Kind kind = Kind::fused;
  // One of these, by kind. (Plain members rather than a variant: a backend reads them by name, and
  // a Program is small.)
  Fused fused = {};
  Contract contract = {};
  Gather gather = {};
  Scatter scatter = {};
  Sort sort = {};
  Cumulative cumulative = {};
  Copy copy = {};
  Skip skip = {};
  Collective collective = {};
  Finish finish = {};
  Custom custom = {};
  Host host = {};
  Loop loop = {};
  const char* op = "";     // op that it comes from
  std::string where = {};  // file:line, module path: for reports
  // byte offset in the arena, aligned, of `scratch_bytes` that this step may use
  std::int64_t scratch = -1;
  std::int64_t scratch_bytes = 0;
};

// of offsets in the arena, and of the arena itself
inline constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
enum class Home : std::uint8_t { argument, result, arena };
struct Slot {
  std::int64_t bytes = 0;
  Home home = Home::arena;
  int index = -1;            // which argument or result
  std::int64_t offset = -1;  // in the arena, aligned; set by plan_memory
  // the slot in whose memory it lies (an in-place update; a donated argument); -1: its own
  int alias = -1;
  const char* purpose = "";  // parameters, activations, ...: for reports
  // what a gather or a ring brought: read in that turn, never kept (see check_gathered)
  bool gathered = false;
};

struct Use {
  const char* purpose = "";
  std::int64_t bytes = 0;
};

// Every result has its own memory, given by the caller, unless its slot aliases a donated argument.
struct Program {
  std::vector<Slot> slots;
  std::vector<Step> steps;
  int arguments = 0, results = 0;  // how many
  std::vector<int> argument_slots, result_slots;
  std::vector<int> donated;      // result number that took over argument i, or -1
  std::int64_t arena_bytes = 0;  // everything but arguments and results
  std::int64_t peak_bytes = 0;   // arena + results that alias nothing
  // of the arena when most of it is in use, and the gaps: all together arena_bytes
  std::vector<Use> at_peak;
  int loops = 0;                   // how many loop variables there are
  int calls = 0;                   // how many numbers of calls that are started and finished
  int device = 0;                  // which device of the mesh this program is for
  int backend_device = 0;          // which of the backend's devices runs it
  std::vector<std::int64_t> mesh;  // sizes of the mesh axes; empty: one device
  // what runs it, as errors that are found late name it: jit at train.cpp:12
  std::string called = {};
  Slot& slot(int k) { return slots[std::size_t(k)]; }
  const Slot& slot(int k) const { return slots[std::size_t(k)]; }
  // the slot in whose memory a slot lies: its own, or that of another (Slot::alias)
  int memory(int slot) const {
    while (slots[std::size_t(slot)].alias >= 0) slot = slots[std::size_t(slot)].alias;
    return slot;
  }
};

std::string to_string(const Program&);
std::int64_t points(const Dims&);  // their product
Dims row_major(const Dims&);       // strides of an array that lies in one piece
Dims dims_of(const Step&);         // that all its views are walked over
// of contractions, turn by turn; no turn twice (Loop::again)
double multiplications(const std::vector<Step>&);
int count_contractions(const std::vector<Step>&);  // steps, those of each loop's body once

// A backend turns a Program into something that runs. A few virtual classes are all there is at
// this border.

// Memory of a device: its address, 64-byte aligned, which the host may not touch unless the device
// says so. When the last holder lets go it is given back, in order with the device's work: what was
// asked of the device before may still use it.
using Memory = std::shared_ptr<void>;
// The elements at the points of dims, in two arrays that share no memory; strides in elements, from
// the element (0, 0, ...).
struct Box {
  Dims dims;
  std::int64_t width = 1;  // of an element, in bytes
  void* to = nullptr;
  Dims to_strides;
  const void* from = nullptr;
  Dims from_strides;
};
void copy_on_host(const Box&);

// What time costs on a device, in multiplications, for estimates: what a product is bound by, and
// what finds its data in caches.
struct Machine {
  double multiplications_per_byte = 8;  // of traffic with memory
  // of what is used again soon, but lies further away than `near`
  double multiplications_per_far_byte = 4;
  double cache = 8 << 20;  // bytes: what is used turn after turn and fits stays
  // bytes: what a step leaves in the caches of the cores, where the next one finds it
  double core_cache = 2 << 20;
  double max_parallel_slot_bytes =
      0;  // bytes: what a turn of a loop with lanes may hold; 0: there are no lanes
  // of scores: a turn makes tiles of them by itself, so their keys need not be walked
  bool tiles_score_rows = false;
  double relative_cost_16bit = 1. / 3;  // of a multiplication in bf16 or f16
  // Positions of a block that a product in f32, and in bf16, leaves out (Contract::shown); 0: none.
  int mask_block = 0, mask_block_bf16 = 0;
  int mask_block_vector = 0;  // that a product of a vector and a matrix leaves out, in either
  double step_cost = 0;       // of each step that is run, whatever it does
  // bytes: rows of large arrays that products read or make begin at a multiple of these
  int row_alignment = 1;
};

// One device of a mesh speaks to the others. Which of them take part in a call follows from the
// Collective and from the Program's mesh and device number: all that differ from this one only
// along the mesh axes in `over`, in rank order. Every device makes its calls in the order of its
// Program; calls over other mesh axes may lie between. Threads of one process are one
// implementation; processes or accelerators with a library of their own are others. A simulated
// mesh has none: it is planned and never run.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // x, out: element (0, 0, ...) of each array; memory of out is none of x. scratch: of the step, as
  // the Device has asked for it. In order with the device's work: blocks until done, or is queued
  // where the work is. Takes strides as they are or packs, and keeps no pointer for longer. Sums
  // are taken in the arrays' dtype, of narrow floats in f32; in any order, but all ranks have the
  // same bits, in every run (threads: in rank order). Raises if another device has failed, rather
  // than wait.
  virtual void run(const Collective&, const void* const* x, void* const* out, void* scratch,
                   std::int64_t scratch_bytes) = 0;
  // As run, beside the work where the communicator can: it may return before x is read and out is
  // written, and the caller touches neither until it has finished that call. Calls are made in the
  // order in which they are started or run. Returns the call's number, larger each time.
  virtual std::int64_t start(const Collective& c, const void* const* x, void* const* out,
                             void* scratch, std::int64_t scratch_bytes) {
    run(c, x, out, scratch, scratch_bytes);
    return 0;
  }
  // Waits until all calls up to this number are done, and raises what went wrong in them.
  virtual void finish([[maybe_unused]] std::int64_t call) {}
  // This device will make no more calls, because of an error: those of others that wait for it
  // raise.
  virtual void fail(const char* why) = 0;
};
class Executable {
 public:
  virtual ~Executable() = default;  // also where what was run is still queued
  // Pointers for each argument and each result (null for a result that aliases a donated argument),
  // in the device's memory. The arena is arena_bytes large and 64-byte aligned. Several threads may
  // call it at once, with an arena each; it makes no allocation, but where more of them do than
  // ever before. Where the device is not the host it may return early: results are there for `get`,
  // `copy` and later runs, in order. An error that is found late raises at the next run or get on
  // that device, and names what was called (Program::called) and the step, if known; so do all that
  // follow. With a step of kind host, or a Communicator that blocks, it returns when it is done.
  virtual void run(const std::vector<void*>& arguments, const std::vector<void*>& results,
                   void* arena, Communicator*) = 0;
};
class RankGroup;  // program/ranks.h
// One or several devices of a kind. Program::number says which of them runs a Program: device d of
// a mesh is number d, and where ranks share the mesh, those of a host take numbers of their own.
class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const = 0;
  // Asked of each step before plan_memory: a Program with one that it cannot run is refused.
  // Functions of the user's want memory of the host.
  virtual bool supports(const Step& s) const { return s.kind != Kind::custom; }
  // Scratch that a step wants inside the plan, in bytes (oneDNN scratchpads, partial sums). Asked
  // before plan_memory. `workers`: as if there were so many threads; 0: as many as there are.
  virtual std::int64_t scratch_bytes(const Step&, [[maybe_unused]] int workers) const { return 0; }
  // Of a loop whose turns touch nothing of each other's: how many of these turns (those of the
  // loops it is made of, if there are several) run at a time, each in memory of its own, which
  // takes about parallel_slot_bytes. 0: one after another, step by step. workers: as above.
  virtual int parallel_slots([[maybe_unused]] const Loop&, [[maybe_unused]] std::int64_t turns,
                             [[maybe_unused]] std::int64_t parallel_slot_bytes,
                             [[maybe_unused]] int workers) const {
    return 0;
  }
  virtual Machine machine() const { return {}; }
  virtual std::unique_ptr<Executable> compile(std::shared_ptr<const Program>) = 0;

  // Is its memory the host's? Then a mesh may have any number of them, runs return when they are
  // done, and nothing below is asked.
  virtual bool is_host() const { return true; }
  virtual int devices() const { return 1; }
  // What follows is for a device, by its number, and may be called by several threads at once. put,
  // get and copy are in order with its runs, and raise as they do. not written yet; raises where
  // there is not enough
  virtual Memory allocate(std::int64_t bytes, int device);
  // from the host, whose memory may change when it returns
  virtual void put(const Box&, int device);
  virtual void get(const Box&, int device);   // to the host; waits for what was asked for before
  virtual void copy(const Box&, int device);  // both are its own
  // Speaks to the others of a mesh with these sizes of axes, all of which ask at the same time.
  // Number runs what `device` of the mesh does; ranks: that share the mesh, null: it is all here.
  // Null: the runtime carries what they say, as for the host.
  virtual std::shared_ptr<Communicator> communicator([[maybe_unused]] const Dims& mesh,
                                                     [[maybe_unused]] int device,
                                                     [[maybe_unused]] int number,
                                                     [[maybe_unused]] RankGroup* ranks) {
    return nullptr;
  }
};

}  // namespace haliax::program
