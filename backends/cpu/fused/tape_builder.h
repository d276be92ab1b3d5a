// Plan: adds values and ops to the tapes of a fused step.
#pragma once
#include <map>
#include <tuple>

#include "analyzed_step.h"

namespace haliax::cpu {

// A tape of the plan: level p of the inner tapes, or one of these.
enum TapeId : int { constant_tape = -3, prologue_tape = -2, outer_tape = -1 };

// The operands of a map.
struct MapOperands {
  int n = 0;
  int values[4] = {-1, -1, -1, -1};
  bool scalar[4] = {};  // one value for all elements; with by_row: one value per row
  bool by_row = false;  // the map runs row by row; two operands, of these extents
  Extent extents[2] = {Extent::full, Extent::full};
};

class TapeBuilder {
 public:
  TapeBuilder(AnalyzedStep& step, FusedPlan& plan) : step_(step), plan_(plan) {}

  // Sets the level of the outer tape.
  void set_level(int level) { level_ = level; }
  int level() const { return level_; }
  Tape& tape(int id);
  Tape& inner_tape() { return tape(level_); }
  // Returns the tape for an instruction that, if it is an inner one, belongs to inner tape `inner`.
  static int tape_of(const InstrFacts&, int inner);

  int new_value(int tape, LaneType);
  // Adds an op with a new result. The reference is valid until the next op.
  Op& push(int tape, Op::Kind, Extent, LaneType);
  int constant(const program::Instr&);
  int map(int tape, program::Code, Extent, LaneType from, DType result, const MapOperands&);
  // Rounds the value, or wraps it, to a dtype that is narrower than its lane type.
  void wrap(int tape, int value, Extent, DType);
  int convert(int value, Extent, DType from, DType to, int tape);
  int recast_bits(int value, Extent, DType from, DType to, int tape);

  // Returns the value of instruction i, broadcast to `extent`. Adds an op for it to the tape,
  // unless the broadcast value exists already.
  int filled(int i, Extent extent, int tape);
  void forget_filled() { filled_.clear(); }
  std::int64_t points(Extent e) const { return points_of(e, plan_.outer_box, plan_.inner_box); }

 private:
  AnalyzedStep& step_;
  FusedPlan& plan_;
  int level_ = 0;
  std::map<std::tuple<int, Extent, int>, int> filled_;
};

// Returns the kernel, or raises an error if it is null.
Kernel need(Kernel, const char* what);

}  // namespace haliax::cpu
