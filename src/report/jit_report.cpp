// The parts of `JitReport` that `jit` fills in: loops, arguments that are not donated, and the
// Program.
#include <algorithm>

#include "compile/memory/memory.h"
#include "ops/prim.h"
#include "report/explain.h"
#include "runtime/jit_impl.h"

namespace haliax::detail {

void report_loops(JitReport& report, const Compilation& compiled) {
  report.chunked.clear();
  report.explain.clear();
  struct TiledRegion {  // a region with all of its loops
    ChunkReport report;
    std::size_t contractions = 0;
    std::unordered_set<const Node*> distinct = {};
  };
  std::vector<TiledRegion> regions;
  for (auto& n : all_nodes(compiled.roots)) {
    if (n->op != &kLoop || loop_of(*n).form.empty()) continue;
    auto& l = loop_of(*n);
    ChunkReport c{std::string(l.axis.name.text()), l.form, prim::index_chunk(*l.index[0]), l.why};
    auto same = [&](auto& o) {
      return o.report.axis == c.axis && o.report.chunk == c.chunk && o.report.why == c.why;
    };
    auto at = std::find_if(regions.begin(), regions.end(), same);
    if (at == regions.end()) at = regions.insert(regions.begin(), TiledRegion{c});
    for (auto& x : all_nodes(values_of(l, 0)))
      if (x->op->kind == Kind::contract && x->varies_with(l.index[0].get())) {
        ++at->contractions;
        at->distinct.insert(x.get());
      }
  }
  std::string reported;
  for (auto& w : regions) {
    auto& c = w.report;
    bool recomputes = w.contractions > w.distinct.size();
    if (c.form == "sweep" && recomputes) c.form = "recompute";
    const char* why = c.form == "forward" ? "no gradients"
                      : c.form == "sweep"
                          ? "values and gradients in one pass, since no gradient depends on its end"
                          : "chunks are recomputed, since later values depend on the end of a pass";
    report.chunked.push_back(c);
    report.explain +=
        c.form + " over " + c.axis + ": " + why + (c.why == reported ? "" : "; " + c.why) + "\n";
    reported = c.why;
  }
  for (auto& line : compiled.untiled_notes) report.explain += line + "\n";
}

// Arguments of negligible size, such as lengths and counters, are not reported. They are often read
// late, and copying them costs little.
void report_not_donated(JitReport& report, const JitCore::Cached& e, const program::Program& p) {
  std::int64_t all = 0, retained = 0;
  report.not_donated.clear();
  for (std::size_t k = 0; k < e.inputs.size(); ++k) {
    if (!e.donated[k]) continue;
    all += e.inputs[k]->bytes();
    if (p.donated[k] >= 0) continue;
    retained += e.inputs[k]->bytes();
    report.not_donated.push_back(e.names[k] + " " + to_string(e.inputs[k]->axes) + ": " +
                                 why_not_donated(p, int(k)));
  }
  if (100 * retained < all) report.not_donated.clear();
}

void report_program(JitReport& report, const Compilation& c, const MeshProgram* on_mesh,
                    const JitOptions& options) {
  describe(report, c, on_mesh, options.speed);
  report.passes = c.log;
  if (options.passes) report.explain += "\n" + to_string(c.log);
}

}  // namespace haliax::detail
