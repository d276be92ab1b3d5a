// A fused step as one kernel. Without reductions, each thread computes elements by itself. With
// reductions, a group of threads computes a row: it makes one pass over the inner elements per
// level. A reduction whose operand needs another reduction's result is on the next level. Values
// that later passes read again stay in the registers of the group, or in shared memory, if a row
// fits there; otherwise they are recomputed. Stores run in the last pass, because earlier passes
// may read the memory that they overwrite. Reductions over leading dims, along adjacent lines, use
// one thread per few lines.
//
// Elements are processed in chunks of a few adjacent ones. A chunk is one memory access if its
// address is aligned (kernel.h).
//
// A long reduction with few results runs in two passes. First, as many threads as a GPU needs
// reduce parts of each row into scratch memory. Then the partial results are reduced in order.
#include "fused_points.h"

namespace haliax::cuda {
namespace {

using program::Code;
using program::Dims;
using program::Fused;
using program::Instr;

constexpr int kTerms = 8;        // terms of a thread's partial sum, before it is added to the sum
constexpr int kMostGroup = 512;  // maximum number of threads per row
constexpr int kFoldBytes = 16;   // bytes of shared memory of a reduction per warp
// with this many rows, one thread per row occupies the GPU
constexpr std::int64_t kManyRows = 8192;
constexpr std::int64_t kManyThreads = 1 << 15;    // fewer threads leave a GPU idle
constexpr int kUsualSaved = 16, kMostSaved = 32;  // values of a row in the registers of a thread
constexpr int kMostRead = 64;                     // values of a thread that are loaded together

// The split of the inner elements for the first of two passes.
struct Parts {
  std::int64_t count = 1, length = 0;
};
DType wide_of(DType d) {  // accumulation dtype of reductions
  if (d == DType::bf16 || d == DType::f16) return DType::f32;
  if (bytes_of(d) >= 4) return d;
  return is_signed(d) ? DType::i32 : DType::u32;
}
int power_from(std::int64_t n) {  // the least power of 2 that is at least n
  int p = 1;
  while (p < n) p *= 2;
  return p;
}

class FusedSource : FusedPoints {
 public:
  FusedSource(const Fused& f, NestContext* nest, std::int64_t near)
      : FusedPoints(f, nest), near_(near) {}

  // Creates source for one instruction of code that another class iterates over (tiles.h).
  FusedSource(const std::vector<Instr>& code, std::size_t which, const Dims& strides,
              NestContext* nest)
      : FusedPoints(code, which, strides, nest) {}
  std::string one(std::size_t i) { return is_store(code_[i].code) ? stored(i) : value_of(i); }

  Launch make() {
    if (rows_ == 0) return {{}, {}, 0};
    if (inner_ == 1 || (!folds_ && !stores_rows_)) return points(rows_ * inner_);
    if (are_columns() && rows_ >= kManyRows) return in_columns();
    return in_rows();
  }

