// What ends a process.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace haliax::testing {

// The signal that ends a child which does f; 0: none.
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
