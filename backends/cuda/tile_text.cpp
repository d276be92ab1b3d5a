// The text of passes over tiles. A block of threads has 64 rows at a time; of these each warp walks over tiles of 32 columns,
// those of the blocks that somebody wants. While a tile is made, the operands of the next one are on their way.
#include <fmt/format.h>

#include <algorithm>

#include "tiles.h"

namespace haliax::cuda {
namespace {

using namespace program;
using Tile = TileProduct::Kind;

std::int64_t staged_bytes(bool along, std::int64_t lines, std::int64_t terms) {   // as device/tile.h has it
  return along ? lines * (terms + 8) * 2 : terms * (lines + 8) * 2;
}
constexpr std::int64_t kRows = 64, kColumns = 32, kRoom = 2 * kRows * 8;   // of a fold

// What a pass has in shared memory, and which instructions it makes.
struct Layout {
  struct Operand {
    TileOperand what;
    int depth = 0;
    DType dtype = DType::bf16;
    std::int64_t terms = 0, at = 0;
    bool along() const { return what.term == 1 || what.line != 1; }
    std::int64_t bytes(std::int64_t lines) const { return staged_bytes(along(), lines, depth); }
  };
  std::vector<Operand> rows, columns;            // of these two tiles, twice
  std::vector<int> makes;                        // products that are tiles
  std::vector<int> shown;                        // values that are multiplied over rows
  std::set<int> inner, row;                      // instructions for each point, and for each row
  std::int64_t shown_at = 0, room_at = 0, bytes = 0;

  Layout(const TileGroup& g, const TileAction& pass) {
    std::set<int> all;
    for (int f : pass.folds) all.merge(g.sources(f)), all.erase(f);
    for (int p : pass.products) all.merge(g.sources(g.products[std::size_t(p)].value));
    for (int i : all) (g.code[std::size_t(i)].inner ? inner : row).insert(i);
    for (int i : inner)
      if (int p = g.tile_of[std::size_t(i)]; p >= 0) makes.push_back(p);
    std::int64_t room = 16;
    for (int p : makes) use(rows, g.products[std::size_t(p)], true), use(columns, g.products[std::size_t(p)], false);
    for (int p : pass.products) {
      auto& product = g.products[std::size_t(p)];
      if (product.kind == Tile::over_columns) {
        use(columns, product, false), room = std::max(room, kRows * product.depth() * 4);
      } else {
        use(rows, product, true);
        if (std::find(shown.begin(), shown.end(), product.value) == shown.end()) shown.push_back(product.value);
      }
    }
    for (auto& o : rows) o.at = bytes, bytes += o.bytes(kRows);
    shown_at = bytes, bytes += std::int64_t(shown.size()) * staged_bytes(true, kRows, 2 * kColumns);
    room_at = bytes;                             // of what is staged for the last time, when it is read
    auto tiles = bytes;
    for (auto& o : columns) o.at = tiles, tiles += 4 * o.bytes(kColumns);
    bytes = std::max({tiles, room_at + room, room_at + std::int64_t(pass.folds.size()) * kRoom});
  }
  static void use(std::vector<Operand>& all, const TileProduct& p, bool x) { find(all, p, x); }
  static std::size_t find(std::vector<Operand>& all, const TileProduct& p, bool x) {
    auto& what = x ? p.x : p.y;
    auto at =
        std::find_if(all.begin(), all.end(), [&](auto& o) { return o.what == what && o.terms == p.terms && o.dtype == p.dtype; });
    if (at == all.end()) at = all.insert(at, {what, p.depth(), p.dtype, p.terms});
    return std::size_t(at - all.begin());
  }
};

// What becomes of the instructions of a block that is left out. There a tile is 0 if it is filled, else nothing that anybody may
// look at: who chooses between it and something else takes the other.
struct LeftOut {
  enum class State { unknown, inner, row };
  std::vector<Instr> code;
  std::vector<State> states;
  explicit LeftOut(const TileGroup& g) : code(g.code), states(g.code.size(), State::row) {
    for (std::size_t i = 0; i < code.size(); ++i) states[i] = look(g, i);
  }
  State look(const TileGroup& g, std::size_t i) {
    auto& in = code[i];
    if (int p = g.tile_of[i]; p >= 0) {
      auto& product = g.products[std::size_t(p)];
      if (!product.has_flags) return State::inner;
      in.code = Code::constant, in.number = 0, in.integer = 0;
      return product.filled ? State::row : State::unknown;
    }
    if (!in.inner || is_fold(in.code)) return State::row;
    if (in.code == Code::load || in.code == Code::iota) {
      auto& s = g.strides[i];
      return std::any_of(s.begin() + std::ptrdiff_t(g.rows.size()), s.end(), [](auto x) { return x != 0; }) ? State::inner
                                                                                                            : State::row;
    }
    auto of = [&](int a) { return states[std::size_t(in.args[a])]; };
    if (in.code == Code::select && of(0) != State::unknown && (of(1) == State::unknown) != (of(2) == State::unknown)) {
      const int other = in.args[of(1) == State::unknown ? 2 : 1];
      in.code = Code::cast, in.args[0] = other, in.args[1] = in.args[2] = -1;
      return of(0);
    }
    auto out = State::row;
    for (int a = 0; a < 4 && in.args[a] >= 0; ++a)
      if (of(a) != State::row && out != State::unknown) out = of(a);
    return out;
  }
  // Has it one value for a row, that can be folded any number of times?
  bool folds(const TileGroup& g, int fold) const {
    auto& in = g.code[std::size_t(fold)];
    return states[std::size_t(in.args[0])] == State::row && in.code != Code::reduce_prod;
  }
};

class PassText {
 public:
  PassText(const TileGroup& g, const TileAction& pass, Around& around, std::int64_t kept)
      : g_(g), pass_(pass), l_(g, pass), left_out_(g), around_(around), w_(&around), kept_(kept) {}
  std::string text() {
    find_wanted();
    rows_ = w_.word(points(g_.rows)), columns_ = w_.word(points(g_.columns));
    w_.line("const int lane = int(threadIdx_x) % 32, strip = int(threadIdx_x) / 32 % 4 * 16, half = int(threadIdx_x) / 128;");
    w_.open(fmt::format("for (I first = 0; first < I({}); first += tile_rows)", rows_));
    if (has_tiles()) {
      before(), walk();
      for (int p : pass_.products)
        if (product(p).kind == Tile::over_columns) store_sums(p);
    }
    if (!pass_.folds.empty()) finish_folds();
    if (!pass_.stores.empty()) store_rows();
    if (points(g_.rows) > kRows) w_.line("__syncthreads();");
    w_.close();
    return w_.launch(1).text;
  }

