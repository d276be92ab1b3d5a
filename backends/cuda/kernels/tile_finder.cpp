// Finds attention among the steps of a loop body: wide values, instructions and matmuls.
#include "tile_finder.h"

#include <algorithm>
#include <array>
#include <map>

#include "program/matrices.h"

namespace haliax::cuda {

using namespace program;

namespace {

Dims without_ones(const Dims& dims) {
  Dims out;
  for (auto n : dims)
    if (n != 1) out.push_back(n);
  return out;
}
// Returns the stride of dims [from, to) as one dim, or nullopt if they cannot be merged.
std::optional<std::int64_t> as_one(const Dims& dims, const Dims& strides, std::size_t from,
                                   std::size_t to) {
  std::int64_t stride = strides[to - 1], n = 1;
  for (std::size_t d = to; d-- > from; n *= dims[d])
    if (strides[d] != stride * n) return {};
  return stride;
}

// The sides of a matmul without batch dims: one dim each. Operands have stride 0 along the side
// that they lack.
enum Side { is_m, is_n, is_k };
using Sides = std::array<MatrixDim, 3>;
std::optional<Sides> sides_of(const Contract& c) {
  auto dims = dims_of(c);
  dims.normalize();
  Sides out;
  for (auto [side, all] : {std::pair(is_m, &dims.m), {is_n, &dims.n}, {is_k, &dims.k}}) {
    if (all->size() > 1) return {};
    if (!all->empty()) out[side] = all->front();
  }
  return dims.batch.empty() ? std::optional(out) : std::nullopt;
}
// A matmul that computes one block of columns, or a loop that computes one block per iteration. A
// flag may skip a block.
struct Block {
  const Contract* c = nullptr;
  Sides sides = {};
  const View* flag = nullptr;
  int variable = -1;
  std::int64_t trips = 1;
};
std::optional<Block> block_of(const Step& s) {
  Block b;
  const Step* product = &s;
  if (product->kind == Kind::loop) {
    if (s.loop.parallel_slots > 0 || s.body.size() != 1) return {};
    product = &s.body[0];
    b.variable = s.loop.variable;
    b.trips = s.loop.trips;
  }
  if (product->kind == Kind::conditional) {
    if (product->body.size() != 1) return {};
    b.flag = &product->conditional.flag;
    product = &product->body[0];
  }
  if (product->kind != Kind::contract) return {};
  auto sides = sides_of(product->contract);
  if (!sides) return {};
  b.c = &product->contract;
  b.sides = *sides;
  return b;
}
// Returns the view in the first iteration of the loop. Sets `step` to its offset per iteration.
View first_of(View v, int variable, std::int64_t& step) {
  step = 0;
  std::erase_if(v.terms, [&](auto& t) {
    if (t.loop < 0 || t.loop != variable) return false;
    step += t.stride;
    return true;
  });
  return v;
}

View moved_by(View v, std::int64_t by) {
  v.offset += by;
  return bare(v);
}

// Row values that the body stored. Later loads of their views use the instruction that computed
// them.
class StoredRows {
 public:
  explicit StoredRows(const TileBody& body) : body_(body) {}
  void add(const View& v, const Dims& strides, int value) {
    stored_.push_back({bare(v), strides, value});
  }
  // Drops the values that a write to the view may overwrite.
  void forget(const View& v) {
    if (v.slot < 0) return;
    std::erase_if(stored_, [&](auto& s) {
      return body_.overlap(body_.root(s.view.slot), body_.root(v.slot));
    });
  }
  // Returns the instruction of the stored value, or -1.
  int find(const View& v, const Dims& strides) const {
    for (auto& s : stored_)
      if (s.view == bare(v) && s.strides == strides) return s.value;
    return -1;
  }

 private:
  struct Stored {
    View view;
    Dims strides;
    int value = -1;
  };
  const TileBody& body_;
  std::vector<Stored> stored_;
};

// Finds the wide values, the instructions and the matmuls of the body.
class TileFinder {
 public:
  explicit TileFinder(const TileBody& body) : body_(body), stored_(body) {}
  // Finds rows and columns: the dims of the first fused step that reads a 16-bit matmul.
  bool find_space() {
    std::set<int> created;
    for (auto& s : body_.steps) {
      if (auto b = block_of(s); b && is_16_bit(b->c->a.dtype))
        created.insert(body_.root(b->c->out.slot));
      auto& f = s.fused;
      if (s.kind != Kind::fused || f.outer <= 0 || f.outer >= int(f.dims.size())) continue;
      for (auto& i : f.code) {
        if (i.code != Code::load || !i.inner || !created.count(body_.root(i.view.slot)) ||
            !body_.is_own(body_.root(i.view.slot)))
          continue;
        g_.rows = without_ones(Dims(f.dims.begin(), f.dims.begin() + f.outer));
        g_.columns = without_ones(Dims(f.dims.begin() + f.outer, f.dims.end()));
        if (points(g_.rows) > 1 && points(g_.columns) > 1) return true;
      }
    }
    return false;
  }
  // Returns nothing if the steps do not fit.
  std::optional<FoundTiles> find() {
    rows_ = points(g_.rows);
    columns_ = points(g_.columns);
    require(rows_ < (1 << 16) && columns_ < (1 << 24));
    space_ = g_.rows;
    space_.insert(space_.end(), g_.columns.begin(), g_.columns.end());
    find_wide();
    for (std::size_t k = 0; fits_ && k < body_.steps.size();) k = add(k);
    require(!g_.products.empty());
    if (!fits_) return {};
    for (int slot = 0; slot < int(body_.program.slots.size()); ++slot)
      if (wide_.count(body_.root(slot))) g_.unused.insert(slot);
    return FoundTiles{std::move(g_), std::move(nodes_)};
  }

