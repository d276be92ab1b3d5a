// An effect: something that the host does with values when they are there, such as to print them.
// Nothing reads its result but the effect after it, so that effects are alive, and in order, as
// long as the last one is: a trace makes that one a result of its program, a loop carries it from
// turn to turn.
#pragma once
#include "graph/loop.h"

namespace haliax {

struct Effect : Payload {
  std::shared_ptr<const program::HostCall> call;
};
extern const Op kEffect;
// After what the context has to do already.
void add_effect(Nodes values, std::shared_ptr<const program::HostCall>);
// What can be done now, is: outside of jit, if no value depends on what is still to come. `made`:
// what the same loop gives; it is computed with its effects, or reading it would run the loop
// again. Not to be called while that is traced: nothing is forgotten then.
void run_ready_effects(const std::vector<NamedArray>& made = {});

// For a loop while its body is traced: effects of a turn come after those of the turn before.
class LoopEffects {
 public:
  explicit LoopEffects(const NodePtr& index);
  void close();  // the body is traced: what follows is around the loop again
  const NodePtr& last() const { return last_; }
  void replace_last(const NodePtr& n) { last_ = n; }
  bool any() const { return last_ && last_ != carry_; }
  void add_to(Loop&) const;  // one more result, if there are effects: the last of them
  static void after(const NodePtr& loop);  // whose results say that there are

 private:
  NodePtr before_, carry_, last_;
};

}  // namespace haliax
