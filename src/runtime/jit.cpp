// `JitCore`: traces and compiles a function. jit_cache.cpp finds the trace of a call, and
// jit_run.cpp runs it.
#include "haliax/jit.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <set>

#include "base/clock.h"
#include "base/fork.h"
#include "base/where.h"
#include "graph/fail.h"
#include "ops/prim.h"
#include "runtime/jit_impl.h"
#include "runtime/graph_copy.h"
#include "runtime/strict.h"
#include "runtime/tracers.h"
#include "transforms/gradient_names.h"

namespace haliax {

JitOptions::~JitOptions() = default;
JitReport::JitReport() = default;
JitReport::JitReport(const JitReport&) = default;
JitReport::JitReport(JitReport&&) noexcept = default;
JitReport& JitReport::operator=(const JitReport&) = default;
JitReport& JitReport::operator=(JitReport&&) noexcept = default;
JitReport::~JitReport() = default;

}  // namespace haliax

namespace haliax::detail {
namespace {

// Raises if the arguments contain static values that cannot be compared between calls.
void refuse_static_values(const Walk& w, const SourceLocation& at) {
  if (w.unequal.empty() && w.holding.empty()) return;
  CallSite here(at);
  // Without the number of the argument.
  auto& field = w.unequal.empty() ? w.holding.front() : w.unequal.front();
  auto dot = field.find('.');
  auto name = dot == field.npos ? "argument " + field : field.substr(dot + 1);
  if (!w.unequal.empty())
    fail("jit",
         "the std::function {} cannot be compared between calls; store it as a "
         "haliax::StaticFunction",
         name);
  fail("jit",
       "{} has a type with is_static = true and contains a NamedArray: static values are compared "
       "to find the program for a call, but the values of arrays are not known then; remove "
       "is_static, and list private fields with HALIAX_FIELDS(...)",
       name);
}

}  // namespace

void Parts::end(const Walk& w) { of_leaf.resize(w.arrays.size(), count++); }

// Names of the arrays of a call, by leaf.
struct ArgumentNames {
  std::vector<std::string> paths;  // in the argument: "mlp.up.weight"; empty: the argument itself
  std::vector<std::string> readable;  // "argument 0: mlp.up.weight"

  ArgumentNames(const Walk& w, const Parts& arguments) {
    for (auto& p : w.paths) {
      auto dot = p.find('.');  // after the number of the argument
      paths.push_back(dot == std::string::npos ? "" : p.substr(dot + 1));
      readable.push_back(argument_name(p));
    }
    for (std::size_t k = 0; k < paths.size(); ++k) owners_[paths[k]].insert(arguments.of_leaf[k]);
  }
  // Returns the path, or the readable name if several arguments have the same path.
  const std::string& unique(std::size_t k) const {
    bool clear = paths[k].empty() || owners_.at(paths[k]).size() == 1;
    return clear ? paths[k] : readable[k];
  }

 private:
  std::map<std::string, std::set<int>> owners_;  // the arguments that have a path
};

// ---- the start of a trace ----
// The shardings of the arrays of a call; empty without a mesh.
std::vector<Sharding> JitCore::Impl::argument_shardings(const Walk& w, const Parts& arguments,
                                                        const ArgumentNames& names) const {
  const auto mesh = options.call_mesh();
  if (!mesh) return {};
  CallSite here(options.at);
  std::vector<Sharding> out;
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& n = w.arrays[k]->node();
    out.push_back(n ? options.argument_sharding(*n, arguments.of_leaf[k], *mesh, names.readable[k])
                    : Sharding());
  }
  return out;
}
// Creates an input for each array of a call, and completes the signature of `pending`. Returns the
// arguments of the function: these inputs, and empty arrays as they are.
Leaves JitCore::Impl::create_inputs(const Walk& w, const Parts& arguments,
                                    const ArgumentNames& names,
                                    const std::shared_ptr<const Trace>& trace) {
  auto& e = *pending;
  auto& donate = options.donate;
  Leaves out;
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& n = w.arrays[k]->node();
    e.signature.axes.push_back(n ? n->axes : Axes());
    e.signature.dtypes.push_back(n ? int(n->dtype) : -1);
    if (!n) {
      out.emplace_back();
      continue;
    }
    n->field.note(module_path(names.paths[k]));
    e.inputs.push_back(prim::input(n->axes, n->dtype, module_path(names.unique(k)), trace));
    e.leaf_of_input.push_back(k);
    e.names.push_back(names.readable[k]);
    bool donated = std::find(donate.begin(), donate.end(), arguments.of_leaf[k]) != donate.end();
    e.donated.push_back(donated);
    out.push_back(NamedArray(e.inputs.back()));
  }
  return out;
}
// Sets the context that the function is traced in. It lasts until `tracing` is reset.
void JitCore::Impl::enter_trace(std::shared_ptr<const Trace> trace) {
  mapping_outside = context().origin.mapping;
  tracing.emplace();
  context().in_jit = true;
  context().effect = nullptr;
  context().scores_budget = options.scores_budget;
  context().trace = std::move(trace);
  if (auto mesh = options.call_mesh()) {
    context().mesh = std::move(mesh);
    context().gradients = std::make_shared<Gradients>();
  }
  if (options.axis_resources)
    context().origin.mapping = std::make_shared<const Mapping>(*options.axis_resources);
}