 private:
  const TileProduct& product(int p) const { return g_.products[std::size_t(p)]; }
  const Instr& instr(int i) const { return g_.code[std::size_t(i)]; }
  bool has_tiles() const { return !pass_.folds.empty() || !pass_.products.empty(); }
  bool whole_rows() const { return points(g_.rows) % kRows == 0; }
  std::int64_t width() const { return g_.width ? g_.width : points(g_.columns); }
  bool whole_columns() const { return width() % kColumns == 0 && points(g_.columns) % width() % kColumns == 0; }
  // Blocks that are made: those that a product here does not leave out, or that a fold cannot do without.
  void find_wanted() {
    std::set<int> flags;
    for (int p : pass_.products) product(p).has_flags ? void(flags.insert(p)) : void(always_ = true);
    for (int f : pass_.folds) {
      always_ |= !left_out_.folds(g_, f);
      for (int i : g_.sources(f))
        if (int p = g_.tile_of[std::size_t(i)]; p >= 0 && product(p).has_flags) flags.insert(p);
    }
    for (int p : flags) wanted_ += fmt::format("{}flags{}", wanted_.empty() ? "" : " | ", p);
    if (always_) wanted_ = "~0ull";
  }
  std::string is_made(int p, const std::string& at) const {
    return product(p).has_flags ? fmt::format("(flags{} >> {}.block & 1) != 0", p, at) : "true";
  }

