// jit: a function traced once for each kind of argument, compiled as one Program, and replayed.
#pragma once
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "haliax/explain.h"
#include "haliax/mesh.h"
#include "haliax/transforms.h"

namespace [[gnu::visibility("default")]] haliax {

inline constexpr std::int64_t most_bytes = std::int64_t(1) << 62;
struct JitOptions {
  // arguments (from 0) whose memory the results may take; they cannot be used afterwards
  std::vector<int> donate = {};
  std::string backend = {};  // "cpu" (the default) or "reference"
  // Inside another trace mappings hold as they do outside; donate, backend, regather, ring,
  // overlap, scores_budget, reduce_dtype and strict are those of the outermost. named_jit: the mesh
  // in scope where it is called, if none is given. The mapping inside f, of its results, and of
  // arguments that lie nowhere yet (see placement): the mapping in scope there, if none is given.
  std::optional<Mesh> mesh = {};
  std::optional<Mapping> axis_resources = {};
  // of arguments, of results (of each part of a pair or tuple), where they differ; raises where
  // there are not as many as of those
  std::optional<Mappings> in = {}, out = {};
  // A weight that a loop over layers reads turn by turn is gathered again in each loop, so that one
  // layer is whole at a time; of weights read outside of loops up to 32 MiB wait for the backward
  // pass, and others are gathered again. Off: all are gathered once, for less traffic and more
  // memory.
  bool regather = true;
  // A gathered weight that one contraction alone reads is never made whole: its blocks go round the
  // ring of devices, and each is contracted with its part of the other operand as it comes. As many
  // bytes in devices - 1 calls; two blocks of memory in place of all. Sums along the gathered axis
  // are taken block by block. See docs/sharding.md for what is gathered as ever. Keys and values of
  // attention over scores_budget that are cut as its queries are go round with this, and without it
  // where that sends less.
  bool ring = false;
  // Collectives go on beside the work: gathers in a loop over layers are asked for a turn ahead,
  // sums of gradients are waited for a turn later. As many bytes; the memory that they read and
  // write is their own for the length of the loop, and planned. It gains where ranks speak to each
  // other; threads of one process do not wait less for it. Where a block of any array is uneven,
  // all calls stay where they are.
  bool overlap = false;
  // Scores (a product of queries and keys that only a softmax, or another function of each query,
  // and a sum over the keys read) of more bytes than this, counted in f32, are never whole: queries
  // are walked in chunks, as chunked_reduce would, in the gradient too. None: than HALIAX_SCORES
  // says, or else than the queries and keys themselves and 7 MiB in their own dtype; of at most 256
  // queries or keys, or on a mesh that cuts them, 32 MiB in f32, of all devices together. 0: all
  // scores, those of at most 32 MiB in thirds of the queries; -1: and of the keys within each;
  // most_bytes: none.
  std::optional<std::int64_t> scores_budget = {};
  // Sums of bf16 and f16 that are pending on the mesh (dot, sum, at_add along a cut axis) are made,
  // sent and added up in f32, and rounded once, for twice the bytes. Else each device rounds its
  // own part first.
  std::optional<DType> reduce_dtype = {};
  // Raises for a gather that nobody asked for (and chooses none for its bytes), a mapped axis that
  // no array has, and a mapping that cuts where there is no mesh.
  bool strict = false;
  // A function that is traced for the 8th time because static values differ (numbers, strings,
  // functions that are arguments or fields) says which, once, on stderr. Set: that call raises
  // instead. See docs/jit.md.
  bool refuse_retraces = false;
  MachineSpeed speed = {};  // for estimates of time
  bool passes = false;      // `explain` lists the passes of the compiler
  bool partition = false;   // set by named_jit
  SourceLocation at = SourceLocation::current();
};

// What was decided about a region of chunked_reduce.
struct ChunkReport {
  std::string axis, form;  // walked; "forward", "sweep" or "recompute" (chunked.h)
  std::int64_t chunk = 0;  // positions a turn
  std::string why;         // for people
};
// What a pass of the compiler did: nodes of the graph, or steps, before and after it.
struct PassReport {
  std::string name;
  std::int64_t before = 0, after = 0;
  double seconds = 0;
};
// What a compiled function is made of: for tests and reports.
struct JitReport {
  int traces = 0;   // how often f was traced
  std::string why;  // why it was traced the last time: what differed from the call before
  // Donated arguments that no result could take, and why. Empty where they are less than a
  // hundredth of all bytes donated.
  std::vector<std::string> not_donated;
  // Steps of the Program, those of a loop's body once. A smaller last chunk is a loop of its own,
  // and so is each part of a loop that `reuse_matmuls` divides: they count again.
  int contractions = 0, loops = 0;
  // Planned, per device: all but arguments and results; with results that alias nothing.
  std::int64_t arena_bytes = 0, peak_bytes = 0;
  double sent_bytes = 0, calls = 0;           // by collectives, per device on a ring
  std::vector<CollectiveReport> collectives;  // in order
  std::int64_t argument_bytes = 0;            // per device
  std::vector<MemoryReport> memory;           // at the peak, arguments included
  double flops = 0;                           // of contractions, per device
  double compute_s = 0, sending_s = 0;        // estimated, by JitOptions::speed
  std::int64_t split_bytes = 0;  // that the last call copied to cut arguments for the devices
  double trace_s = 0, compile_s = 0;
  // In order; on a mesh those of the device that needs most memory, after those of the whole.
  std::vector<PassReport> passes;
  std::vector<ChunkReport> chunked;  // outermost first
  std::string program;               // printed
  std::string explain;  // what was decided about loops, memory and collectives, for people
  // Planned bytes while each step of the Program runs, arguments included, in order: loops turn by
  // turn, or, where that were more than 4096 steps, one turn of each. The most is argument_bytes +
  // peak_bytes less the gaps.
  std::vector<std::int64_t> memory_over_time;
};

namespace detail {
bool is_tracing();  // inside grad, vmap, scan or jit

// Does f take a NamedArray (or an optional one) as its argument I? False where it cannot be seen:
// of a template (a lambda with auto), of overloads.
template <std::size_t I, class... P> constexpr bool is_array_at() {
  if constexpr (I < sizeof...(P)) {
    using A = std::remove_cvref_t<std::tuple_element_t<I, std::tuple<P...>>>;
    return std::is_same_v<A, NamedArray> || std::is_same_v<A, std::optional<NamedArray>>;
  } else {
    return false;
  }
}
template <std::size_t I, class R, class C, class... P>
std::bool_constant<is_array_at<I, P...>()> takes(R (C::*)(P...) const);
template <std::size_t I, class R, class... P>
std::bool_constant<is_array_at<I, P...>()> takes(R (*)(P...));
template <class F, std::size_t I> constexpr bool takes_array() {
  if constexpr (requires { typename F::TransformedFunction; })
    return takes_array<typename F::TransformedFunction, I>();
  else if constexpr (std::is_pointer_v<F>)
    return decltype(takes<I>(std::declval<F>()))::value;
  else if constexpr (requires { takes<I>(&F::operator()); })
    return decltype(takes<I>(&F::operator()))::value;
  else
    return false;
}
// A plain number that f takes as an array is one: its value is no part of the trace.
NamedArray number_argument(double);
template <class F, std::size_t I, class A> decltype(auto) argument(const A& a) {
  if constexpr (std::is_arithmetic_v<A> && takes_array<F, I>())
    return number_argument(double(a));
  else
    return (a);
}
template <class F, std::size_t I, class A>
using Argument = std::decay_t<decltype(argument<F, I>(std::declval<const A&>()))>;

// Arguments, or the parts of a result: how many, and to which each leaf belongs.
struct Parts {
  int count = 0;
  std::vector<int> of_leaf = {};
  void end(const Walk&);  // of the part that was walked last
};
template <class... A> Walk walk_parts(Parts& parts, const A&... each) {
  Walk w;
  w.with_statics = true;
  ((haliax::visit<A>(w, const_cast<A*>(&each)), parts.end(w)), ...);
  return w;
}
template <class R> Parts parts_of(const R& result) {
  Parts parts;
  if constexpr (reflect::is_a<R, std::pair> || reflect::is_a<R, std::tuple>)
    std::apply([&](const auto&... p) { walk_parts(parts, p...); }, result);
  else
    walk_parts(parts, result);
  return parts;
}

class JitCore {
 public:
  explicit JitCore(JitOptions);
  ~JitCore();
  struct Cached;
  // One thread traces at a time, and compiles; programs that are there run meanwhile.
  class Turn {
   public:
    explicit Turn(JitCore&);
    ~Turn();
    Turn(const Turn&) = delete;

