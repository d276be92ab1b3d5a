// What is compiled: a copy of the graph, which no other thread knows; or the graph itself, if there
// is no other thread. In either what has a value is data.
#pragma once
#include <optional>

#include "graph/threads.h"
#include "transforms/rewrite.h"

namespace haliax {

// For the length of a compilation, of which nodes that it makes are its own.
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
