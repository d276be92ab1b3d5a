// Errors of work that several processes share, and of work that learns its location in the user's
// code from its caller.
#pragma once
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "graph/fail.h"
#include "graph/node.h"
#include "io/file.h"
#include "io/process_group.h"

namespace haliax {

// Hides the latest call of the library: errors without a location do not name it.
class HideLastCall {
 public:
  HideLastCall() : last_(std::exchange(context().last_call, {})) {}
  ~HideLastCall() { context().last_call = last_; }
  HideLastCall(const HideLastCall&) = delete;

 private:
  SourceLocation last_;
};

// Calls f. Errors of f become errors of `op` at the location `at`. Unlike in a CallSite, f is not a
// graph reader.
template <class F> auto with_location(const char* op, SourceLocation at, const F& f) {
  try {
    HideLastCall hide;
    return f();
  } catch (const Error& e) {
    CallSite here(at);
    fail(op, without_op(e.what()));
  }
}

// Calls f on each process and returns the results of all processes, by rank. If f raises on any
// process, raises on all of them, with the rank of that process.
std::vector<std::string> on_all_processes(const ProcessGroup&, std::string (*call)(void*), void* f);
template <class F> std::vector<std::string> on_all_processes(const ProcessGroup& group, F f) {
  auto call = [](void* g) -> std::string {
    if constexpr (std::is_void_v<decltype(f())>) {
      (*static_cast<F*>(g))();
      return std::string();
    } else
      return (*static_cast<F*>(g))();
  };
  return on_all_processes(group, call, &f);
}

}  // namespace haliax
