// The group `chunked`: a cross entropy that never holds all logits gives the same for any chunk
// size.
#pragma once
#include "case.h"

namespace golden {

// Every setting of chunks: of tokens, of the vocabulary, in tiles of both. Each is checked by
// `check`.
Problems check_chunked(const Group&, const Value& c, const Check& = check);

}  // namespace golden