  // ---- operands ----
  std::string number(std::int64_t s) { return s == 0 || s == 1 ? std::to_string(s) : "int(" + w_.word(s) + ")"; }
  // From this line on.
  std::string side(const TileOperand& o, const std::string& line, bool writes = false) {
    auto base = w_.base(o.view, writes), off = w_.at(o.view, {});
    return fmt::format("Side{{{0} + ({1} + Word({2}) * {3}) * {4}, {3}, {5}}}", base, off, line, number(o.line),
                       bytes_of(o.view.dtype), number(o.term));
  }
  bool is_far(const View& v) const {
    auto at = around_.places.find(v.slot);
    return at == around_.places.end() || std::string(at->second.from) == "far";
  }
  std::string staged(const Layout::Operand& o, std::int64_t lines) const {
    return fmt::format("Staged<{}, {}, {}, {}>", element_of(o.dtype), o.along(), lines, o.depth);
  }
  std::string shared(const std::string& type, const std::string& at) const {
    return fmt::format("reinterpret_cast<{}*>(shared + {})", type, at);
  }
  std::string at_columns(std::size_t k, const std::string& turn, const std::string& half) {
    auto& o = l_.columns[k];
    return fmt::format(
        "{}{{{}}}", staged(o, kColumns),
        shared(element_of(o.dtype), fmt::format("{} + ({} % 2 * 2 + {}) * {}", o.at, turn, half, o.bytes(kColumns))));
  }
  std::string together(int value) {
    const auto k = std::find(l_.shown.begin(), l_.shown.end(), value) - l_.shown.begin();
    auto E = element_of(instr(value).dtype);
    return fmt::format("Together<{}>{{{}}}", E,
                       shared(E, std::to_string(l_.shown_at + k * staged_bytes(true, kRows, 2 * kColumns))));
  }

  // ---- before the tiles ----
  void before() {
    w_.line(fmt::format("const Walk walk{{{}, int({}), int({})}};", wanted_.empty() ? "0" : wanted_, w_.word(width()), columns_));
    w_.line(fmt::format("const int rows_there = I({0}) - first < tile_rows ? I({0}) - first : tile_rows;", rows_));
    w_.line("Copies copies;");
    for (std::size_t k = 0; k < l_.rows.size(); ++k) {
      auto& o = l_.rows[k];
      w_.line(fmt::format("const {} x{}{{{}}};", staged(o, kRows), k, shared(element_of(o.dtype), std::to_string(o.at))));
      w_.line(fmt::format("x{}.template bring<{}>(copies, {}, rows_there, int({}));", k, is_far(o.what.view),
                          side(o.what, "first"), w_.word(o.terms)));
    }
    for (std::size_t k = 0; k < l_.columns.size(); ++k)
      w_.line(fmt::format("const Side from{} = {};", k, side(l_.columns[k].what, "0")));
    w_.open("auto bring = [&](int turn, int half, const Walk::At& to)");
    w_.line("const int there = walk.there(to);");
    w_.line("if (there == 0) return;");
    for (std::size_t k = 0; k < l_.columns.size(); ++k) {
      auto& o = l_.columns[k];
      w_.line(fmt::format("{}.template bring<{}>(copies, moved(from{}, to.column, {}), there, int({}));",
                          at_columns(k, "turn", "half"), is_far(o.what.view), k, bytes_of(o.dtype), w_.word(o.terms)));
    }
    close_function();
    w_.line("Walk::At tile0 = walk.from(0), tile1 = walk.behind(tile0);");
    w_.line("bring(0, 0, tile0), bring(0, 1, tile1);");
    w_.line("copies.wait();");
    w_.line("__syncthreads();");
    if (l_.makes.size() == 1) hold(l_.makes[0]);
    start();
  }
  // Rows that are multiplied, in registers: all the time, or, where there are several, while they are.
  void hold(int p) {
    w_.line(fmt::format("Held<{}, {}> held{};", element_of(product(p).dtype), product(p).depth(), p));
    w_.line(fmt::format("held{}.load(x{}, strip);", p, Layout::find(l_.rows, product(p), true)));
  }
  void close_function() { w_.close(";"); }
  // What has one value for each of a lane's two rows; folds; sums.
  void start() {
    std::set<int> used;                          // by what is made for each point
    for (int i : l_.inner)
      for (int a : instr(i).args)
        if (a >= 0 && !instr(a).inner) used.insert(a);
    for (int f : pass_.folds)
      if (!instr(instr(f).args[0]).inner) used.insert(instr(f).args[0]);
    for (int i : used) w_.line(fmt::format("Number<{}> row{}[2];", element_of(instr(i).dtype), i));
    if (!used.empty()) {
      open_rows();
      values(g_.code, l_.row);
      for (int i : used) w_.line(fmt::format("row{0}[h] = v{0};", i));
      w_.close();
    }
    used_ = used;
    for (int f : pass_.folds) {
      auto S = element_of(instr(f).dtype);
      auto m = Monoid(int(instr(f).code) - int(Code::reduce_sum));
      w_.line(fmt::format("Wide<{}> fold{}[2];", S, f));
      w_.line(fmt::format("fold{0}[0] = fold{0}[1] = wide(constant<{1}>({2}));", f, S, w_.word(start_bits(m, instr(f).dtype))));
    }
    if (!pass_.folds.empty() && !always_) w_.line("I visited = 0;");
    for (int p : pass_.products)
      if (product(p).kind == Tile::over_columns) {
        w_.line(fmt::format("RowSums<{}, {}> sums{};", element_of(product(p).dtype), product(p).depth(), p));
        w_.line(fmt::format("sums{}.clear();", p));
      }
  }
  // For h of a lane's two rows: `row`, and its indices.
  void open_rows() {
    w_.line("#pragma unroll"), w_.open("for (int h = 0; h < 2; ++h)");
    w_.line(fmt::format("const I at = first + strip + lane / 4 + 8 * h, row = at < I({0}) ? at : I({0}) - 1;", rows_));
    w_.indices("row", g_.rows);
  }
  std::string value(const std::vector<Instr>& code, int i) {
    return instruction_text(code, i, g_.strides[std::size_t(i)], &around_);
  }
  void values(const std::vector<Instr>& code, const std::set<int>& which) {
    for (int i : which) {
      auto S = element_of(code[std::size_t(i)].dtype);
      auto x = is_fold(code[std::size_t(i)].code)
                   ? fmt::format("reinterpret_cast<const Number<{}>*>(shared + {})[row]", S, kept(i))
                   : value(code, i);
      w_.line(fmt::format("const Number<{}> v{} = {};", S, i, x));
    }
  }
  std::string kept(int fold) { return w_.word(kept_ + g_.kept_at(fold)); }

