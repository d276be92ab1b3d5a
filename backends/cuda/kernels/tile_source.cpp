// The source of passes over tiles. A block of threads processes 64 rows at a time. Each warp
// iterates over tiles of 32 columns, within the blocks of columns that are needed. While a tile is
// computed, the operands of the next one are copied.
//
// For example, the pass of the forward attention in tiles.h is, shortened:
//
//   for each tile of rows {
//     copy q, and the first tiles of k and v                       // emit_setup
//     m = lowest;  l = 0;  o = 0                                   // emit_start
//     for each tile of columns {                                   // emit_tiles
//       start to copy the next tiles of k and v
//       scores = q k^T                                             // emit_tile_matmul
//       if (max(scores) exceeds m by much) { m, l and o are updated }
//       weights = exp(scores - m);  l += weights                   // emit_elements
//       o += weights v
//     }
//     store m, l and o / l                                         // PassResults
//   }
#include "tile_pass.h"

namespace haliax::cuda {
namespace {

using namespace program;
using Tile = TileProduct::Kind;

// The results of a pass: sums of matmuls, reductions, and stores of row values.
class PassResults : PassWriter {
 public:
  // running: row values that depend on the running maximum.
  PassResults(const PassWriter& w, const std::set<int>& running)
      : PassWriter(w), running_rows_(running) {}
  void store_sums(int n) {
    auto& p = f_.product(n);
    const auto known = f_.factors(n, p.value);
    if (known) {
      w_.line(fmt::format("float scale{}[2];", n));
      open_rows();
      values(f_.g.code, f_.rows_of(*known));
      w_.line(fmt::format("scale{}[h] = scale[h]{};", n, f_.times(known->factors)));
      w_.close();
      w_.line(fmt::format("sums{0}.scale(scale{0});", n));
    }
    w_.line(fmt::format("sums{}.template store_to<{}, {}>({}, rows_there, int({}), {});", n,
                        element_of(p.out.view.dtype), p.adds, side(p.out, "first", true),
                        w_.argument(p.terms),
                        shared("float", std::to_string(f_.layout.staged_at))));
  }
  void finish_folds(const std::vector<int>& folds) {
    for (std::size_t k = 0; k < folds.size(); ++k) {
      const int f = folds[k];
      auto T = fmt::format("Wide<{}>", element_of(f_.instr(f).dtype));
      w_.line(fmt::format(
          "auto* const room{} = {};", f,
          shared(T, std::to_string(f_.layout.staged_at + std::int64_t(k) * kStagedBytes))));
      w_.line(fmt::format("fold_lanes(fold{0}, {1}, room{0});", f, f_.fold_of(f)));
    }
    w_.line("__syncthreads();");
    w_.open("if (half == 0 && lane % 4 == 0)");
    open_rows();
    for (int f : folds) {
      auto S = element_of(f_.instr(f).dtype);
      w_.line(
          fmt::format("auto all{0} = {1}(room{0}[strip + lane / 4 + 8 * h], room{0}[tile_rows + "
                      "strip + lane / 4 + 8 * h]);",
                      f, f_.fold_of(f)));
      if (const auto known = f_.factors(-1, f); known && !known->factors.empty()) {
        w_.open("");
        values(f_.g.code, f_.rows_of(*known));
        w_.line(fmt::format("all{0} = all{0}{1};", f, f_.times(known->factors)));
        w_.close();
      }
      if (!f_.needed.always) emit_skipped_fold(f);
      w_.line(fmt::format(
          "if (at == row) reinterpret_cast<Number<{0}>*>(shared + {1})[row] = result<{0}>(all{2});",
          S, result_offset(f), f));
    }
    w_.close();
    w_.close();
    w_.line("__syncthreads();");
  }
  // Finishes early reductions. The maximum is final, so values computed with an earlier maximum of
  // a lane are rescaled. Sums whose factors depend on other sums are reduced last.
  void finish_early() {
    w_.line("float scale[2];");
    open_rows();
    values(f_.g.code, f_.row_sources({*running_rows_.begin()}));
    w_.line(fmt::format("scale[h] = quick_exp(row{0}[h] - v{0});", *running_rows_.begin()));
    for (int f : f_.pass.early_reductions) w_.line(fmt::format("fold{0}[h] *= scale[h];", f));
    w_.close();
    std::vector<int> together;
    for (int f : f_.pass.early_reductions) {
      const std::set<int> open(together.begin(), together.end());
      const auto known = f_.factors(-1, f);
      auto waits = [&](auto& factor) { return f_.g.waits(factor.first, open); };
      if (std::any_of(known->factors.begin(), known->factors.end(), waits)) {
        finish_folds(together);
        together.clear();
      }

      together.push_back(f);
    }
    if (!together.empty()) finish_folds(together);
  }
  void store_rows() {
    std::set<int> all;
    for (int s : f_.pass.stores) {
      all.merge(f_.g.sources(s));
      all.erase(s);
    }

    w_.open("if (half == 0 && lane % 4 == 0)");
    open_rows();
    values(f_.g.code, all);
    for (int s : f_.pass.stores) w_.line("if (at == row) " + value(f_.g.code, s));
    w_.close();
    w_.close();
  }

