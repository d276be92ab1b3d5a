// Effects: actions of the host on computed values, such as printing them. Only the next effect
// reads the result of an effect. Effects therefore stay alive, and in order, as long as the last
// one does: a trace makes the last effect a result of its program, and a loop carries it from
// iteration to iteration.
#pragma once
#include "graph/loop.h"

namespace haliax {

struct Effect : Payload {
  std::shared_ptr<const program::HostCall> call;
};
extern const Op kEffect;
// Appends an effect after the effects that the context already has.
void add_effect(Nodes values, std::shared_ptr<const program::HostCall>);
// Runs the effects that are ready: outside of jit, if they depend on no argument and on no loop
// index. created: results of the same loop, which are evaluated together with its effects; reading
// them later would run the loop again. Must not be called while these results are traced, since
// nodes keep their inputs then.
void run_ready_effects(const std::vector<NamedArray>& created = {});

// Collects effects while the body of a loop is traced: the effects of an iteration follow those of
// the previous iteration.
class LoopEffects {
 public:
  explicit LoopEffects(NodeRef index);
  void close();  // ends the body: later effects are outside of the loop
  NodeRef last() const { return last_; }
  void replace_last(NodeRef n) { last_ = n; }
  bool any() const { return last_ && last_ != carry_; }
  void add_to(Loop&) const;  // adds the last effect as a result, if there is one
  // Continues after the effects of `loop`, if its results contain any.
  static void after(NodeRef loop);

 private:
  NodePtr before_, carry_, last_;
};

}  // namespace haliax
