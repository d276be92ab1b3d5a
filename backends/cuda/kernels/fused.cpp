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
//
// For example, the kernel of y = x / sum(x) over rows, in which instruction 1 is the sum, is in
// short:
//
//   for each row of this group of threads {
//     fold1 = 0                                         // start_reduction
//     for each chunk of the row { fold1 += x }          // pass 0, chunks_of_rows
//     v1 = fold1, reduced over the threads of the group // finish_reduction
//     for each chunk of the row { store x / v1 }        // pass 1; x may still be in registers
//   }
#include "pass_plan.h"

namespace haliax::cuda {
namespace {

using program::Code;
using program::Dims;
using program::Fused;
using program::Instr;

DType wide_of(DType d) {  // accumulation dtype of reductions
  if (d == DType::bf16 || d == DType::f16) return DType::f32;
  if (bytes_of(d) >= 4) return d;
  return is_signed(d) ? DType::i32 : DType::u32;
}
// Returns the scratch bytes of the partial results of a reduction: one per row and part.
std::int64_t partial_bytes(const FusedFacts& f, std::size_t fold, const RowSplit& split) {
  return program::aligned(split.count * f.rows * bytes_of(wide_of(f.code[fold].dtype)));
}

// Reductions as source, and loads of several chunks at once.
class FusedFolds : protected FusedPoints {
 protected:
  FusedFolds(const FusedFacts& f, PassPlan plan, std::size_t along, bool columns = false)
      : FusedPoints(f), plan_(std::move(plan)), columns_(columns) {
    along_ = along;
    chunk_size_ = plan_.chunk_size;
  }
  // Lets the kernel reduce parts of the rows into scratch memory at `place` of the arena.
  void reduce_parts(const RowSplit& split, std::int64_t place) {
    split_ = split;
    partial_.resize(f_.code.size());
    for (auto i : f_.all_folds()) {
      partial_[i] = place;
      place += partial_bytes(f_, i, split);
    }
  }
  bool in_parts() const { return split_.count > 1; }
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

