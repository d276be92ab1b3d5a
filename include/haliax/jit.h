// Compilation: functions that are traced once for each signature of their arguments, compiled into
// a Program, and run. `jit` compiles for one device, `named_jit` for a mesh. See
// docs/concepts/tracing-and-jit.md.
#pragma once
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "haliax/explain.h"
#include "haliax/mesh.h"
#include "haliax/transforms.h"

namespace [[gnu::visibility("default")]] haliax {

/// @name Options
/// @{

/// A budget that no array exceeds: `JitOptions::scores_budget = most_bytes` materializes all
/// scores.
inline constexpr std::int64_t most_bytes = std::int64_t(1) << 62;

/// Options of `jit`, `named_jit`, `fsdp` and `shard_map`.
///
/// Inside another traced function, the mappings of the inner function hold. `donate`, `backend`,
/// `regather`, `ring`, `overlap`, `scores_budget`, `reduce_dtype` and `strict` are those of the
/// outermost function.
///
///     auto step = jit(train_step, {.donate = {0}});
///     auto sharded = named_jit(train_step, {.mesh = mesh, .axis_resources = params});
struct JitOptions {
  /// Positions (from 0) of the arguments whose memory results may reuse. A donated argument cannot
  /// be read after the call. `JitReport::not_donated` lists the arguments that no result can reuse.
  std::vector<int> donate = {};
  /// Name of the backend: `"cpu"`, `"cuda"` (a plugin) or `"reference"`. Empty:
  /// `default_backend()`.
  std::string backend = {};
  /// Mesh of a `named_jit`. Not set: the mesh in scope at the call.
  std::optional<Mesh> mesh = {};
  /// Mapping inside the function. It is the default for results, and for arguments without a
  /// placement on the mesh. Not set: the mapping in scope at the call.
  std::optional<Mapping> axis_resources = {};
  /// Mappings of the arguments: one for all, or one for each argument. They override the placement
  /// of an argument. The call raises if the number of mappings is not the number of arguments.
  std::optional<Mappings> in = {};
  /// Mappings of the results: one for all, or one for each part of a pair or tuple. The call raises
  /// if the number of mappings is not the number of parts.
  std::optional<Mappings> out = {};
  /// All-gathers sharded weights again for the backward pass instead of retaining the gathered
  /// copies.
  ///
  /// - `true` (ZeRO-3): in a loop over layers, at most one layer is unsharded at a time. Outside of
  ///   loops, up to 32 MiB of gathered weights stay resident for the backward pass.
  /// - `false` (ZeRO-2): each weight is gathered once per call and stays resident: less
  ///   communication, more memory.
  bool regather = true;
  /// Rotates the blocks of gathered operands around the ring of devices.
  ///
  /// - A gathered weight that only one contraction reads is never materialized. Each device
  ///   contracts one block at a time: the bytes of the all-gather in `devices - 1` calls, and two
  ///   blocks of memory. Sums along the gathered axis are computed block by block.
  /// - In attention over `scores_budget`, keys and values that are sharded along the mesh axis of
  ///   the queries always rotate (ring attention). With `false`, they rotate only if that
  ///   communicates fewer bytes.
  bool ring = false;
  /// Runs collectives concurrently with computation. In a loop over layers, all-gathers are
  /// prefetched one iteration ahead, and gradient reductions may complete one iteration later. The
  /// bytes do not change. The arrays in flight have memory of their own during the loop, which the
  /// plan includes. Several ranks benefit; threads of one process do not. If the blocks of any
  /// array are uneven, all collectives block.
  bool overlap = false;
  /// Bytes, counted in `f32`, that the scores of an attention may occupy. Larger scores are
  /// computed in chunks of queries, in the forward pass and in the backward pass.
  ///
  /// - Not set: `HALIAX_SCORES`. Without the variable, the limit is the larger one of 7 MiB in the
  ///   dtype of the scores and the bytes of queries and keys. With at most 256 queries or keys, or
  ///   on a mesh that shards the scores, the limit is 32 MiB in `f32`, for all devices together.
  /// - 0: all scores are computed in chunks. Scores of at most 32 MiB have three chunks.
  /// - -1: the keys are split as well.
  /// - `most_bytes`: all scores are materialized.
  ///
  /// Scores are a matmul of queries and keys that only functions of each query (such as a softmax
  /// over the keys) and sums over the keys read.
  std::optional<std::int64_t> scores_budget = {};
  /// Dtype of partial sums of `bf16` and `f16` over the mesh (`dot`, `sum` and `at_add` along a
  /// sharded axis). With `DType::f32`, they are computed, communicated and added in `f32` and
  /// rounded once, for twice the bytes. Not set: each device rounds its partial sum first.
  std::optional<DType> reduce_dtype = {};
  /// Raises for unexpected communication: an all-gather that no parameter, constraint, result or
  /// gradient requires, a mapped axis that no array has, and a mapping without a mesh. The compiler
  /// first tries plans that send more bytes.
  bool strict = false;
  /// Raises when the function is traced for the eighth time because static values differ. By
  /// default, a warning on stderr names these values, once.
  bool refuse_retraces = false;
  MachineSpeed speed = {};  ///< Speed of devices and links, for the estimated times of the report.
  bool passes = false;      ///< Adds the passes of the compiler to `JitReport::explain`.
  bool partition = false;   ///< Set by `named_jit`: compiles for the mesh.
  SourceLocation at = {};   ///< Location that errors name. Default: the line of the call.
  // Not inline: programs compile faster. Without a constructor, it remains an aggregate.
  ~JitOptions();
};

/// @}

/// @name Reports
/// @{

/// How the compiler computes a chunked region: a `chunked_reduce`, or attention scores.
struct ChunkReport {
  std::string axis;  ///< The chunked axis.
  /// `"forward"` (no gradient), `"sweep"` (values and gradients in one pass), `"recompute"` (two
  /// passes) or `"whole"` (materialized). See chunked.h.
  std::string form;
  std::int64_t chunk = 0;  ///< Positions per iteration.
  std::string why;         ///< The reason, as text.
};

/// The effect of a compiler pass.
struct PassReport {
  std::string name;         ///< Name of the pass, as in `build/tools/passes`.
  std::int64_t before = 0;  ///< Nodes of the graph, or steps of the Program, before the pass.
  std::int64_t after = 0;   ///< The same after the pass.
  double seconds = 0;       ///< Time of the pass.
};

/// The memory, communication and cost of a compiled function. All values are exact and known before
/// the function runs, except for `split_bytes` and the estimates. On a mesh they are those of the
/// device that needs the most memory.
struct JitReport {
  JitReport();
  JitReport(const JitReport&);
  JitReport(JitReport&&) noexcept;
  JitReport& operator=(const JitReport&);
  JitReport& operator=(JitReport&&) noexcept;
  ~JitReport();