  // ---- tiles ----
  void walk() {
    w_.open("for (int turn = 0; walk.there(tile0) > 0; ++turn)");
    w_.open("if (turn > 0)");
    w_.line("copies.wait();");
    w_.line("__syncthreads();");
    w_.close();
    w_.line("const Walk::At next0 = walk.behind(tile1), next1 = walk.behind(next0), mine = half ? tile1 : tile0;");
    w_.line("bring(turn + 1, 0, next0), bring(turn + 1, 1, next1);");
    w_.line("const int there = walk.there(mine);");
    w_.open("if (there > 0)");
    for (int p : l_.makes) make_tile(p);
    elements();
    for (int p : pass_.products)
      if (product(p).kind == Tile::over_columns) {
        auto y = at_columns(Layout::find(l_.columns, product(p), false), "turn", "half");
        w_.line(fmt::format("if ({}) sums{}.add(kept{}, {});", is_made(p, "mine"), p, product(p).value, y));
      }
    for (int v : l_.shown) w_.line(fmt::format("show({}, kept{}, strip, half);", together(v), v));
    w_.close();
    over_rows();
    if (!pass_.folds.empty() && !always_) w_.line("visited += walk.there(tile0) + walk.there(tile1);");
    w_.line("tile0 = next0, tile1 = next1;");
    w_.close();
  }
  void make_tile(int p) {
    w_.line(fmt::format("Tile made{} = {{}};", p));
    auto y = at_columns(Layout::find(l_.columns, product(p), false), "turn", "half");
    w_.open(fmt::format("if ({})", is_made(p, "mine")));
    if (l_.makes.size() > 1) hold(p);
    w_.line(fmt::format("make_tile(made{0}, held{0}, {1});", p, y));
    w_.close();
  }
  // The value that is kept of a point to be multiplied: before it is rounded, as two are then rounded at a time.
  int kept_value(int v) const {
    auto& in = instr(v);
    return in.code == Code::cast && g_.tile_of[std::size_t(v)] < 0 && instr(in.args[0]).dtype == DType::f32 ? in.args[0] : v;
  }
  void elements() {
    std::set<int> kept, made;
    for (int p : pass_.products) kept.insert(product(p).value);
    for (int v : kept) w_.line(fmt::format("Tile kept{};", v));
    for (int v : kept) add_inner(made, kept_value(v));
    for (int f : pass_.folds) {
      add_inner(made, instr(f).args[0]);
      if (sums_floats(f)) w_.line(fmt::format("Wide<{}> some{}[2] = {{}};", element_of(instr(f).dtype), f));
    }
    w_.line("#pragma unroll"), w_.open("for (int j = 0; j < 4; ++j)");
    w_.line("#pragma unroll"), w_.open("for (int e = 0; e < 4; ++e)");
    w_.line("const int h = e / 2;");
    if (!whole_columns()) w_.line("const bool inside = 8 * j + lane % 4 * 2 + e % 2 < there;");
    w_.line(fmt::format("const I at = first + strip + lane / 4 + 8 * h, row = {};",
                        whole_rows() ? "at" : fmt::format("at < I({0}) ? at : I({0}) - 1", rows_)));
    w_.line(fmt::format("const I column = mine.column + {};",
                        whole_columns() ? "8 * j + lane % 4 * 2 + e % 2" : "(inside ? 8 * j + lane % 4 * 2 + e % 2 : 0)"));
    w_.indices("row", g_.rows), w_.indices("column", g_.columns, g_.rows.size());
    for (int i : used_) w_.line(fmt::format("const auto v{0} = row{0}[h];", i));
    for (int i : made) {
      const int p = g_.tile_of[std::size_t(i)];
      auto S = element_of(instr(i).dtype);
      auto x = p < 0                       ? rounded(i)
               : is_narrow(instr(i).dtype) ? fmt::format("narrowed<{}>(made{}[j][e])", S, p)
                                           : fmt::format("made{}[j][e]", p);
      w_.line(fmt::format("const Number<{}> v{} = {};", S, i, x));
    }
    std::string zero;                            // where nothing is to be multiplied
    if (!whole_columns()) zero = "inside";
    if (!whole_rows()) zero += zero.empty() ? "at == row" : " && at == row";
    for (int v : kept)
      w_.line(
          fmt::format("kept{}[j][e] = {}v{}{};", v, zero.empty() ? "" : zero + " ? ", kept_value(v), zero.empty() ? "" : " : 0"));
    for (int f : pass_.folds) {
      auto to = fmt::format("{}{}[h]", sums_floats(f) ? "some" : "fold", f);
      auto x = fmt::format("wide(cast<{}, {}>(v{}))", element_of(instr(f).dtype), element_of(instr(instr(f).args[0]).dtype),
                           instr(f).args[0]);
      w_.line(fmt::format("{3}{0} = {1}({0}, {2});", to, fold_of(f), x, whole_columns() ? "" : "if (inside) "));
    }
    w_.close(), w_.close();
    for (int f : pass_.folds)
      if (sums_floats(f)) w_.line(fmt::format("for (int h = 0; h < 2; ++h) fold{0}[h] = add(fold{0}[h], some{0}[h]);", f));
  }
  std::string rounded(int i) {
    auto& in = instr(i);
    const bool from_f32 = in.code == Code::cast && is_narrow(in.dtype) && instr(in.args[0]).dtype == DType::f32;
    return from_f32 ? fmt::format("narrowed<{}>(v{})", element_of(in.dtype), in.args[0]) : value(g_.code, i);
  }
  void add_inner(std::set<int>& to, int i) const {
    if (!instr(i).inner || !to.insert(i).second) return;
    if (g_.tile_of[std::size_t(i)] >= 0) return;
    for (int a : instr(i).args)
      if (a >= 0) add_inner(to, a);
  }
  bool sums_floats(int f) const { return instr(f).code == Code::reduce_sum && is_float(instr(f).dtype); }
  std::string fold_of(int f) const {
    if (instr(f).code == Code::reduce_max && instr(f).dtype != DType::f64 && is_float(instr(f).dtype)) return "Larger()";
    return cuda::fold_of(Monoid(int(instr(f).code) - int(Code::reduce_sum)));
  }
  void over_rows() {
    if (l_.shown.empty()) return;
    w_.open("");
    w_.line("const Walk::At mine = strip < tile_columns ? tile0 : tile1;");
    w_.line("const int there = walk.there(mine);");
    auto each = [&](const auto& f) {
      for (int n : pass_.products)
        if (product(n).kind == Tile::over_rows) f(n, product(n));
    };
    each([&](int n, auto& p) {
      w_.line(fmt::format("const Side out{} = {};", n, side(p.out, "mine.column", true)));
      w_.line(fmt::format("const bool adds{} = there > 0 && {};", n, is_made(n, "mine")));
      w_.line(fmt::format("OverRows<{}, {}, {}, {}> over{};", element_of(p.dtype), p.depth(), element_of(p.out.view.dtype),
                          p.adds, n));
      w_.line(fmt::format("if (adds{0}) over{0}.load(out{0}, there, int({1}));", n, w_.word(p.terms)));
    });
    w_.line("__syncthreads();");
    each([&](int n, auto& p) {
      w_.open(fmt::format("if (adds{})", n));
      w_.line(fmt::format("over{}.add({}, x{});", n, together(p.value), Layout::find(l_.rows, p, true)));
      w_.line(fmt::format("over{0}.store(out{0}, there, int({1}));", n, w_.word(p.terms)));
      w_.close();
    });
    w_.close();
  }