  // ---- two passes ----
  std::optional<Parts> parts() {
    if (nest_ || serial_ || !folds_ || rows_ == 0 || rows_ * inner_ < 1 << 17) return {};
    for (std::size_t i = 0; i < code_.size(); ++i) {
      if (!needed_[i]) continue;
      if (finds_position(code_[i].code) || levels_[i] > 1 ||
          (is_store(code_[i].code) && code_[i].inner))
        return {};
    }
    const bool columns = are_columns();
    columns ? chunk_columns() : plan_rows();
    const std::int64_t threads = columns ? rows_ / few_ : rows_ * group_,
                       least = columns ? 32 : 16 * group_,
                       // 2 or 4 blocks of 256 threads per multiprocessor
        requested = (columns ? 2 : 4) * 132 * 256, unit = columns ? 4 : group_ * few_;
    if (threads >= kManyThreads) return {};
    const auto length = std::max((inner_ * threads + requested - 1) / requested, least);
    Parts p{0, (length + unit - 1) / unit * unit};
    p.count = (inner_ + p.length - 1) / p.length;
    return p.count > 1 ? std::optional(p) : std::nullopt;
  }
  // Returns the scratch bytes: one partial result per reduction and part of a row.
  std::int64_t partial_bytes(const Parts& p) const {
    std::int64_t sum = 0;
    for (auto i : all_folds())
      sum += program::aligned(p.count * rows_ * bytes_of(wide_of(code_[i].dtype)));
    return sum;
  }
  Launch first_pass(const Fused& f, const Parts& p, std::int64_t place) {
    parts_ = p;
    for (auto i : all_folds()) {
      partial_.resize(code_.size());
      partial_[i] = place;
      place += program::aligned(p.count * rows_ * bytes_of(wide_of(code_[i].dtype)));
    }
    std::vector<bool> reductions(code_.size());
    for (auto i : all_folds()) reductions[i] = true;
    needed_ = with_operands(f, std::move(reductions));
    return are_columns() ? in_columns() : in_rows();
  }
  Fused second_pass(const Fused& f, const Parts& p, std::int64_t place) const {
    Fused out;
    out.dims.assign(f.dims.begin(), f.dims.begin() + f.outer);
    out.outer = f.outer;
    Dims strides = program::row_major(out.dims);
    out.dims.push_back(p.count);
    strides.push_back(rows_);
    std::vector<int> now(code_.size(), -1);
    auto add = [&](Instr in) {
      for (int& a : in.args)
        if (a >= 0 && !is_reduction(in.code)) a = now[std::size_t(a)];
      out.code.push_back(std::move(in));
      return int(out.code.size()) - 1;
    };
    for (std::size_t i = 0; i < code_.size(); ++i) {
      auto in = f.code[i];
      if (in.inner || !needed_[i]) continue;
      if (!is_reduction(in.code)) {
        now[i] = add(std::move(in));
        continue;
      }
      const auto d = in.dtype, wide = wide_of(d);
      Instr x{.code = Code::load, .dtype = wide, .inner = true};
      x.view = {kArenaSlot, wide, place / bytes_of(wide), strides, {}};
      place += program::aligned(p.count * rows_ * bytes_of(wide));
      in.args[0] = add(std::move(x));
      in.dtype = wide;
      now[i] = add(std::move(in));
      if (wide != d) {  // rounded once, here
        out.code.push_back({.code = Code::cast, .dtype = d, .args = {now[i], -1, -1, -1}});
        now[i] = int(out.code.size()) - 1;
      }
    }
    return out;
  }

