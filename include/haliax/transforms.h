// Functions of functions. Each traces f once on the arrays it is given and builds more graph;
// nothing runs here. Arguments and results are trees: arrays, modules, vectors, pairs and tuples of
// them.
#pragma once
#include <optional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "haliax/array.h"
#include "haliax/tree.h"

namespace [[gnu::visibility("default")]] haliax {

// What a loop keeps for its gradient, or makes again in the backward pass.
struct ScanCheckpoint {
  enum class Policy : std::uint8_t {
    none,     // keep what the gradient reads (the fastest)
    carries,  // keep the carries, make the body again
    // keep every sqrt(n)-th carry: least memory, the body is made again twice, its sums over
    // devices once
    nested,
  };
  static constexpr bool is_static = true;
  Policy policy = Policy::none;
  ScanCheckpoint() = default;
  ScanCheckpoint(Policy p) : policy(p) {}
  ScanCheckpoint(bool on) : policy(on ? Policy::carries : Policy::none) {}
  // "none", "carries" ("full", "recompute"), "nested"; raises otherwise.
  ScanCheckpoint(const char* name, SourceLocation = SourceLocation::current());
  friend bool operator==(const ScanCheckpoint&, const ScanCheckpoint&) = default;
};
struct ScanOptions {
  ScanCheckpoint checkpoint = {};
  bool reverse = false;  // the last position first; stacked results stay in their places
  // the body is traced for this many positions a turn; the size of the axis or more: no loop at all
  std::int64_t unroll = 1;
  SourceLocation at = SourceLocation::current();
};

struct Context;

namespace detail {

// A function of trees, seen as a function of leaves.
struct LeafFunction {
  void* self;
  Leaves (*call)(void* self, const Leaves& in);
  Leaves operator()(const Leaves& in) const { return call(self, in); }
};
struct BodyFunction {
  void* self;
  void (*call)(void* self, const Leaves& carry, const Leaves& xs, Leaves& next, Leaves& out);
};
class Tracing {  // something is being traced, as long as this lives; then all is as before
 public:
  Tracing();
  ~Tracing();
  Tracing(const Tracing&) = delete;