 private:
  void require(bool fits) { fits_ &= fits; }
  // A wide value: its offset and strides in memory, and the instruction that computes it.
  struct Wide {
    std::int64_t offset = -1, row = 0, column = 0;
    int value = -1;
  };
  bool in_space(const Step& s) const {
    if (s.kind != Kind::fused) return false;
    auto& f = s.fused;
    if (f.outer == int(f.dims.size())) return without_ones(f.dims) == space_;
    return without_ones(Dims(f.dims.begin(), f.dims.begin() + f.outer)) == g_.rows &&
           without_ones(Dims(f.dims.begin() + f.outer, f.dims.end())) == g_.columns;
  }
  // Finds the wide slots: only 16-bit matmuls and fused steps over the space access them.
  void find_wide() {
    std::set<int> others;
    for (auto& s : body_.steps) {
      const bool fused = in_space(s);
      const auto block = block_of(s);
      each_view_within(s, [&](const View& v, bool) {
        for (auto& t : v.terms) others.insert(body_.root(t.slot));
        const int r = body_.root(v.slot);
        if (r < 0) return;
        const auto b = bytes_of(v.dtype);
        const bool large = body_.is_own(r) && body_.program.slot(r).bytes >= rows_ * columns_ * b;
        if (large && (fused || (block && is_16_bit(block->c->a.dtype))))
          wide_[r];
        else
          others.insert(r);
      });
    }
    std::erase_if(wide_, [&](auto& w) { return others.count(w.first) > 0; });
  }
  bool touches_wide(const Step& s) const {
    bool out = false;
    each_view_within(s, [&](const View& v, bool) { out |= wide_.count(body_.root(v.slot)) > 0; });
    return out;
  }
  // Requires that all accesses of a wide value agree on its offset and strides.
  void require_layout(Wide& w, std::int64_t offset, std::int64_t row, std::int64_t column) {
    require(row != 0 && column != 0);
    if (w.offset < 0) {
      w.offset = offset;
      w.row = row;
      w.column = column;
    }

    require(w.offset == offset && w.row == row && w.column == column);
  }
  std::size_t add(std::size_t k) {
    auto& s = body_.steps[k];
    if (!touches_wide(s)) {
      nodes_.push_back({.at = int(k), .step = &s});
      each_view_within(s, [&](const View& v, bool writes) { writes ? stored_.forget(v) : void(); });
      return k + 1;
    }
    if (s.kind == Kind::fused) {
      add_fused(s.fused, int(k));
      return k + 1;
    }

    return add_product(k);
  }

