// The reason for each all-gather of a plan, for reports and for the option `strict`.
//
// Out     one reason per gather: the first one that applies. The plan does not change.
#pragma once
#include "compile/analysis/purpose.h"
#include "compile/sharding/global_graph.h"
#include "compile/sharding/plan.h"
#include "compile/sharding/report/planned_collectives.h"

namespace haliax::partitioning {

class GatherReasons {
 public:
  GatherReasons(const Plan&, const GlobalGraph&);
  GatherReason reason(const Version& gather) const;
  const analysis::Purposes purposes;

 private:
  const Node& node(int n) const { return graph_.node(n); }
  void find_parameters();
  bool is_of_parameter(const Version&, const Node& cause) const;
  bool is_blockwise_intermediate(const Version&) const;
  bool is_read_by_every_shard(const Version&) const;
  bool is_returned_view(const Version&) const;
  const Plan& plan_;
  const GlobalGraph& graph_;
  std::vector<char> of_parameters_;  // per node: computed from parameters and positions alone
};

// Returns the number of all-gathers that no result, constraint or rule requires.
std::ptrdiff_t unrequested_gathers(const Plan&, const GlobalGraph&);

}  // namespace haliax::partitioning
