// The source of passes over tiles. A block of threads processes 64 rows at a time. Each warp
// iterates over tiles of 32 columns, within the blocks of columns that are needed. While a tile is
// computed, the operands of the next one are copied.
#include <fmt/format.h>

#include <algorithm>

#include "tiles.h"

namespace haliax::cuda {
namespace {

using namespace program;
using Tile = TileProduct::Kind;

// must match device/tile.h
std::int64_t staged_bytes(bool along, std::int64_t lines, std::int64_t terms) {
  return along ? lines * (terms + 8) * 2 : terms * (lines + 8) * 2;
}
// kStagedBytes: bytes of shared memory per reduction
constexpr std::int64_t kRows = 64, kColumns = 32, kStagedBytes = 2 * kRows * 8;

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
  std::vector<int> shown;              // values that are multiplied over rows, one after another
  std::set<int> inner, row;            // instructions per element, and per row
  std::int64_t shown_at = 0, staged_at = 0, bytes = 0;

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
      if (product.kind == Tile::over_columns) {
        use(columns, product, false);
        scratch = std::max(scratch, kRows * product.depth() * 4);
      } else {
        use(rows, product, true);
        if (std::find(shown.begin(), shown.end(), product.value) == shown.end())
          shown.push_back(product.value);
      }
    }
    for (auto& o : rows) {
      o.at = bytes;
      bytes += o.bytes(kRows);
    }

    shown_at = bytes;
    bytes += shown.empty() ? 0 : staged_bytes(true, kRows, 2 * kColumns);
    staged_at = bytes;  // reuses staged memory after its last read
    auto tiles = bytes;
    for (auto& o : columns) {
      o.at = tiles;
      tiles += 4 * o.bytes(kColumns);
    }

    bytes = std::max({tiles, staged_at + scratch,
                      staged_at + std::int64_t(pass.all_folds().size()) * kStagedBytes});
  }
  static void use(std::vector<Operand>& all, const TileProduct& p, bool x) { find(all, p, x); }
  static std::size_t find(std::vector<Operand>& all, const TileProduct& p, bool x) {
    auto& what = x ? p.x : p.y;
    auto at = std::find_if(all.begin(), all.end(), [&](auto& o) {
      return o.what == what && o.terms == p.terms && o.dtype == p.dtype;
    });
    if (at == all.end()) at = all.insert(at, {what, p.depth(), p.dtype, p.terms});
    return std::size_t(at - all.begin());
  }
};

class PassSource {
 public:
  PassSource(const TileGroup& g, const TileAction& pass, NestContext& nest,
             std::int64_t results_start)
      : g_(g), pass_(pass), folds_(pass.all_folds()), products_(pass.all_products()),
        pending_(pass.pending()), l_(g, pass), left_out_(g), nest_(nest), w_(&nest),
        results_start_(results_start) {}
  std::string source() {
    find_requested();
    rows_ = w_.argument(points(g_.rows));
    columns_ = w_.argument(points(g_.columns));
    if (!begun_.empty()) w_.line(fmt::format("if (({}) & ~({}))", requested_, begun_));
    w_.open("");
    w_.line(
        "const int lane = int(threadIdx_x) % 32, strip = int(threadIdx_x) / 32 % 4 * 16, half = "
        "int(threadIdx_x) / 128;");
    w_.open(fmt::format("for (I first = 0; first < I({}); first += tile_rows)", rows_));
    if (has_tiles()) {
      before();
      walk();
      if (!folds_.empty() && !needed_.always) w_.line("const I visited = walk.columns();");
      if (!folds_.empty()) {
        w_.line("__syncthreads();");
        finish_folds(pass_.folds);
      }

      if (has_top()) finish_early();
      for (int p : products_)
        if (product(p).kind == Tile::over_columns) store_sums(p);
    }
    if (!pass_.stores.empty()) store_rows();
    if (points(g_.rows) > kRows) w_.line("__syncthreads();");
    w_.close();
    w_.close();
    return w_.launch(1).source;
  }