   private:
    JitCore& core_;
  };
  // The entry for these arguments, or null: then, when it is this thread's turn and it is still
  // null, begin, trace f on what it gives, end.
  Cached* find(const Walk& in, const Parts& arguments) const;
  Leaves begin(const Walk& in, const Parts& arguments);
  Cached* end(const Leaves& results, const Parts&, std::shared_ptr<void> like,
              const std::vector<std::string>& paths);
  // instead of end: compiled for a report, and forgotten
  void plan(const Leaves& results, const Parts&);
  void abandon();  // the trace raised
  Leaves run(Cached*, const Walk& in);
  // arguments or results, in another trace
  Leaves placed_inside(const Walk&, const Parts&, bool results) const;
  // the mapping of the options holds as long as this does
  std::shared_ptr<const void> mapping_inside() const;
  static void* like(Cached*);
  JitReport report() const;
  const JitOptions& options() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// A call of a function that is jitted. Who calls is told apart by the types of arguments and result
// alone: functions of one kind share what is compiled here, each adds only how it is called.
template <class R, class... A> struct JitCall {
  JitCore& core;
  const void* f;
  R (*call)(const void* f, const std::tuple<A...>&);

  template <class F> static JitCall of(JitCore& core, const F& f) { return {core, &f, &called<F>}; }
  R run(const A&... args) const {
    auto [entry, w] = compiled(args...);
    return unflatten(*static_cast<const R*>(JitCore::like(entry)), core.run(entry, w));
  }
  std::pair<JitCore::Cached*, Walk> compiled(const A&... args) const {
    Parts parts;
    Walk w = walk_parts(parts, args...);
    auto* entry = core.find(w, parts);
    if (entry) return {entry, std::move(w)};
    JitCore::Turn turn(core);
    entry = core.find(w, parts);  // another thread may have traced it meanwhile
    if (!entry) {
      traced(parts, args..., [&](const R& out, const Leaves& leaves) {
        auto like = std::make_shared<R>(out);
        Walk o = walk_of(*like, {.paths = true});
        o.assign(Leaves(leaves.size()));
        entry = core.end(leaves, parts_of(out), like, o.paths);
      });
    }
    return {entry, std::move(w)};
  }
  void plan(const A&... args) const {
    Parts parts;
    walk_parts(parts, args...);
    JitCore::Turn turn(core);
    traced(parts, args...,
           [&](const R& out, const Leaves& leaves) { core.plan(leaves, parts_of(out)); });
  }
  // In another trace f is part of that graph, under its own mapping, between arguments and results
  // that are cut as said.
  R inside(const A&... args) const {
    Parts parts;
    walk_parts(parts, args...);
    std::tuple<A...> mine(args...);
    place(walk_of(mine), parts, false);
    auto scope = core.mapping_inside();
    R out = call(f, mine);
    place(walk_of(out), parts_of(out), true);
    return out;
  }

 private:
  template <class F> static R called(const void* f, const std::tuple<A...>& args) {
    return spread(*static_cast<const F*>(f), args);
  }
  void place(Walk w, const Parts& parts, bool results) const {
    w.assign(core.placed_inside(w, parts, results));
  }
  // done(result, leaves) when f has been traced on arguments like these.
  template <class Done> void traced(const Parts& parts, const A&... args, const Done& done) const {
    std::tuple<A...> mine(args...);
    Walk t = walk_of(mine, {.paths = true, .statics = true});
    t.assign(core.begin(t, parts));
    struct Guard {
      JitCore* core;
      ~Guard() {
        if (core) core->abandon();
      }
    } guard{&core};
    R out = call(f, mine);
    done(out, flatten(out));
    guard.core = nullptr;
  }
};
}  // namespace detail

template <class F> class Jitted {
 public:
  using TransformedFunction = F;
  Jitted(F f, JitOptions options)
      : f_(std::move(f)), core_(std::make_shared<detail::JitCore>(std::move(options))) {}
  // A plain number is traced as a scalar array where f takes a NamedArray (and f is one function:
  // no lambda with auto, no overloads). All that is no array is static: f is traced anew for
  // another value.
  template <class... A> auto operator()(const A&... args) const {
    using R = detail::CallResult<const F&, A...>;
    if constexpr (!std::is_void_v<R>) {
      if (detail::is_tracing()) return detail::JitCall<R, A...>::of(*core_, f_).inside(args...);
      return run<R>(std::index_sequence_for<A...>(), args...);
    }
  }
  // Traces and compiles for arguments like these without running anything: the report says what a
  // call takes.
  template <class... A> JitReport compile(const A&... args) const {
    using R = detail::CallResult<const F&, A...>;
    compiled<R>(std::index_sequence_for<A...>(), args...);
    return report();
  }
  // The same for one device, which stands for all: a mesh may be of any size, and the arguments
  // shapes alone (see eval_shape).
  template <class... A> JitReport plan(const A&... args) const {
    using R = detail::CallResult<const F&, A...>;
    plan<R>(std::index_sequence_for<A...>(), args...);
    return report();
  }
  JitReport report() const { return core_->report(); }

 private:
  template <class R, std::size_t... I, class... A>
  R run(std::index_sequence<I...>, const A&... args) const {
    return detail::JitCall<R, detail::Argument<F, I, A>...>::of(*core_, f_)
        .run(detail::argument<F, I>(args)...);
  }
  template <class R, std::size_t... I, class... A>
  void compiled(std::index_sequence<I...>, const A&... args) const {
    detail::JitCall<R, detail::Argument<F, I, A>...>::of(*core_, f_)
        .compiled(detail::argument<F, I>(args)...);
  }
  template <class R, std::size_t... I, class... A>
  void plan(std::index_sequence<I...>, const A&... args) const {
    detail::JitCall<R, detail::Argument<F, I, A>...>::of(*core_, f_)
        .plan(detail::argument<F, I>(args)...);
  }

  F f_;
  std::shared_ptr<detail::JitCore> core_;
};

// A jitted function by its signature, as a member of a class has to spell it; what `jit` and
// `named_jit` give becomes one:
//   Jitted<Stepped(const Model&, const State&, const NamedArray&)> step = jit(train_step);
template <class R, class... A> class Jitted<R(A...)> {
 public:
  Jitted() = default;  // empty; calling it raises
  template <class F>
  requires(std::is_invocable_r_v<R, const F&, A...>) Jitted(Jitted<F> f)
      : f_(std::make_shared<const Jitted<F>>(std::move(f))), calls_(&calls<F>) {}
  R operator()(A... args, SourceLocation at = SourceLocation::current()) const {
    return there(at).run(f_.get(), args...);
  }
  JitReport compile(A... args, SourceLocation at = SourceLocation::current()) const {
    return there(at).compile(f_.get(), args...);
  }
  JitReport plan(A... args, SourceLocation at = SourceLocation::current()) const {
    return there(at).plan(f_.get(), args...);
  }
  JitReport report(SourceLocation at = SourceLocation::current()) const {
    return there(at).report(f_.get());
  }
  explicit operator bool() const { return f_ != nullptr; }

 private:
  struct Calls {
    R (*run)(const void*, const std::decay_t<A>&...);
    JitReport (*compile)(const void*, const std::decay_t<A>&...);
    JitReport (*plan)(const void*, const std::decay_t<A>&...);
    JitReport (*report)(const void*);
  };
  template <class F> static const Jitted<F>& of(const void* f) {
    return *static_cast<const Jitted<F>*>(f);
  }
  template <class F>
  static constexpr Calls calls{
      [](const void* f, const std::decay_t<A>&... args) -> R { return of<F>(f)(args...); },
      [](const void* f, const std::decay_t<A>&... args) { return of<F>(f).compile(args...); },
      [](const void* f, const std::decay_t<A>&... args) { return of<F>(f).plan(args...); },
      [](const void* f) { return of<F>(f).report(); }};
  const Calls& there(SourceLocation at) const {
    if (!f_)
      detail::refuse_empty("jit", "this Jitted is empty: it was never given what jit returns", at);
    return *calls_;
  }

  std::shared_ptr<const void> f_;
  const Calls* calls_ = nullptr;
};

template <class F> Jitted<F> jit(F f, JitOptions options = {}) {
  return {std::move(f), std::move(options)};
}
// jit on a mesh: arguments, results and the inside of f are cut by the mappings; collectives are
// placed by the library. Of a function that makes a model: each device makes only its part. Traced
// anew for another mesh, mapping, or placement of an argument.
template <class F> Jitted<F> named_jit(F f, JitOptions options = {}) {
  options.partition = true;
  return {std::move(f), std::move(options)};
}

// What a call of it takes, in tables: collectives and what causes them, memory by purpose,
// estimated time. Of the last trace.
template <class F> std::string explain(const Jitted<F>& f) { return f.report().explain; }

// Which backend evaluates what is read outside jit: "cpu" unless told; "reference" is the oracle of
// the tests. raises for any other
void set_default_backend(const std::string& name, SourceLocation = SourceLocation::current());
std::string default_backend();
// Of the cpu backend; results do not depend on it. 0: as many as HALIAX_THREADS says, or all cores.
// Raises for a number that cannot be, and in a kernel of your own.
void set_threads(int, SourceLocation = SourceLocation::current());

}  // namespace haliax
