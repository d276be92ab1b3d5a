#include "base/verify_error.h"
#include "compile/pipeline.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/clock.h"
#include "compile/chunk/chunk.h"
#include "compile/loops/loops.h"
#include "compile/lower/masked.h"
#include "compile/memory/memory.h"
#include "compile/verify.h"
#include "transforms/scores.h"

namespace haliax {
namespace {

void rewrite(Compilation& c, Nodes (*f)(Nodes)) { c.roots = f(std::move(c.roots)); }

const Pass kPasses[] = {
    // ---- the graph of the whole ----
    {"strip_wraps", "drops tracers and custom gradients; borders of chunks stay", Stage::graph,
     false, [](Compilation& c) { c.roots = strip_wraps(c.roots, c.options.optional); }},
    {"scores", "puts borders around scores too large to be whole", Stage::graph, true,
     [](Compilation& c) {
       c.roots = with_score_borders(c.roots, c.options.scores_budget, c.options.chunk_depth, {},
                                    &c.uncut);
     }},
    {"merge_carried", "joins a loop with what its gradient keeps of it", Stage::graph, true,
     [](Compilation& c) { rewrite(c, merge_carried); }},
    {"widen_products", "makes narrow products f32 that are read so from chunks", Stage::graph, true,
     [](Compilation& c) { c.roots = widen_products(c.roots); }},
    {"late_rows", "takes a query's factors out of sums over its keys", Stage::graph, true,
     [](Compilation& c) {
       if (c.options.partition.rounds) c.roots = late_rows(c.roots);
     }},
    {"chunk", "cuts regions of chunked_reduce into loops over chunks", Stage::graph, true,
     [](Compilation& c) {
       auto& o = c.options;
       c.shares_queries = shares_queries(c.roots);
       c.roots = cut_chunks(c.roots, chunk_trial(o.device, o.debug), o.chunk_depth,
                            o.partition.rounds, &c.uncut);
     }},
    {"strip_borders", "drops borders of regions that stay whole", Stage::graph, true,
     [](Compilation& c) { c.roots = strip_wraps(c.roots, false); }},
    {"drop_dead", "drops results and carries of loops that nobody reads", Stage::graph, false,
     [](Compilation& c) {
       rewrite(c, c.options.optional ? drop_dead_results : drop_dead_effects);
     }},
    {"merge_loops", "makes one loop of two over the same index", Stage::graph, true,
     [](Compilation& c) { rewrite(c, merge_loops); }},
    {"accumulate_folds", "starts sums over turns from what they are added to", Stage::graph, true,
     [](Compilation& c) { rewrite(c, accumulate_folds); }},
    {"drop_merged", "drops what merged loops and sums leave unread", Stage::graph, true,
     [](Compilation& c) { rewrite(c, drop_dead_results); }},
    // ---- a mesh ----
    {"plan", "says how each value is cut, and what is sent", Stage::sharding, false,
     [](Compilation& c) { c.partition->plan(); }},
    {"residuals", "keeps what a later loop would have to send again", Stage::sharding, false,
     [](Compilation& c) { c.partition->residuals(); }},
    {"regather", "gathers weights again for the backward pass", Stage::sharding, false,
     [](Compilation& c) { c.partition->regather(); }},
    {"ring", "takes gathers that one contraction reads block by block", Stage::sharding, false,
     [](Compilation& c) { c.partition->ring(); }},
    {"bucket", "makes one call of collectives that are needed together", Stage::sharding, false,
     [](Compilation& c) { c.partition->bucket(); }},
    {"emit", "writes the graph of one device", Stage::device, false,
     [](Compilation& c) {
       if (!c.partition) return;
       auto mine = c.partition->on(c.number);
       c.roots = std::move(mine.roots);
       c.inputs = std::move(mine.inputs);
     }},
    // ---- the graph of one device ----
    {"batch_turns", "walks batches of products whose results others read", Stage::device, true,
     [](Compilation& c) {
       const double lane = c.options.device ? c.options.device->machine().lane : 0;
       if (c.options.walks_batches && lane > 0) c.roots = batch_turns(c.roots, {lane});
     }},
    {"softmax_products", "takes the sums of a softmax out of its products", Stage::device, true,
     [](Compilation& c) { c.roots = softmax_products(c.roots); }},
    {"row_products", "makes products of row with row sums, point by point", Stage::device, true,
     [](Compilation& c) { c.roots = row_products(c.roots); }},
    {"masked_products", "leaves out blocks of products that masks make nothing of", Stage::device,
     true,
     [](Compilation& c) {
       auto machine = c.options.device ? c.options.device->machine() : program::Machine();
       bool turns_are_its_own = machine.lane > 0;  // else a skip saves little
       if (turns_are_its_own) c.roots = masked_products(c.roots, machine);
     }},
    {"accumulate_updates", "scatters into the array that a scatter is added to", Stage::device,
     true, [](Compilation& c) { rewrite(c, accumulate_updates); }},
    {"early_exit", "ends turns, or their parts, that masks make nothing of", Stage::device, true,
     [](Compilation& c) { c.turns = parts_of_turns(c.roots, !c.options.debug.check_finite); }},
    {"layout", "orders the axes of values in memory for products", Stage::device, true,
     [](Compilation& c) { c.layouts = layouts_of(c.roots); }},
    // ---- the Program ----
    {"lower", "fuses, schedules and writes the steps, scope by scope", Stage::program, false,
     [](Compilation& c) {
       const bool optional = c.options.optional;
       const int row = c.options.device && optional ? c.options.device->machine().row : 1;
       auto low =
           lower(c.roots, c.inputs, {.fuse = optional && !c.options.debug.check_finite, .row = row},
                 c.layouts, c.turns);
       c.program = std::move(low.program);
       c.captured = std::move(low.captured);
       c.program->device = c.number;
       if (c.options.mesh)
         for (auto& [name, size] : c.options.mesh->axes()) c.program->mesh.push_back(size);
     }},
    {"check_finite", "with HALIAX_NANS=1: stops where a step makes NaN or inf", Stage::program,
     false,
     [](Compilation& c) {
       if (c.options.debug.check_finite) check_finite(*c.program);
     }},
    {"lanes", "runs turns side by side that share nothing they write", Stage::program, true,
     [](Compilation& c) {
       if (c.options.device) give_lanes(*c.program, *c.options.device, c.options.workers);
     }},
    {"reuse_products", "keeps products from loop to loop in idle memory", Stage::program, true,
     [](Compilation& c) { c.alternative = reuse_products(*c.program); }},
    {"overlap", "starts collectives early, and finishes each where it is needed", Stage::program,
     false,
     [](Compilation& c) {
       if (!c.options.partition.overlap || !c.partition || !c.partition->even()) return;
       overlap(*c.program);
       if (c.alternative) overlap(*c.alternative);
     }},
    {"scratch", "asks the device what scratch each step wants", Stage::program, false,
     [](Compilation& c) {
       if (!c.options.device) return;
       ask_scratch(*c.program, *c.options.device, c.options.workers);
       if (c.alternative) ask_scratch(*c.alternative, *c.options.device, c.options.workers);
     }},
    {"plan_memory", "shares memory, drops copies, gives each slot an offset", Stage::program, false,
     [](Compilation& c) {
       auto donated = c.options.donated;
       donated.resize(std::size_t(c.program->arguments));  // what the graph captured is not
       plan_memory(*c.program, donated, c.options.optional, c.options.debug.verify);
       c.placed = true;
       if (!c.alternative) return;
       plan_memory(*c.alternative, donated, true, c.options.debug.verify);
       if (c.alternative->peak_bytes > c.program->peak_bytes) return;
       c.spared = 1 - multiplications(c.alternative->steps) / multiplications(c.program->steps);
       *c.program = std::move(*c.alternative);
       c.alternative.reset();
     }},
    {"poison", "with HALIAX_POISON=1: fills what was gathered with NaN, once read", Stage::program,
     false,
     [](Compilation& c) {
       if (c.options.debug.poison) poison(*c.program);
     }},
};

// ---- behind each pass ----
std::string text_of(const Compilation& c, Stage on) {
  if (on == Stage::sharding) return c.partition->text();
  return on == Stage::program ? program::to_string(*c.program)
                              : to_string(c.roots, c.layouts) + to_string(c.turns, c.roots);
}
std::int64_t size_of(const std::vector<program::Step>& steps) {
  auto n = std::int64_t(steps.size());
  for (auto& s : steps) n += size_of(s.loop.body);
  return n;
}
// Nodes of a graph, steps of a plan or of a Program.
std::int64_t size_of(const Compilation& c, Stage on) {
  if (on == Stage::sharding) return c.partition->size();
  return on == Stage::program ? (c.program ? size_of(c.program->steps) : 0)
                              : std::int64_t(everything(c.roots).size());
}
void verify_after(const Pass& p, const Compilation& c) try {
  if (p.on == Stage::program) {
    verify(*c.program, p.name, c.placed, c.options.donated);
    if (c.alternative) verify(*c.alternative, p.name, c.placed, c.options.donated);
  } else if (p.on == Stage::sharding) {
    c.partition->verify(p.name);
  } else {
    verify(c.roots, p.name, c.turns, c.layouts);
  }
} catch (const Error& e) {
  throw VerifyError(e.what());
}

}  // namespace

std::span<const Pass> passes() { return kPasses; }

void run(Compilation& c, Stage first, Stage last) {
  std::int64_t size = -1;
  Stage counted = first;
  bool reached = false, checked = false;
  // Custom gradients do not outlive the first pass.
  if (c.options.debug.verify && first == Stage::graph && c.options.from == kPasses[0].name)
    verify(c.roots, "tracing");
  for (auto& p : kPasses) {
    reached |= p.name == c.options.from;
    if (!reached || p.on < first || p.on > last || (p.optional && !c.options.optional)) continue;
    if (p.on == Stage::sharding && !c.options.mesh) continue;
    if (p.on == Stage::sharding && !c.partition) {
      std::vector<PartitionInput> inputs;
      for (std::size_t k = 0; k < c.inputs.size(); ++k)
        inputs.push_back({c.inputs[k], c.options.in[k]});
      auto partition = c.options.partition;
      partition.verify = c.options.debug.verify;
      c.partition = std::make_shared<Partition>(c.roots, c.options.out, std::move(inputs),
                                                *c.options.mesh, partition);
    }
    if (size < 0 || counted != p.on) {
      size = size_of(c, p.on);
      counted = p.on;
    }

    auto before = c.roots;
    const auto said = c.turns.size() + c.layouts.size();
    auto started = seconds_now();
    p.run(c);
    auto seconds = seconds_now() - started;
    // then so is all below them
    bool same = p.on != Stage::sharding && p.on != Stage::program && c.roots == before;
    c.log.push_back({p.name, size, same ? size : size_of(c, p.on), seconds});
    size = c.log.back().after;
    if (c.options.debug.prints(p.name)) {
      auto device =
          c.partition && p.on > Stage::sharding ? fmt::format(", device {}", c.number) : "";
      std::fprintf(stderr, "---- after %s%s\n%s", p.name, device.c_str(), text_of(c, p.on).c_str());
    }
    // A graph is frozen: one that has been looked at, and of which nothing more is said, is as it
    // was.
    if (same && checked && c.turns.size() + c.layouts.size() == said) continue;
    if (c.options.debug.verify) verify_after(p, c);
    checked = true;
  }
}
void run(Compilation& c) { run(c, Stage::graph, Stage::program); }
void run_whole(Compilation& c) {
  auto other = c;
  run(c, Stage::graph, Stage::sharding);
  auto& o = c.options.partition;
  if (!c.options.mesh || !c.shares_queries) return;
  if (o.rounds && !(o.strict && c.partition->unasked_gathers() > 0)) return;
  other.options.partition.rounds = !o.rounds;
  run(other, Stage::graph, Stage::sharding);
  // A ring that was asked for is left where it takes gathers that nobody asked for, and never for
  // its bytes.
  auto &mine = *c.partition, &its = *other.partition;
  if (o.rounds ? its.unasked_gathers() < mine.unasked_gathers() : its.is_better_than(mine))
    c = std::move(other);
}

Compilation on_device(const Compilation& whole, int number) {
  Compilation c{whole.roots, whole.inputs, whole.options};
  c.partition = whole.partition;
  c.number = number;
  return c;
}

Try chunk_trial(program::Device* device, DebugOptions debug) {
  constexpr int workers = 2;  // what is chosen does not depend on how many threads there are
  return [device, debug = std::move(debug)](const Nodes& roots, const Nodes& inputs, int depth) {
    Compilation c{roots,
                  inputs,
                  {.device = device,
                   .workers = workers,
                   .chunk_depth = depth,
                   .from = "chunk",
                   .debug = debug}};
    // tried with it, bf16 attention over long texts took plans of more memory
    c.options.walks_batches = false;
    run(c);
    return Tried{c.roots, c.program, c.spared, device ? device->machine() : program::Machine()};
  };
}

std::string to_string(const std::vector<PassReport>& log) {
  auto out = fmt::format("{:<20}{:>8}{:>8}{:>11}\n", "pass", "before", "after", "ms");
  for (auto& r : log)
    out += fmt::format("{:<20}{:>8}{:>8}{:>11.3f}\n", r.name, r.before, r.after, r.seconds * 1e3);
  return out;
}
std::string table_of_passes() {
  const char* const stages[] = {"graph", "sharding", "device", "program"};
  std::string out;
  for (auto& p : kPasses) out += fmt::format("{:<20}{:<10}{}\n", p.name, stages[int(p.on)], p.does);
  return out;
}

}  // namespace haliax
