// Kernel: emits the machine code of the nests of loop_nest.h.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "backends/cpu/assemble/vector_ops.h"
#include "loop_nest.h"

namespace haliax::cpu {

// The registers of a function that runs nests: r15: the Frame; rbx: the addresses of the slots;
// rbp: the loop variables; r14: constants. rax and rcx are free within an instruction sequence.
// Each access of a nest has a cursor: its address (or the value of an iota) at the current position
// of the counted loops, in a register or on the stack.
class NestCode : public VectorOps {
 protected:
  NestCode(std::size_t bytes, bool avx512) : VectorOps(bytes, avx512) {}

  static constexpr int max_cursors = 48, max_depth = 16;
  // The stack: cursors and counters, pointers and masks of calls, vectors of calls, two values of
  // MXCSR.
  static constexpr int pointers_at = 8 * (max_cursors + max_depth), masks_at = pointers_at + 88,
                       vectors_at = masks_at + 16, mxcsr_at = vectors_at + 64 * 37,
                       stack_bytes = mxcsr_at + 16;

  void emit_nest(const Nest&);
  void emit_matmul(const MatmulNest&);
  // Sets a register to the offset that the terms of a view add, in units of `unit` bytes, plus its
  // own value.
  void add_terms(const Xbyak::Reg64& to, const std::vector<program::Term>&, std::int64_t unit);
  void add_number(const Xbyak::Reg64& to, std::int64_t);
  void write_tables();
  void set_constants_register() { lea(r14, ptr[rip + constants_label_]); }

 private:
  // ---- cursors and counted loops ----
  struct Cursor {
    const NestAccess* access = nullptr;
    std::int64_t unit = 1;    // bytes per element; 1 for an iota
    std::int64_t offset = 0;  // the position in unrolled loops, in bytes
  };
  Xbyak::Reg64 cursor_register(int cursor) const;
  bool is_on_stack(int cursor) const { return cursor >= registers_for_cursors; }
  Address on_stack(int cursor) { return qword[rsp + 8 * cursor]; }
  // Returns a register with the cursor: its own, or rax.
  Xbyak::Reg64 loaded(int cursor);
  void start_cursors(std::vector<const NestAccess*>);
  void move_cursors(std::size_t dim, std::int64_t positions);
  // Calls f, which emits code, for each position of the dims [first, last), except the dim of the
  // lanes and row_.
  void each_position(int first, int last, const std::function<void()>& f);
  // Calls f for the registers along the dim of the lanes.
  void each_register(const std::function<void()>& f);
  // Emits a loop of `count` iterations around the code that f emits.
  void counted(std::int64_t count, const std::function<void()>& f);
  // Emits the code of f once, with all cursors displaced by `positions` along a dim. Displacements
  // are constants in the addresses.
  void unrolled(std::size_t dim, std::int64_t positions, const std::function<void()>& f);
  // Limits vector accesses to the first `elements` lanes; 0: all lanes.
  void set_rest(std::int64_t elements);

  // ---- values ----
  Address array_address(int access) override;
  Address bf16_address(int access) override { return array_address(access); }
  Xbyak::RegExp scalar_address(int scalar) override;
  void load_other(const Vector&, int value) override;
  Xbyak::Label& lane_table(std::int64_t stride) { return lane_tables_[stride]; }
  int constant(std::uint32_t bits);

