// Plan and run: stencils.
#include "stencil.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>

#include "backends/cpu/kernels.h"
#include "backends/cpu/workspace.h"
#include "base/thread_pool.h"
#include "program/fused.h"

namespace haliax::cpu {
namespace {

using program::Code;
using program::Fused;
using program::Instr;
using program::View;

constexpr std::size_t fewest_stencil_terms = 4, most_stencil_terms = 1024;
constexpr std::int64_t least_work = 1 << 15;  // multiplications

// A step as a sum of terms x * weight, and of one value per row.
struct StencilTerms {
  struct Term {
    const Instr *x, *weight;
  };
  std::vector<Term> terms;
  const Instr* start = nullptr;  // null: 0
  const Instr* store = nullptr;
};

// A dim of the step; strides in elements.
struct StencilDim {
  std::int64_t n = 1, x = 0, weight = 0, start = 0, out = 0;
};
// The taps of a block of rows (Stencil), and the term of each weight.
struct StencilTaps {
  std::vector<Stencil::Run> runs;
  std::vector<std::int64_t> offsets;
  std::vector<std::size_t> terms;
};

bool is_stencil_type(DType type) { return type == DType::f32 || type == DType::bf16; }

// Finds the terms of a step.
class StencilReader {
 public:
  explicit StencilReader(const Fused& fused) : fused_(fused) {}
  std::optional<StencilTerms> read() {
    StencilTerms out;
    for (auto& i : fused_.code)
      if (program::is_store(i.code)) {
        if (out.store) return {};
        out.store = &i;
      }
    if (!out.store || out.store->code != Code::store || !is_stencil_type(out.store->view.dtype))
      return {};
    int sum = out.store->args[0];
    if (at(sum).code == Code::cast && at(sum).dtype == out.store->view.dtype) sum = at(sum).args[0];
    if (!add(sum, out) || out.terms.size() < fewest_stencil_terms) return {};
    return out;
  }

 private:
  const Instr& at(int i) const { return fused_.code[std::size_t(i)]; }
  // Adds the terms of a sum. Returns false if a part of it is no term.
  bool add(int sum, StencilTerms& out) {
    std::vector<int> open{sum};
    while (!open.empty()) {
      const Instr& i = at(open.back());
      open.pop_back();
      if (i.dtype != DType::f32 || out.terms.size() + open.size() > most_stencil_terms)
        return false;
      if (i.code == Code::add) {
        open.insert(open.end(), {i.args[0], i.args[1]});
        continue;
      }
      if (i.code == Code::mul) {
        auto *x = load(i.args[0]), *weight = load(i.args[1]);
        if (!x || !weight) return false;
        out.terms.push_back({x, weight});
        continue;
      }
      if (out.start || !(out.start = load(int(&i - fused_.code.data())))) return false;
    }
    return true;
  }
  // Returns the load of an f32 value, or null.
  const Instr* load(int i) const {
    const Instr* in = &at(i);
    if (in->dtype != DType::f32) return nullptr;
    if (in->code == Code::cast) in = &at(in->args[0]);
    const bool widened = in->dtype == DType::f32 || in->dtype == in->view.dtype;
    return in->code == Code::load && widened && is_stencil_type(in->view.dtype) ? in : nullptr;
  }
  const Fused& fused_;
};

class StencilPlan {
 public:
  static std::optional<StencilPlan> of(const Fused& fused) {
    auto read = StencilReader(fused).read();
    StencilPlan p;
    if (!read || !p.choose_columns(fused, *read) || !p.choose_rows()) return {};
    p.choose_taps();
    return p;
  }

  View x, weight, start, out;                           // start: slot -1 if there is none
  std::vector<std::int64_t> x_offsets, weight_offsets;  // by term, in elements
  std::int64_t columns = 1;
  StencilDim rows;
  std::vector<StencilDim> outer;
  StencilTaps taps[Stencil::most_rows + 1];  // by the number of rows of a block
  std::int64_t outer_points() const {
    std::int64_t n = 1;
    for (auto& d : outer) n *= d.n;
    return n;
  }
  std::int64_t offset_at(std::int64_t StencilDim::*stride, std::int64_t position) const {
    std::int64_t sum = 0;
    for (std::size_t d = outer.size(); d-- > 0; position /= outer[d].n)
      sum += position % outer[d].n * (outer[d].*stride);
    return sum;
  }

