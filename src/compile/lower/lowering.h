// Lowering at work: where values lie, and the steps that make them. One object writes one Program;
// scopes (the top, bodies of loops) nest. Always: a place is known from when its steps are written
// to the end of the scope; what steps read has a place.
#pragma once
#include "compile/loops/loops.h"
#include "compile/lower/fuse.h"
#include "compile/lower/layout.h"
#include "compile/lower/lower.h"
#include "compile/memory/purpose.h"
#include "graph/emit.h"

namespace haliax {

class Lowering final : public Emit {
 public:
  Lowering(program::Program& p, const LowerOptions& o, const Purposes& u, const Layouts& l,
           const IterationParts& t)
      : p_(p), options_(o), purposes_(u), layouts_(l), iteration_parts_(t), steps_(&p.steps) {}

  // of those that are large (Machine::row)
  void align(std::unordered_set<const Node*> rows) { aligned_ = std::move(rows); }
  int new_slot(std::int64_t bytes, const char* purpose, program::Home home = program::Home::arena,
               int index = -1);
  Place in_slot(int slot, const NodePtr&) const;  // row-major, all of it
  void set_place(const Node* n, Place p);         // the value lies there, to the end of the scope
  void scope(const std::vector<Target>&);         // makes the targets

  bool is_placed(const Node& n) const { return places_.count(&n) > 0; }
  // by a unit of this scope
  bool is_computed(const Node& n) const { return scope_ && scope_->unit_of.count(&n) > 0; }
  Place place_of(const NodePtr&);  // raises for what does not lie in memory

  // ---- Emit ----
  Place operand(std::size_t k) override { return place_of(now_->in[k]); }
  Place result() override { return result_; }
  void zero(const Place&, const Axes&) override;
  void fill(const Place&, const Axes&, const NodePtr& number) override;
  void copy(const Place& from, const Place& to, const Axes&) override;
  void push(program::Step) override;
  program::Term term(const NodePtr& start, std::int64_t stride, std::int64_t limit) override;

 private:
  struct Placed {
    Place place;
    Axes axes;
  };  // a value, or a part of one, and where it lies
  using Moves = std::vector<std::pair<Place, Place>>;  // of carries, at the end of a turn

  // ---- lowering.cpp ----
  Place fresh(const Axes&, DType, const char* purpose = "activations");
  // the same place, its axes in another order
  static Place reordered(Place, const Axes& of, const Axes& as);
  Place fresh_for(const NodePtr&);  // in the order, and the rows, that suit its readers
  Place copied(const NodePtr&);     // a view that strides cannot say
  // of what is made now: its first target, or memory of its own
  Place target_place(const NodePtr&);
  // a part, or what is reordered, is made where it will lie
  Place joined_place(const NodePtr&, const Scope::Joined&);
  // the value is added to its one target, and lies nowhere else
  const Target* accumulation(const NodePtr&) const;
  bool in_memory(const NodePtr&) const;
  void forget(std::size_t from);  // what has been placed since
  void unit(const Unit&);
  void single(const NodePtr&);
  void collective(const NodePtr&);
  void ring(const NodePtr&);
  void contract(const Placed& out, const Placed& a, const Placed& b, bool accumulate);
  void masked_matmul(const Node&, bool add);
  void masked_blocks(const Node&, const Placed& out, const Placed& a, const Placed& b, bool add);
  void copy_into(const Unit&);  // a value that is in memory, or a view of one, into a target
  void kernel(const Unit&);
  // ---- loop.cpp ----
  struct LoweredLoop;  // a loop while it is lowered
  void loop(const NodePtr&);
  void body(const LoweredLoop&, std::size_t b, bool deferred);
  void iteration_part(const IterationPart&, const NodePtr& ends, const LoweredLoop&, std::size_t b,
                      Moves&);
  void start_from(const NodePtr& start, const Place& to, const Axes&);
  // of a stacked result
  Place iteration_block(const Place& whole, const Loop&, const NodePtr& index, const Axes& value);

  program::Program& p_;
  const LowerOptions options_;
  std::unordered_set<const Node*> aligned_;  // see align
  const Purposes& purposes_;
  const Layouts& layouts_;
  const IterationParts& iteration_parts_;
  std::vector<program::Step>* steps_;
  Places places_;
  std::vector<const Node*> added_;  // to places_, in order
  Places joined_;                   // concatenations that have a place before they are made
  // loop index -> loop variable, or -1 where it is one number
  std::unordered_map<const Node*, int> variables_;
  Nodes kept_alive_;  // results of loops and collectives, whose addresses are known
  Scope* scope_ = nullptr;
  const Node* now_ = nullptr;  // what is lowered, for reports
  Place result_;
  bool accumulating_ = false;
};

}  // namespace haliax