    auto each = source_.argument(many), length = source_.argument(split_.length);
    source_.line(fmt::format("const I piece = {} / I({});", counted, each));
    source_.line(fmt::format(
        "const I from = piece * I({}), next = from + I({}), to = next < I({}) ? next : I({});",
        length, length, to_, to_));
    from_ = "from";
    to_ = "to";
    return fmt::format("{} % I({})", counted, each);
  }
  // Returns true for sums of floats. A thread's sum is split into sums of few terms, which is more
  // accurate.
  bool sums_floats(std::size_t i) const {
    return f_.code[i].code == Code::reduce_sum && is_float(f_.code[i].dtype);
  }
  void add_sums(const std::vector<std::size_t>& folds) {
    for (auto i : folds)
      if (sums_floats(i)) source_.line(fmt::format("fold{0} = add(fold{0}, some{0});", i));
  }
  template <class Place>
  void fetch_ahead(const Marks& marks, const std::string& each, const Place& place,
                   const char* count) {
    std::vector<std::size_t> loads;
    for (std::size_t i = 0; i < f_.code.size(); ++i)
      if (f_.is_load(i) && f_.code[i].inner &&
          (marks[i] == kComputed || (marks[i] && plan_.shared_bytes > 0)) &&
          (!plan_.in_registers || f_.is_of_row(i)))
        loads.push_back(i);
    if (loads.empty()) return;
    for (auto i : loads)
      if (!plan_.in_registers || !plan_.saved[i])
        source_.line(fmt::format("{} x{}[{}]{};", chunk_of(i), i, plan_.chunks_at_once,
                                 marks[i] == kSaved ? "{}" : ""));
    unroll(each);
    place();
    for (auto i : loads) {
      if (marks[i] == kComputed) fetch(i, fmt::format("x{}[m]", i), count);
      if (plan_.shared_bytes > 0 && plan_.saved[i]) {
        const auto near = fmt::format("near{}[j / {}]", i, chunk_size_),
                   x = fmt::format("x{}[m]", i);
        source_.line(fmt::format("if (here > 0) {} = {};", marks[i] == kComputed ? near : x,
                                 marks[i] == kComputed ? x : near));
      }
      fetched(i, "[m]");
    }
    source_.close();
  }
  DType folded_dtype(const Instr& in) const {
    return finds_position(in.code) ? f_.code[std::size_t(in.args[0])].dtype : in.dtype;
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
  void start_reduction(std::size_t i) {
    source_.line(fmt::format("{} fold{} = {};", folded_type(f_.code[i]), i, start_of(f_.code[i])));
  }
  void accumulate(std::size_t i, const std::string& position) {
    auto& in = f_.code[i];
    auto x = name(in.args[0]),
         to = (sums_floats(i) ? "some" : "fold") + std::to_string(i) + (columns_ ? "[k]" : "");
    auto A = element_of(f_.code[std::size_t(in.args[0])].dtype);
    x = finds_position(in.code) ? fmt::format("Best<Number<{}>>{{{}, {}}}", A, x, position)
                                : fmt::format("wide(cast<{}, {}>({}))", element_of(in.dtype), A, x);
    source_.line(fmt::format("{0} = {1}({0}, {2});", to, fold_of(in.code), x));
  }
  void finish_reduction(std::size_t i) {
    auto& in = f_.code[i];
    auto all =
        columns_ ? fmt::format("fold{}[k]", i)
                 : fmt::format("folded<{}>(fold{}, {}, shared)", plan_.group, i, fold_of(in.code));
    if (in_parts()) return source_.line(fmt::format("const auto v{} = {};", i, all));
    if (finds_position(in.code)) {
      source_.line(fmt::format("const auto b{} = {};", i, all));
      all = fmt::format("b{0}.at == 0x7fffffffffffffff ? 0 : b{0}.at", i);
    }
    auto S = element_of(in.dtype);
    source_.line(fmt::format("const Number<{0}> v{1} = result<{0}>({2});", S, i, all));
  }

  const PassPlan plan_;
  const bool columns_;           // columns rather than rows
  std::string from_ = "0", to_;  // range of inner elements, as source
  RowSplit split_;
  std::vector<std::int64_t> partial_;  // by reduction: offset of its partial results in the arena
};

// A group of threads per row.
class FusedRows : FusedFolds {
 public:
  FusedRows(const FusedFacts& f, PassPlan plan)
      : FusedFolds(f, std::move(plan), f.dims.size() - 1) {}
  using FusedFolds::reduce_parts;
  Launch make() {
    const int most = f_.nest ? kNestThreads : std::max(128, plan_.group),
              threads = f_.serial ? 1 : most, at_once = threads / plan_.group;
    const bool waits = plan_.group > 1 && f_.folds;
    if (waits && !f_.nest)
      source_.line("HALIAX_SHARED(shared);");
    else
      source_.line("unsigned char* const shared = nullptr;");
    source_.line(fmt::format("const unsigned lane = threadIdx_x % {}u;", plan_.group));
    const auto all = f_.rows * split_.count;
    auto count = source_.argument(all);
    to_ = source_.argument(f_.inner);
    source_.open(fmt::format(
        "for (I first = my_block * I({0}); first < I({1}); first += I(all_blocks) * {0})", at_once,
        count));
    source_.line(fmt::format("const bool there = first + I(threadIdx_x / {0}u) < I({1});",
                             plan_.group, count));
    source_.line(
        fmt::format("const I row = there ? first + I(threadIdx_x / {}u) : I({}) - 1;   // all "
                    "threads take part in folds",
                    plan_.group, count));
    source_.indices(part_of("row", f_.rows), f_.part(0, f_.outer));
    declare_saved_values();
    for (int level = 0; level <= f_.last_level(); ++level) {
      rows_on(level);
      emit_pass(level);
    }
    if (f_.stores_rows) store_rows();
    source_.close();
    auto out = source_.launch(1, waits, threads <= 128 ? "128" : threads <= 256 ? "256" : "512");
    out.threads = threads;
    out.blocks = f_.serial ? 1 : std::min<std::int64_t>((all + at_once - 1) / at_once, 1 << 20);
    out.shared = std::max<std::int64_t>(kFoldBytes * std::max(1, threads / 32), plan_.shared_bytes);
    return out;
  }