 private:
  void emit_skipped_fold(int f) {
    auto& in = f_.instr(f);
    w_.open(fmt::format("if (visited < I({}))", columns_));
    std::set<int> all;
    auto visit = [&](auto& self, int i) -> void {
      if (!all.insert(i).second || is_reduction(f_.skipped.code[std::size_t(i)].code)) return;
      for (int a : operands(f_.skipped.code[std::size_t(i)])) self(self, a);
    };
    visit(visit, in.args[0]);
    values(f_.skipped.code, all);
    auto S = element_of(in.dtype);
    auto x = fmt::format("wide(cast<{}, {}>(v{}))", S, element_of(f_.instr(in.args[0]).dtype),
                         in.args[0]);
    if (in.code == Code::reduce_sum)
      x = fmt::format("mul({}, Wide<{}>(I({}) - visited))", x, S, columns_);
    w_.line(fmt::format("all{0} = {1}(all{0}, {2});", f, f_.fold_of(f), x));
    w_.close();
  }

  const std::set<int>& running_rows_;
};

// The elements of a tile: values, reductions, and the operands of matmuls.
class PassElements : PassWriter {
 public:
  explicit PassElements(const PassWriter& w) : PassWriter(w) {}
  // Declares and initializes the state of a lane between tiles: the values of its two rows that
  // elements read, the reductions, and the sums of matmuls.
  void emit_start() {
    for (int i : f_.layout.inner)    // used by instructions per element
      if (f_.without_factor(i) < 0)  // a factor of a row is applied after the last tile
        for (int a : operands(f_.instr(i)))
          if (!f_.instr(a).inner) (f_.waits(a) ? running_rows_ : constant_rows_).insert(a);
    for (int f : f_.folds)
      if (int a = f_.instr(f).args[0]; !f_.instr(a).inner) constant_rows_.insert(a);
    for (auto* rows : {&constant_rows_, &running_rows_})
      for (int i : *rows)
        w_.line(fmt::format("Number<{}> row{}[2];", element_of(f_.instr(i).dtype), i));
    if (!constant_rows_.empty()) {
      std::set<int> known;
      for (int i : f_.layout.row)
        if (!f_.waits(i)) known.insert(i);
      open_rows();
      values(f_.g.code, known);
      for (int i : constant_rows_) w_.line(fmt::format("row{0}[h] = v{0};", i));
      w_.close();
    }
    if (f_.has_top()) {
      open_rows();
      emit_rows_of_top(kLowest);
      for (int i : running_rows_) w_.line(fmt::format("row{0}[h] = v{0};", i));
      w_.close();
      w_.line(fmt::format("float limit[2] = {{{0}, {0}}};", kLowest));
    }
    for (int f : f_.folds) {
      auto S = element_of(f_.instr(f).dtype);
      auto m = monoid_of(f_.instr(f).code);
      w_.line(fmt::format("Wide<{}> fold{}[2];", S, f));
      w_.line(fmt::format("fold{0}[0] = fold{0}[1] = wide(constant<{1}>({2}));", f, S,
                          w_.argument(start_bits(m, f_.instr(f).dtype))));
    }
    for (int p : f_.products)
      if (f_.product(p).kind == Tile::over_columns) {
        w_.line(fmt::format("RowSums<{}, {}> sums{};", element_of(f_.product(p).dtype),
                            f_.product(p).depth(), p));
        w_.line(fmt::format("sums{}.clear();", p));
      }
  }
  // Comparisons of an increasing value with a value of the row hold in an entire tile if they hold
  // in its last column, or in its first one. Most tiles therefore need no mask, and tiles at the
  // edge have separate source. For example, the mask `key <= query` emits:
  //
  //   edge = !(key <= query), with the key in the last column
  //   if (any_lane(edge)) { all elements, with the mask } else { all elements, with the mask true }
  void emit_tile(const std::set<int>& retained) {
    std::set<int> at_last, at_first;
    const bool is_remainder = f_.pass.remainder_of >= 0;  // has no separate source
    for (int i : is_remainder ? std::set<int>() : f_.layout.inner) {
      auto& in = f_.instr(i);
      if (in.code != Code::less && in.code != Code::less_equal) continue;
      if (f_.rises(in.args[0]) && !f_.instr(in.args[1]).inner) at_last.insert(i);
      if (!f_.instr(in.args[0]).inner && f_.rises(in.args[1])) at_first.insert(i);
    }
    if (at_last.empty() && at_first.empty()) return emit_elements(retained);
    w_.line("bool edge = false;");
    for (auto* all : {&at_last, &at_first}) {
      std::set<int> compared;
      for (int i : *all) add_operands_of(compared, i, -1);
      w_.line("#pragma unroll");
      w_.open("for (int h = 0; h < 2; ++h)");
      w_.line(fmt::format("const I column = range.column + {};",
                          all == &at_last ? "tile_columns - 1" : "0"));
      w_.indices("column", f_.g.columns, f_.g.rows.size());
      for (int i : constant_rows_) w_.line(fmt::format("const auto v{0} = row{0}[h];", i));
      for (int i : compared)
        w_.line(fmt::format("const Number<{}> v{} = {};", element_of(f_.instr(i).dtype), i,
                            element_source(i)));
      for (int i : *all) w_.line(fmt::format("edge |= !v{};", i));
      w_.close();
    }
    w_.open("if (any_lane(edge))");
    emit_elements(retained);
    w_.close();
    at_last.merge(at_first);
    known_true_ = std::move(at_last);
    w_.open("else");
    emit_elements(retained);
    w_.close();
    known_true_.clear();
  }
  const std::set<int>& running() const { return running_rows_; }

