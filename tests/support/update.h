// The --update flag of the test programs.
#pragma once

namespace haliax::test {

// Returns true if the program runs with --update, which writes the files of expected text again.
bool updates();

}  // namespace haliax::test