 private:
  const TileProduct& product(int p) const { return g_.products[std::size_t(p)]; }
  const Instr& instr(int i) const { return g_.code[std::size_t(i)]; }
  bool has_tiles() const { return !folds_.empty() || !products_.empty(); }
  bool has_top() const { return pass_.top >= 0; }
  int top_value() const { return has_top() ? instr(pass_.top).args[0] : -1; }
  bool waits(int i) const { return has_top() && g_.waits(i, pending_); }
  int without_factor(int i) const { return has_top() ? cuda::without_factor(g_, i, pending_) : -1; }
  bool full_rows() const { return points(g_.rows) % kRows == 0; }
  std::int64_t width() const { return g_.width ? g_.width : points(g_.columns); }
  bool full_columns() const {
    return width() % kColumns == 0 && points(g_.columns) % width() % kColumns == 0;
  }
  std::string flags_of(const std::vector<int>& folds, const std::vector<int>& products,
                       NeededBlocks& requested) const {
    requested = needed_blocks(g_, left_out_, folds, products);
    std::string all;
    for (int p : requested.flags) all += fmt::format("{}flags{}", all.empty() ? "" : " | ", p);
    return requested.always ? "~0ull" : all.empty() ? "0ull" : all;
  }
  // Finds the blocks to iterate over: those that some matmul computes, or that a reduction
  // requires. After an earlier partial pass, reductions are recomputed, and matmuls add to their
  // results.
  void find_requested() {
    requested_ = flags_of(pass_.folds, pass_.products, needed_);
    if (pass_.remainder_of < 0) return;
    NeededBlocks before;
    auto& begun = g_.actions[std::size_t(pass_.remainder_of)];
    begun_ = flags_of(begun.folds, begun.products, before);
  }
  std::string is_created(int p, const std::string& at) const {
    if (!product(p).has_flags) return "true";
    const bool is_queried = needed_.flags.count(p) > 0;  // otherwise implied by the queried flags
    if (!needed_.always && (!is_queried || needed_.flags.size() == 1)) return "true";
    return fmt::format("(flags{} >> {}.block & 1) != 0", p, at);
  }
  std::string is_added(int p, const std::string& at) const {
    const auto created = is_created(p, at);
    return begun_.empty() ? created
                          : fmt::format("{} && (({}) >> {}.block & 1) == 0", created, begun_, at);
  }

  // ---- operands ----
  std::string number(std::int64_t s) {
    return s == 0 || s == 1 ? std::to_string(s) : "int(" + w_.argument(s) + ")";
  }
  // Returns an operand that starts at this line.
  std::string side(const TileOperand& o, const std::string& line, bool writes = false) {
    auto base = w_.base(o.view, writes), off = w_.at(o.view, {});
    return fmt::format("Side{{{0} + ({1} + Word({2}) * {3}) * {4}, {3}, {5}}}", base, off, line,
                       number(o.line), bytes_of(o.view.dtype), number(o.term));
  }
  bool is_far(const View& v) const {
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
    auto& o = l_.columns[k];
    return fmt::format(
        "{}{{{}}}", staged(o, kColumns),
        shared(element_of(o.dtype), fmt::format("{} + ({} % 2 * 2 + {}) * {}", o.at, iteration,
                                                half, o.bytes(kColumns))));
  }
  std::string together(int value) {
    auto E = element_of(instr(value).dtype);
    return fmt::format("Together<{}>{{{}}}", E, shared(E, std::to_string(l_.shown_at)));
  }

