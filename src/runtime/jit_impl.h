// The state of `JitCore`: its cache of traces, the trace in progress, and its reports.
#pragma once
#include <atomic>
#include <utility>

#include "devices/trace_lock.h"
#include "haliax/jit.h"
#include "runtime/call_options.h"
#include "runtime/mesh_run.h"

namespace haliax::detail {

// The signature of a call. Calls with equal signatures share a trace.
struct Signature {
  std::string statics;
  std::vector<StaticValue> values;
  std::vector<Walk::Described> described;  // readable form of statics and values
  std::vector<Axes> axes;
  std::vector<int> dtypes;  // -1: empty
  std::shared_ptr<const Mesh> mesh;
  std::shared_ptr<const Mapping> mapping;
  std::vector<Sharding> in;  // on a mesh: shardings of the arrays
};
struct JitCore::Cached {
  Signature signature;
  Compiled compiled;
  std::unique_ptr<MeshProgram> mesh;  // replaces `compiled` on a mesh
  Nodes inputs;
  std::vector<std::size_t> leaf_of_input;  // inputs are the leaves that are not empty
  std::vector<int> part_of_result;
  std::vector<bool> donated;  // by input
  Nodes captured;             // arrays that f captured, other than arguments
  // Readable names of the inputs: "argument 0" or "argument 0: mlp.up.weight".
  std::vector<std::string> names;
  std::vector<int> result_of_leaf;  // index of the result, by leaf of the results; -1: empty
  Names paths;  // paths of the leaves of the results, for errors about their modules
  std::vector<std::pair<Axes, DType>> results;
  std::vector<std::shared_ptr<const Placement>> placements;  // placements of the results
  std::shared_ptr<void> like;
  Cached* older = nullptr;  // the previous entry of the list

  void note_captured(const Compiled& c) {
    for (auto& n : c.captured)
      if (std::find(captured.begin(), captured.end(), n) == captured.end()) captured.push_back(n);
  }
  bool donates() const { return std::find(donated.begin(), donated.end(), true) != donated.end(); }
  // Returns "result 0" or "result 0, array 3". The second number counts the arrays of that part
  // from 0.
  std::string name_of_result(std::size_t k) const {
    auto& all = part_of_result;
    auto name = "result " + std::to_string(all[k]);
    if (std::count(all.begin(), all.end(), all[k]) == 1) return name;
    return name + ", array " +
           std::to_string(std::count(all.begin(), all.begin() + std::ptrdiff_t(k), all[k]));
  }
  Leaves assemble(const std::vector<BufferPtr>& created) const {
    Leaves out;
    for (std::size_t k = 0; k < result_of_leaf.size(); ++k) {
      auto r = result_of_leaf[k];
      if (r < 0) {
        out.emplace_back();
        continue;
      }
      auto& [axes, dtype] = results[std::size_t(r)];
      auto n = make_data(created[std::size_t(r)], axes, dtype);
      const_cast<Node&>(*n).origin.module = paths[k];
      n->field.note(paths[k]);
      if (!placements.empty()) const_cast<Node&>(*n).placement = placements[std::size_t(r)];
      out.push_back(NamedArray(n));
    }
    return out;
  }
};

// ---- report/jit_report.cpp ----
void report_loops(JitReport&, const Compilation&);
// Reports the donated arguments whose memory the Program does not reuse.
void report_not_donated(JitReport&, const JitCore::Cached&, const program::Program&);
// `on_mesh`: null without a mesh.
void report_program(JitReport&, const Compilation&, const MeshProgram* on_mesh, const JitOptions&);

// Returns a readable name of an argument: "argument 0" or "argument 0: mlp.up.weight". `path` is
// the path in all arguments, such as 0.mlp.up.weight.
std::string argument_name(const std::string& path);

struct ArgumentNames;

struct JitCore::Impl {
  CallOptions options;
  // The newest entry of the list of entries. The list is read without a lock and only grows under
  // `trace_lock`.
  std::atomic<Cached*> newest{nullptr};
  TraceLock trace_lock;             // held during a trace; protects the members of this block
  std::unique_ptr<Cached> pending;  // the entry in progress; valid while `tracing` is set
  std::optional<Tracing> tracing;
  std::shared_ptr<const Mapping> mapping_outside;  // the mapping outside of f during the trace
  JitReport report;                                // without the text of the Program
  // The Program that the report describes. On a mesh, it is that of the largest device.
  std::shared_ptr<const program::Program> reported_program;
  double started = 0;
  bool reported_retraces = false;

  // Report of the last trace, and its Program; they have a lock of their own.
  JitReport last_report;
  std::shared_ptr<const program::Program> last_program;
  std::atomic<std::int64_t> split_bytes{0};  // copied to split arguments, in the last run
  ~Impl() {
    for (auto* e = newest.load(); e;) delete std::exchange(e, e->older);
  }
  // Replaces the state of a trace whose thread was lost in a fork.
  void reset_lost_trace();

  // ---- jit_cache.cpp: the trace of a call ----
  // Returns a readable description of the first difference between a call and this signature.
  // Empty: the call uses the trace of this signature.
  std::string difference(const Signature&, const Walk&, const Parts& arguments) const;
  std::string array_difference(const Signature&, const Walk&) const;
  // Reports, or raises, if static values alone have caused many traces of this function.
  void report_retraces(const Walk&);

  // ---- jit.cpp: the start of a trace ----
  std::vector<Sharding> argument_shardings(const Walk&, const Parts&, const ArgumentNames&) const;
  Leaves create_inputs(const Walk&, const Parts&, const ArgumentNames&,
                       const std::shared_ptr<const Trace>&);
  void enter_trace(std::shared_ptr<const Trace>);

  // ---- jit.cpp: from a trace to a Program, or to one Program per device of a mesh ----
  void compile(const Leaves& results, const Parts&, bool simulated);
  Nodes roots_of(const Leaves& results, const Parts&);
  void place_on(const Mesh&, Compilation&, const std::string& backend_name, bool simulated);

  // ---- jit_run.cpp ----
  // `deferred`: the arguments that had no value before the call. `may_overwrite`: see
  // MeshProgram::run.
  std::vector<ArgumentValue> argument_values(const Cached&, const Walk&, const Nodes& deferred,
                                             std::vector<bool>& may_overwrite) const;
};

}  // namespace haliax::detail
