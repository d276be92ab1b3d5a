// How many threads there are that read graphs.
#pragma once

namespace haliax {

bool one_thread();   // so far: no other has been inside a GraphReader. In a GraphReader; as long as it lasts no other comes.

}  // namespace haliax