  // ---- before the tiles ----
  void before() {
    w_.line(fmt::format("const Walk walk{{{}, int({}), int({})}};", requested_,
                        w_.argument(width()), columns_));
    w_.line(fmt::format(
        "const int rows_there = I({0}) - first < tile_rows ? I({0}) - first : tile_rows;", rows_));
    w_.line("Copies copies;");
    for (std::size_t k = 0; k < l_.rows.size(); ++k) {
      auto& o = l_.rows[k];
      w_.line(fmt::format("const {} x{}{{{}}};", staged(o, kRows), k,
                          shared(element_of(o.dtype), std::to_string(o.at))));
      w_.line(fmt::format("x{}.template bring<{}>(copies, {}, rows_there, int({}));", k,
                          is_far(o.what.view), side(o.what, "first"), w_.argument(o.terms)));
    }
    for (std::size_t k = 0; k < l_.columns.size(); ++k) {
      auto& o = l_.columns[k];
      w_.line(fmt::format("const Source<{}, {}> from{}({}, int({}));", staged(o, kColumns),
                          is_far(o.what.view), k, side(o.what, "0"), w_.argument(o.terms)));
    }
    w_.open("auto bring = [&](int turn, const Walk::At& a, const Walk::At& b)");
    w_.line("const int columns[2] = {a.column, b.column}, there[2] = {a.there(), b.there()};");
    for (std::size_t k = 0; k < l_.columns.size(); ++k)
      w_.line(fmt::format("from{0}.bring(copies, {1}.at, columns, there);", k,
                          at_columns(k, "turn", "0")));
    close_function();
    w_.line("Walk::At tile0 = walk.from(0), tile1 = walk.next(tile0);");
    w_.line("bring(0, tile0, tile1);");
    w_.line("copies.wait();");
    w_.line("__syncthreads();");
    if (holds()) hold(l_.makes[0]);
    start();
  }
  // Returns true if the multiplied rows stay in registers for the entire pass. Otherwise they are
  // loaded for each matmul, because other values need the registers.
  bool holds() const { return l_.makes.size() == 1 && products_.empty(); }
  void hold(int p) {
    w_.line(
        fmt::format("Held<{}, {}> held{};", element_of(product(p).dtype), product(p).depth(), p));
    w_.line(fmt::format("held{}.load(x{}, strip);", p, Layout::find(l_.rows, product(p), true)));
  }
  void close_function() { w_.close(";"); }
  // Emits the values of a lane's two rows, the reductions and the sums.
  void start() {
    for (int i : l_.inner)  // used by instructions per element
      if (without_factor(i) < 0)
        for (int a : operands(instr(i)))
          if (!instr(a).inner) (waits(a) ? running_ : used_).insert(a);
    for (int f : folds_)
      if (int a = instr(f).args[0]; !instr(a).inner) used_.insert(a);
    for (auto* rows : {&used_, &running_})
      for (int i : *rows)
        w_.line(fmt::format("Number<{}> row{}[2];", element_of(instr(i).dtype), i));
    if (!used_.empty()) {
      std::set<int> known;
      for (int i : l_.row)
        if (!waits(i)) known.insert(i);
      open_rows();
      values(g_.code, known);
      for (int i : used_) w_.line(fmt::format("row{0}[h] = v{0};", i));
      w_.close();
    }
    if (has_top()) {
      open_rows();
      shift(kLowest);
      for (int i : running_) w_.line(fmt::format("row{0}[h] = v{0};", i));
      w_.close();
      w_.line(fmt::format("float limit[2] = {{{0}, {0}}};", kLowest));
    }
    for (int f : folds_) {
      auto S = element_of(instr(f).dtype);
      auto m = monoid_of(instr(f).code);
      w_.line(fmt::format("Wide<{}> fold{}[2];", S, f));
      w_.line(fmt::format("fold{0}[0] = fold{0}[1] = wide(constant<{1}>({2}));", f, S,
                          w_.argument(start_bits(m, instr(f).dtype))));
    }
    for (int p : products_)
      if (product(p).kind == Tile::over_columns) {
        w_.line(fmt::format("RowSums<{}, {}> sums{};", element_of(product(p).dtype),
                            product(p).depth(), p));
        w_.line(fmt::format("sums{}.clear();", p));
      }
  }
  // Opens a loop over a lane's two rows h, with `row` and its indices.
  void open_rows() {
    w_.line("#pragma unroll");
    w_.open("for (int h = 0; h < 2; ++h)");
    row_line();
    w_.indices("row", g_.rows);
  }
  void row_line() {
    w_.line(fmt::format("const I at = first + strip + lane / 4 + 8 * h, row = {};",
                        full_rows() ? "at" : fmt::format("at < I({0}) ? at : I({0}) - 1", rows_)));
  }
  std::string value(const std::vector<Instr>& code, int i) {
    return instruction_source(code, i, g_.strides[std::size_t(i)], &nest_);
  }
  void values(const std::vector<Instr>& code, const std::set<int>& which) {
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
    return w_.argument(results_start_ + g_.fold_result_offset(fold));
  }
  // The initial maximum. It is finite, so that exp is 0 if all elements so far are -inf.
  static constexpr const char* kLowest = "-3.402823466e+38f";
  // Growth of the maximum before sums are rescaled: exp of it can be summed, and rounded to f16.
  static constexpr const char* kMayGrow = "5";
  void shift(const std::string& top) {
    auto all = row_sources({running_.begin(), running_.end()});
    all.erase(pass_.top);
    w_.line(fmt::format("const float v{} = {};", pass_.top, top));
    values(g_.code, all);
  }
  std::set<int> row_sources(const std::vector<int>& rows) const {
    std::set<int> all;
    for (int i : rows) is_reduction(instr(i).code) ? void(all.insert(i)) : all.merge(g_.sources(i));
    return all;
  }