 private:
  // Returns true if two views are equal, or differ in their offset only.
  static bool equal_but_offset(View a, const View& b) {
    a.offset = b.offset;
    return a == b;
  }
  bool choose_columns(const Fused& fused, const StencilTerms& read) {
    const auto& first = read.terms[0];
    auto strides = [&](const Instr* i) { return program::access_strides(fused, *i); };
    const auto to = strides(read.store);
    // the operand with unit stride along the columns is x
    std::size_t column = 0;
    while (column < to.size() && (to[column] != 1 || fused.dims[column] == 1)) ++column;
    if (column == to.size()) return false;
    const bool swapped = strides(first.x)[column] != 1;
    auto* some_x = swapped ? first.weight : first.x;
    auto* some_weight = swapped ? first.x : first.weight;
    x = some_x->view;
    weight = some_weight->view;
    out = read.store->view;
    for (auto term : read.terms) {
      if (swapped) std::swap(term.x, term.weight);
      const bool same =
          equal_but_offset(term.x->view, x) && equal_but_offset(term.weight->view, weight) &&
          strides(term.x) == strides(some_x) && strides(term.weight) == strides(some_weight);
      if (!same) return false;
      x_offsets.push_back(term.x->view.offset - x.offset);
      weight_offsets.push_back(term.weight->view.offset - weight.offset);
    }
    if (read.start) start = read.start->view;
    const auto xs = strides(some_x), ws = strides(some_weight),
               starts = read.start ? strides(read.start) : Dims(to.size());
    if (xs[column] != 1 || ws[column] != 0 || starts[column] != 0) return false;
    columns = fused.dims[column];
    std::int64_t work = std::int64_t(read.terms.size());
    for (auto n : fused.dims) work *= n;
    for (std::size_t d = 0; d < to.size(); ++d) {
      if (d == column || fused.dims[d] == 1) continue;
      if (to[d] == 0) return false;
      outer.push_back(
          {.n = fused.dims[d], .x = xs[d], .weight = ws[d], .start = starts[d], .out = to[d]});
    }
    return work >= least_work;
  }
  // The rows are the nearest neighbors in x among the dims along which the weights are constant.
  bool choose_rows() {
    rows = {};
    auto best = outer.end();
    for (auto d = outer.begin(); d != outer.end(); ++d)
      if (d->weight == 0 && d->start == 0 &&
          (best == outer.end() || std::abs(d->x) < std::abs(best->x)))
        best = d;
    if (best == outer.end()) return true;
    rows = *best;
    outer.erase(best);
    return true;
  }
  void choose_taps() {
    for (int count = 1; count <= Stencil::most_rows; ++count) {
      // by offset and row: the terms that read this element
      std::map<std::int64_t, std::map<int, std::vector<std::size_t>>> reads;
      for (std::size_t t = 0; t < x_offsets.size(); ++t)
        for (int j = 0; j < count; ++j) reads[x_offsets[t] + j * rows.x][j].push_back(t);
      for (auto& [offset, by_row] : reads) add_reads(taps[count], offset, by_row);
    }
  }
  // Adds the taps at an offset: one for each range of rows.
  static void add_reads(StencilTaps& taps, std::int64_t offset,
                        std::map<int, std::vector<std::size_t>>& by_row) {
    while (!by_row.empty()) {
      const int first = by_row.begin()->first;
      int end = first;
      for (auto row = by_row.find(first); row != by_row.end() && row->first == end; ++end) {
        taps.terms.push_back(row->second.back());
        row->second.pop_back();
        row = row->second.empty() ? by_row.erase(row) : std::next(row);
      }
      taps.offsets.push_back(offset);
      const Stencil::Run run{.taps = 1, .first = first, .count = end - first};
      auto* last = taps.runs.empty() ? nullptr : &taps.runs.back();
      if (last && last->first == run.first && last->count == run.count)
        ++last->taps;
      else
        taps.runs.push_back(run);
    }
  }
};

class StencilStep final : public CompiledStep {
 public:
  explicit StencilStep(StencilPlan plan)
      : plan_(std::move(plan)), x_(plan_.x), weight_(plan_.weight), start_(plan_.start),
        out_(plan_.out) {
    const std::int64_t blocks = parts_of(plan_.rows.n, Stencil::most_rows);
    const std::int64_t parts =
        std::clamp<std::int64_t>(parts_of(4 * threads(), plan_.outer_points()), 1, blocks);
    rows_per_task_ = parts_of(blocks, parts) * Stencil::most_rows;
    tasks_per_point_ = parts_of(plan_.rows.n, rows_per_task_);
  }
  void run(Frame& frame) override {
    const auto& p = plan_;
    const std::byte *x = x_.at(frame), *weight = weight_.at(frame), *start = start_.at(frame);
    std::byte* out = out_.at(frame);
    parallel_for(p.outer_points() * tasks_per_point_, threads(), [&](std::int64_t task, int) {
      const std::int64_t point = task / tasks_per_point_,
                         first = task % tasks_per_point_ * rows_per_task_;
      const std::int64_t end = std::min(p.rows.n, first + rows_per_task_);
      const std::byte* weights =
          weight + p.offset_at(&StencilDim::weight, point) * haliax::bytes_of(p.weight.dtype);
      Stencil s{};
      s.n = p.columns;
      s.type = p.x.dtype;
      s.out_type = p.out.dtype;
      s.out_row = p.rows.out;
      if (start)
        kernels().load(p.start.dtype)(
            &s.start,
            start + p.offset_at(&StencilDim::start, point) * haliax::bytes_of(p.start.dtype), 1, 1);
      const StencilTaps* loaded = nullptr;  // the taps that the weights in the workspace belong to
      for (std::int64_t row = first; row < end; row += Stencil::most_rows) {
        s.rows = int(std::min<std::int64_t>(Stencil::most_rows, end - row));
        const auto& taps = p.taps[s.rows];
        if (loaded != &taps) load_weights(taps, weights);
        loaded = &taps;
        s.x =
            x + (p.offset_at(&StencilDim::x, point) + row * p.rows.x) * haliax::bytes_of(p.x.dtype);
        s.out = out + (p.offset_at(&StencilDim::out, point) + row * p.rows.out) *
                          haliax::bytes_of(p.out.dtype);
        s.runs = taps.runs.data();
        s.run_count = std::int64_t(taps.runs.size());
        s.offsets = taps.offsets.data();
        s.weights = reinterpret_cast<const float*>(workspace());
        kernels().stencil(s);
      }
    });
  }

 private:
  static std::int64_t parts_of(std::int64_t n, std::int64_t part) { return (n + part - 1) / part; }
  // Writes the weights to the workspace, in the order of the taps.
  void load_weights(const StencilTaps& taps, const std::byte* weights) const {
    auto* to = reinterpret_cast<float*>(workspace());
    const auto load = kernels().load(plan_.weight.dtype);
    for (auto term : taps.terms)
      load(to++, weights + plan_.weight_offsets[term] * haliax::bytes_of(plan_.weight.dtype), 1, 1);
  }

  StencilPlan plan_;
  Place x_, weight_, start_, out_;
  std::int64_t rows_per_task_ = 1, tasks_per_point_ = 1;
};
static_assert(most_stencil_terms * Stencil::most_rows * sizeof(float) <= workspace_bytes);

}  // namespace

std::unique_ptr<CompiledStep> make_stencil(const program::Step& step, const Context& context) {
  auto plan = StencilPlan::of(step.fused);
  if (!plan) return nullptr;
  for (auto* in : {&plan->x, &plan->weight, &plan->start})
    if (context.overlap(in->slot, plan->out.slot)) return nullptr;
  return std::make_unique<StencilStep>(std::move(*plan));
}

}  // namespace haliax::cpu
