// Parts of the generator of passes over tiles: the shared memory and the instructions of a pass,
// and source for operands and values.
#pragma once
#include <fmt/format.h>

#include <algorithm>

#include "tiles.h"

namespace haliax::cuda {

// must match device/tile.h
inline std::int64_t staged_bytes(bool along, std::int64_t lines, std::int64_t terms) {
  return along ? lines * (terms + 8) * 2 : terms * (lines + 8) * 2;
}
// kStagedBytes: bytes of shared memory per reduction
inline constexpr std::int64_t kRows = 64, kColumns = 32, kStagedBytes = 2 * kRows * 8;

// The shared memory of a pass, and the instructions that it computes.
struct Layout {
  struct Operand {
    TileOperand what;
    int depth = 0;
    DType dtype = DType::bf16;
    std::int64_t terms = 0, at = 0;
    bool along() const { return what.term == 1 || what.line != 1; }
    std::int64_t bytes(std::int64_t lines) const { return staged_bytes(along(), lines, depth); }
  };
  std::vector<Operand> rows, columns;  // columns: two tiles, double-buffered
  std::vector<int> makes;              // matmuls whose results are tiles
  std::vector<int> published;          // values that are multiplied over rows, one after another
  std::set<int> inner, row;            // instructions per element, and per row
  // offsets in bytes: of published values, and of staged operands, which results later overwrite
  std::int64_t published_at = 0, staged_at = 0;
  std::int64_t bytes = 0;  // in all