  // ---- nests ----
  // Sums of f32 values in f64: of the lower and the upper half of the lanes.
  struct F64Sum {
    Vector low, high;
  };
  struct Accumulator {
    int value;  // the reduction
    program::Code code;
    F64Sum sum;  // max and min: f32 in `low` only
  };
  void begin(const Dims&, int vector);
  // True if a reduction adds the lanes of a register.
  bool reduces_lanes() const { return vector_ < 0 || nest_->reduces(vector_); }
  void reset_registers();
  void emit_outer_position();
  // Emits the chosen instructions for one register.
  void emit_values(const std::vector<bool>& chosen, std::vector<Accumulator>*);
  void emit_instr(int value);
  void emit_function(int value);  // without rounding to bf16
  void emit_store(int value);
  void emit_bf16_store(const Vector&, int access, bool is_single);
  void combine_with_target(const program::Instr& store, const Vector& to, const Vector& x,
                           int access);
  void place_leaf(int value);
  std::vector<bool> inner_values(int level, int last_level) const;
  void all_or_rest();
  void load_target(const Vector&, int access, std::int64_t stride);
  void load_far(const Vector&, int access, std::int64_t stride);
  void load_far_bf16(const Vector&, int access, std::int64_t stride);
  Xbyak::RegExp far_address(int access);
  void scatter(const Vector&, int access, std::int64_t stride);
  void scatter_bf16(const Vector&, int access, std::int64_t stride);
  void each_eight(const std::function<void(int first, int last)>& f);

  // ---- calls: nest_calls.cpp ----
  void emit_register_kernel(RegisterKernel, const MapCode::Op&, int value);
  void emit_kernel(Kernel, const MapCode::Op&, int value);
  Address vector_slot(int k);   // operands, the result, registers
  Address pointer_slot(int k);  // addresses of operands, cursors
  void save_registers();
  void restore_registers();
  void each_live_register(const std::function<void(int)>& f);
  void each_live_mask(const std::function<void(int)>& f);

  // ---- reductions: nest_sums.cpp ----
  Accumulator start(int value);
  void accumulate(Accumulator&);
  void finish_reduction(Accumulator&);
  void combine_lanes(const Accumulator&);
  Xbyak::Xmm lower_half(const Vector&) const;
  void upper_half(const Vector& to, const Vector& z);
  void combine(program::Code, const Vector& to, const Vector& x);

  F64Sum zero_sum();
  void add_as_f64(const F64Sum&, const Vector&);
  void round_to_f32(const F64Sum&);
  void add_lanes(const F64Sum&);

  // ---- matmuls: nest_matmuls.cpp ----
  // Registers of the result: the last column has `rest` elements, if it is not full.
  struct ResultBlock {
    int rows, columns;
    std::int64_t rest;
    // Several sets of sums hide the latency of an addition in a small block. All blocks of a nest
    // have as many, so that equal rows have equal sums.
    std::size_t sets;
    bool is_part(int column) const { return rest > 0 && column == columns - 1; }
    std::size_t size() const { return std::size_t(rows * columns); }
  };
  void each_block(std::size_t dim, std::int64_t count, std::int64_t width, int most,
                  const std::function<void(int, bool)>& f);
  void each_group(int first, const std::function<void(std::int64_t)>& f);
  void emit_block(const MatmulNest&, const ResultBlock&);
  // A register of memory, converted to f64.
  struct F64Values {
    Temporary low, high;
    F64Values(NestCode&, const Address&, bool is_part);
  };
  std::vector<Vector> sum_exactly(const MatmulNest&, const ResultBlock&);
  void add_exact_products(const ResultBlock&, std::span<const F64Sum>);
  std::vector<Vector> sum_in_groups(const MatmulNest&, const ResultBlock&);
  void sum_group(const ResultBlock&, std::span<const Vector> parts, std::int64_t count);
  void add_products(const ResultBlock&, std::span<const Vector> sums, bool is_first);
  void emit_dot(const MatmulNest&);
  void add_group(const F64Sum&);
  Address block_address(int cursor, int row, int column);

  static constexpr int registers_for_cursors = 9;
  std::vector<Cursor> cursors_;
  Dims dims_;
  int vector_ = -1, row_ = -1;  // dims that each_position skips
  int depth_ = 0;               // counted loops around the current position
  std::int64_t copies_ = 1;     // copies of the code in the innermost counted loop
  int elements_ = 1;            // elements in the current register: all lanes, or fewer
  const Nest* nest_ = nullptr;
  std::map<std::uint32_t, int> constants_;
  std::vector<std::uint32_t> constant_list_;
  std::map<std::int64_t, Xbyak::Label> lane_tables_;
  Xbyak::Label constants_label_, rest_label_;
};

}  // namespace haliax::cpu