// ---- from a trace to a Program ----
Nodes JitCore::Impl::roots_of(const Leaves& results, const Parts& parts) {
  auto& e = *pending;
  CallSite here(options.at);
  if (options.partition) require_each("named_jit", "out", options.out, parts.count, "results");
  Nodes roots;
  for (std::size_t k = 0; k < results.size(); ++k) {
    auto& r = results[k];
    e.result_of_leaf.push_back(!r.empty() ? int(roots.size()) : -1);
    if (r.empty()) continue;
    roots.push_back(r.node());
    e.results.push_back({r.node()->axes, r.dtype()});
    e.part_of_result.push_back(parts.of_leaf[k]);
  }
  refuse_tracers(roots, e.inputs);
  if (auto& effect = context().effect) roots.push_back(effect);  // a result that is not returned
  report.trace_s = seconds_now() - started;
  if (options.strict && options.partition)
    refuse_mappings(roots, e.inputs, options.given_mappings(), options.call_mesh() != nullptr);
  return roots;
}
void JitCore::Impl::compile(const Leaves& results, const Parts& parts, bool simulated) {
  auto& e = *pending;
  auto name = options.backend.empty() ? default_backend() : options.backend;
  {
    CallSite here(options.at);
    backend(name);
  }
  auto t = seconds_now();
  OwnGraph own(roots_of(results, parts));
  Compilation c{own.roots, e.inputs, options_for(name, "jit at " + to_string(options.at))};
  c.options.donated = e.donated;
  c.options.scores_budget = scores_budget(options.scores_budget);
  c.options.partition = {.regather = options.regather,
                         .ring = options.ring,
                         .ring_attention = options.ring,
                         .overlap = options.overlap,
                         .strict = options.strict,
                         .reduce_dtype = options.reduce_dtype,
                         .gradients = context().gradients};
  const auto mesh = options.call_mesh();
  if (mesh) place_on(*mesh, c, name, simulated);
  run_global(c);
  report_loops(report, c);
  if (mesh) {
    e.mesh = std::make_unique<MeshProgram>(compile_for_mesh(c, name, simulated));
    for (auto& d : e.mesh->devices) e.note_captured(d);
    reported_program = e.mesh->devices[e.mesh->largest_device].program;
  } else {
    e.compiled = haliax::finish(c, name, !simulated);
    e.note_captured(e.compiled);
    if (!simulated) e.compiled.idle.put(e.compiled.for_call());
    report_not_donated(report, e, *c.program);
    reported_program = c.program;
  }
  report_program(report, c, e.mesh.get(), options);
  report.compile_s = seconds_now() - t;
}
// Sets the shardings of arguments and results.
void JitCore::Impl::place_on(const Mesh& mesh, Compilation& c, const std::string& backend_name,
                             bool simulated) {
  auto& e = *pending;
  auto& o = options;
  if (!simulated) o.require_devices(mesh, backend(backend_name));
  for (auto k : e.leaf_of_input) c.options.in.push_back(e.signature.in[k]);
  for (std::size_t k = 0; k < c.roots.size(); ++k) {
    CallSite here(o.at);
    bool given = k < e.results.size();
    auto* mapping = !given  ? nullptr
                    : o.out ? o.out->of(std::size_t(e.part_of_result[k]))
                            : o.default_mapping(mapping_outside);
    c.options.out.push_back(
        mapping ? sharding_for(c.roots[k]->axes, *mapping, mesh, e.name_of_result(k)) : Sharding());
    e.placements.push_back(mapping ? std::make_shared<const Placement>(Placement{mesh, *mapping})
                                   : nullptr);
  }
  c.options.mesh = &mesh;
}

// ---- calls ----
bool is_tracing() { return context().tracing > 0; }
// Allocates memory at once, because a scalar node would have to be evaluated first.
NamedArray number_argument(double value) {
  const float v = float(value);
  return array(std::span(&v, 1), Axes{});
}

JitOptions partitioned(const JitOptions& options) {
  JitOptions on_mesh = options;
  on_mesh.partition = true;
  return on_mesh;
}
JitCore::JitCore(JitOptions options) : impl_(std::make_shared<Impl>()) {
  impl_->options = CallOptions{std::move(options)};
}
JitCore::~JitCore() = default;
std::shared_ptr<JitCore> JitCore::create(const JitOptions& options, SourceLocation at) {
  return std::make_shared<JitCore>(located(options, at));
}

