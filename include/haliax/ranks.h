// Several processes that run one program together, as mpirun starts them: ranks. Each has some of
// the devices of every mesh, and of an array on a mesh the blocks of those. Outside of meshes each
// computes for itself, and all compute the same.
#pragma once
#include <vector>

#include "haliax/array.h"

namespace [[gnu::visibility("default")]] haliax {

int this_rank();   // 0 where there is one
int rank_count();  // 1 where a process runs by itself

// True on all ranks where it is true on one: that a training ends, say. All ranks ask, in the same
// place.
bool on_any_rank(bool mine, SourceLocation = SourceLocation::current());

// A device's block of an array.
struct LocalShard {
  int device = 0;                   // of the mesh
  std::vector<std::int64_t> start;  // of its first element in the whole array, by axis
  NamedArray value;                 // the block; its axes are as long as it is
  bool first = true;                // of the devices that have the same block, it is the first
};
// The blocks of this rank's devices, without a word to the others. An array that does not lie on a
// mesh is one block. (To read an array whole, all ranks must ask for it, unless each has all of it:
// a loss may be printed by one.) Raises for an empty array.
std::vector<LocalShard> local_shards(const NamedArray&, SourceLocation = SourceLocation::current());

}  // namespace haliax
