// Packed sequences: several documents in one sequence. `segments` (..., pos) has the number of the
// document of each token.
#pragma once
#include "haliax/haliax.h"

namespace models {

using namespace haliax;

// Returns a mask of earlier positions of the same document: (pos, key_pos, ...)
inline NamedArray packed_mask(const NamedArray& segments) {
  auto Pos = segments.resolve_axis("pos"), KeyPos = Pos.alias("key_pos");
  auto same = equal(broadcast_axis(segments, KeyPos), rename(segments, Pos, KeyPos));
  return nn::combine_masks_and(nn::causal_mask(Pos, KeyPos), same);
}
// Returns the positions of the tokens in their documents: (..., pos)
inline NamedArray packed_positions(const NamedArray& segments) {
  auto Pos = segments.resolve_axis("pos");
  auto starts = not_equal(segments, roll(segments, 1, Pos)) | equal(arange(Pos), 0);
  // The largest start so far: starts increase.
  auto latest = [](const NamedArray& a, const NamedArray& b) { return maximum(a, b); };
  auto from = associative_scan(latest, "pos", where(starts, arange(Pos), 0));
  return arange(Pos) - from;
}
// Returns the next tokens, and -100, which no loss counts, at the last token of each document.
inline NamedArray packed_targets(const NamedArray& ids, const NamedArray& segments) {
  auto Pos = ids.resolve_axis("pos");
  auto continues = equal(segments, roll(segments, -1, Pos)) & less(arange(Pos), Pos.size - 1);
  return where(continues, roll(ids, -1, Pos), -100);
}

}  // namespace models
