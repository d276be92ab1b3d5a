// The group `chunked`: a cross entropy that never materializes all logits is equal for any chunk
// size.
#pragma once
#include "case.h"

namespace golden {

// Checks every chunking with `check`: chunks of tokens, of the vocabulary, and tiles of both.
Problems check_chunked(const Group&, const Value& c, const Check& = check);

}  // namespace golden