  // ---- tiles ----
  void walk() {
    w_.open("for (int turn = 0; tile0.there() > 0; ++turn)");
    w_.open("if (turn > 0)");
    w_.line("copies.wait();");
    w_.line("__syncthreads();");
    w_.close();
    w_.line(
        "const Walk::At next0 = walk.next(tile1), "
        "next1 = walk.next(next0), mine = half ? tile1 : tile0;");
    w_.line("bring(turn + 1, next0, next1);");
    w_.line("const int there = mine.there();");
    std::set<int> retained;
    for (int p : products_) retained.insert(product(p).value);
    for (int v : retained) w_.line(fmt::format("Tile kept{};", v));
    w_.open("if (there > 0)");
    for (int p : l_.makes) make_tile(p);
    elements_by_edges(retained);
    for (int p : products_)
      if (product(p).kind == Tile::over_columns) {
        auto y = at_columns(Layout::find(l_.columns, product(p), false), "turn", "half");
        w_.line(fmt::format("if ({}) sums{}.add(kept{}, {});", is_added(p, "mine"), p,
                            product(p).value, y));
      }
    if (!l_.shown.empty()) show(l_.shown[0]);
    w_.close();
    over_rows();
    w_.line("tile0 = next0, tile1 = next1;");
    w_.close();
  }
  void make_tile(int p) {
    w_.line(fmt::format("Tile made{} = {{}};", p));
    auto y = at_columns(Layout::find(l_.columns, product(p), false), "turn", "half");
    w_.open(fmt::format("if ({})", is_created(p, "mine")));
    if (!holds()) hold(p);
    w_.line(fmt::format("make_tile(made{0}, held{0}, {1});", p, y));
    w_.close();
  }
  // Returns the value of an element that is retained for a multiplication: the value before
  // rounding, because two values are rounded at a time.
  int retained_value(int v) const {
    auto& in = instr(v);
    return in.code == Code::cast && g_.product_of[std::size_t(v)] < 0 &&
                   instr(in.args[0]).dtype == DType::f32
               ? in.args[0]
               : v;
  }
  // Returns true if the value increases from column to column.
  bool rises(int i) const {
    auto& in = instr(i);
    if (!in.inner || in.dtype != DType::i32 || g_.product_of[std::size_t(i)] >= 0) return false;
    if (in.code == Code::iota)
      return g_.columns.size() == 1 && g_.strides[std::size_t(i)].back() > 0;
    const int x = in.args[0], y = in.args[1];
    if (in.code == Code::sub) return rises(x) && !instr(y).inner;
    return in.code == Code::add && ((rises(x) && !instr(y).inner) || (!instr(x).inner && rises(y)));
  }
  // Comparisons of an increasing value with a value of the row hold in an entire tile if they hold
  // in its last column, or in its first one. Most tiles therefore need no mask, and tiles at the
  // edge have separate source.
  void elements_by_edges(const std::set<int>& retained) {
    std::set<int> at_last, at_first;
    for (int i : pass_.remainder_of < 0 ? l_.inner : std::set<int>()) {
      auto& in = instr(i);
      if (in.code != Code::less && in.code != Code::less_equal) continue;
      if (rises(in.args[0]) && !instr(in.args[1]).inner) at_last.insert(i);
      if (!instr(in.args[0]).inner && rises(in.args[1])) at_first.insert(i);
    }
    if (at_last.empty() && at_first.empty()) return elements(retained);
    w_.line("bool edge = false;");
    for (auto* all : {&at_last, &at_first}) {
      std::set<int> created;
      for (int i : *all) add_inner(created, i, -1);
      w_.line("#pragma unroll");
      w_.open("for (int h = 0; h < 2; ++h)");
      w_.line(fmt::format("const I column = mine.column + {};",
                          all == &at_last ? "tile_columns - 1" : "0"));
      w_.indices("column", g_.columns, g_.rows.size());
      for (int i : used_) w_.line(fmt::format("const auto v{0} = row{0}[h];", i));
      for (int i : created)
        w_.line(fmt::format("const Number<{}> v{} = {};", element_of(instr(i).dtype), i, point(i)));
      for (int i : *all) w_.line(fmt::format("edge |= !v{};", i));
      w_.close();
    }
    w_.open("if (any_lane(edge))");
    elements(retained);
    w_.close();
    at_last.merge(at_first);
    true_ = std::move(at_last);
    w_.open("else");
    elements(retained);
    w_.close();
    true_.clear();
  }
  void elements(const std::set<int>& retained) {
    std::set<int> created;
    if (has_top()) raise_top();
    for (int v : retained) add_inner(created, retained_value(v), top_value());
    for (int f : folds_) {
      if (f == pass_.top) continue;
      add_inner(created, instr(f).args[0], top_value());
      if (sums_floats(f))
        w_.line(fmt::format("Wide<{}> some{}[2] = {{}};", element_of(instr(f).dtype), f));
    }
    open_points();
    for (auto* rows : {&used_, &running_})
      for (int i : *rows) w_.line(fmt::format("const auto v{0} = row{0}[h];", i));
    for (int i : created)
      w_.line(fmt::format("const Number<{}> v{} = {};", element_of(instr(i).dtype), i,
                          i == top_value() ? fmt::format("top{}[j][e]", pass_.top) : point(i)));
    std::string zero;  // condition; other elements are multiplied as 0
    if (!full_columns()) zero = "inside";
    if (!full_rows()) zero += zero.empty() ? "at == row" : " && at == row";
    for (int v : retained)
      w_.line(fmt::format("kept{}[j][e] = {}v{}{};", v, zero.empty() ? "" : zero + " ? ",
                          retained_value(v), zero.empty() ? "" : " : 0"));
    for (int f : folds_)
      if (f != pass_.top) fold(f, fmt::format("{}{}[h]", sums_floats(f) ? "some" : "fold", f));
    w_.close();
    w_.close();
    for (int f : folds_)
      if (sums_floats(f))
        w_.line(fmt::format("for (int h = 0; h < 2; ++h) fold{0}[h] = add(fold{0}[h], some{0}[h]);",
                            f));
  }
  // Opens loops over a lane's elements, with their row and column.
  void open_points() {
    w_.line("#pragma unroll");
    w_.open("for (int j = 0; j < 4; ++j)");
    w_.line("#pragma unroll");
    w_.open("for (int e = 0; e < 4; ++e)");
    w_.line("const int h = e / 2;");
    if (!full_columns()) w_.line("const bool inside = 8 * j + lane % 4 * 2 + e % 2 < there;");
    row_line();
    w_.line(fmt::format("const I column = mine.column + {};",
                        full_columns() ? "8 * j + lane % 4 * 2 + e % 2"
                                       : "(inside ? 8 * j + lane % 4 * 2 + e % 2 : 0)"));
    w_.indices("row", g_.rows);
    w_.indices("column", g_.columns, g_.rows.size());
  }
  std::string point(int i) {
    if (true_.count(i)) return "true";
    const int p = g_.product_of[std::size_t(i)];
    auto S = element_of(instr(i).dtype);
    if (p >= 0 && is_16_bit(instr(i).dtype)) return fmt::format("narrowed<{}>(made{}[j][e])", S, p);
    if (p >= 0) return fmt::format("made{}[j][e]", p);
    if (int value = without_factor(i); value >= 0) return fmt::format("v{}", value);
    return rounded(i);
  }
  void fold(int f, const std::string& to) {
    auto x = fmt::format("wide(cast<{}, {}>(v{}))", element_of(instr(f).dtype),
                         element_of(instr(instr(f).args[0]).dtype), instr(f).args[0]);
    w_.line(fmt::format("{3}{0} = {1}({0}, {2});", to, fold_of(f), x,
                        full_columns() ? "" : "if (inside) "));
  }
  // Updates the running maximum, and the values derived from it. If it has grown by much, the sums
  // are rescaled.
  void raise_top() {
    const int top = pass_.top;
    std::set<int> created;
    add_inner(created, top_value(), -1);
    w_.line(fmt::format("Tile top{};", top));
    open_points();
    for (int i : used_) w_.line(fmt::format("const auto v{0} = row{0}[h];", i));
    for (int i : created)
      w_.line(fmt::format("const Number<{}> v{} = {};", element_of(instr(i).dtype), i, point(i)));
    w_.line(fmt::format("top{}[j][e] = v{};", top, top_value()));
    fold(top, fmt::format("fold{}[h]", top));
    w_.close();
    w_.close();
    w_.open(
        fmt::format("if (any_lane(!(fold{0}[0] <= limit[0]) || !(fold{0}[1] <= limit[1])))", top));
    w_.line("float scale[2];");
    open_rows();
    w_.line(fmt::format("float most = Larger()(fold{}[h], {});", top, kLowest));
    // four lanes share a row
    for (int by : {1, 2}) w_.line(fmt::format("most = Larger()(most, exchanged(most, {}));", by));
    shift("most");
    w_.line(fmt::format("limit[h] = most + {};", kMayGrow));
    w_.line(fmt::format("scale[h] = quick_exp(row{0}[h] - v{0});", *running_.begin()));
    for (int i : running_) w_.line(fmt::format("row{0}[h] = v{0};", i));
    for (int f : pass_.early_reductions) w_.line(fmt::format("fold{0}[h] *= scale[h];", f));
    w_.close();
    for (int p : pass_.early_products) w_.line(fmt::format("sums{}.scale(scale);", p));
    w_.close();
  }
  std::string rounded(int i) {
    auto& in = instr(i);
    const bool from_f32 =
        in.code == Code::cast && is_16_bit(in.dtype) && instr(in.args[0]).dtype == DType::f32;
    if (in.code == Code::exp && in.dtype == DType::f32)
      return fmt::format("quick_exp(v{})", in.args[0]);
    return from_f32 ? fmt::format("narrowed<{}>(v{})", element_of(in.dtype), in.args[0])
                    : value(g_.code, i);
  }
  // Adds the instructions that i is computed from, as far back as `known`.
  void add_inner(std::set<int>& to, int i, int known) const {
    if (!instr(i).inner || !to.insert(i).second) return;
    if (g_.product_of[std::size_t(i)] >= 0 || i == known || true_.count(i)) return;
    for (int a : operands(instr(i))) add_inner(to, a, known);
  }
  bool sums_floats(int f) const {
    return instr(f).code == Code::reduce_sum && is_float(instr(f).dtype);
  }
  std::string fold_of(int f) const {
    if (instr(f).code == Code::reduce_max && instr(f).dtype != DType::f64 &&
        is_float(instr(f).dtype))
      return "Larger()";
    return cuda::fold_of(instr(f).code);
  }
  void show(int v) { w_.line(fmt::format("show({}, kept{}, strip, half);", together(v), v)); }
  // Emits the matmuls over rows. A value is published after the previous one has been read. By
  // then, its previous results are being loaded.
  void over_rows() {
    if (l_.shown.empty()) return;
    w_.line("const Walk::At to = strip < tile_columns ? tile0 : tile1;");
    auto each = [&](int value, const auto& f) {
      for (int n : products_)
        if (product(n).kind == Tile::over_rows && product(n).value == value) f(n, product(n));
    };
    auto load = [&](int n, auto& p) {
      w_.line(fmt::format("const Side out{} = {};", n, side(p.out, "to.column", true)));
      w_.line(fmt::format("const bool adds{} = to.there() > 0 && {};", n, is_added(n, "to")));
      w_.line(fmt::format("OverRows<{}, {}, {}, {}> over{};", element_of(p.dtype), p.depth(),
                          element_of(p.out.view.dtype), p.adds, n));
      w_.line(fmt::format("if (adds{0}) over{0}.load(out{0}, to.there(), int({1}));", n,
                          w_.argument(p.terms)));
    };
    each(l_.shown[0], load);
    for (std::size_t k = 0; k < l_.shown.size(); ++k) {
      if (k > 0) {
        w_.line("__syncthreads();");
        w_.line("if (there > 0)");
        show(l_.shown[k]);
      }

      w_.line("__syncthreads();");
      if (k + 1 < l_.shown.size()) each(l_.shown[k + 1], load);
      each(l_.shown[k], [&](int n, auto& p) {
        w_.open(fmt::format("if (adds{})", n));
        w_.line(fmt::format("over{}.add({}, x{});", n, together(p.value),
                            Layout::find(l_.rows, p, true)));
        w_.line(
            fmt::format("over{0}.store(out{0}, to.there(), int({1}));", n, w_.argument(p.terms)));
        w_.close();
      });
    }
  }

