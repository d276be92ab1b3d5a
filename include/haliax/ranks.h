// Ranks: several processes that run one program together, for example under mpirun. Each rank owns
// some devices of a mesh, and the shards on these devices. Outside of meshes, each rank computes
// the same values independently. See docs/how-to/clusters.md.
#pragma once
#include <vector>

#include "haliax/array.h"

namespace [[gnu::visibility("default")]] haliax {

/// Returns the number of this rank, from 0. A program of one process has rank 0.
int this_rank();
/// Returns the number of ranks. A program of one process has 1.
int rank_count();

/// Returns true on all ranks if `mine` is true on at least one rank, for example to end training on
/// all ranks. All ranks must call it, at the same place of the program.
bool on_any_rank(bool mine, SourceLocation at = SourceLocation::current());

/// The block of an array on one device.
struct LocalShard {
  int device = 0;                   ///< Device of the mesh.
  std::vector<std::int64_t> start;  ///< Position of the first element in the full array, by axis.
  NamedArray value;                 ///< The block; its axes have local sizes.
  bool first = true;                ///< True on the first one of the devices that hold this block.
};
/// Returns the blocks of an array on the devices of this rank, without communication. An array that
/// is on no mesh is one block.
///
/// Reading a sharded array, for example with `NamedArray::floats`, is a collective: all ranks must
/// read it. Reading a replicated array, such as a loss, is local.
///
/// @throws haliax::Error if the array is empty
std::vector<LocalShard> local_shards(const NamedArray& array,
                                     SourceLocation at = SourceLocation::current());

}  // namespace haliax
