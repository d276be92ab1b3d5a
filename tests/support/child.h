// A process that a test has forked.
#pragma once

namespace test {

// Set in a child: the stacks of its parent's threads are gone, and what only they knew of is no leak.
extern bool is_child;

}  // namespace test