  // ---- behind the tiles ----
  void store_sums(int n) {
    auto& p = product(n);
    w_.line(fmt::format("sums{}.template store_to<{}, {}>({}, rows_there, int({}), {});", n, element_of(p.out.view.dtype), p.adds,
                        side(p.out, "first", true), w_.word(p.terms), shared("float", std::to_string(l_.room_at))));
  }
  void finish_folds() {
    w_.line("__syncthreads();");
    for (std::size_t k = 0; k < pass_.folds.size(); ++k) {
      const int f = pass_.folds[k];
      auto T = fmt::format("Wide<{}>", element_of(instr(f).dtype));
      w_.line(fmt::format("auto* const room{} = {};", f, shared(T, std::to_string(l_.room_at + std::int64_t(k) * kRoom))));
      w_.line(fmt::format("fold_lanes(fold{0}, {1}, room{0});", f, fold_of(f)));
    }
    w_.line("__syncthreads();");
    w_.open("if (half == 0 && lane % 4 == 0)"), open_rows();
    for (int f : pass_.folds) {
      auto S = element_of(instr(f).dtype);
      w_.line(fmt::format("auto all{0} = {1}(room{0}[strip + lane / 4 + 8 * h], room{0}[tile_rows + strip + lane / 4 + 8 * h]);",
                          f, fold_of(f)));
      if (!always_) fold_left_out(f);
      w_.line(
          fmt::format("if (at == row) reinterpret_cast<Number<{0}>*>(shared + {1})[row] = result<{0}>(all{2});", S, kept(f), f));
    }
    w_.close(), w_.close();
    w_.line("__syncthreads();");
  }
  void fold_left_out(int f) {
    auto& in = instr(f);
    w_.open(fmt::format("if (visited < I({}))", columns_));
    std::set<int> all;
    auto walk = [&](auto& self, int i) -> void {
      if (!all.insert(i).second || is_fold(left_out_.code[std::size_t(i)].code)) return;
      for (int a : left_out_.code[std::size_t(i)].args)
        if (a >= 0) self(self, a);
    };
    walk(walk, in.args[0]);
    values(left_out_.code, all);
    auto S = element_of(in.dtype);
    auto x = fmt::format("wide(cast<{}, {}>(v{}))", S, element_of(instr(in.args[0]).dtype), in.args[0]);
    if (in.code == Code::reduce_sum) x = fmt::format("mul({}, Wide<{}>(I({}) - visited))", x, S, columns_);
    w_.line(fmt::format("all{0} = {1}(all{0}, {2});", f, fold_of(f), x));
    w_.close();
  }
  void store_rows() {
    std::set<int> all;
    for (int s : pass_.stores) all.merge(g_.sources(s)), all.erase(s);
    w_.open("if (half == 0 && lane % 4 == 0)"), open_rows();
    values(g_.code, all);
    for (int s : pass_.stores) w_.line("if (at == row) " + value(g_.code, s));
    w_.close(), w_.close();
  }

