#include "haliax/jit.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <set>

#include "base/where.h"
#include "ops/prim.h"
#include "runtime/explain.h"
#include "transforms/gradient_names.h"

namespace haliax::detail {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
bool owns_memory(const Node& n) { return n.op != &prim::kNumber && n.op != &prim::kIota; }   // others are shared by all that are equal

}  // namespace

// What a call looks like: two calls that look the same share a trace.
struct Signature {
  std::string statics;
  std::vector<StaticValue> values;
  std::vector<Axes> axes;
  std::vector<int> dtypes;                       // -1: empty
  std::shared_ptr<const Mesh> mesh;
  std::shared_ptr<const Mapping> mapping;
  std::vector<Sharding> in;                      // on a mesh: how the arrays lie
};
struct JitCore::Entry {
  Signature signature;
  Compiled compiled;
  std::unique_ptr<MeshProgram> mesh;             // instead, on a mesh
  Nodes inputs;
  std::vector<std::size_t> leaf_of_input;        // inputs are the leaves that are not empty
  std::vector<int> part_of_input, part_of_result;   // which argument, which part of the result
  std::vector<bool> donated;                     // by input
  Nodes captured;                                // by f: arrays that are no arguments
  std::vector<std::string> names;                // of the inputs, for people: argument 0, or argument 0: mlp.up.weight
  std::vector<int> result_of_leaf;               // of the results: -1 empty
  std::vector<std::pair<Axes, DType>> results;
  std::vector<std::shared_ptr<const Placement>> placements;   // of the results
  std::shared_ptr<void> like;
  BufferPtr arena;
  std::vector<void*> arguments, outs;

  void note_captured(const Compiled& c) {
    for (auto& n : c.captured)
      if (std::find(captured.begin(), captured.end(), n) == captured.end()) captured.push_back(n);
  }
  std::string name_of_result(std::size_t k) const {   // result 0, or result 0, array 3: its place in that part, from 0
    auto part = part_of_result[k];
    auto name = "result " + std::to_string(part);
    if (std::count(part_of_result.begin(), part_of_result.end(), part) == 1) return name;
    return name + ", array " + std::to_string(std::count(part_of_result.begin(), part_of_result.begin() + std::ptrdiff_t(k), part));
  }
  Leaves assemble(const std::vector<BufferPtr>& made) const {
    Leaves out;
    for (int r : result_of_leaf) {
      if (r < 0) { out.emplace_back(); continue; }
      auto& [axes, dtype] = results[std::size_t(r)];
      auto n = make_data(made[std::size_t(r)], axes, dtype);
      if (!placements.empty()) const_cast<Node&>(*n).placement = placements[std::size_t(r)];
      out.push_back(NamedArray(n));
    }
    return out;
  }
};

struct JitCore::Impl {
  JitOptions options;
  std::vector<std::unique_ptr<Entry>> entries;
  std::unique_ptr<Entry> pending;
  std::optional<Tracing> tracing;
  std::optional<use_mesh> on_mesh;
  Context outer = {};
  JitReport report;
  double started = 0;
  std::recursive_mutex lock;

  static bool same(const Signature& s, const Walk& w) {
    if (s.statics != w.statics || !(s.values == w.values) || s.axes.size() != w.arrays.size()) return false;
    for (std::size_t k = 0; k < w.arrays.size(); ++k) {
      auto& n = w.arrays[k]->node();
      if ((n ? int(n->dtype) : -1) != s.dtypes[k]) return false;
      if (n && n->axes != s.axes[k]) return false;
    }
    return true;
  }
  template <class T> static bool equal(const std::shared_ptr<const T>& a, const std::shared_ptr<const T>& b) { return a == b || (a && b && *a == *b); }
  bool same_scope(const Signature& s) const { return equal(s.mesh, current_mesh()) && equal(s.mapping, current_mapping()); }

  // The mapping of results, and of arguments that lie nowhere yet.
  const Mapping* usual(const Context& outside) const {
    return options.axis_resources ? &*options.axis_resources : outside.origin.mapping.get();
  }
  // How an argument lies: as the caller says, or as it was made, or else by the usual mapping. Called outside of the trace.
  Sharding lies(const Node& n, int argument, const Mesh& mesh, const std::string& what) const {
    auto* mapping = options.in ? options.in->of(std::size_t(argument)) : usual(context());
    bool told = options.in && mapping;
    if (auto* p = n.placement.get(); !told && p && (p->mesh == mesh || waits(*p))) mapping = &p->mapping;
    return mapping ? sharding_for(n.axes, *mapping, mesh, what) : Sharding();
  }
  bool same_places(const Signature& s, const Walk& w, const Parts& arguments) const {
    if (s.in.empty() || (options.in && options.in->one())) return true;
    Here here(options.at);
    auto mesh = this->mesh();
    for (std::size_t k = 0; k < w.arrays.size(); ++k) {
      auto& n = w.arrays[k]->node();
      if (n && !(lies(*n, arguments.of_leaf[k], *mesh, "an argument") == s.in[k])) return false;
    }
    return true;
  }

