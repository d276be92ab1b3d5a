#include "haliax/jit.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "base/where.h"
#include "ops/prim.h"
#include "runtime/explain.h"
#include "runtime/jit_impl.h"
#include "transforms/gradient_names.h"

namespace haliax::detail {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
bool owns_memory(const Node& n) { return n.op != &prim::kNumber && n.op != &prim::kIota; }   // others are shared by all that are equal

}  // namespace

// ---- from a trace to a Program ----
Compilation JitCore::Impl::graph_of(const Leaves& results, const Parts& parts, const std::string& backend_name) {
  auto& e = *pending;
  if (options.partition) {
    Here here(options.at);
    require_each("named_jit", "out", options.out, parts.count, "results");
  }
  Nodes roots;
  for (std::size_t k = 0; k < results.size(); ++k) {
    auto& r = results[k];
    e.result_of_leaf.push_back(!r.empty() ? int(roots.size()) : -1);
    if (r.empty()) continue;
    roots.push_back(r.node()), e.results.push_back({r.node()->axes, r.dtype()});
    e.part_of_result.push_back(parts.of_leaf[k]);
  }
  report.trace_s = now() - started;
  if (options.strict && options.partition) {
    Here here(options.at);
    refuse_mappings(roots, e.inputs, given_mappings(), mesh() != nullptr);
  }
  Compilation c{std::move(roots), e.inputs, options_for(backend_name)};
  c.options.donated = e.donated;
  haliax::run(c, Stage::graph, Stage::graph);
  report_loops(c.roots, c.uncut);
  return c;
}
void JitCore::Impl::end_on(const Mesh& mesh, Compilation& c, const std::string& backend_name, bool simulated) {
  auto& e = *pending;
  auto t = now();
  std::vector<Sharding> in, out;
  for (auto k : e.leaf_of_input) in.push_back(e.signature.in[k]);
  if (!simulated) must_have_devices(mesh);
  for (std::size_t k = 0; k < c.roots.size(); ++k) {
    Here here(options.at);
    auto* mapping = options.out ? options.out->of(std::size_t(e.part_of_result[k])) : usual(mapping_outside);
    out.push_back(mapping ? sharding_for(c.roots[k]->axes, *mapping, mesh, e.name_of_result(k)) : Sharding());
    e.placements.push_back(mapping ? std::make_shared<const Placement>(Placement{mesh, *mapping}) : nullptr);
  }
  auto& o = options;
  c.options.mesh = &mesh, c.options.in = std::move(in), c.options.out = std::move(out);
  c.options.partition = {.regather = o.regather, .ring = o.ring, .strict = o.strict, .reduce_dtype = o.reduce_dtype,
                         .gradients = context().gradients};
  e.mesh = std::make_unique<MeshProgram>(compile_for_mesh(c, backend_name, simulated));
  for (auto& d : e.mesh->devices) e.note_captured(d);
  report.compile_s = now() - t;
  report_mesh(c, *e.mesh);
}
JitCore::Entry* JitCore::Impl::finish() {
  tracing.reset();
  entries.push_back(std::move(pending));
  auto* made = entries.back().get();
  lock.unlock();
  return made;
}

// ---- calls ----
bool is_tracing() { return context().tracing > 0; }

JitCore::JitCore(JitOptions options) : impl_(std::make_unique<Impl>()) { impl_->options = std::move(options); }
JitCore::~JitCore() = default;

Leaves JitCore::placed_inside(const Walk& w, const Parts& parts, bool results) const {
  auto& o = impl_->options;
  Leaves out;
  for (auto* a : w.arrays) out.push_back(*a);
  if (!o.partition) return out;
  Here here(o.at);
  if (results) require_each("named_jit", "out", o.out, parts.count, "results");
  else impl_->check_call(parts.count);
  auto mesh = current_mesh();
  if (o.mesh && mesh && !(*o.mesh == *mesh))
    fail("named_jit", "mesh (" + to_string(*o.mesh) + ") is not that of the function around (" + to_string(*mesh) + ")");
  auto& each = results ? o.out : o.in;
  for (std::size_t k = 0; each && k < out.size(); ++k)
    if (auto* mapping = each->of(std::size_t(parts.of_leaf[k])); mapping && !out[k].empty())
      out[k] = shard(Arr(out[k], o.at), *mapping);
  return out;
}
JitCore::Entry* JitCore::find(const Walk& w, const Parts& arguments) {
  std::lock_guard hold(impl_->lock);
  for (std::size_t i = impl_->entries.size(); i-- > 0;) {
    auto& e = impl_->entries[i];
    if (Impl::same(e->signature, w) && impl_->same_scope(e->signature) && impl_->same_places(e->signature, w, arguments)) return e.get();
  }
  return nullptr;
}

