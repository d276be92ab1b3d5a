// The lock of the graph. `op`, `in` and `attr` of a node that users can reach are read by many
// threads. Only detach() changes them, in a GraphWriter, after the node has a value.
//
// Every op is a reader for the length of its call (CallSite). A user's function runs outside of the
// lock, so that it may wait for other threads. The compiler runs outside as well, since it works on
// a private copy of the nodes (`copied`, transforms/rewrite.h).
#pragma once

namespace haliax {

// A reader for the length of a scope. Nested readers of one thread have no effect.
class GraphReader {
 public:
  GraphReader() noexcept { enter(); }
  ~GraphReader() { leave(); }
  GraphReader(const GraphReader&) = delete;
  static void enter() noexcept;
  static void leave() noexcept;
};
// An exclusive writer for the length of a scope. Must not be nested in a reader.
class GraphWriter {
 public:
  GraphWriter() noexcept;
  ~GraphWriter();
  GraphWriter(const GraphWriter&) = delete;
};
// Releases the read lock of this thread for the length of a scope.
class OutsideGraph {
 public:
  OutsideGraph() noexcept;
  ~OutsideGraph();
  OutsideGraph(const OutsideGraph&) = delete;

 private:
  int depth_;
};

}  // namespace haliax