 private:
  // The initial maximum. It is finite, so that exp is 0 if all elements so far are -inf.
  static constexpr const char* kLowest = "-3.402823466e+38f";
  // Growth of the maximum before sums are rescaled: exp of it can be summed, and rounded to f16.
  static constexpr const char* kMayGrow = "5";
  // Emits the row values that depend on the maximum, given the source of the maximum.
  void emit_rows_of_top(const std::string& top) {
    auto all = f_.row_sources({running_rows_.begin(), running_rows_.end()});
    all.erase(f_.pass.top);
    w_.line(fmt::format("const float v{} = {};", f_.pass.top, top));
    values(f_.g.code, all);
  }
  void emit_elements(const std::set<int>& retained) {
    std::set<int> created;
    if (f_.has_top()) emit_raise_top();
    for (int v : retained) add_operands_of(created, f_.retained_value(v), f_.top_value());
    for (int f : f_.folds) {
      if (f == f_.pass.top) continue;
      add_operands_of(created, f_.instr(f).args[0], f_.top_value());
      if (f_.sums_floats(f))
        w_.line(fmt::format("Wide<{}> some{}[2] = {{}};", element_of(f_.instr(f).dtype), f));
    }
    open_points();
    for (auto* rows : {&constant_rows_, &running_rows_})
      for (int i : *rows) w_.line(fmt::format("const auto v{0} = row{0}[h];", i));
    for (int i : created)
      w_.line(fmt::format(
          "const Number<{}> v{} = {};", element_of(f_.instr(i).dtype), i,
          i == f_.top_value() ? fmt::format("top{}[j][e]", f_.pass.top) : element_source(i)));
    std::string zero;  // condition; other elements are multiplied as 0
    if (!f_.full_columns()) zero = "inside";
    if (!f_.full_rows()) zero += zero.empty() ? "at == row" : " && at == row";
    for (int v : retained)
      w_.line(fmt::format("value{}[j][e] = {}v{}{};", v, zero.empty() ? "" : zero + " ? ",
                          f_.retained_value(v), zero.empty() ? "" : " : 0"));
    for (int f : f_.folds)
      if (f != f_.pass.top)
        emit_fold(f, fmt::format("{}{}[h]", f_.sums_floats(f) ? "some" : "fold", f));
    w_.close();
    w_.close();
    for (int f : f_.folds)
      if (f_.sums_floats(f))
        w_.line(fmt::format("for (int h = 0; h < 2; ++h) fold{0}[h] = add(fold{0}[h], some{0}[h]);",
                            f));
  }
  std::string element_source(int i) {
    if (known_true_.count(i)) return "true";
    const int p = f_.g.product_of[std::size_t(i)];
    auto S = element_of(f_.instr(i).dtype);
    if (p >= 0 && is_16_bit(f_.instr(i).dtype))
      return fmt::format("narrowed<{}>(matmul{}[j][e])", S, p);
    if (p >= 0) return fmt::format("matmul{}[j][e]", p);
    if (int value = f_.without_factor(i); value >= 0) return fmt::format("v{}", value);
    return rounded_source(i);
  }
  void emit_fold(int f, const std::string& to) {
    auto x = fmt::format("wide(cast<{}, {}>(v{}))", element_of(f_.instr(f).dtype),
                         element_of(f_.instr(f_.instr(f).args[0]).dtype), f_.instr(f).args[0]);
    w_.line(fmt::format("{3}{0} = {1}({0}, {2});", to, f_.fold_of(f), x,
                        f_.full_columns() ? "" : "if (inside) "));
  }
  // Updates the running maximum, and the values derived from it. If it has grown by much, the sums
  // are rescaled.
  void emit_raise_top() {
    const int top = f_.pass.top;
    std::set<int> created;
    add_operands_of(created, f_.top_value(), -1);
    w_.line(fmt::format("Tile top{};", top));
    open_points();
    for (int i : constant_rows_) w_.line(fmt::format("const auto v{0} = row{0}[h];", i));
    for (int i : created)
      w_.line(fmt::format("const Number<{}> v{} = {};", element_of(f_.instr(i).dtype), i,
                          element_source(i)));
    w_.line(fmt::format("top{}[j][e] = v{};", top, f_.top_value()));
    emit_fold(top, fmt::format("fold{}[h]", top));
    w_.close();
    w_.close();
    w_.open(
        fmt::format("if (any_lane(!(fold{0}[0] <= limit[0]) || !(fold{0}[1] <= limit[1])))", top));
    w_.line("float scale[2];");
    open_rows();
    w_.line(fmt::format("float most = Larger()(fold{}[h], {});", top, kLowest));
    // four lanes share a row
    for (int by : {1, 2}) w_.line(fmt::format("most = Larger()(most, exchanged(most, {}));", by));
    emit_rows_of_top("most");
    w_.line(fmt::format("limit[h] = most + {};", kMayGrow));
    w_.line(fmt::format("scale[h] = quick_exp(row{0}[h] - v{0});", *running_rows_.begin()));
    for (int i : running_rows_) w_.line(fmt::format("row{0}[h] = v{0};", i));
    for (int f : f_.pass.early_reductions) w_.line(fmt::format("fold{0}[h] *= scale[h];", f));
    w_.close();
    for (int p : f_.pass.early_products) w_.line(fmt::format("sums{}.scale(scale);", p));
    w_.close();
  }
  std::string rounded_source(int i) {
    auto& in = f_.instr(i);
    const bool from_f32 =
        in.code == Code::cast && is_16_bit(in.dtype) && f_.instr(in.args[0]).dtype == DType::f32;
    if (in.code == Code::exp && in.dtype == DType::f32)
      return fmt::format("quick_exp(v{})", in.args[0]);
    return from_f32 ? fmt::format("narrowed<{}>(v{})", element_of(in.dtype), in.args[0])
                    : value(f_.g.code, i);
  }
  // Adds the instructions that i is computed from, as far back as `known`.
  void add_operands_of(std::set<int>& to, int i, int known) const {
    if (!f_.instr(i).inner || !to.insert(i).second) return;
    if (f_.g.product_of[std::size_t(i)] >= 0 || i == known || known_true_.count(i)) return;
    for (int a : operands(f_.instr(i))) add_operands_of(to, a, known);
  }