  // ---- fused steps ----
  int push(Instr i, Dims strides, int at, int product = -1) {
    g_.code.push_back(std::move(i));
    g_.strides.push_back(std::move(strides));
    g_.home.push_back(at);
    g_.product_of.push_back(product);
    return int(g_.code.size()) - 1;
  }
  int cast_to(DType d, int value, int at) {
    auto& from = g_.code[std::size_t(value)];
    if (from.dtype == d) return value;
    return push({.code = Code::cast, .dtype = d, .args = {value, -1, -1, -1}, .inner = from.inner},
                {}, at);
  }
  void add_fused(const Fused& f, int at) {
    require(in_space(body_.steps[std::size_t(at)]));
    const bool points_only = f.outer == int(f.dims.size());
    std::vector<int> here(f.code.size(), -1);
    for (std::size_t k = 0; fits_ && k < f.code.size(); ++k) {
      Instr i = f.code[k];
      const bool store = is_store(i.code), placed = accesses_memory(i.code) || i.code == Code::iota;
      if (points_only) i.inner = i.code != Code::constant;
      for (int& a : i.args)
        if (a >= 0) a = here[std::size_t(a)];
      auto strides = placed ? strides_of(f.dims, access_strides(f, f.code[k])) : Dims{};
      auto wide = i.view.slot >= 0 ? wide_.find(body_.root(i.view.slot)) : wide_.end();
      if (wide != wide_.end()) {
        require(i.inner && i.view.terms.empty() && (i.code == Code::load || i.code == Code::store));
        auto row = as_one(space_, strides, 0, g_.rows.size()),
             column = as_one(space_, strides, g_.rows.size(), space_.size());
        require_layout(wide->second, i.view.offset, row.value_or(0), column.value_or(0));
        if (store) {
          wide->second.value = cast_to(i.view.dtype, i.args[0], at);
        } else {
          const int value = wide->second.value;
          require(value >= 0 && g_.code[std::size_t(value)].dtype == i.view.dtype);
          if (fits_) here[k] = cast_to(i.dtype, value, at);
        }
        continue;
      }
      require(!(store && i.inner) && !finds_position(i.code));
      std::int64_t reach = 0;
      for (std::size_t d = 0; d < strides.size(); ++d) reach += std::abs(strides[d]) * space_[d];
      require(reach < kMax32BitPosition);
      const bool is_row = !i.inner && i.view.slot >= 0;
      if (const int value = is_row && i.code == Code::load ? stored_.find(i.view, strides) : -1;
          value >= 0) {
        here[k] = cast_to(i.dtype, value, at);
        continue;
      }
      if (store) {
        stored_.forget(i.view);
        const bool moves = std::any_of(i.view.terms.begin(), i.view.terms.end(),
                                       [](auto& t) { return t.slot >= 0; });
        if (is_row && i.code == Code::store && body_.is_own(body_.root(i.view.slot)) && !moves)
          stored_.add(i.view, strides, cast_to(i.view.dtype, i.args[0], at));
      }
      here[k] = push(std::move(i), std::move(strides), at);
      if (store) nodes_.push_back({.at = at, .store = here[k]});
      if (is_reduction(g_.code.back().code)) nodes_.push_back({.at = at, .fold = here[k]});
    }
  }