 private:
  void store_rows() {
    source_.open("if (there && lane == 0)");
    for (std::size_t i = 0; i < f_.code.size(); ++i) {
      if (!f_.needed[i]) continue;
      if (is_store(f_.code[i].code) && !f_.code[i].inner) write(i);
      if (is_reduction(f_.code[i].code) && in_parts())
        source_.line(fmt::format("store<{}>({}, row, v{});", element_of(wide_of(f_.code[i].dtype)),
                                 partial(i), i));
    }
    source_.close();
  }
  void declare_saved_values() {
    for (std::size_t i = 0; i < f_.code.size(); ++i) {
      if (!plan_.saved[i]) continue;
      if (plan_.shared_bytes > 0)
        source_.line(fmt::format("auto* const near{} = reinterpret_cast<{}*>(shared + {});", i,
                                 chunk_of(i), source_.argument(plan_.shared_offsets[i])));
      else if (f_.is_load(i))
        source_.line(fmt::format("{} x{}[{}];", chunk_of(i), i, plan_.chunks_at_once));
      else
        source_.line(fmt::format("Number<{}> e{}[{}][{}];", element_of(f_.code[i].dtype), i,
                                 plan_.chunks_at_once, chunk_size_));
    }
  }
  // Emits the instructions of this level that have one value per row.
  void rows_on(int level) {
    for (std::size_t i = 0; i < f_.code.size(); ++i) {
      auto& in = f_.code[i];
      if (f_.needed[i] && !in.inner && f_.levels[i] == level && !is_store(in.code) &&
          !is_reduction(in.code))
        write(i);
    }
  }
  // Emits the pass that computes the reductions of this level, and its values per element.
  void emit_pass(int level) {
    auto& marks = plan_.passes[std::size_t(level)];
    if (std::none_of(marks.begin(), marks.end(), [](char c) { return c != 0; })) return;
    std::vector<std::size_t> folds;
    for (std::size_t i = 0; i < f_.code.size(); ++i)
      if (marks[i] && is_reduction(f_.code[i].code)) folds.push_back(i);
    for (auto i : folds) start_reduction(i);
    if (!f_.empty) f_.is_plain() ? points_of_rows(marks, folds) : chunks_of_rows(marks, folds);
    for (auto i : folds) finish_reduction(i);
  }
  bool stores(const Marks& marks) const {
    for (std::size_t i = 0; i < f_.code.size(); ++i)
      if (marks[i] && is_store(f_.code[i].code)) return true;
    return false;
  }
  void points_of_rows(const Marks& makes, const std::vector<std::size_t>& folds) {
    bool by_blocks =
        std::any_of(folds.begin(), folds.end(), [&](auto i) { return sums_floats(i); });
    if (by_blocks) {
      source_.open(fmt::format("for (I block = lane; block < I({}); block += {})", to_,
                               kTerms * plan_.group));
      for (auto i : folds)
        if (sums_floats(i)) source_.line(fmt::format("decltype(fold{0}) some{0} = 0;", i));
      source_.open(fmt::format("for (I j = block; j < block + {} && j < I({}); j += {})",
                               kTerms * plan_.group, to_, plan_.group));
    } else {
      source_.open(fmt::format("for (I j = lane; j < I({}); j += {})", to_, plan_.group));
    }
    source_.indices("j", f_.part(f_.outer, f_.dims.size()), f_.outer);
    for (std::size_t i = 0; i < f_.code.size(); ++i)
      if (makes[i] && !is_store(f_.code[i].code))
        is_reduction(f_.code[i].code) ? accumulate(i, "j") : write(i);
    if (stores(makes)) {
      source_.open("if (there)");
      for (std::size_t i = 0; i < f_.code.size(); ++i)
        if (makes[i] && is_store(f_.code[i].code)) write(i);
      source_.close();
    }
    source_.close();
    if (!by_blocks) return;
    add_sums(folds);
    source_.close();
  }
  // Emits a pass over the chunks of a row, `plan_.chunks_at_once` at a time, or all of them if the
  // row is retained. Loads come first, so that they are in flight together.
  void chunks_of_rows(const Marks& marks, const std::vector<std::size_t>& folds) {
    const int step = chunk_size_ * plan_.group;
    const auto each = fmt::format("for (int m = 0; m < {}; ++m)", plan_.chunks_at_once);
    if (!plan_.in_registers)
      source_.open(fmt::format("for (I block = {}; block < I({}); block += {})", from_, to_,
                               step * plan_.chunks_at_once));
    auto place = [&] {
      source_.line(fmt::format("const I j = {}m * {} + lane * {};",
                               plan_.in_registers ? "" : "block + ", step, chunk_size_));
      source_.indices("j", f_.part(f_.outer, f_.dims.size()), f_.outer);
      source_.line(fmt::format("const int here = few_there<{}>(I({}) - j);", chunk_size_, to_));
    };
    fetch_ahead(marks, each, place, "here");
    for (auto i : folds)
      if (sums_floats(i)) source_.line(fmt::format("decltype(fold{0}) some{0} = 0;", i));
    unroll(each);
    place();
    for (std::size_t i = 0; i < f_.code.size(); ++i)  // values that all rows share are cached
      if (plan_.in_registers && f_.is_load(i) && marks[i] == kComputed && !f_.is_of_row(i)) {
        fetch(i, fmt::format("const auto x{}", i), "here");
        fetched(i, "");
      }

    each_of_chunk(marks, [&](std::size_t i) { point_of_row(i, marks[i]); });
    if (stores(marks)) {
      source_.open("if (there)");
      store_chunks(marks);
      source_.close();
    }
    const int together = std::max(1, kTerms / chunk_size_);
    if (plan_.chunks_at_once > together &&
        std::any_of(folds.begin(), folds.end(), [&](auto i) { return sums_floats(i); })) {
      source_.open(fmt::format("if (m % {} == {})", together, together - 1));
      add_sums(folds);
      for (auto i : folds)
        if (sums_floats(i)) source_.line(fmt::format("some{} = 0;", i));
      source_.close();
    }
    source_.close();
    if (plan_.chunks_at_once <= together) add_sums(folds);
    if (!plan_.in_registers) source_.close();
  }
  void point_of_row(std::size_t i, char mark) {
    auto& in = f_.code[i];
    if (is_store(in.code)) return into_chunk(i);
    if (is_reduction(in.code)) {
      source_.open("if (k < here)");
      accumulate(i, "j + k");
      return source_.close();
    }
    if (mark == kSaved && !f_.is_load(i))
      return source_.line(
          fmt::format("const Number<{}> v{} = e{}[m][k];", element_of(in.dtype), i, i));
    write(i);
    if (plan_.saved[i] && !f_.is_load(i)) source_.line(fmt::format("e{0}[m][k] = v{0};", i));
  }
};

// Reductions along adjacent lines, a few lines per thread.
class FusedColumns : FusedFolds {
 public:
  explicit FusedColumns(const FusedFacts& f) : FusedFolds(f, plan_columns(f), f.outer - 1, true) {}
  using FusedFolds::reduce_parts;
  Launch make() {
    Dims few_lines = f_.part(0, f_.outer);
    few_lines.back() = (few_lines.back() + chunk_size_ - 1) / chunk_size_;
    const auto n = program::points(few_lines);
    auto count = source_.argument(n * split_.count), size = source_.argument(f_.dims[along_]);
    to_ = source_.argument(f_.inner);
    source_.open(fmt::format(kEachPoint, count));
    source_.indices(part_of("p", n), few_lines, 0, chunk_size_);
    source_.line(
        fmt::format("const int here = few_there<{}>(I({}) - i{});", chunk_size_, size, along_));
    const auto folds = f_.all_folds();
    Marks outer(f_.code.size()), inner(f_.code.size());
    for (std::size_t i = f_.code.size(); i-- > 0;) {
      outer[i] = f_.needed[i] && !f_.code[i].inner;
      if (outer[i] && is_reduction(f_.code[i].code)) inner[i] = kComputed;
      if (inner[i])
        for (int a : operands(f_.code[i])) inner[std::size_t(a)] = kComputed;
      if (outer[i] && f_.is_load(i)) {
        fetch(i, fmt::format("const auto x{}", i), "here");
        fetched(i, "");
      }
    }
    const auto each_line = fmt::format("for (int k = 0; k < {}; ++k)", chunk_size_);
    for (auto i : folds) {
      source_.line(fmt::format("{} fold{}[{}];", folded_type(f_.code[i]), i, chunk_size_));
      unroll(each_line);
      source_.line(fmt::format("fold{}[k] = {};", i, start_of(f_.code[i])));
      source_.close();
    }
    lines_of(inner, folds, each_line);
    if (in_parts()) {
      keep_parts(folds);
    } else {
      each_of_chunk(outer, [&](std::size_t i) {
        if (is_store(f_.code[i].code))
          into_chunk(i);
        else
          is_reduction(f_.code[i].code) ? finish_reduction(i) : write(i);
      });
      store_chunks(outer);
    }
    source_.close();
    return source_.launch(n * split_.count, false, "256");
  }

