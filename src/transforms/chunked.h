// Tracing of chunked_reduce: f on the full arrays, between two kinds of region boundaries. Inputs
// `enter` the region, results `leave` it, and a cotangent enters where a value leaves.
#pragma once
#include <algorithm>
#include <functional>

#include "haliax/chunked.h"
#include "transforms/rewrite.h"

namespace haliax {

// The attributes of the boundaries of a region. Equal attributes mean the same region, so that two
// losses of one array share their common parts.
struct ChunkKey {
  Name axis;                          // tiled axis of this boundary
  std::int64_t size = 0, memory = 0;  // size of the axis; budget in bytes, 0: the default
  int depth = 0, inside = 0;          // loops around the call; other chunked calls around it
  int form = 0, keep = 0;             // values of ChunkForm and ChunkKeep
  // Number of equal calls on which this call depends, one after another: each is a region of its
  // own.
  int after = 0;
  bool reverse = false;  // last chunk first
  int blocks = 1;        // number of devices that share the axis, a block each
  // A region of attention scores that the compiler found. Its boundaries may be dropped.
  bool scores = false;
  Names tiled_axes;                  // all tiled axes of the call
  std::vector<std::int64_t> chunks;  // chunk size per tiled axis; empty: derived from the memory
  Attr attr() const;
  static ChunkKey of(const Attr&);
  bool same_call(const ChunkKey&) const;
};
// Returns the budget, in bytes, of a call that requests none. input_bytes: the arrays that the
// region reads.
inline std::int64_t default_budget(std::int64_t input_bytes) {
  return std::max(ChunkOptions::default_memory, input_bytes);
}

// Returns the name of the tiled axis in each node between these boundaries, since f may rename the
// axis. `all`: nodes with inputs first. A reduction over the axis is not among them: nodes that
// read it are outside of the region.
std::unordered_map<const Node*, Name> tiled_axis_names(const Nodes& all, const Attr& key);
// Returns the number of equal calls, one after another, on which x depends. Their values do not
// belong to the region of this call.
int preceding_calls(const Nodes& x, ChunkKey call);
// Returns the roots with boundaries around the nodes of one level for which `inside` is true. New
// boundaries are placed after existing ones.
Nodes with_boundaries(const Nodes& roots, const Nodes& level, const Node* index,
                      const std::function<bool(NodeRef)>& inside, const Attr& key);
// Returns the number of devices in the mesh in scope among which the mapping shards the axis.
int blocks_of(Name axis, const Mapping*);

// f traced between boundaries: its results, their nodes, and the attributes of the boundaries.
struct TracedChunks {
  Leaves results;
  Nodes outs;
  ChunkKey call;
  std::vector<Attr> boundaries;  // one per tiled axis with more than one position
};
TracedChunks trace_chunks(const AxisSelection&, const ChunkOptions&, const Leaves& xs,
                          detail::LeafFunction f);

}  // namespace haliax