  Layout(const TileGroup& g, const TileAction& pass) {
    std::set<int> all;
    for (int f : pass.all_folds()) {
      all.merge(g.sources(f));
      all.erase(f);
    }

    for (int p : pass.all_products()) all.merge(g.sources(g.products[std::size_t(p)].value));
    for (int f : pass.pending()) all.erase(f);
    for (int i : all) (g.code[std::size_t(i)].inner ? inner : row).insert(i);
    for (int i : inner)
      if (int p = g.product_of[std::size_t(i)]; p >= 0) makes.push_back(p);
    std::int64_t scratch = 16;
    for (int p : makes) {
      use(rows, g.products[std::size_t(p)], true);
      use(columns, g.products[std::size_t(p)], false);
    }

    for (int p : pass.all_products()) {
      auto& product = g.products[std::size_t(p)];
      if (product.kind == TileProduct::Kind::over_columns) {
        use(columns, product, false);
        scratch = std::max(scratch, kRows * product.depth() * 4);
      } else {
        use(rows, product, true);
        if (std::find(published.begin(), published.end(), product.value) == published.end())
          published.push_back(product.value);
      }
    }
    for (auto& o : rows) {
      o.at = bytes;
      bytes += o.bytes(kRows);
    }

    published_at = bytes;
    bytes += published.empty() ? 0 : staged_bytes(true, kRows, 2 * kColumns);
    staged_at = bytes;  // reuses staged memory after its last read
    auto tiles = bytes;
    for (auto& o : columns) {
      o.at = tiles;
      tiles += 4 * o.bytes(kColumns);
    }

    bytes = std::max({tiles, staged_at + scratch,
                      staged_at + std::int64_t(pass.all_folds().size()) * kStagedBytes});
  }
  static void use(std::vector<Operand>& all, const TileProduct& p, bool x) {
    if (find(all, p, x) == all.size()) all.push_back({x ? p.x : p.y, p.depth(), p.dtype, p.terms});
  }
  static std::size_t find(const std::vector<Operand>& all, const TileProduct& p, bool x) {
    auto& what = x ? p.x : p.y;
    auto at = std::find_if(all.begin(), all.end(), [&](auto& o) {
      return o.what == what && o.terms == p.terms && o.dtype == p.dtype;
    });
    return std::size_t(at - all.begin());
  }
};

// The instructions of a pass, and the blocks of columns that it processes.
struct PassFacts {
  PassFacts(const TileGroup& group, const TileAction& action)
      : g(group), pass(action), folds(action.all_folds()), products(action.all_products()),
        pending(action.pending()), layout(group, action), skipped(group) {
    find_requested();
  }
  const TileProduct& product(int p) const { return g.products[std::size_t(p)]; }
  const program::Instr& instr(int i) const { return g.code[std::size_t(i)]; }
  bool has_tiles() const { return !folds.empty() || !products.empty(); }
  bool has_top() const { return pass.top >= 0; }  // the pass has a running maximum (Scaled)
  int top_value() const { return has_top() ? instr(pass.top).args[0] : -1; }  // its operand
  // Returns true if the value is computed from the running maximum or from an early reduction, and
  // changes with it.
  bool waits(int i) const { return has_top() && g.waits(i, pending); }
  int without_factor(int i) const { return has_top() ? cuda::without_factor(g, i, pending) : -1; }
  bool full_rows() const { return program::points(g.rows) % kRows == 0; }
  std::int64_t width() const { return g.width ? g.width : program::points(g.columns); }
  bool full_columns() const {
    return width() % kColumns == 0 && program::points(g.columns) % width() % kColumns == 0;
  }
  std::string flags_of(const std::vector<int>& reductions, const std::vector<int>& matmuls,
                       NeededBlocks& blocks) const {
    blocks = needed_blocks(g, skipped, reductions, matmuls);
    std::string all;
    for (int p : blocks.flags) all += fmt::format("{}flags{}", all.empty() ? "" : " | ", p);
    return blocks.always ? "~0ull" : all.empty() ? "0ull" : all;
  }
  // Returns the condition that matmul p has the block of columns at `at`.
  std::string has_block(int p, const std::string& at) const {
    if (!product(p).has_flags) return "true";
    const bool is_queried = needed.flags.count(p) > 0;  // otherwise implied by the queried flags
    if (!needed.always && (!is_queried || needed.flags.size() == 1)) return "true";
    return fmt::format("(flags{} >> {}.block & 1) != 0", p, at);
  }
  // Returns the condition that this pass adds that block, and no earlier pass has added it.
  std::string adds_block(int p, const std::string& at) const {
    const auto exists = has_block(p, at);
    return begun.empty() ? exists
                         : fmt::format("{} && (({}) >> {}.block & 1) == 0", exists, begun, at);
  }
  // Returns true if the multiplied rows stay in registers for the entire pass. Otherwise they are
  // loaded for each matmul, because other values need the registers.
  bool holds_rows() const { return layout.makes.size() == 1 && products.empty(); }
  // Returns the value of an element that is retained for a multiplication: the value before
  // rounding, because two values are rounded at a time.
  int retained_value(int v) const {
    auto& in = instr(v);
    return in.code == program::Code::cast && g.product_of[std::size_t(v)] < 0 &&
                   instr(in.args[0]).dtype == DType::f32
               ? in.args[0]
               : v;
  }
  // Returns true if the value increases from column to column.
  bool rises(int i) const {
    auto& in = instr(i);
    if (!in.inner || in.dtype != DType::i32 || g.product_of[std::size_t(i)] >= 0) return false;
    if (in.code == program::Code::iota)
      return g.columns.size() == 1 && g.strides[std::size_t(i)].back() > 0;
    const int x = in.args[0], y = in.args[1];
    if (in.code == program::Code::sub) return rises(x) && !instr(y).inner;
    return in.code == program::Code::add &&
           ((rises(x) && !instr(y).inner) || (!instr(x).inner && rises(y)));
  }
  std::set<int> row_sources(const std::vector<int>& rows) const {
    std::set<int> all;
    for (int i : rows) is_reduction(instr(i).code) ? void(all.insert(i)) : all.merge(g.sources(i));
    return all;
  }
  bool sums_floats(int f) const {
    return instr(f).code == program::Code::reduce_sum && is_float(instr(f).dtype);
  }
  std::string fold_of(int f) const {
    if (instr(f).code == program::Code::reduce_max && instr(f).dtype != DType::f64 &&
        is_float(instr(f).dtype))
      return "Larger()";
    return cuda::fold_of(instr(f).code);
  }
  // Returns the factors that an early sum still has to be multiplied by.
  std::optional<Scaled> factors(int n, int value) const {
    const auto& early = n >= 0 ? pass.early_products : pass.early_reductions;
    if (std::find(early.begin(), early.end(), n >= 0 ? n : value) == early.end()) return {};
    return scaled(g, n >= 0 ? value : instr(value).args[0], pass.top, pending, n >= 0);
  }
  std::set<int> rows_of(const Scaled& s) const {
    std::vector<int> rows;
    for (auto& f : s.factors) rows.push_back(f.first);
    return row_sources(rows);
  }
  static std::string times(const std::vector<std::pair<int, bool>>& factors) {
    std::string out;
    for (auto& [row, divided] : factors) out += fmt::format(" {} v{}", divided ? "/" : "*", row);
    return out;
  }

  const TileGroup& g;
  const TileAction& pass;
  const std::vector<int> folds, products;
  const std::set<int> pending;
  const Layout layout;
  const SkippedBlock skipped;
  NeededBlocks needed;
  std::string requested, begun;  // blocks to iterate over; blocks of the earlier pass

