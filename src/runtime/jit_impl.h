// What JitCore holds: the traces that it keeps, the one that is being made, and what it reports.
#pragma once
#include <atomic>
#include <utility>

#include "haliax/jit.h"
#include "runtime/mesh_run.h"
#include "devices/trace_lock.h"

namespace haliax::detail {

// What a call looks like: two calls that look the same share a trace.
struct Signature {
  std::string statics;
  std::vector<StaticValue> values;
  std::vector<Walk::Told> told;  // of both, for people
  std::vector<Axes> axes;
  std::vector<int> dtypes;  // -1: empty
  std::shared_ptr<const Mesh> mesh;
  std::shared_ptr<const Mapping> mapping;
  std::vector<Sharding> in;  // on a mesh: how the arrays lie
};
struct JitCore::Cached {
  Signature signature;
  Compiled compiled;
  std::unique_ptr<MeshProgram> mesh;  // instead, on a mesh
  Nodes inputs;
  std::vector<std::size_t> leaf_of_input;  // inputs are the leaves that are not empty
  std::vector<int> part_of_result;
  std::vector<bool> donated;  // by input
  Nodes captured;             // by f: arrays that are no arguments
  // of the inputs, for people: argument 0, or argument 0: mlp.up.weight
  std::vector<std::string> names;
  std::vector<int> result_of_leaf;  // of the results: -1 empty
  Names paths;  // of the results' leaves: what a layer among them is called in errors
  std::vector<std::pair<Axes, DType>> results;
  std::vector<std::shared_ptr<const Placement>> placements;  // of the results
  std::shared_ptr<void> like;
  Cached* older = nullptr;  // made before this one

  void note_captured(const Compiled& c) {
    for (auto& n : c.captured)
      if (std::find(captured.begin(), captured.end(), n) == captured.end()) captured.push_back(n);
  }
  bool donates() const { return std::find(donated.begin(), donated.end(), true) != donated.end(); }
  // result 0, or result 0, array 3: its place in that part, from 0
  std::string name_of_result(std::size_t k) const {
    auto& all = part_of_result;
    auto name = "result " + std::to_string(all[k]);
    if (std::count(all.begin(), all.end(), all[k]) == 1) return name;
    return name + ", array " +
           std::to_string(std::count(all.begin(), all.begin() + std::ptrdiff_t(k), all[k]));
  }
  Leaves assemble(const std::vector<BufferPtr>& made) const {
    Leaves out;
    for (std::size_t k = 0; k < result_of_leaf.size(); ++k) {
      auto r = result_of_leaf[k];
      if (r < 0) {
        out.emplace_back();
        continue;
      }
      auto& [axes, dtype] = results[std::size_t(r)];
      auto n = make_data(made[std::size_t(r)], axes, dtype);
      const_cast<Node&>(*n).origin.module = paths[k];
      n->field.note(paths[k]);
      if (!placements.empty()) const_cast<Node&>(*n).placement = placements[std::size_t(r)];
      out.push_back(NamedArray(n));
    }
    return out;
  }
};

// For people: argument 0, or argument 0: mlp.up.weight. The path is that in all arguments:
// 0.mlp.up.weight.
std::string argument_name(const std::string& path);

struct JitCore::Impl {
  JitOptions options;
  // of the list of entries, which is read without a lock and grows by a turn
  std::atomic<Cached*> newest{nullptr};
  TraceLock trace_lock;             // to trace: what is below belongs to who has it
  std::unique_ptr<Cached> pending;  // being traced, as long as `tracing` is there
  std::optional<Tracing> tracing;
  std::shared_ptr<const Mapping> mapping_outside;  // of what is being traced
  JitReport report;
  double started = 0;
  bool reported_retraces = false;

  JitReport last_report;                     // of the last turn; under a lock of its own
  std::atomic<std::int64_t> split_bytes{0};  // of the last run
  ~Impl() {
    for (auto* e = newest.load(); e;) delete std::exchange(e, e->older);
  }

  // ---- jit_cache.cpp: which trace a call takes ----
  // In what a call is not like this signature, for people; empty: it takes that trace.
  std::string difference(const Signature&, const Walk&, const Parts& arguments) const;
  std::string array_difference(const Signature&, const Walk&) const;
  // Says so, or raises, if static values alone have made this function be traced often.
  void report_retraces(const Walk&);
  // How an argument lies: as the caller says, or as it was made, or else by the usual mapping.
  // Called outside of the trace.
  Sharding argument_sharding(const Node&, int argument, const Mesh&, const std::string& what) const;
  // The mapping of results, and of arguments that lie nowhere yet.
  const Mapping* default_mapping(const std::shared_ptr<const Mapping>& outside) const {
    return options.axis_resources ? &*options.axis_resources : outside.get();
  }
  std::shared_ptr<const Mesh> mesh() const;
  std::vector<const Mapping*> given_mappings() const;  // null: not given
  // Raises for what the caller has said about the mesh and this function's arguments, before
  // anything is traced.
  void check_call(int arguments) const;
  void require_devices(const Mesh&, program::Device&) const;

  // ---- jit.cpp: from a trace to a Program, or one for each device of a mesh ----
  void compile(const Leaves& results, const Parts&, bool simulated);
  Nodes roots_of(const Leaves& results, const Parts&);
  std::vector<ArgumentValue> argument_values(const Cached&, const Walk&, const Nodes& late,
                                             std::vector<bool>& given) const;
  void place_on(const Mesh&, Compilation&, const std::string& backend_name, bool simulated);
  MeshProgram* compile_on_mesh(Compilation&, const std::string& backend_name, bool simulated);

  // ---- jit_report.cpp ----
  void report_loops(const Compilation&);
  void report_not_donated(const program::Program&);
  void report_program(const Compilation&, const MeshProgram*);
};

}  // namespace haliax::detail