  std::set<int> known_true_;  // comparisons that hold in an entire tile
  // values of rows: constant ones, and ones that depend on the running maximum
  std::set<int> constant_rows_, running_rows_;
};

// The source of a pass.
class PassSource : PassWriter {
 public:
  explicit PassSource(const PassWriter& w) : PassWriter(w), elements_(w) {}
  std::string source() {
    if (!f_.begun.empty()) w_.line(fmt::format("if (({}) & ~({}))", f_.requested, f_.begun));
    w_.open("");
    w_.line(
        "const int lane = int(threadIdx_x) % 32, strip = int(threadIdx_x) / 32 % 4 * 16, half = "
        "int(threadIdx_x) / 128;");
    w_.open(fmt::format("for (I first = 0; first < I({}); first += tile_rows)", rows_));
    PassResults results(*this, elements_.running());
    if (f_.has_tiles()) {
      emit_setup();
      emit_tiles();
      if (!f_.folds.empty() && !f_.needed.always) w_.line("const I visited = tiles.columns();");
      if (!f_.folds.empty()) {
        w_.line("__syncthreads();");
        results.finish_folds(f_.pass.folds);
      }

      if (f_.has_top()) results.finish_early();
      for (int p : f_.products)
        if (f_.product(p).kind == Tile::over_columns) results.store_sums(p);
    }
    if (!f_.pass.stores.empty()) results.store_rows();
    if (points(f_.g.rows) > kRows) w_.line("__syncthreads();");
    w_.close();
    w_.close();
    return w_.launch(1).source;
  }