  // ---- matmuls ----
  std::size_t add_product(std::size_t at) {
    const auto first = block_of(body_.steps[at]);
    require(first.has_value());
    if (!fits_) return at;
    auto& c = *first->c;
    const bool wide_a = wide_.count(body_.root(c.a.slot)) > 0,
               wide_b = wide_.count(body_.root(c.b.slot)) > 0,
               wide_out = wide_.count(body_.root(c.out.slot)) > 0;
    require(wide_a + wide_b + wide_out == 1 && is_16_bit(c.a.dtype) && c.a.dtype == c.b.dtype);
    require(is_16_bit(c.out.dtype) || c.out.dtype == DType::f32);
    TileProduct p{.dtype = c.a.dtype, .adds = c.accumulate, .at = int(at)};
    auto& f = first->sides;
    auto& wide = wide_[body_.root(wide_a ? c.a.slot : wide_b ? c.b.slot : c.out.slot)];
    std::int64_t steps[3] = {};
    const View a = bare(first_of(c.a, first->variable, steps[0])),
               b = bare(first_of(c.b, first->variable, steps[1])),
               out = bare(first_of(c.out, first->variable, steps[2]));
    // The sides that are the rows and the columns, given the strides of the wide value along them.
    const auto stride = wide_a ? &MatrixDim::a : wide_b ? &MatrixDim::b : &MatrixDim::out;
    Side row = wide_b ? is_n : is_m, column = wide_out ? is_n : is_k;
    const auto s = f[row].*stride, t = f[column].*stride;
    if (f[row].n != rows_ || (wide.offset < 0 ? t >= s : s != wide.row || t != wide.column))
      std::swap(row, column);
    require_layout(wide, (wide_a ? a : wide_b ? b : out).offset, f[row].*stride, f[column].*stride);
    require(f[row].n == rows_);
    const auto &m = f[is_m], &n = f[is_n], &k = f[is_k];
    const TileOperand of_a{a, m.a, k.a}, of_b{b, n.b, k.b}, of_b_terms{b, k.b, n.b},
        of_a_terms{a, k.a, m.a}, of_out{out, m.out, n.out}, of_out_terms{out, n.out, m.out};
    if (wide_out) {
      p.kind = TileProduct::Kind::makes;
      p.terms = k.n;
      p.x = row == is_m ? of_a : of_b;
      p.y = row == is_m ? of_b : of_a;
      p.out = {out, wide.row, wide.column};
    } else {
      const bool over_columns = column == is_k;
      p.kind = over_columns ? TileProduct::Kind::over_columns : TileProduct::Kind::over_rows;
      p.terms = wide_a ? n.n : m.n;
      (over_columns ? p.y : p.x) = wide_a ? of_b_terms : of_a_terms;
      (over_columns ? p.x : p.y) = {wide_a ? a : b, wide.row, wide.column};
      p.out = wide_a ? of_out : of_out_terms;
    }
    require(p.terms <= 128);
    for (auto* o : {&p.x, &p.y, &p.out})
      require((rows_ + columns_) * std::abs(o->line) +
                  std::max(p.terms, columns_) * std::abs(o->term) <
              kMax32BitPosition);
    const auto end = blocks(at, *first, p, {a, b, out}, steps, column);
    p.kind == TileProduct::Kind::makes ? make(wide, p, c.out.dtype) : use(wide, p);
    return end;
  }
  // Reads the steps of one matmul: a step or a loop over blocks, and a smaller last block.
  std::size_t blocks(std::size_t k, const Block& first, TileProduct& p, const View (&views)[3],
                     const std::int64_t (&steps)[3], Side column) {
    const auto& f = first.sides;
    const auto& of_column = f[column];
    const std::int64_t width = of_column.n, next[3] = {of_column.a, of_column.b, of_column.out};
    for (int v = 0; v < 3; ++v) require(first.trips == 1 || steps[v] == next[v] * width);
    auto columns = width * first.trips;
    if (first.flag) {
      p.has_flags = true;
      p.flag = first_of(*first.flag, first.variable, p.flag_step);
      require(p.flag.terms.empty() || std::all_of(p.flag.terms.begin(), p.flag.terms.end(),
                                                  [](auto& t) { return t.slot < 0; }));
      require(!g_.width || g_.width == width);
      g_.width = width;
    }
    ++k;
    if (columns < columns_) {
      const auto rest = k < body_.steps.size() ? block_of(body_.steps[k]) : std::nullopt;
      require(rest && rest->trips == 1 && (rest->flag != nullptr) == p.has_flags);
      if (!fits_) return k;
      auto& r = rest->sides;
      for (auto d : {is_m, is_n, is_k}) {
        require(d == column ? r[d].n == columns_ - columns && r[d].n <= width : r[d].n == f[d].n);
        require(r[d].n == 1 || (r[d].a == f[d].a && r[d].b == f[d].b && r[d].out == f[d].out));
      }
      const View* other[3] = {&rest->c->a, &rest->c->b, &rest->c->out};
      for (int v = 0; v < 3; ++v)
        require(moved_by(views[v], next[v] * columns) == bare(*other[v]) &&
                first.c->accumulate == rest->c->accumulate);
      if (p.has_flags) require(moved_by(p.flag, p.flag_step * first.trips) == bare(*rest->flag));
      columns = columns_;
      ++k;
    }
    require(columns == columns_ && (!p.has_flags || (columns_ + width - 1) / width <= 64));
    return k;
  }
  void make(Wide& w, TileProduct& p, DType d) {
    if (w.value >= 0) {
      auto& before = g_.code[std::size_t(w.value)];
      p.filled = before.code == Code::constant && before.number == 0 && before.integer == 0;
      require(p.filled);
    }
    require(!p.adds || p.filled);
    const int number = int(g_.products.size());
    p.value = w.value = push({.code = Code::load, .dtype = d, .inner = true}, {}, p.at, number);
    add_flags(p, number);
    g_.products.push_back(p);
  }
  void use(const Wide& w, TileProduct& p) {
    require(w.value >= 0 && g_.code[std::size_t(w.value)].dtype == p.dtype &&
            g_.code[std::size_t(w.value)].inner);
    // A pass computes 64 rows at a time: a contraction of more rows accumulates.
    require(p.adds || (!p.has_flags && (rows_ <= 64 || p.kind == TileProduct::Kind::over_columns)));
    const int number = int(g_.products.size());
    p.value = w.value;
    stored_.forget(p.out.view);
    add_flags(p, number);
    nodes_.push_back({.at = p.at, .product = number});
    g_.products.push_back(p);
  }
  void add_flags(const TileProduct& p, int number) {
    if (p.has_flags) nodes_.push_back({.at = p.at, .flags = number});
  }

  const TileBody& body_;
  bool fits_ = true;
  TileGroup g_;
  Dims space_;
  std::int64_t rows_ = 0, columns_ = 0;
  std::map<int, Wide> wide_;
  StoredRows stored_;
  std::vector<TileNode> nodes_;
};

}  // namespace

Dims strides_of(const Dims& dims, Dims strides) {
  strides.resize(dims.size());
  Dims out;
  for (std::size_t d = 0; d < dims.size(); ++d)
    if (dims[d] != 1) out.push_back(strides[d]);
  return out;
}
std::optional<FoundTiles> find_parts(const TileBody& body) {
  TileFinder finder(body);
  return finder.find_space() ? finder.find() : std::nullopt;
}

}  // namespace haliax::cuda
