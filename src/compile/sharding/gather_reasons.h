// Who asked for a gather: what reports print, and what `strict` goes by. Out: one reason for each
// gather of a plan, the first that fits; nothing in the plan is changed.
#pragma once
#include "compile/memory/purpose.h"
#include "compile/sharding/planner.h"

namespace haliax::partitioning {

class GatherReasons {
 public:
  GatherReasons(const Plan&, const GlobalGraph&, const Gradients* noted = nullptr);
  GatherReason reason(const Version& gather) const;
  const Purposes purposes;

 private:
  const Node& node(int n) const { return whole_.node(n); }
  void find_parameters(const Gradients*);
  bool by_parameter(const Version&, const Node& cause) const;
  bool between_blocks(const Version&) const;
  bool for_part(const Version&) const;
  bool by_view(const Version&) const;
  const Plan& plan_;
  const GlobalGraph& whole_;
  std::vector<char> of_parameters_;  // made of parameters alone, and positions
};

}  // namespace haliax::partitioning
