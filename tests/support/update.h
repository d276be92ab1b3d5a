#pragma once

namespace haliax::test {

bool updates();   // was this program called with --update: are files of expected text to be written anew?

}  // namespace haliax::test
