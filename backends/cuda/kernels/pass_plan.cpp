// Chooses the threads, the passes and the retained values of a fused step with reductions.
#include "pass_plan.h"

namespace haliax::cuda {

namespace {

constexpr int kMostGroup = 512;                   // maximum number of threads per row
constexpr int kUsualSaved = 16, kMostSaved = 32;  // values of a row in the registers of a thread
constexpr int kMostRead = 64;                     // values of a thread that are loaded together
constexpr std::int64_t kManyThreads = 1 << 15;    // fewer threads leave a GPU idle
// elements of the smallest reduction that is split into two passes
constexpr std::int64_t kSmallestSplit = 1 << 17;
// elements of the shortest part: of columns, and of a row, per thread of its group
constexpr std::int64_t kShortestPart = 32, kShortestPartPerThread = 16;

int power_from(std::int64_t n) {  // the least power of 2 that is at least n
  int p = 1;
  while (p < n) p *= 2;
  return p;
}

class RowPlanner {
 public:
  RowPlanner(const FusedFacts& f, std::int64_t shared_limit) : f_(f), shared_limit_(shared_limit) {}
  PassPlan run() {
    if (!f_.is_plain() && f_.dims.size() == f_.outer + 1)
      plan_.chunk_size = f_.few_along(f_.dims.size() - 1, true);
    plan_.group = usual_group();
    plan_.saved.assign(f_.code.size(), 0);
    plan_.passes = passes_with(plan_.saved);
    if (f_.is_plain()) return plan_;
    plan_.chunks_at_once =
        std::min(power_from(chunks_each(plan_.group)), plan_.chunk_size > 1 ? 4 : kTerms);
    for (bool with_expensive : {true, false})
      if (!plan_.in_registers) save_in_registers(worth_saving(with_expensive));
    if (!plan_.in_registers && plan_.group > 1) save_in_shared(worth_saving(false));
    return plan_;
  }

 private:
  // Returns the number of threads per row. If the elements of a row are adjacent, it has one thread
  // per chunk; if rows are adjacent, it has a single thread.
  int usual_group() const {
    if (f_.serial || f_.inner <= 1) return 1;
    auto [along_rows, along] = f_.sides();
    if (along_rows && !along && f_.rows >= kManyRows) return 1;
    int group = 1;
    const int most = f_.nest ? 32 : 256;  // each warp of a nest has its own rows
    while (group < most && group * plan_.chunk_size < f_.inner) group *= 2;
    return group;
  }
  // Returns the pass that stores values: the one after all reductions whose results stores or other
  // passes need.
  int last_pass() const {
    int most = 0;
    for (std::size_t i = 0; i < f_.code.size(); ++i) {
      if (is_store(f_.code[i].code) && f_.code[i].inner) most = std::max(most, f_.levels[i]);
      if (is_reduction(f_.code[i].code) && f_.needed[i]) most = std::max(most, f_.levels[i] - 1);
    }
    return most;
  }
  // Returns the instructions of each pass, if the first pass that computes an instruction in
  // `saved` retains its value. Pass p computes the reductions of level p + 1 (reduction_levels),
  // the last pass also the stores, and each pass the inner instructions that these depend on. For
  // example, softmax: v0 = load, v1 = max(v0), v2 = exp(v0 - v1), v3 = sum(v2), v4 = v2 / v3, store
  // v4. Pass 0 computes v0 and v1, pass 1 v0, v2 and v3, pass 2 v0, v2, v4 and the store. With v2
  // saved, pass 2 reads v2 from registers and does not load v0.
  std::vector<Marks> passes_with(const Marks& saved) const {
    std::vector<Marks> out;
    Marks computed_before(f_.code.size());
    for (int pass = 0; pass <= f_.last_level(); ++pass) {
      auto& marks = out.emplace_back(f_.code.size());
      for (std::size_t i = f_.code.size(); i-- > 0;) {  // readers first
        auto& in = f_.code[i];
        const bool completes = is_reduction(in.code) && f_.levels[i] == pass + 1;
        const bool stores = is_store(in.code) && in.inner && pass == last_pass();
        if (f_.needed[i] && (completes || stores)) marks[i] = kComputed;
        if (marks[i] != kComputed || f_.empty) continue;
        for (int a : operands(in)) {
          const auto x = std::size_t(a);
          if (f_.code[x].inner && !marks[x])
            marks[x] = saved[x] && computed_before[x] ? kSaved : kComputed;
        }
      }
      for (std::size_t i = 0; i < f_.code.size(); ++i) computed_before[i] |= marks[i] == kComputed;
    }
    return out;
  }
  // Returns the values worth retaining: loads that several passes need and, if requested, expensive
  // instructions. Values that all rows share stay in caches anyway.
  Marks worth_saving(bool with_expensive) const {
    Marks out(f_.code.size());
    const auto passes = passes_with(out);
    for (std::size_t i = 0; i < f_.code.size(); ++i) {
      const auto times =
          std::count_if(passes.begin(), passes.end(), [&](auto& w) { return w[i] == kComputed; });
      const bool is_requested =
          with_expensive && !is_reduction(f_.code[i].code) && is_long(f_.code[i].code);
      out[i] =
          f_.code[i].inner && times > 1 && ((f_.is_load(i) && f_.is_of_row(i)) || is_requested);
    }
    return out;
  }
  static int size_of(DType d) { return bytes_of(d) > 4 ? 2 : 1; }
  // Returns two maxima over all passes, in numbers per element: values retained between passes, and
  // values loaded.
  std::pair<int, int> saved_and_read(const std::vector<Marks>& passes) const {
    int most_saved = 0, most_read = 0;
    for (std::size_t w = 0; w < passes.size(); ++w) {
      int saved = 0, read = 0;
      for (std::size_t i = 0; i < f_.code.size(); ++i) {
        const auto here = passes.begin() + std::ptrdiff_t(w);
        auto is = [&](char mark) { return [=, &i = i](auto& walk) { return walk[i] == mark; }; };
        if (f_.is_load(i) && f_.is_of_row(i)) read += passes[w][i] ? size_of(f_.code[i].dtype) : 0;
        if (std::any_of(passes.begin(), here + 1, is(kComputed)) &&
            std::any_of(here + 1, passes.end(), is(kSaved)))
          saved += size_of(f_.code[i].dtype);
      }
      most_saved = std::max(most_saved, saved);
      most_read = std::max(most_read, read);
    }
    return {most_saved, most_read};
  }
  // Retains values in shared memory. Each thread reads only its own values, so no synchronization
  // is needed.
  void save_in_shared(const Marks& saved) {
    std::int64_t bytes = kFoldBytes * kMostGroup / 32;
    std::vector<std::int64_t> at(f_.code.size());
    for (std::size_t i = 0; i < f_.code.size(); ++i) {
      if (!saved[i]) continue;
      const auto chunks = (f_.inner + plan_.chunk_size - 1) / plan_.chunk_size;
      at[i] = bytes;
      bytes += program::aligned(chunks * plan_.chunk_size * bytes_of(f_.code[i].view.dtype));
    }
    if (bytes > shared_limit_ || std::none_of(saved.begin(), saved.end(), [](char k) { return k; }))
      return;
    plan_.group = kMostGroup;
    plan_.saved = saved;
    plan_.passes = passes_with(saved);
    plan_.shared_offsets = at;
    plan_.shared_bytes = bytes;
  }
  // Retains values in registers. Prefers few threads with few values each, so that many rows are in
  // flight. Long rows use more of both.
  void save_in_registers(const Marks& saved) {
    const auto passes = passes_with(saved);
    const auto [numbers, read] = saved_and_read(passes);
    const int first = plan_.group == 1 ? 1 : std::min(plan_.group, 32),
              last = plan_.group == 1 ? 1 : kMostGroup;
    for (int most : {kUsualSaved, kMostSaved})
      for (int group = first; group <= last && numbers > 0; group *= 2) {
        const auto chunks = std::int64_t(power_from(chunks_each(group)));
        if (chunks * plan_.chunk_size * numbers > most ||
            chunks * plan_.chunk_size * read > kMostRead)
          continue;
        // few rows need larger groups
        if (group < plan_.group && f_.rows * group < 2 * kManyThreads) continue;
        plan_.in_registers = true;
        plan_.group = group;
        plan_.chunks_at_once = int(chunks);
        plan_.saved = saved;
        plan_.passes = passes;
        return;
      }
  }
  int chunks_each(int group) const {
    const std::int64_t step = group * plan_.chunk_size;
    return int(std::min<std::int64_t>((f_.inner + step - 1) / step, 1 << 20));
  }

