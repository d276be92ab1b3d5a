// Who may look at how nodes were made. `op`, `in` and `attr` of a node that users can reach are
// read by many threads at once, and changed by one alone: by who has its value, and makes it forget
// how it was made.
//
// Every op reads for the length of its call (Here). A function of the user's runs outside, so that
// it may wait for other threads; and so does the compiler, which works on nodes that nobody else
// knows (`copied`, transforms/rewrite.h).
#pragma once

namespace haliax {

// For the length of a scope; again inside another on the same thread it does nothing.
class GraphReader {
 public:
  GraphReader() noexcept { enter(); }
  ~GraphReader() { leave(); }
  GraphReader(const GraphReader&) = delete;
  static void enter() noexcept;
  static void leave() noexcept;
};
// Nobody reads for the length of a scope. Not inside a reader.
class GraphWriter {
 public:
  GraphWriter() noexcept;
  ~GraphWriter();
  GraphWriter(const GraphWriter&) = delete;
};
// Inside a reader: for the length of a scope this thread reads no more.
class OutsideGraph {
 public:
  OutsideGraph() noexcept;
  ~OutsideGraph();
  OutsideGraph(const OutsideGraph&) = delete;

 private:
  int depth_;
};

}  // namespace haliax