 private:
  // ---- rows ----
  // Returns the number of threads per row. If the elements of a row are adjacent, it has one thread
  // per chunk; if rows are adjacent, it has a single thread.
  int usual_group() const {
    if (serial_ || inner_ <= 1) return 1;
    auto [along_rows, along] = sides();
    if (along_rows && !along && rows_ >= kManyRows) return 1;
    int group = 1;
    const int most = nest_ ? 32 : 256;  // each warp of a nest has its own rows
    while (group < most && group * few_ < inner_) group *= 2;
    return group;
  }
  // Returns two flags for views that vary with both: rows are adjacent in memory; elements of a row
  // are adjacent.
  std::pair<bool, bool> sides() const {
    bool along_rows = false, along = false;
    for (std::size_t i = 0; i < code_.size(); ++i) {
      auto& s = strides_[i];
      if (!needed_[i] || s.empty() || !code_[i].inner) continue;
      along |= s.back() == 1 && (outer_ == 0 || is_of_row(i));
      along_rows |= outer_ > 0 && s[outer_ - 1] == 1;
    }
    return {along_rows, along};
  }
  int levels() const {
    return levels_.empty() ? 0 : *std::max_element(levels_.begin(), levels_.end());
  }
  // Returns the pass that stores values: the one after all reductions whose results stores or other
  // passes need.
  int last_pass() const {
    int most = 0;
    for (std::size_t i = 0; i < code_.size(); ++i) {
      if (is_store(code_[i].code) && code_[i].inner) most = std::max(most, levels_[i]);
      if (is_reduction(code_[i].code) && needed_[i]) most = std::max(most, levels_[i] - 1);
    }
    return most;
  }
  // Returns the instructions of each pass, if the first pass that computes an instruction in
  // `saved` retains its value.
  std::vector<Marks> passes_with(const Marks& saved) const {
    std::vector<Marks> out;
    Marks created(code_.size());
    for (int level = 0; level <= levels(); ++level) {
      auto& now = out.emplace_back(code_.size());
      for (std::size_t i = code_.size(); i-- > 0;) {
        auto& in = code_[i];
        const bool fold = is_reduction(in.code) && levels_[i] == level + 1;
        if (needed_[i] && (fold || (is_store(in.code) && in.inner && level == last_pass())))
          now[i] = kComputed;
        if (now[i] != kComputed || empty_) continue;
        for (int a : operands(in)) {
          const auto x = std::size_t(a);
          if (code_[x].inner && !now[x]) now[x] = saved[x] && created[x] ? kSaved : kComputed;
        }
      }
      for (std::size_t i = 0; i < code_.size(); ++i) created[i] |= now[i] == kComputed;
    }
    return out;
  }
  // Returns true if the value differs between rows.
  bool is_of_row(std::size_t i) const {
    auto& s = strides_[i];
    return !s.empty() && std::any_of(s.begin(), s.begin() + std::ptrdiff_t(outer_),
                                     [](auto x) { return x != 0; });
  }
  // Returns the values worth retaining: loads that several passes need and, if requested, expensive
  // instructions. Values that all rows share stay in caches anyway.
  Marks worth_keeping(bool long_ones) const {
    Marks out(code_.size());
    const auto passes = passes_with(out);
    for (std::size_t i = 0; i < code_.size(); ++i) {
      const auto times =
          std::count_if(passes.begin(), passes.end(), [&](auto& w) { return w[i] == kComputed; });
      const bool is_requested = long_ones && !is_reduction(code_[i].code) && is_long(code_[i].code);
      out[i] = code_[i].inner && times > 1 && ((is_load(i) && is_of_row(i)) || is_requested);
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
      for (std::size_t i = 0; i < code_.size(); ++i) {
        const auto here = passes.begin() + std::ptrdiff_t(w);
        auto is = [&](char mark) { return [=, &i = i](auto& walk) { return walk[i] == mark; }; };
        if (is_load(i) && is_of_row(i)) read += passes[w][i] ? size_of(code_[i].dtype) : 0;
        if (std::any_of(passes.begin(), here + 1, is(kComputed)) &&
            std::any_of(here + 1, passes.end(), is(kSaved)))
          saved += size_of(code_[i].dtype);
      }
      most_saved = std::max(most_saved, saved);
      most_read = std::max(most_read, read);
    }
    return {most_saved, most_read};
  }
  int chunks_each(int group) const {
    const std::int64_t step = group * few_;
    return int(std::min<std::int64_t>((inner_ + step - 1) / step, 1 << 20));
  }
  void plan_rows() {
    along_ = dims_.size() - 1;
    if (!is_plain() && dims_.size() == outer_ + 1) few_ = few_along(along_, true);
    group_ = usual_group();
    saved_.assign(code_.size(), 0);
    passes_ = passes_with(saved_);
    if (is_plain()) return;
    ahead_ = std::min(power_from(chunks_each(group_)), few_ > 1 ? 4 : kTerms);
    for (bool long_ones : {true, false})
      if (!keeps_) keep(worth_keeping(long_ones));
    if (!keeps_ && group_ > 1) keep_near(worth_keeping(false));
  }
  // Retains values in shared memory. Each thread reads only its own values, so no synchronization
  // is needed.
  void keep_near(const Marks& saved) {
    std::int64_t bytes = kFoldBytes * kMostGroup / 32;
    std::vector<std::int64_t> at(code_.size());
    for (std::size_t i = 0; i < code_.size(); ++i) {
      if (!saved[i]) continue;
      const auto chunks = (inner_ + few_ - 1) / few_;
      at[i] = bytes;
      bytes += program::aligned(chunks * few_ * bytes_of(code_[i].view.dtype));
    }
    if (bytes > near_ || std::none_of(saved.begin(), saved.end(), [](char k) { return k; })) return;
    group_ = kMostGroup;
    saved_ = saved;
    passes_ = passes_with(saved);
    near_at_ = at;
    near_bytes_ = bytes;
  }
  // Retains values in registers. Prefers few threads with few values each, so that many rows are in
  // flight. Long rows use more of both.
  void keep(const Marks& saved) {
    const auto passes = passes_with(saved);
    const auto [numbers, read] = saved_and_read(passes);
    const int first = group_ == 1 ? 1 : std::min(group_, 32), last = group_ == 1 ? 1 : kMostGroup;
    for (int most : {kUsualSaved, kMostSaved})
      for (int group = first; group <= last && numbers > 0; group *= 2) {
        const auto chunks = std::int64_t(power_from(chunks_each(group)));
        if (chunks * few_ * numbers > most || chunks * few_ * read > kMostRead) continue;
        // few rows need larger groups
        if (group < group_ && rows_ * group < 2 * kManyThreads) continue;
        keeps_ = true;
        group_ = group;
        ahead_ = int(chunks);
        saved_ = saved;
        passes_ = passes;
        return;
      }
  }
  Launch in_rows() {
    plan_rows();
    const int most = nest_ ? kNestThreads : std::max(128, group_), threads = serial_ ? 1 : most,
              at_once = threads / group_;
    waits_ = group_ > 1 && folds_;
    if (waits_ && !nest_)
      source_.line("HALIAX_SHARED(shared);");
    else
      source_.line("unsigned char* const shared = nullptr;");
    source_.line(fmt::format("const unsigned lane = threadIdx_x % {}u;", group_));
    const auto all = rows_ * parts_.count;
    auto count = source_.argument(all);
    to_ = source_.argument(inner_);
    source_.open(fmt::format(
        "for (I first = my_block * I({0}); first < I({1}); first += I(all_blocks) * {0})", at_once,
        count));
    source_.line(
        fmt::format("const bool there = first + I(threadIdx_x / {0}u) < I({1});", group_, count));
    source_.line(
        fmt::format("const I row = there ? first + I(threadIdx_x / {}u) : I({}) - 1;   // all "
                    "threads take part in folds",
                    group_, count));
    source_.indices(part_of("row", rows_), part(0, outer_));
    declare_saved_values();
    for (int level = 0; level <= levels(); ++level) {
      rows_on(level);
      walk(level);
    }
    if (stores_rows_) store_rows();
    source_.close();
    auto out = source_.launch(1, waits_, threads <= 128 ? "128" : threads <= 256 ? "256" : "512");
    out.threads = threads;
    out.blocks = serial_ ? 1 : std::min<std::int64_t>((all + at_once - 1) / at_once, 1 << 20);
    out.shared = std::max<std::int64_t>(kFoldBytes * std::max(1, threads / 32), near_bytes_);
    return out;
  }
  void store_rows() {
    source_.open("if (there && lane == 0)");
    for (std::size_t i = 0; i < code_.size(); ++i) {
      if (!needed_[i]) continue;
      if (is_store(code_[i].code) && !code_[i].inner) write(i);
      if (is_reduction(code_[i].code) && in_parts())
        source_.line(fmt::format("store<{}>({}, row, v{});", element_of(wide_of(code_[i].dtype)),
                                 partial(i), i));
    }
    source_.close();
  }
  // ---- the first of two passes: a counter over the parts, and over the rows of each part ----
  bool in_parts() const { return parts_.count > 1; }
  std::string partial(std::size_t i) {
    return source_.argument(KernelArgument{kArenaSlot, partial_[i], {}, true});
  }
  // Returns the expression of the row, or the chunk of rows, for this counter. `many`: counts per
  // part. Sets from_ and to_ to the range of inner elements.
  std::string part_of(const std::string& counted, std::int64_t many) {
    if (!in_parts()) {
      from_ = "0";
      return counted;
    }

    auto each = source_.argument(many), length = source_.argument(parts_.length);
    source_.line(fmt::format("const I piece = {} / I({});", counted, each));
    source_.line(fmt::format(
        "const I from = piece * I({}), next = from + I({}), to = next < I({}) ? next : I({});",
        length, length, to_, to_));
    from_ = "from";
    to_ = "to";
    return fmt::format("{} % I({})", counted, each);
  }
  void declare_saved_values() {
    for (std::size_t i = 0; i < code_.size(); ++i) {
      if (!saved_[i]) continue;
      if (near_bytes_ > 0)
        source_.line(fmt::format("auto* const near{} = reinterpret_cast<{}*>(shared + {});", i,
                                 chunk_of(i), source_.argument(near_at_[i])));
      else if (is_load(i))
        source_.line(fmt::format("{} x{}[{}];", chunk_of(i), i, ahead_));
      else
        source_.line(
            fmt::format("Number<{}> e{}[{}][{}];", element_of(code_[i].dtype), i, ahead_, few_));
    }
  }
  // Emits the instructions of this level that have one value per row.
  void rows_on(int level) {
    for (std::size_t i = 0; i < code_.size(); ++i) {
      auto& in = code_[i];
      if (needed_[i] && !in.inner && levels_[i] == level && !is_store(in.code) &&
          !is_reduction(in.code))
        write(i);
    }
  }
  void walk(int level) {
    auto& marks = passes_[std::size_t(level)];
    if (std::none_of(marks.begin(), marks.end(), [](char c) { return c != 0; })) return;
    std::vector<std::size_t> folds;
    for (std::size_t i = 0; i < code_.size(); ++i)
      if (marks[i] && is_reduction(code_[i].code)) folds.push_back(i);
    for (auto i : folds) start(i);
    if (!empty_) is_plain() ? points_of_rows(marks, folds) : chunks_of_rows(marks, folds);
    for (auto i : folds) finish(i);
  }
  bool stores(const Marks& marks) const {
    for (std::size_t i = 0; i < code_.size(); ++i)
      if (marks[i] && is_store(code_[i].code)) return true;
    return false;
  }
  // Returns true for sums of floats. A thread's sum is split into sums of few terms, which is more
  // accurate.
  bool sums_floats(std::size_t i) const {
    return code_[i].code == Code::reduce_sum && is_float(code_[i].dtype);
  }
  void points_of_rows(const Marks& makes, const std::vector<std::size_t>& folds) {
    bool by_blocks =
        std::any_of(folds.begin(), folds.end(), [&](auto i) { return sums_floats(i); });
    if (by_blocks) {
      source_.open(
          fmt::format("for (I block = lane; block < I({}); block += {})", to_, kTerms * group_));
      for (auto i : folds)
        if (sums_floats(i)) source_.line(fmt::format("decltype(fold{0}) some{0} = 0;", i));
      source_.open(fmt::format("for (I j = block; j < block + {} && j < I({}); j += {})",
                               kTerms * group_, to_, group_));
    } else {
      source_.open(fmt::format("for (I j = lane; j < I({}); j += {})", to_, group_));
    }
    source_.indices("j", part(outer_, dims_.size()), outer_);
    for (std::size_t i = 0; i < code_.size(); ++i)
      if (makes[i] && !is_store(code_[i].code))
        is_reduction(code_[i].code) ? take(i, "j") : write(i);
    if (stores(makes)) {
      source_.open("if (there)");
      for (std::size_t i = 0; i < code_.size(); ++i)
        if (makes[i] && is_store(code_[i].code)) write(i);
      source_.close();
    }
    source_.close();
    if (!by_blocks) return;
    add_sums(folds);
    source_.close();
  }
  void add_sums(const std::vector<std::size_t>& folds) {
    for (auto i : folds)
      if (sums_floats(i)) source_.line(fmt::format("fold{0} = add(fold{0}, some{0});", i));
  }
  // Emits a pass over the chunks of a row, `ahead_` at a time, or all of them if the row is
  // retained. Loads come first, so that they are in flight together.
  void chunks_of_rows(const Marks& marks, const std::vector<std::size_t>& folds) {
    const int step = few_ * group_;
    const auto each = fmt::format("for (int m = 0; m < {}; ++m)", ahead_);
    if (!keeps_)
      source_.open(
          fmt::format("for (I block = {}; block < I({}); block += {})", from_, to_, step * ahead_));
    auto place = [&] {
      source_.line(
          fmt::format("const I j = {}m * {} + lane * {};", keeps_ ? "" : "block + ", step, few_));
      source_.indices("j", part(outer_, dims_.size()), outer_);
      source_.line(fmt::format("const int here = few_there<{}>(I({}) - j);", few_, to_));
    };
    fetch_ahead(marks, each, place, "here");
    for (auto i : folds)
      if (sums_floats(i)) source_.line(fmt::format("decltype(fold{0}) some{0} = 0;", i));
    unroll(each);
    place();
    for (std::size_t i = 0; i < code_.size(); ++i)  // values that all rows share are cached
      if (keeps_ && is_load(i) && marks[i] == kComputed && !is_of_row(i)) {
        fetch(i, fmt::format("const auto x{}", i), "here");
        fetched(i, "");
      }

    each_of_chunk(marks, [&](std::size_t i) { point_of_row(i, marks[i]); });
    if (stores(marks)) {
      source_.open("if (there)");
      store_chunks(marks);
      source_.close();
    }
    const int together = std::max(1, kTerms / few_);
    if (ahead_ > together &&
        std::any_of(folds.begin(), folds.end(), [&](auto i) { return sums_floats(i); })) {
      source_.open(fmt::format("if (m % {} == {})", together, together - 1));
      add_sums(folds);
      for (auto i : folds)
        if (sums_floats(i)) source_.line(fmt::format("some{} = 0;", i));
      source_.close();
    }
    source_.close();
    if (ahead_ <= together) add_sums(folds);
    if (!keeps_) source_.close();
  }
  template <class Place>
  void fetch_ahead(const Marks& marks, const std::string& each, const Place& place,
                   const char* count) {
    std::vector<std::size_t> loads;
    for (std::size_t i = 0; i < code_.size(); ++i)
      if (is_load(i) && code_[i].inner &&
          (marks[i] == kComputed || (marks[i] && near_bytes_ > 0)) && (!keeps_ || is_of_row(i)))
        loads.push_back(i);
    if (loads.empty()) return;
    for (auto i : loads)
      if (!keeps_ || !saved_[i])
        source_.line(
            fmt::format("{} x{}[{}]{};", chunk_of(i), i, ahead_, marks[i] == kSaved ? "{}" : ""));
    unroll(each);
    place();
    for (auto i : loads) {
      if (marks[i] == kComputed) fetch(i, fmt::format("x{}[m]", i), count);
      if (near_bytes_ > 0 && saved_[i]) {
        const auto near = fmt::format("near{}[j / {}]", i, few_), x = fmt::format("x{}[m]", i);
        source_.line(fmt::format("if (here > 0) {} = {};", marks[i] == kComputed ? near : x,
                                 marks[i] == kComputed ? x : near));
      }
      fetched(i, "[m]");
    }
    source_.close();
  }
  void point_of_row(std::size_t i, char mark) {
    auto& in = code_[i];
    if (is_store(in.code)) return into_chunk(i);
    if (is_reduction(in.code)) {
      source_.open("if (k < here)");
      take(i, "j + k");
      return source_.close();
    }
    if (mark == kSaved && !is_load(i))
      return source_.line(
          fmt::format("const Number<{}> v{} = e{}[m][k];", element_of(in.dtype), i, i));
    write(i);
    if (saved_[i] && !is_load(i)) source_.line(fmt::format("e{0}[m][k] = v{0};", i));
  }
  DType folded_dtype(const Instr& in) const {
    return finds_position(in.code) ? code_[std::size_t(in.args[0])].dtype : in.dtype;
  }
  std::string folded_type(const Instr& in) const {
    auto S = element_of(folded_dtype(in));
    return finds_position(in.code) ? fmt::format("Best<Number<{}>>", S)
                                   : fmt::format("Wide<{}>", S);
  }
  std::string start_of(const Instr& in) {
    auto d = folded_dtype(in);
    auto from = fmt::format("constant<{}>({})", element_of(d),
                            source_.argument(start_bits(monoid_of(in.code), d)));
    return finds_position(in.code) ? fmt::format("{{{}, 0x7fffffffffffffff}}", from)
                                   : fmt::format("wide({})", from);
  }
  void start(std::size_t i) {
    source_.line(fmt::format("{} fold{} = {};", folded_type(code_[i]), i, start_of(code_[i])));
  }
  void take(std::size_t i, const std::string& position) {
    auto& in = code_[i];
    auto x = name(in.args[0]),
         to = (sums_floats(i) ? "some" : "fold") + std::to_string(i) + (columns_ ? "[k]" : "");
    auto A = element_of(code_[std::size_t(in.args[0])].dtype);
    x = finds_position(in.code) ? fmt::format("Best<Number<{}>>{{{}, {}}}", A, x, position)
                                : fmt::format("wide(cast<{}, {}>({}))", element_of(in.dtype), A, x);
    source_.line(fmt::format("{0} = {1}({0}, {2});", to, fold_of(in.code), x));
  }
  void finish(std::size_t i) {
    auto& in = code_[i];
    auto all = columns_
                   ? fmt::format("fold{}[k]", i)
                   : fmt::format("folded<{}>(fold{}, {}, shared)", group_, i, fold_of(in.code));
    if (in_parts()) return source_.line(fmt::format("const auto v{} = {};", i, all));
    if (finds_position(in.code)) {
      source_.line(fmt::format("const auto b{} = {};", i, all));
      all = fmt::format("b{0}.at == 0x7fffffffffffffff ? 0 : b{0}.at", i);
    }
    auto S = element_of(in.dtype);
    source_.line(fmt::format("const Number<{0}> v{1} = result<{0}>({2});", S, i, all));
  }