  const FusedFacts& f_;
  const std::int64_t shared_limit_;
  PassPlan plan_;
};

}  // namespace

PassPlan plan_rows(const FusedFacts& f, std::int64_t shared_limit) {
  return RowPlanner(f, shared_limit).run();
}

bool are_columns(const FusedFacts& f) {
  if (f.is_plain() || !f.folds || f.outer == 0 || f.inner <= 1) return false;
  for (std::size_t i = 0; i < f.code.size(); ++i)
    if (f.needed[i] && (f.levels[i] > 1 || (is_store(f.code[i].code) && f.code[i].inner)))
      return false;
  auto [along_rows, along] = f.sides();
  return along_rows && !along;
}
PassPlan plan_columns(const FusedFacts& f) {
  PassPlan plan{.chunk_size = f.few_along(f.outer - 1, false), .saved = Marks(f.code.size())};
  plan.chunks_at_once = int(std::min<std::int64_t>(
      plan.chunk_size > 1 ? 4 : kTerms, power_from(std::min<std::int64_t>(f.inner, kTerms))));
  return plan;
}

std::optional<RowSplit> row_split_of(const FusedFacts& f) {
  if (f.nest || f.serial || !f.folds || f.rows == 0 || f.rows * f.inner < kSmallestSplit) return {};
  for (std::size_t i = 0; i < f.code.size(); ++i) {
    if (!f.needed[i]) continue;
    if (finds_position(f.code[i].code) || f.levels[i] > 1 ||
        (is_store(f.code[i].code) && f.code[i].inner))
      return {};
  }
  const bool columns = are_columns(f);
  const auto plan = columns ? plan_columns(f) : plan_rows(f, 0);
  const std::int64_t threads = columns ? f.rows / plan.chunk_size : f.rows * plan.group,
                     least = columns ? kShortestPart : kShortestPartPerThread * plan.group,
                     // 2 or 4 blocks of 256 threads per multiprocessor
      requested = (columns ? 2 : 4) * kMultiprocessors * 256,
                     unit = columns ? 4 : plan.group * plan.chunk_size;
  if (threads >= kManyThreads) return {};
  const auto length = std::max((f.inner * threads + requested - 1) / requested, least);
  RowSplit p{0, (length + unit - 1) / unit * unit};
  p.count = (f.inner + p.length - 1) / p.length;
  return p.count > 1 ? std::optional(p) : std::nullopt;
}

}  // namespace haliax::cuda