  Entry* finish() {
    on_mesh.reset();
    tracing.reset();
    context() = outer;
    entries.push_back(std::move(pending));
    auto* made = entries.back().get();
    lock.unlock();
    return made;
  }
  void report_loops(const Nodes& graph, const std::vector<std::string>& uncut) {
    report.chunked.clear();
    report.explain.clear();
    struct Walked {                              // a region, in as many loops as it takes
      ChunkReport report;
      bool apart = false;
      std::size_t contractions = 0;
      std::unordered_set<const Node*> distinct = {};
    };
    std::vector<Walked> regions;
    for (auto& n : everything(graph)) {
      if (n->op != &kLoop || loop_of(*n).form.empty()) continue;
      auto& l = loop_of(*n);
      ChunkReport c{std::string(l.axis.name.text()), l.form, prim::index_chunk(*l.index[0]), l.why};
      auto same = [&](auto& o) { return o.report.axis == c.axis && o.report.chunk == c.chunk && o.report.why == c.why; };
      auto at = std::find_if(regions.begin(), regions.end(), same);
      if (at == regions.end()) at = regions.insert(regions.begin(), Walked{c});
      at->apart |= l.apart;
      Nodes made;
      for (auto& r : l.results) made.push_back(r.value[0]);
      for (auto& x : everything(made))
        if (x->op == &prim::kContract && x->varies_with(l.index[0].get())) ++at->contractions, at->distinct.insert(x.get());
    }
    std::string said;
    for (auto& w : regions) {
      auto& c = w.report;
      bool again = w.contractions > w.distinct.size();
      if (c.form == "sweep" && again) c.form = "recompute";
      const char* why = c.form == "forward" ? "no gradients"
                        : c.form == "sweep" ? "values and gradients in one sweep, since no gradient waits for its end"
                        : w.apart           ? "chunks are made again for the gradients, in a sweep of their own"
                                            : "chunks are made again, since what follows waits for the end of a sweep";
      report.chunked.push_back(c);
      report.explain += c.form + " over " + c.axis + ": " + why + (c.why == said ? "" : "; " + c.why) + "\n";
      said = c.why;
    }
    for (auto& line : uncut) report.explain += line + "\n";
  }
  // The results as roots, after the passes over the graph.
  Compilation graph_of(const Leaves& results, const Parts& parts, const std::string& backend_name) {
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
  std::string backend_name() const { return options.backend.empty() ? default_backend() : options.backend; }
  std::shared_ptr<const Mesh> mesh() const {
    if (!options.partition) return nullptr;
    return options.mesh ? std::make_shared<const Mesh>(*options.mesh) : current_mesh();
  }
  std::vector<const Mapping*> given_mappings() const {   // null: not given
    std::vector<const Mapping*> given{options.axis_resources ? &*options.axis_resources : nullptr};
    for (auto* each : {&options.in, &options.out})
      for (std::size_t k = 0; *each && k < (*each)->each().size(); ++k) given.push_back((*each)->of(k));
    return given;
  }
  // Raises for what the caller has said about the mesh and this function's arguments, before anything is traced.
  void check_call(int arguments) const {
    Here here(options.at);
    for (int d : options.donate)
      if (d < 0 || d >= arguments)
        fail("jit", "argument " + std::to_string(d) + " is to be donated, but the function has " + std::to_string(arguments) +
                        ", counted from 0");
    if (!options.partition) return;
    require_each("named_jit", "in", options.in, arguments, "arguments");
    auto mappings = given_mappings();
    mappings.push_back(usual(context()));
    auto mesh = this->mesh();
    for (auto* m : mappings) {
      if (m && mesh) require_axes("named_jit", *m, *mesh);
      if (m && !mesh && options.strict) refuse_without_mesh(*m);
    }
    for (auto& l : options.speed.links)
      if (mesh && !l.axis.empty()) mesh->size(l.axis);
  }
  void must_have_devices(const Mesh& mesh) const {
    Here here(options.at);
    require_devices("named_jit", mesh);
  }
  // A program for each device: arguments and results are cut by the mappings.
  void end_on(const Mesh& mesh, Compilation& c, const std::string& backend_name, bool simulated) {
    auto& e = *pending;
    auto t = now();
    std::vector<Sharding> in, out;
    for (auto k : e.leaf_of_input) in.push_back(e.signature.in[k]);
    if (!simulated) must_have_devices(mesh);
    for (std::size_t k = 0; k < c.roots.size(); ++k) {
      Here here(options.at);
      auto* mapping = options.out ? options.out->of(std::size_t(e.part_of_result[k])) : usual(outer);
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
    describe(report, *e.mesh, options.speed);
    add_tables(report, *e.mesh);
    report_passes(c);
  }
  void describe_alone(const Compilation& c) {   // on one device
    describe(report, *c.program, options.speed);
    add_tables(report, *c.program, pending->inputs);
    report_passes(c);
  }
  void report_passes(const Compilation& c) {
    report.passes = c.log;
    if (options.passes) report.explain += "\n" + to_string(c.log);
  }

  std::string difference(const Walk& w, const std::vector<Sharding>& in) const {   // from the call before
    if (entries.empty()) return "the first call";
    auto& s = entries.back()->signature;
    if (!equal(s.mesh, current_mesh())) return "another mesh";
    if (!equal(s.mapping, current_mapping())) return "another axis mapping";
    if (s.axes.size() != w.arrays.size()) return "another number of arrays: " + std::to_string(w.arrays.size()) + ", not " + std::to_string(s.axes.size());
    for (std::size_t k = 0; k < w.arrays.size(); ++k) {
      auto& n = w.arrays[k]->node();
      auto name = k < w.paths.size() ? w.paths[k] : std::to_string(k);
      if ((n ? int(n->dtype) : -1) != s.dtypes[k]) return "array " + name + " has another dtype";
      if (n && n->axes != s.axes[k]) return "array " + name + " is " + to_string(n->axes) + ", not " + to_string(s.axes[k]);
      if (k < in.size() && k < s.in.size() && !(in[k] == s.in[k])) return "array " + name + " is placed otherwise";
    }
    return "a static field (a number, string, axis or function) differs";
  }
};

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
  m.outer = context();
  m.tracing.emplace();
  if (auto mesh = m.mesh()) m.on_mesh.emplace(*mesh), context().gradients = std::make_shared<Gradients>();
  if (m.options.axis_resources) context().origin.mapping = std::make_shared<const Mapping>(*m.options.axis_resources);
  return out;
}
void JitCore::abandon() {
  impl_->on_mesh.reset();
  impl_->tracing.reset();
  context() = impl_->outer;
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
  e.arguments.resize(std::size_t(p.arguments)), e.outs.resize(std::size_t(p.results));
  m.report.compile_s = now() - t;
  m.describe_alone(c);
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
    m.describe_alone(c);
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
  auto& p = *e.compiled.program;
  std::size_t at = 0;
  std::vector<BufferPtr> keep;
  for (auto k : e.leaf_of_input) {
    auto& n = w.arrays[k]->node();
    auto value = n->value;
    if (e.donated[at]) {          // its memory will be overwritten: not if somebody else reads it too
      int uses = 0;
      for (auto j : e.leaf_of_input) uses += w.arrays[j]->node() == n;
      if (uses > 1 || value.use_count() > 2 || !given[at] || value->pieces()) {
        auto copy = memory(value->bytes());
        std::copy(value->data(), value->data() + value->bytes(), copy->data());
        value = copy;
      }
    }
    keep.push_back(value);
    e.arguments[at++] = value->data();
  }
  for (auto& n : e.compiled.captured) e.arguments[at++] = n->value->data();
  std::vector<BufferPtr> made(std::size_t(p.results));
  for (std::size_t i = 0; i < e.donated.size(); ++i)
    if (p.donated[i] >= 0) made[std::size_t(p.donated[i])] = keep[i];
  for (int r = 0; r < p.results; ++r) {
    auto& b = made[std::size_t(r)];
    bool aliased = bool(b);
    if (!b) b = memory(p.slots[std::size_t(p.result_slots[std::size_t(r)])].bytes);
    e.outs[std::size_t(r)] = aliased ? nullptr : b->data();
  }
  give_up_donated(e, w, given);
  e.compiled.executable->run(e.arguments, e.outs, e.arena->data(), nullptr);
  return e.assemble(made);
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
