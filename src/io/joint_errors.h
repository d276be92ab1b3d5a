// Errors of work that processes share, and of work whose place in the user's code is known only
// outside of it.
#pragma once
#include <string>
#include <type_traits>
#include <vector>

#include "graph/fail.h"
#include "io/file.h"
#include "io/process_group.h"

namespace haliax {

// f, whose errors are of `op` and of that place. Not all of f reads the graph, as it would inside
// of Here.
template <class F> auto with_location(const char* op, SourceLocation at, const F& f) {
  try {
    return f();
  } catch (const Error& e) {
    CallSite here(at);
    fail(op, without_op(e.what()));
  }
}

// Each process does f, and gets what f gives in all of them, by rank. Raises in all of them if it
// raises in any, and says in which.
std::vector<std::string> on_all_processes(const ProcessGroup&, std::string (*call)(void*), void* f);
template <class F> std::vector<std::string> on_all_processes(const ProcessGroup& group, F f) {
  auto call = [](void* g) -> std::string {
    if constexpr (std::is_void_v<decltype(f())>) {
      (*static_cast<F*>(g))();
      return std::string();
    }

    else
      return (*static_cast<F*>(g))();
  };
  return on_all_processes(group, call, &f);
}

}  // namespace haliax
