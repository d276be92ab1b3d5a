// `Lowering`: the state of one lowering, which is the places of values and the steps that compute
// them. One object writes one Program. Scopes (the top, bodies of loops) nest.
//
// Always  a value has a place from the time its steps are written to the end of its scope; all
//         values that steps read have a place.
#pragma once
#include "compile/analysis/modules.h"
#include "compile/loops/early_exit.h"
#include "compile/lower/fuse.h"
#include "compile/lower/layout.h"
#include "compile/lower/lower.h"
#include "compile/analysis/purpose.h"
#include "graph/emit.h"

namespace haliax {

class Lowering final : public Emit {
 public:
  Lowering(program::Program& program, const LowerOptions& options,
           const analysis::Purposes& purposes, const analysis::Modules& modules,
           const Layouts& layouts, const IterationParts& iteration_parts)
      : p_(program), options_(options), purposes_(purposes), modules_(modules), layouts_(layouts),
        iteration_parts_(iteration_parts), steps_(&program.steps) {}

  // Sets the values whose rows are aligned (`Machine::row_alignment`) if the values are large.
  void align(std::unordered_set<const Node*> rows) { aligned_ = std::move(rows); }
  int new_slot(std::int64_t bytes, const char* purpose, program::Home home = program::Home::arena,
               int index = -1);
  Place in_slot(int slot, const NodePtr&) const;  // row-major, covering all of the slot
  void set_place(const Node* n, Place p);  // the value has this place to the end of the scope
  void lower_scope(const std::vector<Target>&);

  bool is_placed(const Node& n) const { return places_.count(&n) > 0; }
  // Returns true if a unit of this scope computes the node.
  bool is_computed(const Node& n) const { return scope_ && scope_->unit_of.count(&n) > 0; }
  Place place_of(const NodePtr&);  // raises if the value is not stored in memory

  // ---- Emit ----
  Place operand(std::size_t k) override { return place_of(current_node_->in[k]); }
  Place result() override { return result_; }
  void zero(const Place&, const Axes&) override;
  void fill(const Place&, const Axes&, const NodePtr& number) override;
  void copy(const Place& from, const Place& to, const Axes&) override;
  void push(program::Step) override;
  program::Term term(const NodePtr& start, std::int64_t stride, std::int64_t limit) override;

 private:
  // Pushes a step whose body consists of the steps that `emit` pushes.
  template <class F> void push_with_body(program::Step step, const F& emit) {
    auto* outer = std::exchange(steps_, &step.body);
    emit();
    steps_ = outer;
    push(std::move(step));
  }
  // Pushes a conditional on this flag.
  template <class F> void conditional(const Place& flag, const F& emit) {
    push_with_body({.kind = program::Kind::conditional, .conditional = {view(flag, {}, {})}}, emit);
  }
  // A value or a part of it, with its place.
  struct Placed {
    Place place;
    Axes axes;
  };
  // Returns `size` positions of an axis. The first one is `start`, and moves by `size` positions
  // per iteration of the loop with this variable (-1: no loop).
  static Placed block_of(Placed, Name axis, std::int64_t size, std::int64_t start,
                         int variable = -1);

  // ---- lowering.cpp ----
  Place fresh(const Axes&, DType, const char* purpose = "activations");
  // Returns the same place with its axes in another order.
  static Place reordered(Place, const Axes& of, const Axes& as);
  Place fresh_for(const NodePtr&);  // in the axis order and row alignment that suit its readers
  // Copies a view that strides cannot express to this place.
  Place copied(const NodePtr&, const Place& to);
  // Returns the place of a value that is computed next: the place of its first target, or new
  // memory.
  Place target_place(const NodePtr&);
  // Returns the place of a value inside the concatenation or reordered result that alone reads it,
  // so that the value is written directly to its final location. For example, given y = concat(x,
  // z), x is computed in the first rows of y. Returns no place if strides cannot
  // express it.
  Place place_in_reader(const NodePtr&, const Scope::InReader&);
  static Place place_of_operand(const Node& view, const Place&);
  static bool suits_matmul(const Node& contraction, const Place&);
  // Returns the target that the value is added to, if the value has one target and no other place.
  // Null otherwise.
  const Target* accumulation(const NodePtr&) const;
  bool in_memory(const NodePtr&) const;
  void forget(std::size_t from);  // removes the places that were set after index `from` of `added_`
  void lower_unit(const Unit&);
  void lower_node(const NodePtr&);
  void lower_collective(const NodePtr&);
  void lower_ring(const NodePtr&);
  void push_contract(const Placed& out, const Placed& a, const Placed& b, bool accumulate);
  void lower_masked_matmul(const Node&, bool add);
  void lower_masked_blocks(const Node&, const Placed& out, const Placed& a, const Placed& b,
                           bool add);
  void copy_into(const Unit&);  // copies a value in memory, or a view of one, into a target
  void lower_kernel(const Unit&);
  // ---- loop.cpp ----
  struct LoweredLoop;  // the state of a loop while it is lowered
  void lower_loop(const NodePtr&);
  void copy_strided_operands(const Loop&);
  void lower_body(const LoweredLoop&, std::size_t b, bool deferred);
  void lower_part(const IterationPart&, const NodePtr& flag, const LoweredLoop&, std::size_t b);
  void lower_part_values(const IterationPart&, const LoweredLoop&, std::size_t b);
  void start_from(const NodePtr& start, const Place& to, const Axes&);
  // Returns the place of one iteration's entry in a stacked result.
  Place iteration_block(const Place& stack, const Loop&, const NodePtr& index, Axes value);

  program::Program& p_;
  const LowerOptions options_;
  std::unordered_set<const Node*> aligned_;  // see `align`
  const analysis::Purposes& purposes_;
  const analysis::Modules& modules_;  // for reports
  const Layouts& layouts_;
  const IterationParts& iteration_parts_;
  std::vector<program::Step>* steps_;
  Places places_;
  std::vector<const Node*> added_;  // keys of `places_`, in order of insertion
  Places reader_places_;            // concatenations that have a place before they are computed
  // Loop index -> loop variable, or -1 if the index has a single value.
  std::unordered_map<const Node*, int> variables_;
  Nodes retained_;  // results of loops and collectives; their addresses are keys of `places_`
  Scope* scope_ = nullptr;
  const Node* current_node_ = nullptr;  // the node that is lowered, for reports
  Place result_;
  bool accumulating_ = false;
};

}  // namespace haliax