  // ---- columns: reductions along adjacent lines, a few lines per thread ----
  bool are_columns() const {
    if (is_plain() || !folds_ || outer_ == 0 || inner_ <= 1) return false;
    for (std::size_t i = 0; i < code_.size(); ++i)
      if (needed_[i] && (levels_[i] > 1 || (is_store(code_[i].code) && code_[i].inner)))
        return false;
    auto [along_rows, along] = sides();
    return along_rows && !along;
  }
  void chunk_columns() {
    along_ = outer_ - 1;
    few_ = few_along(along_, false);
    saved_.assign(code_.size(), 0);
    ahead_ = int(std::min<std::int64_t>(few_ > 1 ? 4 : kTerms,
                                        power_from(std::min<std::int64_t>(inner_, kTerms))));
  }
  Launch in_columns() {
    chunk_columns();
    columns_ = true;
    Dims few_lines = part(0, outer_);
    few_lines.back() = (few_lines.back() + few_ - 1) / few_;
    const auto n = program::points(few_lines);
    auto count = source_.argument(n * parts_.count), size = source_.argument(dims_[along_]);
    to_ = source_.argument(inner_);
    source_.open(fmt::format(kEachPoint, count));
    source_.indices(part_of("p", n), few_lines, 0, few_);
    source_.line(fmt::format("const int here = few_there<{}>(I({}) - i{});", few_, size, along_));
    const auto folds = all_folds();
    Marks outer(code_.size()), inner(code_.size());
    for (std::size_t i = code_.size(); i-- > 0;) {
      outer[i] = needed_[i] && !code_[i].inner;
      if (outer[i] && is_reduction(code_[i].code)) inner[i] = kComputed;
      if (inner[i])
        for (int a : operands(code_[i])) inner[std::size_t(a)] = kComputed;
      if (outer[i] && is_load(i)) {
        fetch(i, fmt::format("const auto x{}", i), "here");
        fetched(i, "");
      }
    }
    const auto each_line = fmt::format("for (int k = 0; k < {}; ++k)", few_);
    for (auto i : folds) {
      source_.line(fmt::format("{} fold{}[{}];", folded_type(code_[i]), i, few_));
      unroll(each_line);
      source_.line(fmt::format("fold{}[k] = {};", i, start_of(code_[i])));
      source_.close();
    }
    lines_of(inner, folds, each_line);
    if (in_parts()) {
      keep_parts(folds);
    } else {
      each_of_chunk(outer, [&](std::size_t i) {
        if (is_store(code_[i].code))
          into_chunk(i);
        else
          is_reduction(code_[i].code) ? finish(i) : write(i);
      });
      store_chunks(outer);
    }
    source_.close();
    return source_.launch(n * parts_.count, false, "256");
  }
  void lines_of(const Marks& marks, const std::vector<std::size_t>& folds,
                const std::string& each_line) {
    const auto each = fmt::format("for (int m = 0; m < {}; ++m)", ahead_);
    source_.open(fmt::format("for (I block = {}; block < I({}); block += {})", from_, to_, ahead_));
    auto place = [&] {
      source_.line("const I j = block + m;");
      source_.indices("j", part(outer_, dims_.size()), outer_);
      source_.line(fmt::format("const bool in = j < I({});", to_));
    };
    fetch_ahead(marks, each, place, "in ? here : 0");
    for (auto i : folds)
      if (sums_floats(i))
        source_.line(fmt::format("{} some{}[{}] = {{}};", folded_type(code_[i]), i, few_));
    unroll(each);
    place();
    each_of_chunk(marks, [&](std::size_t i) {
      if (!is_reduction(code_[i].code)) return write(i);
      source_.open("if (in)");
      take(i, "j");
      source_.close();
    });
    source_.close();
    for (auto i : folds) {
      if (!sums_floats(i)) continue;
      unroll(each_line);
      source_.line(fmt::format("fold{0}[k] = add(fold{0}[k], some{0}[k]);", i));
      source_.close();
    }
    source_.close();
  }
  void keep_parts(const std::vector<std::size_t>& folds) {
    const auto line = source_.sum_of(program::row_major(part(0, outer_)));
    auto at = fmt::format("piece * I({}) + {}", source_.argument(rows_), line);
    for (auto i : folds) {
      source_.line(fmt::format("Few<{}, {}> y{};", few_, element_of(wide_of(code_[i].dtype)), i));
      unroll(fmt::format("for (int k = 0; k < {}; ++k)", few_));
      source_.line(fmt::format("y{0}.at[k] = fold{0}[k];", i));
      source_.close();
      auto place = partial(i);
      source_.line(fmt::format("store_few({}, {}, y{}, here);", place, at, i));
    }
  }