 private:
  // Finds the blocks to iterate over: those that some matmul computes, or that a reduction
  // requires. After an earlier partial pass, reductions are recomputed, and matmuls add to their
  // results.
  void find_requested() {
    requested = flags_of(pass.folds, pass.products, needed);
    if (pass.remainder_of < 0) return;
    NeededBlocks before;
    auto& earlier = g.actions[std::size_t(pass.remainder_of)];
    begun = flags_of(earlier.folds, earlier.products, before);
  }
};

// Source that several parts of a pass share: operands, values, and loops over rows and elements.
class PassWriter {
 public:
  PassWriter(const PassFacts& f, NestContext& nest, SourceWriter& w, std::int64_t results_start)
      : f_(f), nest_(nest), w_(w), results_start_(results_start),
        rows_(w.argument(program::points(f.g.rows))),
        columns_(w.argument(program::points(f.g.columns))) {}

 protected:
  std::string number(std::int64_t s) {
    return s == 0 || s == 1 ? std::to_string(s) : "int(" + w_.argument(s) + ")";
  }
  // Returns an operand that starts at this line.
  std::string side(const TileOperand& o, const std::string& line, bool writes = false) {
    auto base = w_.base(o.view, writes), off = w_.at(o.view, {});
    return fmt::format("Side{{{0} + ({1} + Word({2}) * {3}) * {4}, {3}, {5}}}", base, off, line,
                       number(o.line), bytes_of(o.view.dtype), number(o.term));
  }
  bool is_far(const program::View& v) const {
    auto at = nest_.places.find(v.slot);
    return at == nest_.places.end() || std::string(at->second.from) == "far";
  }
  std::string staged(const Layout::Operand& o, std::int64_t lines) const {
    return fmt::format("Staged<{}, {}, {}, {}>", element_of(o.dtype), o.along(), lines, o.depth);
  }
  std::string shared(const std::string& type, const std::string& at) const {
    return fmt::format("reinterpret_cast<{}*>(shared + {})", type, at);
  }
  std::string at_columns(std::size_t k, const std::string& iteration, const std::string& half) {
    auto& o = f_.layout.columns[k];
    return fmt::format(
        "{}{{{}}}", staged(o, kColumns),
        shared(element_of(o.dtype), fmt::format("{} + ({} % 2 * 2 + {}) * {}", o.at, iteration,
                                                half, o.bytes(kColumns))));
  }
  std::string together(int value) {
    auto E = element_of(f_.instr(value).dtype);
    return fmt::format("Together<{}>{{{}}}", E, shared(E, std::to_string(f_.layout.published_at)));
  }
  // Opens a loop over a lane's two rows h, with `row` and its indices.
  void open_rows() {
    w_.line("#pragma unroll");
    w_.open("for (int h = 0; h < 2; ++h)");
    row_line();
    w_.indices("row", f_.g.rows);
  }
  void row_line() {
    w_.line(
        fmt::format("const I at = first + strip + lane / 4 + 8 * h, row = {};",
                    f_.full_rows() ? "at" : fmt::format("at < I({0}) ? at : I({0}) - 1", rows_)));
  }
  std::string value(const std::vector<program::Instr>& code, int i) {
    return instruction_source(code, i, f_.g.strides[std::size_t(i)], &nest_);
  }
  void values(const std::vector<program::Instr>& code, const std::set<int>& which) {
    for (int i : which) {
      auto S = element_of(code[std::size_t(i)].dtype);
      auto x = is_reduction(code[std::size_t(i)].code)
                   ? fmt::format("reinterpret_cast<const Number<{}>*>(shared + {})[row]", S,
                                 result_offset(i))
                   : value(code, i);
      w_.line(fmt::format("const Number<{}> v{} = {};", S, i, x));
    }
  }
  std::string result_offset(int fold) {
    return w_.argument(results_start_ + f_.g.fold_result_offset(fold));
  }
  // Opens loops over a lane's elements, with their row and column.
  void open_points() {
    w_.line("#pragma unroll");
    w_.open("for (int j = 0; j < 4; ++j)");
    w_.line("#pragma unroll");
    w_.open("for (int e = 0; e < 4; ++e)");
    w_.line("const int h = e / 2;");
    if (!f_.full_columns()) w_.line("const bool inside = 8 * j + lane % 4 * 2 + e % 2 < there;");
    row_line();
    w_.line(fmt::format("const I column = range.column + {};",
                        f_.full_columns() ? "8 * j + lane % 4 * 2 + e % 2"
                                          : "(inside ? 8 * j + lane % 4 * 2 + e % 2 : 0)"));
    w_.indices("row", f_.g.rows);
    w_.indices("column", f_.g.columns, f_.g.rows.size());
  }

  const PassFacts& f_;
  NestContext& nest_;
  SourceWriter& w_;
  const std::int64_t results_start_;
  const std::string rows_, columns_;  // sizes
};

}  // namespace haliax::cuda