Leaves JitCore::begin(const Walk& w, const Parts& arguments) {
  auto& m = *impl_;
  m.check_call(arguments.count);
  auto& donate = m.options.donate;
  auto& owner = arguments.of_leaf;
  std::vector<std::string> paths, names;                     // of a leaf in its argument; for people
  for (std::size_t k = 0; k < w.paths.size(); ++k) {
    auto dot = w.paths[k].find('.');                         // without the number of the argument
    paths.push_back(dot == std::string::npos ? "" : w.paths[k].substr(dot + 1));
    names.push_back("argument " + std::to_string(owner[k]) + (paths[k].empty() ? "" : ": " + paths[k]));
  }
  std::map<std::string, std::set<int>> owners;               // by path: where several have one, it says of which it is
  for (std::size_t k = 0; k < paths.size(); ++k) owners[paths[k]].insert(owner[k]);
  auto path = [&](std::size_t k) { return paths[k].empty() || owners[paths[k]].size() == 1 ? paths[k] : names[k]; };
  std::vector<Sharding> in;
  if (auto mesh = m.mesh()) {
    Here here(m.options.at);
    for (std::size_t k = 0; k < w.arrays.size(); ++k) {
      auto& n = w.arrays[k]->node();
      in.push_back(n ? m.lies(*n, owner[k], *mesh, names[k]) : Sharding());
    }
  }
  m.lock.lock();
  m.started = now();
  ++m.report.traces;
  m.report.why = m.difference(w, in);
  m.pending = std::make_unique<Entry>();
  auto& e = *m.pending;
  e.signature = {w.statics, w.values, {}, {}, current_mesh(), current_mapping(), std::move(in)};
  Leaves out;
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& n = w.arrays[k]->node();
    e.signature.axes.push_back(n ? n->axes : Axes());
    e.signature.dtypes.push_back(n ? int(n->dtype) : -1);
    if (!n) { out.emplace_back(); continue; }
    e.inputs.push_back(prim::input(n->axes, n->dtype, module_path(path(k))));
    e.leaf_of_input.push_back(k);
    e.names.push_back(names[k]);
    e.part_of_input.push_back(owner[k]);
    e.donated.push_back(std::find(donate.begin(), donate.end(), owner[k]) != donate.end());
    out.push_back(NamedArray(e.inputs.back()));
  }
  m.mapping_outside = context().origin.mapping;
  m.tracing.emplace();
  if (auto mesh = m.mesh()) context().mesh = std::move(mesh), context().gradients = std::make_shared<Gradients>();
  if (m.options.axis_resources) context().origin.mapping = std::make_shared<const Mapping>(*m.options.axis_resources);
  return out;
}
void JitCore::abandon() {
  impl_->tracing.reset();
  impl_->pending.reset();
  impl_->lock.unlock();
}