 private:
  // ---- before the tiles ----
  void emit_setup() {
    w_.line(fmt::format("const TileColumns tiles{{{}, int({}), int({})}};", f_.requested,
                        w_.argument(f_.width()), columns_));
    w_.line(fmt::format(
        "const int rows_there = I({0}) - first < tile_rows ? I({0}) - first : tile_rows;", rows_));
    w_.line("Copies copies;");
    for (std::size_t k = 0; k < f_.layout.rows.size(); ++k) {
      auto& o = f_.layout.rows[k];
      w_.line(fmt::format("const {} x{}{{{}}};", staged(o, kRows), k,
                          shared(element_of(o.dtype), std::to_string(o.at))));
      w_.line(fmt::format("x{}.template stage<{}>(copies, {}, rows_there, int({}));", k,
                          is_far(o.what.view), side(o.what, "first"), w_.argument(o.terms)));
    }
    for (std::size_t k = 0; k < f_.layout.columns.size(); ++k) {
      auto& o = f_.layout.columns[k];
      w_.line(fmt::format("const Source<{}, {}> from{}({}, int({}));", staged(o, kColumns),
                          is_far(o.what.view), k, side(o.what, "0"), w_.argument(o.terms)));
    }
    w_.open(
        "auto stage_columns = [&](int iteration, const TileColumns::Range& a, const "
        "TileColumns::Range& b)");
    w_.line("const int columns[2] = {a.column, b.column}, there[2] = {a.there(), b.there()};");
    for (std::size_t k = 0; k < f_.layout.columns.size(); ++k)
      w_.line(fmt::format("from{0}.stage(copies, {1}.at, columns, there);", k,
                          at_columns(k, "iteration", "0")));
    w_.close(";");
    w_.line("TileColumns::Range tile0 = tiles.from(0), tile1 = tiles.next(tile0);");
    w_.line("stage_columns(0, tile0, tile1);");
    w_.line("copies.wait();");
    w_.line("__syncthreads();");
    if (f_.holds_rows()) emit_row_fragments(f_.layout.makes[0]);
    elements_.emit_start();
  }
  // Emits the load of the multiplied rows of matmul p into registers.
  void emit_row_fragments(int p) {
    w_.line(fmt::format("RowFragments<{}, {}> rows{};", element_of(f_.product(p).dtype),
                        f_.product(p).depth(), p));
    w_.line(fmt::format("rows{}.load(x{}, strip);", p,
                        Layout::find(f_.layout.rows, f_.product(p), true)));
  }
  // ---- tiles ----
  void emit_tiles() {
    w_.open("for (int iteration = 0; tile0.there() > 0; ++iteration)");
    w_.open("if (iteration > 0)");
    w_.line("copies.wait();");
    w_.line("__syncthreads();");
    w_.close();
    w_.line(
        "const TileColumns::Range next0 = tiles.next(tile1), "
        "next1 = tiles.next(next0), range = half ? tile1 : tile0;");
    w_.line("stage_columns(iteration + 1, next0, next1);");
    w_.line("const int there = range.there();");
    std::set<int> retained;
    for (int p : f_.products) retained.insert(f_.product(p).value);
    for (int v : retained) w_.line(fmt::format("Tile value{};", v));
    w_.open("if (there > 0)");
    for (int p : f_.layout.makes) emit_tile_matmul(p);
    elements_.emit_tile(retained);
    for (int p : f_.products)
      if (f_.product(p).kind == Tile::over_columns) {
        auto y =
            at_columns(Layout::find(f_.layout.columns, f_.product(p), false), "iteration", "half");
        w_.line(fmt::format("if ({}) sums{}.add(value{}, {});", f_.adds_block(p, "range"), p,
                            f_.product(p).value, y));
      }
    if (!f_.layout.published.empty()) emit_publish(f_.layout.published[0]);
    w_.close();
    emit_matmuls_over_rows();
    w_.line("tile0 = next0, tile1 = next1;");
    w_.close();
  }
  // Emits tile p = x y^T for the columns of this warp. It is 0 in a block that its flags skip.
  void emit_tile_matmul(int p) {
    w_.line(fmt::format("Tile matmul{} = {{}};", p));
    auto y = at_columns(Layout::find(f_.layout.columns, f_.product(p), false), "iteration", "half");
    w_.open(fmt::format("if ({})", f_.has_block(p, "range")));
    if (!f_.holds_rows()) emit_row_fragments(p);
    w_.line(fmt::format("compute_tile(matmul{0}, rows{0}, {1});", p, y));
    w_.close();
  }
  void emit_publish(int v) {
    w_.line(fmt::format("publish({}, value{}, strip, half);", together(v), v));
  }
  // Emits the matmuls over rows. A value is published after the previous one has been read. By
  // then, its previous results are being loaded.
  void emit_matmuls_over_rows() {
    if (f_.layout.published.empty()) return;
    w_.line("const TileColumns::Range to = strip < tile_columns ? tile0 : tile1;");
    auto each = [&](int value, const auto& f) {
      for (int n : f_.products)
        if (f_.product(n).kind == Tile::over_rows && f_.product(n).value == value)
          f(n, f_.product(n));
    };
    auto load = [&](int n, auto& p) {
      w_.line(fmt::format("const Side out{} = {};", n, side(p.out, "to.column", true)));
      w_.line(fmt::format("const bool adds{} = to.there() > 0 && {};", n, f_.adds_block(n, "to")));
      w_.line(fmt::format("OverRows<{}, {}, {}, {}> over{};", element_of(p.dtype), p.depth(),
                          element_of(p.out.view.dtype), p.adds, n));
      w_.line(fmt::format("if (adds{0}) over{0}.load(out{0}, to.there(), int({1}));", n,
                          w_.argument(p.terms)));
    };
    each(f_.layout.published[0], load);
    for (std::size_t k = 0; k < f_.layout.published.size(); ++k) {
      if (k > 0) {
        w_.line("__syncthreads();");
        w_.line("if (there > 0)");
        emit_publish(f_.layout.published[k]);
      }

      w_.line("__syncthreads();");
      if (k + 1 < f_.layout.published.size()) each(f_.layout.published[k + 1], load);
      each(f_.layout.published[k], [&](int n, auto& p) {
        w_.open(fmt::format("if (adds{})", n));
        w_.line(fmt::format("over{}.add({}, x{});", n, together(p.value),
                            Layout::find(f_.layout.rows, p, true)));
        w_.line(
            fmt::format("over{0}.store(out{0}, to.there(), int({1}));", n, w_.argument(p.terms)));
        w_.close();
      });
    }
  }

