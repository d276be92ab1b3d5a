// The signal that ends a child process.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace haliax::testing {

// Returns the signal that ends a child process that runs f; 0 if no signal ends it.
template <class F> int ends_by(const F& f) {
  auto child = fork();
  if (child == 0) {
    for (int s : {SIGSEGV, SIGBUS}) std::signal(s, SIG_DFL);
    f();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace haliax::testing
