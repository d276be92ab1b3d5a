// Compiles a traced graph to a Program: one list of passes, in pipeline.cpp.
//
// In      the roots of a traced graph, and the inputs that represent arguments.
// Out     a Program, or one per device of a mesh.
// Always  each rewrite of a graph or a Program is an entry of the list. After each pass, the log
//         gets a line. HALIAX_PRINT=NAME (or all) prints the result of the pass: a graph with the
//         memory layout of its values, a plan, or a Program, bodies of loops included. If the pass
//         changed something, the verifier runs if it is enabled (verify.h).
#pragma once
#include <memory>
#include <span>

#include "compile/chunk/search.h"
#include "compile/debug_options.h"
#include "compile/lower/lower.h"
#include "compile/sharding/partition.h"
#include "haliax/jit.h"
#include "transforms/scores.h"

namespace haliax {

enum class Stage : std::uint8_t {
  graph,     // the global graph
  sharding,  // its sharding over a mesh; these passes only run if there is a mesh
  device,    // the graph of one device
  program,
};

struct CompileOptions {
  // false: only required passes run, and each node is a step of its own.
  bool optional = true;
  // The device whose scratch and cost model are used; null: no scratch.
  program::Device* device = nullptr;
  std::string called = {};         // value of Program::called
  std::vector<bool> donated = {};  // by input
  int workers = 0;                 // thread count for planned scratch; 0: all threads
  // false: batched matmuls are not looped over, as in the search for chunk sizes.
  bool batch_loops = true;
  int chunk_depth = 0;  // regions inside at least this many loops are tiled
  std::optional<std::int64_t> scores_budget = haliax::scores_budget();  // see JitOptions
  std::string_view from = "strip_wraps";                                // the first pass
  std::string_view until = {};  // stops before this pass; empty: after the last
  // Mesh, and shardings of the inputs and results.
  const Mesh* mesh = nullptr;
  std::vector<Sharding> in = {}, out = {};
  PartitionOptions partition = {};
  DebugOptions debug = debug_options();
};

// The state of a compilation, which passes read and modify.
struct Compilation {
  Nodes roots, inputs;
  CompileOptions options = {};
  std::vector<std::string> untiled_notes = {};  // report lines about untiled regions
  bool shares_queries = false;                // devices of a mesh share the queries of tiled scores
  std::shared_ptr<Partition> partition = {};  // set from stage sharding on
  int number = 0;                             // index of the device
  IterationParts iteration_parts = {};
  Layouts layouts = {};
  std::shared_ptr<program::Program> program = {};
  bool placed = false;    // slots have offsets: plan_memory has run
  Nodes captured = {};    // arrays in the graph, which the Program receives after the inputs
  double saved_work = 0;  // share of the multiplications of the graph that reuse_matmuls saves
  // The Program with saved matmuls. It is selected if its peak memory is not larger.
  std::optional<program::Program> alternative = {};
  std::vector<PassReport> log = {};
};

struct Pass {
  const char* name;
  const char* description;  // at most ten words
  Stage stage;
  bool optional;  // may be disabled without a change of meaning
  void (*run)(Compilation&);
};
std::span<const Pass> passes();  // in the order of execution

void run(Compilation&, Stage first, Stage last);
void run(Compilation&);  // all stages, for one device
// Runs the stages graph and sharding. Keys that are sharded like their queries may be gathered for
// each chunk of queries, or rotate around a ring. Both variants are planned, and the one with less
// communication is selected.
void run_global(Compilation&);
// Returns the compilation of one device of a mesh, before stage device.
Compilation on_device(const Compilation&, int number);
// Returns the output of HALIAX_PRINT after a pass of this stage.
std::string to_string(const Compilation&, Stage);
std::string to_string(const std::vector<PassReport>&);  // a table
std::string table_of_passes();                          // the list of passes, one line each
// Returns a function that runs the passes from `chunk` on. The search for chunk sizes calls it.
CompileTrial chunk_trial(program::Device*, DebugOptions = debug_options());

}  // namespace haliax