  const TileGroup& g_;
  const TileAction& pass_;
  Layout l_;
  const LeftOut left_out_;
  Around& around_;
  Writer w_;
  const std::int64_t kept_;
  bool always_ = false;                          // all blocks are wanted
  std::string wanted_, rows_, columns_;
  std::set<int> used_;
};

std::string flags_text(const TileGroup& g, int n, Around& around) {
  auto& p = g.products[std::size_t(n)];
  Writer w(&around);
  auto base = w.base(p.flag), at = w.at(p.flag, {}), step = w.word(p.flag_step),
       count = w.word((points(g.columns) + g.width - 1) / g.width);
  w.line(fmt::format("flags{} = block_flags({} + ({}), {}, int({}));", n, base, at, step, count));
  return w.launch(1).text;
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
    std::set<int> kept;
    for (int p : l.makes) sum += 16 + products[std::size_t(p)].depth() / 4;
    for (int p : a.products) {
      kept.insert(products[std::size_t(p)].value);
      if (products[std::size_t(p)].kind == Tile::over_columns) sum += products[std::size_t(p)].depth() / 2;
    }
    most = std::max(most, sum + 16 * int(kept.size()));
  }
  return most;
}
std::string tile_text(const TileGroup& g, const TileAction& a, Around& around, std::int64_t kept) {
  return a.flags >= 0 ? flags_text(g, a.flags, around) : PassText(g, a, around, kept).text();
}

}  // namespace haliax::cuda
