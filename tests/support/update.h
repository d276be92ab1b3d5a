#pragma once

namespace haliax::test {

// was this program called with --update: are files of expected text to be written anew?
bool updates();

}  // namespace haliax::test
