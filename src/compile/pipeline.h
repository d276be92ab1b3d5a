// From a traced graph to a Program: one list of passes, in pipeline.cpp.
//
// In: the roots of a graph as it was traced, and the inputs that stand for arguments. Out: a
// Program, or one for each device of a mesh. Always: whatever rewrites a graph or a Program is an
// entry of the list. Behind each entry HALIAX_PRINT=NAME (or all) prints what it left (a graph with
// how its values lie in memory, a plan, a Program), bodies of loops included; the log gets a line;
// and where it left something new the verifier runs, if it is on (verify.h).
#pragma once
#include <memory>
#include <span>

#include "compile/chunk/search.h"
#include "compile/debug_options.h"
#include "compile/lower/lower.h"
#include "compile/sharding/partition.h"
#include "haliax/jit.h"

namespace haliax {

enum class Stage : std::uint8_t {
  graph,     // the graph of the whole
  sharding,  // how it is cut for the devices of a mesh; these passes run only where there is one
  device,    // the graph of one device
  program,
};

struct CompileOptions {
  // off: only the passes that meaning needs, and every node is a step of its own
  bool optional = true;
  // whose scratch is planned, and whose machine; none: no scratch
  program::Device* device = nullptr;
  std::string called = {};         // Program::called
  std::vector<bool> donated = {};  // by input
  int workers = 0;  // scratch is planned for so many threads; 0: as many as there are
  // off: batched products are whole, as the search for chunks counts them
  bool batch_loops = true;
  int chunk_depth = 0;                             // regions in so many loops, and in more, are cut
  std::optional<std::int64_t> scores_budget = {};  // see JitOptions
  std::string_view from = "strip_wraps";           // the first pass
  // On a mesh: how inputs and results lie.
  const Mesh* mesh = nullptr;
  std::vector<Sharding> in = {}, out = {};
  PartitionOptions partition = {};
  DebugOptions debug = debug_options();
};

// What is compiled, from pass to pass.
struct Compilation {
  Nodes roots, inputs;
  CompileOptions options = {};
  std::vector<std::string> untiled_notes = {};  // lines for people, of regions that stay whole
  bool shares_queries = false;  // devices of a mesh share the queries of scores that are walked
  std::shared_ptr<Partition> partition = {};  // from stage sharding on
  int number = 0;                             // of the device
  IterationParts iteration_parts = {};
  Layouts layouts = {};
  std::shared_ptr<program::Program> program = {};
  bool placed = false;  // the Program's slots have offsets: plan_memory has run
  Nodes captured = {};  // arrays of the graph, which the Program is given after the inputs
  double saved_work =
      0;  // of the multiplications of the graph, the share that reuse_matmuls spares
  // with products kept: taken if it needs no more memory
  std::optional<program::Program> alternative = {};
  std::vector<PassReport> log = {};
};

struct Pass {
  const char* name;
  const char* description;  // in ten words
  Stage stage;
  bool optional;  // meaning does not need it
  void (*run)(Compilation&);
};
std::span<const Pass> passes();  // in order

void run(Compilation&, Stage first, Stage last);
void run(Compilation&);  // all stages, for one device
// The stages of the whole. Keys that are cut as their queries are may be gathered for each chunk of
// queries, or go round: both are planned, and what sends less is taken.
void run_global(Compilation&);
// of a mesh, sharded: its share, before stage device
Compilation on_device(const Compilation&, int number);
std::string to_string(const std::vector<PassReport>&);  // a table
std::string table_of_passes();                          // the list, a line each
// The passes from `chunk` on, as the search for chunks tries them.
ChunkTrial chunk_trial(program::Device*, DebugOptions = debug_options());

}  // namespace haliax