JitCore::Entry* JitCore::end(const Leaves& results, const Parts& parts, std::shared_ptr<void> like) {
  auto& m = *impl_;
  auto& e = *m.pending;
  auto t = now();
  auto name = m.backend_name();
  auto c = m.graph_of(results, parts, name);
  e.like = std::move(like);
  if (auto mesh = m.mesh()) {
    m.end_on(*mesh, c, name, false);
    return m.finish();
  }
  e.compiled = haliax::finish(c, name);
  e.note_captured(e.compiled);
  auto& p = *e.compiled.program;
  e.arena = memory(p.arena_bytes);
  m.report.compile_s = now() - t;
  m.report_alone(c);
  m.report.not_donated.clear();
  for (std::size_t k = 0; k < e.inputs.size(); ++k)
    if (e.donated[k] && p.donated[k] < 0)
      m.report.not_donated.push_back(e.names[k] + " " + to_string(e.inputs[k]->axes) +
                                     ": no result of its size is made where it is last read");
  return m.finish();
}
void JitCore::plan(const Leaves& results, const Parts& parts) {
  auto& m = *impl_;
  auto name = m.backend_name();
  auto c = m.graph_of(results, parts, name);
  if (auto mesh = m.mesh()) {
    m.end_on(*mesh, c, name, true);
  } else {
    haliax::finish(c, name, false);
    m.report_alone(c);
  }
  abandon();
}

Leaves JitCore::run(Entry* entry, const Walk& w) {
  auto& e = *entry;
  std::lock_guard hold(impl_->lock);
  auto must_be_there = [&](const Node& n) {
    Here here(impl_->options.at);
    if (!n.donated.empty()) fail("jit", n.donated);
  };
  for (auto& n : e.captured) must_be_there(*n);
  Nodes late;
  for (auto k : e.leaf_of_input) {
    auto& n = w.arrays[k]->node();
    must_be_there(*n);
    if (!n->value) late.push_back(n);
  }
  if (!late.empty()) {
    Here here(impl_->options.at);
    evaluate(late);
  }
  // An array that was lazy until now may be the node of another, equal one, and f may have captured an argument: such a value is
  // lent, not given.
  std::vector<bool> given;
  for (auto k : e.leaf_of_input) {
    auto& n = w.arrays[k]->node();
    bool was_late = std::find(late.begin(), late.end(), n) != late.end();
    bool captured = std::find(e.captured.begin(), e.captured.end(), n) != e.captured.end();
    given.push_back(owns_memory(*n) && !captured && !(was_late && n.use_count() > 1 + std::count(late.begin(), late.end(), n)));
  }
  if (e.mesh) {
    impl_->must_have_devices(e.mesh->mesh);   // set_devices may have taken some away
    std::vector<BufferPtr> arguments;
    std::vector<bool> may_take = given;
    for (auto k : e.leaf_of_input) arguments.push_back(w.arrays[k]->node()->value);
    for (std::size_t i = 0; i < may_take.size(); ++i) may_take[i] = given[i] && e.donated[i];
    give_up_donated(e, w, given);
    auto made = e.mesh->run(arguments, may_take);
    impl_->report.split_bytes = e.mesh->split_bytes;
    return e.assemble(made);
  }
  std::vector<Given> inputs;
  for (std::size_t i = 0; i < e.leaf_of_input.size(); ++i) {
    auto& n = w.arrays[e.leaf_of_input[i]]->node();
    auto value = n->value;
    // What is donated will be written over: not if somebody else reads it too.
    auto uses = std::count_if(e.leaf_of_input.begin(), e.leaf_of_input.end(), [&](auto j) { return w.arrays[j]->node() == n; });
    if (e.donated[i] && (uses > 1 || value.use_count() > 2 || !given[i] || value->pieces())) value = copied(*value);
    inputs.push_back({value, value->data()});
  }
  give_up_donated(e, w, given);
  return e.assemble(call(e.compiled, inputs, e.arena, nullptr));
}
// Before the program starts: whatever comes of it, results may be written over what was donated.
void JitCore::give_up_donated(Entry& e, const Walk& w, const std::vector<bool>& given) const {
  for (std::size_t i = 0; i < e.donated.size(); ++i) {
    if (!e.donated[i] || !given[i]) continue;
    auto& n = const_cast<Node&>(*w.arrays[e.leaf_of_input[i]]->node());
    n.donated = "this array was donated to the call of jit at " + to_string(impl_->options.at) + " and cannot be used any more";
    n.value.reset();
  }
}

void* JitCore::like(Entry* e) { return e->like.get(); }
JitReport JitCore::report() const { return impl_->report; }
const JitOptions& JitCore::options() const { return impl_->options; }

}  // namespace haliax::detail