  int traces = 0;   ///< How often the function was traced.
  std::string why;  ///< The reason for the last trace: the difference to the signature before.
  /// The donated arguments that no result can reuse, each with the reason. Empty if they hold less
  /// than 1 % of the donated bytes.
  std::vector<std::string> not_donated;
  /// Contraction steps of the Program. The body of a loop counts once. A smaller last chunk, and
  /// each part of a loop that the pass `reuse_matmuls` splits, are loops of their own.
  int contractions = 0;
  int loops = 0;  ///< Loops of the Program, counted in the same way.
  /// Bytes of the arena: everything except arguments and results.
  std::int64_t arena_bytes = 0;
  /// Bytes of the arena and of the results that alias no argument. The memory of a call is
  /// `argument_bytes + peak_bytes`.
  std::int64_t peak_bytes = 0;
  /// Bytes sent in one call, per device, with ring collectives.
  double sent_bytes = 0;
  double calls = 0;                           ///< Collectives in one call.
  std::vector<CollectiveReport> collectives;  ///< The collectives, in order.
  std::int64_t argument_bytes = 0;            ///< Bytes of the arguments, per device.
  std::vector<MemoryReport> memory;           ///< Bytes by purpose at the peak, arguments included.
  /// Floating-point operations of contractions, per device.
  double flops = 0;
  /// Estimated seconds of computation, by `JitOptions::speed`.
  double compute_s = 0;
  /// Estimated seconds of communication, by `JitOptions::speed`.
  double sending_s = 0;
  /// Bytes that the last call copied to split arguments among the devices.
  std::int64_t split_bytes = 0;
  double trace_s = 0;    ///< Seconds of the last trace.
  double compile_s = 0;  ///< Seconds of the last compilation.
  /// The passes, in order. On a mesh: first the passes over the unsharded graph, then those of one
  /// device.
  std::vector<PassReport> passes;
  std::vector<ChunkReport> chunked;  ///< The chunked regions, outermost first.
  std::string program;               ///< The Program as text.
  std::string explain;               ///< Loops, memory and collectives as text, with the reasons.
  /// Planned bytes during each step of the Program, arguments included, in order. Loops are listed
  /// iteration by iteration, or with one iteration each if that would exceed 4096 steps. The
  /// maximum is `argument_bytes + peak_bytes` without the gaps.
  std::vector<std::int64_t> memory_over_time;
};

/// @}

namespace detail {
bool is_tracing();                          // inside grad, vmap, scan or jit
JitOptions partitioned(const JitOptions&);  // with `partition`

// True if parameter I of f is a NamedArray, or an optional one. False for templates (lambdas with
// auto) and overloads, whose parameters are not visible.
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
// A C++ arithmetic value for a NamedArray parameter becomes a scalar array, so that its value is
// not static.
NamedArray number_argument(double);
template <class F, std::size_t I, class A> decltype(auto) argument(const A& a) {
  if constexpr (std::is_arithmetic_v<A> && takes_array<F, I>())
    return number_argument(double(a));
  else
    return (a);
}
template <class F, std::size_t I, class A>
using Argument = std::decay_t<decltype(argument<F, I>(std::declval<const A&>()))>;

// The arguments, or the parts of a result: their count, and the part that each leaf belongs to.
struct Parts {
  int count = 0;
  std::vector<int> of_leaf = {};
  void end(const Walk&);  // ends the part that was visited last
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
  static std::shared_ptr<JitCore> create(const JitOptions&, SourceLocation);
  struct Cached;
  // Held while a thread traces and compiles. Compiled programs may run concurrently.
  class TraceGuard {
   public:
    explicit TraceGuard(JitCore&);
    ~TraceGuard();
    TraceGuard(const TraceGuard&) = delete;

