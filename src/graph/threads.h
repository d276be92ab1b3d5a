// How many threads there are that read graphs.
#pragma once

namespace haliax {

// so far: no other has been inside a GraphReader. In a GraphReader; as long as it lasts no other
// comes.
bool is_single_threaded();

}  // namespace haliax