 private:
  std::shared_ptr<Context> before_;
};
// Leaves that no other array equals, with the same values: what a gradient is taken by. Others than
// floats, and frozen ones, stay.
Leaves tracers(const Leaves&, const std::vector<bool>& frozen,
               const std::vector<std::string>& paths);
// Cotangents of wrt (empty: none); wrt that are no tracers give empty ones.
Leaves gradients(const NamedArray& loss, const Leaves& wrt, SourceLocation);
Leaves pullback(const Leaves& ys, const Leaves& gs, const Leaves& wrt, SourceLocation);
std::pair<Leaves, Leaves> jvp(LeafFunction, const Leaves& primals, const Leaves& tangents,
                              SourceLocation);
struct Vmap {  // one axis hidden from what f sees
  Vmap(const AxisSelector&, SourceLocation);
  Leaves hide(const Leaves&);  // leaves that have the axis; learns its size
  Leaves show(const Leaves&);  // the axis, first, in each
  AxisSelector axis;
  SourceLocation at;
  Name hidden;
  std::int64_t size = -1;
};
std::pair<Leaves, Leaves> scan(const AxisSelector&, const ScanOptions&, const Leaves& init,
                               const std::vector<std::string>& paths, const Leaves& xs,
                               BodyFunction);
Leaves checkpoint(LeafFunction, const Leaves& in, SourceLocation);
Leaves custom_vjp(LeafFunction forward, const Leaves& in, std::shared_ptr<void> backward,
                  Leaves (*call)(void*, const Leaves& in, const Leaves& out,
                                 const Leaves& cotangents));
Leaves eval_shape(LeafFunction, const Leaves& in);
std::pair<NamedArray, NamedArray> first_and_rest(const NamedArray&, const AxisSelector&,
                                                 // the first position; the others
                                                 SourceLocation);
Leaves associative_scan_leaves(const AxisSelector&, const Leaves& xs, BodyFunction, bool reverse,
                               SourceLocation);

// `tree` with tracers in place of its float arrays, or of those of them that are chosen.
template <class T> Walk traced(T& tree, const LeafFilter& wrt = {}, SourceLocation at = {}) {
  Walk w = walk_of(tree, {.paths = true});
  auto left_out = w.frozen;
  if (!wrt.all()) {
    left_out = trainable_of(w, wrt.chosen("grad", w, at));
    left_out.flip();
  }

  w.assign(tracers(w.leaves(), left_out, w.paths));
  return w;
}
// What f gives for such arguments; void, and one sentence, where it cannot be called so.
template <class F, class... A> constexpr auto call_result() {
  constexpr bool takes = std::is_invocable_v<F, const A&...>;
  static_assert(takes,
                "haliax: a function that is traced is called with what it takes; arguments are "
                "passed as const.");
  if constexpr (takes) {
    using R = std::decay_t<std::invoke_result_t<F, const A&...>>;
    // a transform that gives nothing
    constexpr bool told = requires { typename std::remove_cvref_t<F>::TransformedFunction; };
    static_assert(
        !std::is_void_v<R> || told,
        "haliax: a function that is traced gives its results; what it assigns to captures "
        "has no value.");
    return std::type_identity<R>();
  } else {
    return std::type_identity<void>();
  }
}
template <class F, class... A> using CallResult = typename decltype(call_result<F, A...>())::type;
// f on what a tuple holds: std::apply, which is four functions for each f, in two.
template <class F, class... A> decltype(auto) spread(const F& f, const std::tuple<A...>& args) {
  return [&]<std::size_t... I>(std::index_sequence<I...>)->decltype(auto) {
    if constexpr (std::is_member_pointer_v<F>)
      return std::apply(f, args);
    else
      return f(std::get<I>(args)...);
  }
  (std::index_sequence_for<A...>());
}
// A call of f, whose arguments are the tuple `like`, as a function of leaves. What it gave is kept,
// for its structure.
template <class F, class A, class R> struct LeafCall {
  const F* f;
  A like;
  std::optional<R> out = {};
  LeafFunction function() {
    return {this, [](void* self, const Leaves& in) {
              auto& c = *static_cast<LeafCall*>(self);
              c.out = spread(*c.f, unflatten(c.like, in));
              return flatten(*c.out);
            }};
  }
};
// What a transform makes of f: it takes what f takes, and jit, which asks for that, finds f here.
template <class F, class Call> struct TransformOf : Call { using TransformedFunction = F; };
template <class F, class Call> TransformOf<F, Call> transform_of(Call call) {
  return {std::move(call)};
}
// A gradient by a plain number is one by the scalar that it becomes.
template <class T>
using Differentiable = std::conditional_t<std::is_arithmetic_v<T>, NamedArray, T>;
template <class T> struct with_aux : std::false_type {};
template <class A> struct with_aux<std::pair<NamedArray, A>> : std::true_type {};

// Does a turn of a scan take and give what it must? One sentence if not.
template <class R, class C> struct is_turn : std::false_type {};
template <class C, class Y> struct is_turn<std::pair<C, Y>, C> : std::true_type {};
template <class F, class C, class... X> constexpr bool check_turn() {
  constexpr bool takes = std::is_invocable_v<const F&, const C&, const X&...>;
  static_assert(takes,
                "haliax: the function of a scan takes the carry, and then a position of each of "
                "the arrays scanned.");
  if constexpr (takes) {
    constexpr bool gives =
        is_turn<std::decay_t<std::invoke_result_t<const F&, const C&, const X&...>>, C>::value;
    static_assert(gives,
                  "haliax: the function of a scan gives a std::pair: the next carry, which has the "
                  "type of the first one "
                  "(start from a NamedArray, not from a number), and what is stacked.");
    return gives;
  }
  return false;
}

template <class F, class C, class... X> constexpr bool check_fold() {
  constexpr bool takes = std::is_invocable_v<const F&, const C&, const X&...>;
  static_assert(
      takes,
      "haliax: the function of a fold takes the carry, and then a position of each of the arrays.");
  if constexpr (takes) {
    constexpr bool keeps = std::is_same_v<std::invoke_result_t<const F&, const C&, const X&...>, C>;
    static_assert(keeps,
                  "haliax: the function of a fold gives the next carry, which has the type of the "
                  "first one (start from "
                  "a NamedArray, not from a number).");
    return keeps;
  }
  return false;
}

}  // namespace detail

// ---- gradients: with respect to the first argument, a tree ----
// f(model, args...) -> a 0-d array, or a pair of it and anything else. The gradient has the type of
// the model; leaves that are no floats (and Frozen ones) have empty gradients, and with `wrt` all
// others that it does not choose: value_and_grad(loss, "lora").
template <class F>
auto value_and_grad(F f, const LeafFilter& wrt, SourceLocation at = SourceLocation::current()) {
  return detail::transform_of<F>([f, wrt, at](const auto& model, const auto&... args) {
    using T = detail::Differentiable<std::decay_t<decltype(model)>>;
    if constexpr (!std::is_void_v<
                      detail::CallResult<const F&, T, std::decay_t<decltype(args)>...>>) {
      detail::Tracing tracing;
      T mine = model;
      Walk w = detail::traced(mine, wrt, at);
      auto value = f(std::as_const(mine), args...);
      static_assert(
          std::is_same_v<decltype(value), NamedArray> || detail::with_aux<decltype(value)>::value,
          "haliax: what a gradient is taken of gives a NamedArray, or a std::pair of it and "
          "anything else.");
      const NamedArray* loss = nullptr;
      if constexpr (detail::with_aux<decltype(value)>::value)
        loss = &value.first;
      else if constexpr (std::is_same_v<decltype(value), NamedArray>)
        loss = &value;
      auto g = detail::gradients(*loss, w.leaves(), at);
      return std::pair{std::move(value), unflatten(T(model), g)};
    }
  });
}
template <class F> auto value_and_grad(F f, SourceLocation at = SourceLocation::current()) {
  return value_and_grad(std::move(f), LeafFilter(), at);
}
template <class F>
auto grad(F f, const LeafFilter& wrt, SourceLocation at = SourceLocation::current()) {
  return detail::transform_of<F>(
      [vg = value_and_grad(f, wrt, at)](const auto& model, const auto&... args) {
        if constexpr (!std::is_void_v<decltype(vg(model, args...))>) {
          auto r = vg(model, args...);
          if constexpr (detail::with_aux<decltype(r.first)>::value)
            return std::pair{r.second, r.first.second};
          else
            return r.second;
        }
      });
}
template <class F> auto grad(F f, SourceLocation at = SourceLocation::current()) {
  return grad(std::move(f), LeafFilter(), at);
}
// f(x) and its pullback: a function from cotangents of the result, which have its axes, to the
// cotangent of x.
template <class F, class T>
auto vjp(F f, const T& x, SourceLocation at = SourceLocation::current()) {
  using X = detail::Differentiable<T>;
  auto mine = std::make_shared<X>(x);
  Walk w = detail::traced(*mine);
  auto y = f(std::as_const(*mine));
  auto pull = [mine, wrt = w.leaves(), ys = flatten(y), like = X(x),
               at](const decltype(y)& cotangent) {
    return unflatten(like, detail::pullback(ys, flatten(cotangent), wrt, at));
  };
  // What the caller reads forgets how it was made; the pullback keeps the other one.
  Walk out = walk_of(y);
  out.assign(detail::tracers(out.leaves(), std::vector<bool>(out.arrays.size()),
                             std::vector<std::string>(out.arrays.size())));
  return std::pair{std::move(y), std::move(pull)};
}
// f(x) and its derivative along the tangent, which has the axes of x: the gradient of the gradient,
// so that every op has one.
template <class F, class T>
auto jvp(F f, const T& primal, const T& tangent, SourceLocation at = SourceLocation::current()) {
  using X = detail::Differentiable<T>;
  using R = detail::CallResult<F&, X>;
  if constexpr (!std::is_void_v<R>) {
    struct Call {
      F* f;
      X like;
      std::optional<R> out;
    } c{&f, X(primal), {}};
    auto [ys, ts] = detail::jvp({&c,
                                 [](void* self, const Leaves& in) {
                                   auto& call = *static_cast<Call*>(self);
                                   call.out = (*call.f)(unflatten(call.like, in));
                                   return flatten(*call.out);
                                 }},
                                flatten(c.like), flatten(X(tangent)), at);
    return std::pair{unflatten(*c.out, ys), unflatten(*c.out, ts)};
  }
}

// ---- vmap: f written for one, run for all positions of an axis ----
// Arrays that have the axis are seen without it; others are passed whole. Results have it first. An
// Axis that no argument has is fine.
template <class F>
auto vmap(F f, const AxisSelector& axis, SourceLocation at = SourceLocation::current()) {
  return detail::transform_of<F>([f, axis, at](const auto&... args) {
    if constexpr (!std::is_void_v<detail::CallResult<const F&, std::decay_t<decltype(args)>...>>) {
      detail::Tracing tracing;
      detail::Vmap v(axis, at);
      std::tuple<std::decay_t<decltype(args)>...> in(args...);
      Walk w = walk_of(in);
      w.assign(v.hide(w.leaves()));
      auto out = detail::spread(f, in);
      Walk r = walk_of(out);
      r.assign(v.show(r.leaves()));
      return out;
    }
  });
}

// ---- loops ----
// scan(f, axis)(init, xs...): f(carry, xs at one position...) -> (carry, y). Arrays of xs that have
// the axis are sliced, others (and the carry) passed whole. The carry keeps its axes, their order
// and its dtypes. Result: the last carry, and the y with the axis first.
template <class F> auto scan(F f, const AxisSelector& axis, ScanOptions options = {}) {
  return [f, axis, options](const auto& init, const auto&... xs) {
    using C = std::decay_t<decltype(init)>;
    using X = std::tuple<std::decay_t<decltype(xs)>...>;
    if constexpr (detail::check_turn<F, C, std::decay_t<decltype(xs)>...>()) {
      using R = std::decay_t<decltype(f(init, xs...))>;
      using Y = typename R::second_type;
      struct Call {
        const F* f;
        C carry;
        X xs;
        std::optional<Y> y;
      } call{&f, init, X(xs...), {}};
      Walk c = walk_of(init, {.paths = true});
      auto turn = [](void* self, const Leaves& carry, const Leaves& in, Leaves& next, Leaves& out) {
        auto& s = *static_cast<Call*>(self);
        auto r = detail::spread(
            [&](const auto&... x) { return (*s.f)(unflatten(s.carry, carry), x...); },
            unflatten(s.xs, in));
        next = flatten(r.first);
        out = flatten(r.second);
        s.y = std::move(r.second);
      };
      auto [last, ys] =
          detail::scan(axis, options, c.leaves(), c.paths, flatten(call.xs), {&call, turn});
      return std::pair{unflatten(init, last), unflatten(std::move(*call.y), ys)};
    } else {
      return std::pair{init, init};
    }
  };
}
struct Nothing {};  // a tree without leaves
// f(carry, xs...) -> carry. Result: the last carry.
template <class F> auto fold(F f, const AxisSelector& axis, ScanOptions options = {}) {
  return [f, axis, options](const auto& init, const auto&... xs) {
    auto g = [&f](const auto& carry, const auto&... x) {
      return std::pair{f(carry, x...), Nothing{}};
    };
    if constexpr (detail::check_fold<F, std::decay_t<decltype(init)>,
                                     std::decay_t<decltype(xs)>...>())
      return scan(g, axis, options)(init, xs...).first;
    else
      return init;
  };
}
// f(xs...) -> y at each position by itself, one after the other. Result: y with the axis first.
template <class F> auto map(F f, const AxisSelector& axis, ScanOptions options = {}) {
  return detail::transform_of<F>([f, axis, options](const auto&... xs) {
    if constexpr (!std::is_void_v<detail::CallResult<const F&, std::decay_t<decltype(xs)>...>>) {
      auto g = [&f](const Nothing& n, const auto&... x) { return std::pair{n, f(x...)}; };
      return scan(g, axis, options)(Nothing{}, xs...).second;
    }
  });
}
// fold; without an init it starts from the first position.
struct AxisHere {  // an axis, and where the caller has named it
  AxisSelector axis;
  SourceLocation at;
  template <class A>
  AxisHere(const A& a, SourceLocation l = SourceLocation::current()) : axis(a), at(l) {}
};
template <class F, class C, class... X>
auto reduce(F f, AxisHere axis, const C& init, const X&... xs) {
  return fold(f, axis.axis, {.at = axis.at})(init, xs...);
}
template <class F> NamedArray reduce(F f, AxisHere axis, const NamedArray& xs) {
  auto [first, rest] = detail::first_and_rest(xs, axis.axis, axis.at);
  return fold(f, axis.axis.name, {.at = axis.at})(first, rest);
}
// All running results of an associative f(a, b) in log2(size) steps. xs: an array or a tree of
// arrays that all have the axis.
template <class F, class T>
T associative_scan(F f, const AxisSelector& axis, const T& xs, bool reverse = false,
                   SourceLocation at = SourceLocation::current()) {
  struct Call {
    F* f;
    T like;
  } call{&f, xs};
  auto combine = [](void* self, const Leaves& a, const Leaves& b, Leaves& out, Leaves&) {
    auto& c = *static_cast<Call*>(self);
    out = flatten(T((*c.f)(unflatten(c.like, a), unflatten(c.like, b))));
  };
  return unflatten(
      xs, detail::associative_scan_leaves(axis, flatten(xs), {&call, combine}, reverse, at));
}

// ---- what is kept for the gradient, and gradients by hand ----
// f, whose inside is made again in the backward pass instead of being kept.
template <class F> auto checkpoint(F f, SourceLocation at = SourceLocation::current()) {
  return detail::transform_of<F>([f, at](const auto&... args) {
    using A = std::tuple<std::decay_t<decltype(args)>...>;
    using R = detail::CallResult<const F&, std::decay_t<decltype(args)>...>;
    if constexpr (!std::is_void_v<R>) {
      detail::LeafCall<F, A, R> call{&f, A(args...)};
      auto out = detail::checkpoint(call.function(), flatten(call.like), at);
      return unflatten(std::move(*call.out), out);
    }
  });
}
// forward(args...) -> out, with backward(args as a tuple, out, cotangent of out) -> cotangents of
// args, as a tuple: empty, or with the axes of the argument. What a backward captures has no
// gradient; what it captures of the body of a loop is refused where that body is made again, as for
// a second derivative.
template <class F, class B> auto custom_vjp(F forward, B backward) {
  return detail::transform_of<F>([forward, backward](const auto&... args) {
    using A = std::tuple<std::decay_t<decltype(args)>...>;
    using R = detail::CallResult<const F&, std::decay_t<decltype(args)>...>;
    constexpr bool back_takes = std::is_void_v<R> || std::is_invocable_v<B&, A, R, R>;
    static_assert(
        back_takes,
        "haliax: the backward of custom_vjp takes the arguments as a tuple, the result, and its "
        "cotangent.");
    if constexpr (!std::is_void_v<R> && back_takes) {
      detail::LeafCall<F, A, R> call{&forward, A(args...)};
      struct Back {
        B b;
        A like;
        std::optional<R> out;
      };
      auto back = std::make_shared<Back>(Back{backward, call.like, {}});
      auto pull = [](void* self, const Leaves& in, const Leaves& result, const Leaves& g) {
        auto& b = *static_cast<Back*>(self);
        return flatten(
            A(b.b(unflatten(b.like, in), unflatten(*b.out, result), unflatten(*b.out, g))));
      };
      auto out = detail::custom_vjp(call.function(), flatten(call.like), back, pull);
      back->out = *call.out;
      // their structure is all that is kept
      Walk given = walk_of(back->like), made = walk_of(*back->out);
      given.assign(Leaves(given.arrays.size()));
      made.assign(Leaves(made.arrays.size()));
      return unflatten(std::move(*call.out), out);
    }
  });
}
// The axes and dtypes of f's result, computed without values: its arrays cannot be read.
template <class F, class... A> auto eval_shape(F f, const A&... args) {
  using R = detail::CallResult<F&, A...>;
  if constexpr (!std::is_void_v<R>) {
    detail::LeafCall<F, std::tuple<A...>, R> call{&f, std::tuple<A...>(args...)};
    auto out = detail::eval_shape(call.function(), flatten(call.like));
    return unflatten(std::move(*call.out), out);
  }
}

}  // namespace haliax