   private:
    JitCore& core_;
  };
  // Returns the entry for these arguments, or null. If it is still null after the thread holds a
  // `TraceGuard`, the caller traces f on the tracers that begin returns, and then calls end.
  Cached* find(const Walk& in, const Parts& arguments) const;
  Leaves begin(const Walk& in, const Parts& arguments);
  Cached* end(const Leaves& results, const Parts&, std::shared_ptr<void> like,
              const std::vector<std::string>& paths);
  // Replaces end: compiles for a report and discards the program.
  void plan(const Leaves& results, const Parts&);
  void abandon();  // ends a trace that raised
  Leaves run(Cached*, const Walk& in);
  // Applies the mappings of arguments or results inside another trace.
  Leaves placed_inside(const Walk&, const Parts&, bool results) const;
  // The mapping of the options is in scope until the returned object is destroyed.
  std::shared_ptr<const void> mapping_inside() const;
  static void* like(Cached*);
  JitReport report() const;
  const JitOptions& options() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// A call of a jitted function. The template depends on the types of arguments and result alone, so
// that functions of one signature share this code; `call` is specific to the function.
template <class R, class... A> struct JitCall {
  JitCore& core;
  const void* f;
  R (*call)(const void* f, const std::tuple<A...>&);

  template <class F> static JitCall of(JitCore& core, const F& f) { return {core, &f, &called<F>}; }
  struct Compiled {
    JitCore::Cached* entry;
    Walk arguments;
  };
  R run(const A&... args) const {
    auto [entry, w] = compiled(args...);
    return unflatten(*static_cast<const R*>(JitCore::like(entry)), core.run(entry, w));
  }
  Compiled compiled(const A&... args) const {
    Parts parts;
    Walk w = walk_parts(parts, args...);
    auto* entry = core.find(w, parts);
    if (entry) return {entry, std::move(w)};
    JitCore::TraceGuard guard(core);
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
    JitCore::TraceGuard guard(core);
    traced(parts, args...,
           [&](const R& out, const Leaves& leaves) { core.plan(leaves, parts_of(out)); });
  }
  // Adds f to the graph of another trace, under its own mapping, with the mappings of arguments and
  // results as constraints.
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
  // Traces f on arguments like these, then calls done(result, leaves).
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

/// @name Compiled functions
/// @{

/// A jitted function: the result of `jit`, `named_jit`, `fsdp` or `shard_map`.
///
/// Copies share the compiled Programs. All members may be called from several threads at once; one
/// thread traces at a time. The cache of traces has no size limit.
template <class F> class Jitted {
 public:
  using TransformedFunction = F;  ///< The function, for the inspection of its parameters.
  /// Wraps `f`. Nothing is traced before the first call.
  Jitted(F f, const JitOptions& options, SourceLocation at = SourceLocation::current())
      : f_(std::move(f)), core_(detail::JitCore::create(options, at)) {}
  /// Runs the function. Traces and compiles it first if no trace has the signature of `args`.
  ///
  /// Arrays in `args` are inputs; their axes, dtypes and placements belong to the signature. All
  /// other values are static: another value causes a retrace. A C++ arithmetic value is an input if
  /// `f` has one signature, and the parameter is a `NamedArray`. Inside another traced function,
  /// `f` becomes part of that graph.
  ///
  /// @param args  trees: arrays, modules, and vectors, pairs, tuples and maps of them
  /// @return the result of `f`
  /// @throws haliax::Error if an argument was donated before, or if `f` raises while it is traced
  template <class... A> auto operator()(const A&... args) const {
    using R = detail::CallResult<const F&, A...>;
    if constexpr (!std::is_void_v<R>) {
      if (detail::is_tracing()) return detail::JitCall<R, A...>::of(*core_, f_).inside(args...);
      return run<R>(std::index_sequence_for<A...>(), args...);
    }
  }
  /// Traces and compiles the function for arguments like `args`, and runs nothing. A later call
  /// with this signature reuses the Program.
  template <class... A> JitReport compile(const A&... args) const {
    using R = detail::CallResult<const F&, A...>;
    compiled<R>(std::index_sequence_for<A...>(), args...);
    return report();
  }
  /// Compiles the function for one device of its mesh, and returns the report. Nothing runs, and
  /// the Program is discarded. The mesh may have any size, and `args` may be shapes from
  /// `eval_shape`.
  template <class... A> JitReport plan(const A&... args) const {
    using R = detail::CallResult<const F&, A...>;
    plan<R>(std::index_sequence_for<A...>(), args...);
    return report();
  }
  /// Returns the report of the last trace.
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

/// A jitted function with a declared signature, for members of classes. A `Jitted` of any function
/// with this signature converts to it.
///
///     Jitted<Stepped(const Model&, const State&, const NamedArray&)> step = jit(train_step);
template <class R, class... A> class Jitted<R(A...)> {
 public:
  /// Creates an empty function. A call of it raises.
  Jitted() = default;
  /// Converts from the result of `jit` or `named_jit`.
  template <class F>
  requires(std::is_invocable_r_v<R, const F&, A...>) Jitted(Jitted<F> f)
      : f_(std::make_shared<const Jitted<F>>(std::move(f))), calls_(&calls<F>) {}
  /// Runs the function; see the call operator of `Jitted<F>`.
  /// @throws haliax::Error if the function is empty
  R operator()(A... args, SourceLocation at = SourceLocation::current()) const {
    return there(at).run(f_.get(), args...);
  }
  /// Compiles the function for arguments like `args`, and runs nothing.
  JitReport compile(A... args, SourceLocation at = SourceLocation::current()) const {
    return there(at).compile(f_.get(), args...);
  }
  /// Compiles the function for one device of its mesh, and returns the report.
  JitReport plan(A... args, SourceLocation at = SourceLocation::current()) const {
    return there(at).plan(f_.get(), args...);
  }
  /// Returns the report of the last trace.
  JitReport report(SourceLocation at = SourceLocation::current()) const {
    return there(at).report(f_.get());
  }
  /// Returns true if the function is not empty.
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
      detail::refuse_empty("jit", "this Jitted is empty; assign the result of jit to it first", at);
    return *calls_;
  }

  std::shared_ptr<const void> f_;
  const Calls* calls_ = nullptr;
};

/// Returns `f`, compiled for one device.
///
/// The first call traces `f` and compiles the graph. Later calls with the same signature run the
/// Program and skip the C++ code of `f`.
///
///     auto f = jit([](const NamedArray& x) { return sum(x * x); });
///     f(ones(Axis("n", 4)));  // traces, compiles and runs
///     f(ones(Axis("n", 4)));  // runs
///
/// @param f        function of trees that returns a tree
/// @param options  see `JitOptions`; the mesh and the mappings have no effect
/// @see named_jit, Jitted::compile, debug::print
template <class F>
Jitted<F> jit(F f, const JitOptions& options = {}, SourceLocation at = SourceLocation::current()) {
  return {std::move(f), options, at};
}
/// Returns `f`, compiled for a mesh.
///
/// Mappings shard the arguments, the results and the intermediates of `f`, and the compiler inserts
/// the collectives. A function that initializes a model computes only the shard of each device on
/// that device. The mesh, the mapping in scope and the placements of arguments belong to the
/// signature.
///
/// The sharding of a value is the first entry that is set:
/// - arguments: `in`, the placement of the argument on this mesh, the mapping inside `f`
/// - inside `f`: `axis_resources`, the mapping in scope at the call
/// - results: `out`, the mapping inside `f`
///
///     auto init = named_jit(Model::init, {.mesh = mesh, .axis_resources = {{"embed", "data"}}});
///     auto model = init(random::key(0));  // each device initializes its own shards
///
/// @throws haliax::Error (from a call) if a mapping names a mesh axis that the mesh lacks, if two
///     axes of an array are on one mesh axis, or if the mesh has more devices than there are
/// @see fsdp, shard_map, use_mesh, axis_mapping, Jitted::plan
template <class F>
Jitted<F> named_jit(F f, const JitOptions& options = {},
                    SourceLocation at = SourceLocation::current()) {
  return {std::move(f), detail::partitioned(options), at};
}

/// Returns the report of the last trace of `f` as tables: collectives with their causes, memory by
/// purpose, and estimated time.
template <class F> std::string explain(const Jitted<F>& f) { return f.report().explain; }

/// @}

/// @name Backend and threads
/// @{

/// Sets the backend that evaluates arrays outside of `jit`, and that `JitOptions::backend` defaults
/// to.
///
/// @param name  `"cpu"`, `"reference"` (slow; the tests compare the others with it), or the name of
///     a plugin such as `"cuda"`
/// @throws haliax::Error if there is no such backend
void set_default_backend(const std::string& name, SourceLocation at = SourceLocation::current());
/// Returns the name of the default backend: `HALIAX_BACKEND`, or `"cpu"`, unless
/// `set_default_backend` sets another.
std::string default_backend();
/// Sets the number of threads of the `cpu` backend. Results do not depend on it.
///
/// @param count  1 to 1024; 0 restores the default: `HALIAX_THREADS`, or all cores of the process
/// @throws haliax::Error if `count` is out of range, or if a kernel of a custom op calls this
///     function
void set_threads(int count, SourceLocation at = SourceLocation::current());

/// @}

}  // namespace haliax