  // ---- after the tiles ----
  void store_sums(int n) {
    auto& p = product(n);
    const auto known = factors(n, p.value);
    if (known) {
      w_.line(fmt::format("float scale{}[2];", n));
      open_rows();
      values(g_.code, rows_of(*known));
      w_.line(fmt::format("scale{}[h] = scale[h]{};", n, times(known->factors)));
      w_.close();
      w_.line(fmt::format("sums{0}.scale(scale{0});", n));
    }
    w_.line(fmt::format("sums{}.template store_to<{}, {}>({}, rows_there, int({}), {});", n,
                        element_of(p.out.view.dtype), p.adds, side(p.out, "first", true),
                        w_.argument(p.terms), shared("float", std::to_string(l_.staged_at))));
  }
  // Returns the factors that an early sum still has to be multiplied by.
  std::optional<Scaled> factors(int n, int value) const {
    const auto& early = n >= 0 ? pass_.early_products : pass_.early_reductions;
    if (std::find(early.begin(), early.end(), n >= 0 ? n : value) == early.end()) return {};
    return scaled(g_, n >= 0 ? value : instr(value).args[0], pass_.top, pending_, n >= 0);
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
  void finish_folds(const std::vector<int>& folds) {
    for (std::size_t k = 0; k < folds.size(); ++k) {
      const int f = folds[k];
      auto T = fmt::format("Wide<{}>", element_of(instr(f).dtype));
      w_.line(
          fmt::format("auto* const room{} = {};", f,
                      shared(T, std::to_string(l_.staged_at + std::int64_t(k) * kStagedBytes))));
      w_.line(fmt::format("fold_lanes(fold{0}, {1}, room{0});", f, fold_of(f)));
    }
    w_.line("__syncthreads();");
    w_.open("if (half == 0 && lane % 4 == 0)");
    open_rows();
    for (int f : folds) {
      auto S = element_of(instr(f).dtype);
      w_.line(
          fmt::format("auto all{0} = {1}(room{0}[strip + lane / 4 + 8 * h], room{0}[tile_rows + "
                      "strip + lane / 4 + 8 * h]);",
                      f, fold_of(f)));
      if (const auto known = factors(-1, f); known && !known->factors.empty()) {
        w_.open("");
        values(g_.code, rows_of(*known));
        w_.line(fmt::format("all{0} = all{0}{1};", f, times(known->factors)));
        w_.close();
      }
      if (!needed_.always) fold_left_out(f);
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
    values(g_.code, row_sources({*running_.begin()}));
    w_.line(fmt::format("scale[h] = quick_exp(row{0}[h] - v{0});", *running_.begin()));
    for (int f : pass_.early_reductions) w_.line(fmt::format("fold{0}[h] *= scale[h];", f));
    w_.close();
    std::vector<int> together;
    for (int f : pass_.early_reductions) {
      const std::set<int> open(together.begin(), together.end());
      const auto known = factors(-1, f);
      auto waits = [&](auto& factor) { return g_.waits(factor.first, open); };
      if (std::any_of(known->factors.begin(), known->factors.end(), waits)) {
        finish_folds(together);
        together.clear();
      }

      together.push_back(f);
    }
    if (!together.empty()) finish_folds(together);
  }
  void fold_left_out(int f) {
    auto& in = instr(f);
    w_.open(fmt::format("if (visited < I({}))", columns_));
    std::set<int> all;
    auto walk = [&](auto& self, int i) -> void {
      if (!all.insert(i).second || is_reduction(left_out_.code[std::size_t(i)].code)) return;
      for (int a : operands(left_out_.code[std::size_t(i)])) self(self, a);
    };
    walk(walk, in.args[0]);
    values(left_out_.code, all);
    auto S = element_of(in.dtype);
    auto x =
        fmt::format("wide(cast<{}, {}>(v{}))", S, element_of(instr(in.args[0]).dtype), in.args[0]);
    if (in.code == Code::reduce_sum)
      x = fmt::format("mul({}, Wide<{}>(I({}) - visited))", x, S, columns_);
    w_.line(fmt::format("all{0} = {1}(all{0}, {2});", f, fold_of(f), x));
    w_.close();
  }
  void store_rows() {
    std::set<int> all;
    for (int s : pass_.stores) {
      all.merge(g_.sources(s));
      all.erase(s);
    }

    w_.open("if (half == 0 && lane % 4 == 0)");
    open_rows();
    values(g_.code, all);
    for (int s : pass_.stores) w_.line("if (at == row) " + value(g_.code, s));
    w_.close();
    w_.close();
  }

  const TileGroup& g_;
  const TileAction& pass_;
  const std::vector<int> folds_, products_;
  const std::set<int> pending_;
  Layout l_;
  const SkippedBlock left_out_;
  NestContext& nest_;
  SourceWriter w_;
  const std::int64_t results_start_;
  NeededBlocks needed_;
  // blocks to iterate over; blocks of the earlier pass; sizes
  std::string requested_, begun_, rows_, columns_;
  std::set<int> true_;  // comparisons that hold in an entire tile
  // values of rows: constant ones, and ones that depend on the running maximum
  std::set<int> used_, running_;
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
    const Layout l(*this, a);
    int sum = 0;
    std::set<int> retained;
    for (int p : l.makes) sum += 16 + products[std::size_t(p)].depth() / 4;
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
  return a.flags >= 0 ? flags_source(g, a.flags, nest)
                      : PassSource(g, a, nest, results_start).source();
}

}  // namespace haliax::cuda