Leaves JitCore::placed_inside(const Walk& w, const Parts& parts, bool results) const {
  auto& o = impl_->options;
  Leaves out;
  for (auto* a : w.arrays) out.push_back(*a);
  if (!o.partition) return out;
  CallSite here(o.at);
  if (results)
    require_each("named_jit", "out", o.out, parts.count, "results");
  else
    o.check_call(parts.count);
  auto mesh = current_mesh();
  if (o.mesh && mesh && !(*o.mesh == *mesh))
    fail("named_jit", "mesh (" + to_string(*o.mesh) +
                          ") differs from that of the enclosing function (" + to_string(*mesh) +
                          ")");
  auto& each = results ? o.out : o.in;
  for (std::size_t k = 0; each && k < out.size(); ++k)
    if (auto* mapping = each->of(std::size_t(parts.of_leaf[k])); mapping && !out[k].empty())
      out[k] = shard(Arr(out[k], o.at), *mapping);
  return out;
}
std::shared_ptr<const void> JitCore::mapping_inside() const {
  auto& o = impl_->options;
  return o.axis_resources ? std::make_shared<const axis_mapping>(*o.axis_resources, o.at) : nullptr;
}
static constinit std::mutex showing;  // held while a report of any function is copied
static const bool showing_forks =
    at_fork({kForkRest, [] { showing.lock(); }, [] { showing.unlock(); }});

// The old state is not destroyed: the end of its trace would restore a context that belongs to
// another thread.
void JitCore::Impl::reset_lost_trace() {
  new (&pending) std::unique_ptr<Cached>;
  new (&tracing) std::optional<Tracing>;
  new (&mapping_outside) std::shared_ptr<const Mapping>;
  new (&report) JitReport(last_report);
  new (&reported_program) std::shared_ptr(last_program);
}
JitCore::TraceGuard::TraceGuard(JitCore& core) : core_(core) {
  if (core.impl_->trace_lock.lock()) core.impl_->reset_lost_trace();
}
JitCore::TraceGuard::~TraceGuard() { core_.impl_->trace_lock.unlock(); }
JitCore::Cached* JitCore::find(const Walk& w, const Parts& arguments) const {
  if (!w.unequal.empty() || !w.holding.empty()) return nullptr;  // `begin` raises an error
  for (auto* e = impl_->newest.load(std::memory_order_acquire); e; e = e->older)
    if (impl_->difference(e->signature, w, arguments).empty()) return e;
  return nullptr;
}

Leaves JitCore::begin(const Walk& w, const Parts& arguments) {
  auto& m = *impl_;
  m.options.check_call(arguments.count);
  refuse_static_values(w, m.options.at);
  m.report_retraces(w);
  const ArgumentNames names(w, arguments);
  auto shardings = m.argument_shardings(w, arguments, names);
  m.started = seconds_now();
  ++m.report.traces;
  auto* last = m.newest.load();
  m.report.why = last ? m.difference(last->signature, w, arguments) : "the first call";
  m.pending = std::make_unique<Cached>();
  m.pending->signature = {w.statics, w.values,       w.described,       {},
                          {},        current_mesh(), current_mapping(), std::move(shardings)};
  auto trace = std::make_shared<const Trace>(Trace{"jit", m.options.at, context().trace});
  auto inputs = m.create_inputs(w, arguments, names, trace);
  m.enter_trace(std::move(trace));
  return inputs;
}
void JitCore::abandon() {
  impl_->tracing.reset();
  impl_->pending.reset();
  std::lock_guard hold(showing);
  try {
    impl_->last_report = impl_->report;
    impl_->last_program = impl_->reported_program;
  } catch (const std::bad_alloc&) {}  // runs while an error is handled
}

JitCore::Cached* JitCore::end(const Leaves& results, const Parts& parts, std::shared_ptr<void> like,
                              const std::vector<std::string>& paths) {
  auto& m = *impl_;
  for (auto& path : paths) {
    auto dot = path.find('.');  // with several parts, without the number of the part
    auto own = parts.count < 2 ? path : dot == path.npos ? "" : path.substr(dot + 1);
    m.pending->paths.push_back(module_path(own));
  }
  m.compile(results, parts, false);
  m.pending->like = std::move(like);
  auto* created = m.pending.release();
  created->older = m.newest.load();
  m.newest.store(created, std::memory_order_release);
  abandon();
  return created;
}
void JitCore::plan(const Leaves& results, const Parts& parts) {
  impl_->compile(results, parts, true);
  abandon();
}

void* JitCore::like(Cached* e) { return e->like.get(); }
JitReport JitCore::report() const {
  std::lock_guard hold(showing);
  auto out = impl_->last_report;
  out.split_bytes = impl_->split_bytes;
  if (impl_->last_program) out.program = program::to_string(*impl_->last_program);
  return out;
}
const JitOptions& JitCore::options() const { return impl_->options; }

}  // namespace haliax::detail
