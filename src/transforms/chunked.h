// chunked_reduce, as it is traced: f on the whole arrays, between two kinds of borders. What goes
// in `enter`s the region, what comes out `leave`s it, and a cotangent enters where a value leaves.
#pragma once
#include <functional>

#include "haliax/chunked.h"
#include "transforms/rewrite.h"

namespace haliax {

// bytes, or what is read if that is more
inline constexpr std::int64_t kUsualBudget = std::int64_t(32) << 20;
// What the borders of a chunked_reduce say. Equal ones are the same region, so that what two losses
// of one array share is shared.
struct ChunkKey {
  Name axis;                          // of this border
  std::int64_t size = 0, memory = 0;  // of the axis; in bytes, 0: the default
  int depth = 0, inside = 0;          // loops around the call; other calls around it
  int form = 0, keep = 0;             // a ChunkForm, a ChunkKeep
  int after = 0;  // alike calls that it waits for, one after another: each is a region of its own
  bool reverse = false;  // the last chunk first
  int blocks = 1;        // devices that share the axis, each a part of it
  // a region of attention scores, which the compiler found: its boundaries may be dropped
  bool scores = false;
  Names tiled_axes;                  // all walked axes
  std::vector<std::int64_t> chunks;  // of each; none: from the memory
  Attr attr() const;
  static ChunkKey of(const Attr&);
  bool same_call(const ChunkKey&) const;
};

// What nodes between these borders, of nodes with inputs first, call the walked axis, which f may
// have renamed. A fold along it is not among them: what follows lies outside.
std::unordered_map<const Node*, Name> tiled_axis_names(const Nodes& all, const Attr& key);
// How many alike calls, one after another, lie below: x waits for them. What they make is not of
// this call's region.
int preceding_calls(const Nodes& x, ChunkKey call);
// The roots, of one level, with borders around what lies inside: the new ones come after the old
// ones.
Nodes with_boundaries(const Nodes& roots, const Nodes& level, const Node* index,
                      const std::function<bool(const NodePtr&)>& inside, const Attr& key);
// devices of the mesh in scope that the mapping cuts it for
int blocks_of(Name axis, const Mapping*);

// f, traced between borders: its results, the same as nodes, and what the borders say.
struct TracedChunks {
  Leaves results;
  Nodes outs;
  ChunkKey call;
  std::vector<Attr> boundaries;  // one for each walked axis that has positions
};
TracedChunks trace_chunks(const AxisSelection&, const ChunkOptions&, const Leaves& xs,
                          detail::LeafFunction f);

}  // namespace haliax
