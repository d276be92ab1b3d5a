// The graph that a compilation works on: a copy that no other thread can access, or the graph
// itself if the process has one thread. In both cases, nodes with values become data.
#pragma once
#include <optional>

#include "graph/threads.h"
#include "transforms/rewrite.h"

namespace haliax {

// Lives as long as the compilation. Nodes that the compilation creates are private to it.
class OwnGraph {
 public:
  explicit OwnGraph(const Nodes& of) {
    reader_.emplace();
    if (is_single_threaded()) {
      roots = with_values_as_data(of);
    } else {
      own_.emplace();
      roots = copied(of);
      reader_.reset();
    }
  }
  Nodes roots;

 private:
  std::optional<GraphReader> reader_;
  std::optional<NodeDomainScope> own_;
};

}  // namespace haliax