  PassElements elements_;
};

std::string flags_source(const TileGroup& g, int n, NestContext& nest) {
  auto& p = g.products[std::size_t(n)];
  SourceWriter w(&nest);
  auto base = w.base(p.flag), at = w.at(p.flag, {}), step = w.argument(p.flag_step),
       count = w.argument((points(g.columns) + g.width - 1) / g.width);
  w.line(fmt::format("flags{} = block_flags({} + ({}), {}, int({}));", n, base, at, step, count));
  return w.launch(1).source;
}

}  // namespace

std::int64_t TileGroup::stage_bytes() const {
  std::int64_t most = 0;
  for (auto& a : actions)
    if (a.is_pass()) most = std::max(most, Layout(*this, a).bytes);
  return aligned(most);
}
int TileGroup::registers() const {
  int most = 0;
  for (auto& a : actions) {
    if (!a.is_pass()) continue;
    const Layout layout(*this, a);
    int sum = 0;
    std::set<int> retained;
    for (int p : layout.makes) sum += 16 + products[std::size_t(p)].depth() / 4;
    for (int p : a.all_products()) {
      retained.insert(products[std::size_t(p)].value);
      auto& product = products[std::size_t(p)];
      sum += product.kind == Tile::over_columns ? product.depth() / 2
                                                : (product.depth() / 16 + 1) / 2 * 8;
    }
    most = std::max(most, sum + 16 * int(retained.size()));
  }
  return most;
}
std::string tile_source(const TileGroup& g, const TileAction& a, NestContext& nest,
                        std::int64_t results_start) {
  if (a.flags >= 0) return flags_source(g, a.flags, nest);
  const PassFacts facts(g, a);
  SourceWriter w(&nest);
  return PassSource(PassWriter(facts, nest, w, results_start)).source();
}

}  // namespace haliax::cuda