 private:
  void lines_of(const Marks& marks, const std::vector<std::size_t>& folds,
                const std::string& each_line) {
    const auto each = fmt::format("for (int m = 0; m < {}; ++m)", plan_.chunks_at_once);
    source_.open(fmt::format("for (I block = {}; block < I({}); block += {})", from_, to_,
                             plan_.chunks_at_once));
    auto place = [&] {
      source_.line("const I j = block + m;");
      source_.indices("j", f_.part(f_.outer, f_.dims.size()), f_.outer);
      source_.line(fmt::format("const bool in = j < I({});", to_));
    };
    fetch_ahead(marks, each, place, "in ? here : 0");
    for (auto i : folds)
      if (sums_floats(i))
        source_.line(fmt::format("{} some{}[{}] = {{}};", folded_type(f_.code[i]), i, chunk_size_));
    unroll(each);
    place();
    each_of_chunk(marks, [&](std::size_t i) {
      if (!is_reduction(f_.code[i].code)) return write(i);
      source_.open("if (in)");
      accumulate(i, "j");
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
    const auto line = source_.sum_of(program::row_major(f_.part(0, f_.outer)));
    auto at = fmt::format("piece * I({}) + {}", source_.argument(f_.rows), line);
    for (auto i : folds) {
      source_.line(
          fmt::format("Few<{}, {}> y{};", chunk_size_, element_of(wide_of(f_.code[i].dtype)), i));
      unroll(fmt::format("for (int k = 0; k < {}; ++k)", chunk_size_));
      source_.line(fmt::format("y{0}.at[k] = fold{0}[k];", i));
      source_.close();
      auto place = partial(i);
      source_.line(fmt::format("store_few({}, {}, y{}, here);", place, at, i));
    }
  }
};

// Returns the step that reduces the partial results, which are stored at `place`.
Fused second_pass(const Fused& f, const FusedFacts& facts, const RowSplit& split,
                  std::int64_t place) {
  Fused out;
  out.dims.assign(f.dims.begin(), f.dims.begin() + f.outer);
  out.outer = f.outer;
  Dims strides = program::row_major(out.dims);
  out.dims.push_back(split.count);
  strides.push_back(facts.rows);
  std::vector<int> now(facts.code.size(), -1);
  auto add = [&](Instr in) {
    for (int& a : in.args)
      if (a >= 0 && !is_reduction(in.code)) a = now[std::size_t(a)];
    out.code.push_back(std::move(in));
    return int(out.code.size()) - 1;
  };
  for (std::size_t i = 0; i < facts.code.size(); ++i) {
    auto in = f.code[i];
    if (in.inner || !facts.needed[i]) continue;
    if (!is_reduction(in.code)) {
      now[i] = add(std::move(in));
      continue;
    }
    const auto d = in.dtype, wide = wide_of(d);
    Instr x{.code = Code::load, .dtype = wide, .inner = true};
    x.view = {kArenaSlot, wide, place / bytes_of(wide), strides, {}};
    place += partial_bytes(facts, i, split);
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
template <class Source>
Launch first_pass(Source source, const RowSplit& split, std::int64_t place) {
  source.reduce_parts(split, place);
  return source.make();
}

}  // namespace

std::string instruction_source(const std::vector<Instr>& code, int which, const Dims& strides,
                               NestContext* nest) {
  const auto i = std::size_t(which);
  return FusedPoints(FusedFacts(code, i, strides, nest)).one(i);
}
Launch fused_launch(const Fused& f, NestContext* nest, std::int64_t shared_limit) {
  const FusedFacts facts(f, nest);
  if (facts.rows == 0) return {{}, {}, 0};
  if (facts.inner == 1 || (!facts.folds && !facts.stores_rows))
    return FusedPoints(facts).all_points();
  if (are_columns(facts) && facts.rows >= kManyRows) return FusedColumns(facts).make();
  return FusedRows(facts, plan_rows(facts, shared_limit)).make();
}
std::int64_t fused_scratch(const Fused& f) {
  const FusedFacts facts(f, nullptr);
  const auto split = row_split_of(facts);
  std::int64_t sum = 0;
  if (split)
    for (auto i : facts.all_folds()) sum += partial_bytes(facts, i, *split);
  return sum;
}
std::vector<Launch> fused_in_two(const Fused& f, std::int64_t place) {
  FusedFacts facts(f, nullptr);
  const auto split = row_split_of(facts);
  if (!split) return {fused_launch(f)};
  const auto rest = second_pass(f, facts, *split, place);
  std::vector<bool> reductions(facts.code.size());
  for (auto i : facts.all_folds()) reductions[i] = true;
  facts.needed = with_operands(f, std::move(reductions));
  return {are_columns(facts) ? first_pass(FusedColumns(facts), *split, place)
                             : first_pass(FusedRows(facts, plan_rows(facts, 0)), *split, place),
          fused_launch(rest)};
}

}  // namespace haliax::cuda
