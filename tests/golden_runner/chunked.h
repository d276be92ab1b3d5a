// The group `chunked`: a cross entropy that never holds all logits gives the same for any chunk size.
#pragma once
#include "case.h"

namespace golden {

// Every setting of chunks: of tokens or of the vocabulary.
Problems check_chunked(const Group&, const Value& c);
// How many of the case's settings are tiles of both.
int tiles_of(const Value& c);

}  // namespace golden
