// chunked_reduce: regions of a graph, computed chunk by chunk.
//
// In: a graph in which borders (prim::enter, prim::leave) mark what a call of chunked_reduce walks,
// forward and backward, after differentiation. Out: loops over chunks in place of the regions, and
// no borders. Always: the values are those of the whole graph, as what is cut is the graph of the
// whole function; what keeps the walked axis is made chunk by chunk, what folds it becomes a result
// of a loop, what follows a fold reads its final value; a region whose op needs the whole axis is
// refused by name. Bytes beside results and gradients stay within the budget of the call.
#pragma once
#include "compile/chunk/defer_normalization.h"
#include "compile/chunk/search.h"

namespace haliax {

// Products that are narrow, but read as f32 from a region, which sums them or gives them out, are
// made so.
Nodes f32_matmuls(const Nodes& roots);
// Regions of calls in `depth` loops, and in deeper ones, become loops. `uncut`: lines for people,
// of calls that stay whole. rounds: the keys of scores are walked in as many blocks as there are
// devices that share the queries.
Nodes cut_chunks(const Nodes& roots, const ChunkTrial&, int depth, bool rounds,
                 std::vector<std::string>* uncut);
// are there scores between borders whose queries several devices share?
bool shares_queries(const Nodes& roots);
// Raises, where the call is written, if what lies between these borders cannot be cut, or not in
// the bytes given.
void check_chunks(const Nodes& outs, const ChunkKey& call, const std::vector<Attr>& borders,
                  const ChunkTrial&);

}  // namespace haliax
