// The group `chunked`: a cross entropy that never holds all logits gives the same for any chunk size.
#pragma once
#include "case.h"

namespace golden {

// Every chunk size that cuts the tokens alone, and one in place of each that cuts the vocabulary as well.
Problems check_chunked(const Group&, const Value& c);
// How many of the case's chunk sizes cut the vocabulary, which the library does not do yet.
int cuts_of_vocabulary(const Value& c);

}  // namespace golden
