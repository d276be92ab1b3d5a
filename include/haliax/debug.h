// Printing and checking values inside of traced functions: in `jit`, in loops and on meshes.
// Outside of `jit`, they run at once. Also checks of models. See docs/how-to/debugging.md.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "haliax/array.h"
#include "haliax/tree.h"

namespace [[gnu::visibility("default")]] haliax {
namespace debug {

/// A format string or a message, with the source location of the caller. Strings convert to it.
struct Text {
  std::string text;   ///< the string
  SourceLocation at;  ///< the line of the caller
  /// Converts a string.
  Text(const char* t, SourceLocation l = SourceLocation::current()) : text(t), at(l) {}
  Text(std::string t, SourceLocation l = SourceLocation::current()) : text(std::move(t)), at(l) {}
};

/// Prints values; `print` calls it with its arguments as arrays.
void print_all(const Text& text, const std::vector<NamedArray>& values);

/// Prints a line each time the values are computed: in each call, and in each iteration of a loop,
/// in the order of the code.
///
/// - Each `{}` of the text is replaced by one value, as `NamedArray::to_string`.
/// - On a mesh, a line is printed once, with unsharded values.
/// - Under `vmap`, one line shows all positions.
/// - Recomputation in the backward pass (`checkpoint`) prints nothing.
///
/// @param text    format string
/// @param values  arrays and C++ scalars
/// @throws haliax::Error if the number of `{}` is not the number of values, or inside
/// `chunked_reduce`, where no full value exists
///
///     debug::print("x is {}, the mean is {}", x, mean(x));
/// @see set_output
template <class... A> void print(Text text, const A&... values) {
  constexpr bool printable = (std::is_constructible_v<Arr, const A&, SourceLocation> && ...);
  static_assert(
      printable,
      "haliax: debug::print accepts arrays and numbers; format other values into its text.");
  if constexpr (printable) print_all(text, {Arr(values, text.at).array()...});
}

/// Raises an error when the program runs, if the condition is false at any position.
///
/// The message is `[check] text; file:line, in module`. Inside `jit`, the call of the jitted
/// function raises. Its results and its donated arguments are lost.
///
/// @param condition  bool array with any axes
/// @param text       message
/// @throws haliax::Error if the condition is not bool, or inside `chunked_reduce`
///
///     debug::check(max(x) < 1., "the state saturates");
void check(const Arr& condition, const Text& text);

/// Sets the function that receives each printed line, without its newline. Null: the standard
/// output.
void set_output(void (*line)(std::string_view));

/// A function of arrays that returns nothing. `callback` creates it.
class Receiver {
 public:
  virtual ~Receiver();
  /// Calls the function.
  virtual void receive(const std::vector<NamedArray>& values) const = 0;
};
/// A function for arguments of types `A`, with the source location of the caller. Functions convert
/// to it.
template <class... A> struct Callback {
  std::shared_ptr<const Receiver> receiver;  ///< the function
  SourceLocation at;                         ///< the line of the caller
  /// Converts a function.
  template <class F>
  Callback(F f, SourceLocation l = SourceLocation::current())
      : receiver(std::make_shared<const Holds<F>>(std::move(f))), at(l) {}

 private:
  template <class F> struct Holds final : Receiver {
    explicit Holds(F function) : f(std::move(function)) {}
    void receive(const std::vector<NamedArray>& values) const override {
      call(values, std::index_sequence_for<A...>());
    }
    template <std::size_t... K>
    void call([[maybe_unused]] const std::vector<NamedArray>& values,
              std::index_sequence<K...>) const {
      f(values[K]...);
    }
    F f;
  };
};
/// Calls a function with values; `callback` calls it with its arguments as arrays.
void call_all(std::shared_ptr<const Receiver> f, const std::vector<NamedArray>& values,
              SourceLocation at);

/// Calls `f` each time the values are computed: in each call, and in each iteration of a loop, in
/// the order of the code. The rules of `print` hold.
///
/// - `f` receives each value as an array whose value is known. On a mesh, it is called once, with
///   unsharded values.
/// - `f` runs on a thread of the program. It must not call a jitted function. If it raises, the
///   call of the jitted function raises.
///
/// @param f       function of as many arrays as there are values; its call operator must be const
/// @param values  arrays and C++ scalars
/// @throws haliax::Error if a value is empty, or inside `chunked_reduce`
///
///     debug::callback([](const NamedArray& loss) { log(loss.item()); }, loss);
template <class... A> void callback(Callback<std::type_identity_t<A>...> f, const A&... values) {
  call_all(std::move(f.receiver), {Arr(values, f.at).array()...}, f.at);
}

/// @name Checks of models
/// @{

/// Problems of the arrays of a model, as paths.
struct ModuleProblems {
  /// Arrays that are in two or more fields: the paths of each. Such fields diverge after the first
  /// update. Arrays whose elements are all equal do not count, since equal constants share memory.
  std::vector<std::vector<std::string>> reused;
  std::vector<std::string> in_static;         ///< static fields that hold arrays
  std::vector<std::string> non_finite;        ///< arrays with a NaN or an infinity
  std::vector<std::string> without_gradient;  ///< arrays without a gradient, or with one of zeros
  /// Returns true if there is no problem.
  bool empty() const;
};
/// Returns one line per problem; the empty string if there is none.
std::string to_string(const ModuleProblems& problems);

}  // namespace debug

namespace detail {
debug::ModuleProblems problems_of(const Walk& model, const Walk* gradients, SourceLocation);
void raise_problems(const debug::ModuleProblems&, SourceLocation);
}  // namespace detail

namespace debug {

/// Returns the problems of a model: arrays in several fields, arrays in static fields, and values
/// that are not finite. With gradients, also the arrays that have none.
///
/// Reads the values, except inside of a traced function. Arrays of integers and `Frozen` arrays
/// need no gradient.
///
/// @param model  tree; the gradients are a tree of the same structure
/// @throws haliax::Error if the structures differ
template <class T>
ModuleProblems module_problems(const T& model, SourceLocation at = SourceLocation::current()) {
  return haliax::detail::problems_of(walk_of(model, {.paths = true, .statics = true}), nullptr, at);
}
template <class T>
ModuleProblems module_problems(const T& model, const T& gradients,
                               SourceLocation at = SourceLocation::current()) {
  Walk w = walk_of(model, {.paths = true, .statics = true});
  Walk g =
      haliax::detail::walk_of_same_structure("diagnose_common_issues", w, model, gradients, at);
  return haliax::detail::problems_of(w, &g, at);
}
/// Raises an error that lists the problems of `module_problems`, if there are any.
///
///     debug::diagnose_common_issues(model);
///     debug::diagnose_common_issues(model, grad(loss)(model, batch));
template <class T>
void diagnose_common_issues(const T& model, SourceLocation at = SourceLocation::current()) {
  haliax::detail::raise_problems(module_problems(model, at), at);
}
template <class T>
void diagnose_common_issues(const T& model, const T& gradients,
                            SourceLocation at = SourceLocation::current()) {
  haliax::detail::raise_problems(module_problems(model, gradients, at), at);
}

/// @}

}  // namespace debug
}  // namespace haliax