  // keeps: a row is loaded at once, and some values stay in registers
  bool waits_ = false, keeps_ = false;
  bool columns_ = false;       // columns rather than rows
  int group_ = 1, ahead_ = 1;  // threads per row; chunks loaded together
  Marks saved_;
  const std::int64_t near_ = 0;        // available bytes of shared memory
  std::int64_t near_bytes_ = 0;        // used bytes, if rows are stored there
  std::vector<std::int64_t> near_at_;  // by load
  std::vector<Marks> passes_;
  std::string from_ = "0", to_;  // range of inner elements, as source
  Parts parts_;
  std::vector<std::int64_t> partial_;  // by reduction: offset of its partial results in the arena
};

}  // namespace

std::string instruction_source(const std::vector<Instr>& code, int which, const Dims& strides,
                               NestContext* nest) {
  return FusedSource(code, std::size_t(which), strides, nest).one(std::size_t(which));
}
Launch fused_launch(const Fused& f, NestContext* nest, std::int64_t near) {
  return FusedSource(f, nest, near).make();
}
std::int64_t fused_scratch(const Fused& f) {
  FusedSource source(f, nullptr, 0);
  const auto parts = source.parts();
  return parts ? source.partial_bytes(*parts) : 0;
}
std::vector<Launch> fused_in_two(const Fused& f, std::int64_t place) {
  const auto parts = FusedSource(f, nullptr, 0).parts();
  if (!parts) return {fused_launch(f)};
  return {FusedSource(f, nullptr, 0).first_pass(f, *parts, place),
          fused_launch(FusedSource(f, nullptr, 0).second_pass(f, *parts, place))};
}

}  // namespace haliax::cuda
