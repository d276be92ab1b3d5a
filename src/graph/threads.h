// The number of threads that read graphs.
#pragma once

namespace haliax {

// Returns true if only this thread has ever been in a GraphReader. In: the caller is in a
// GraphReader; the result holds until it leaves, as no other thread can enter for the first time
// meanwhile.
bool is_single_threaded();

}  // namespace haliax
