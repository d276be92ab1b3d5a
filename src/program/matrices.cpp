// The choice of matrices for a contraction.
#include "program/matrices.h"

#include <algorithm>
#include <cstdlib>

namespace haliax::program {

std::int64_t points(const MatrixDims& dims) {
  std::int64_t n = 1;
  for (auto& d : dims) n *= d.n;
  return n;
}
std::int64_t offset_at(const MatrixDims& dims, MatrixStride stride, std::int64_t position) {
  std::int64_t sum = 0;
  for (std::size_t d = dims.size(); d-- > 0;) {
    sum += position % dims[d].n * (dims[d].*stride);
    position /= dims[d].n;
  }
  return sum;
}

namespace {

// Orders dims by a key, largest first. Pairs are sorted, since an algorithm of std on MatrixDim
// would export a symbol of std.
template <class Key> void sort_by(MatrixDims& dims, const Key& key) {
  std::vector<std::pair<std::pair<std::int64_t, std::int64_t>, std::size_t>> order;
  for (std::size_t k = 0; k < dims.size(); ++k) {
    const auto [first, second] = key(dims[k]);
    order.push_back({{-first, -second}, k});
  }
  std::sort(order.begin(), order.end());
  MatrixDims sorted;
  for (auto& [by, k] : order) sorted.push_back(dims[k]);
  dims = std::move(sorted);
}

// Drops dims of size 1, orders the rest by strides, and merges neighbors that are contiguous in all
// operands.
void merge(MatrixDims& dims) {
  std::erase_if(dims, [](auto& d) { return d.n == 1; });
  sort_by(dims, [](auto& d) { return std::pair(std::abs(d.out), std::abs(d.a) + std::abs(d.b)); });
  MatrixDims merged;
  for (auto& d : dims) {
    auto* last = merged.empty() ? nullptr : &merged.back();
    if (last && last->a == d.a * d.n && last->b == d.b * d.n && last->out == d.out * d.n) {
      auto n = last->n;
      *last = d;
      last->n = n * d.n;
    } else {
      merged.push_back(d);
    }
  }
  dims = std::move(merged);
}

// Returns true if rows or columns have unit stride and do not overlap, as a matmul library
// requires.
bool is_matrix(std::int64_t rows, std::int64_t row_stride, std::int64_t cols,
               std::int64_t col_stride) {
  auto dense = [](std::int64_t n, std::int64_t stride, std::int64_t inner) {
    return n == 1 || stride >= inner;
  };
  return ((cols == 1 || col_stride == 1) && dense(rows, row_stride, cols)) ||
         ((rows == 1 || row_stride == 1) && dense(cols, col_stride, rows));
}

// Calls f(m, n, k) for each choice of one dim each, whose matrices have results with unit stride
// along n.
template <class F> void each_choice(const ContractDims& s, bool unsplit_k, const F& f) {
  const MatrixDims one{MatrixDim{}};
  const MatrixDims &ms = s.m.empty() ? one : s.m, &ns = s.n.empty() ? one : s.n,
                   &ks = s.k.empty() ? one : s.k;
  if (unsplit_k && ks.size() > 1) return;
  for (auto& m : ms)
    for (auto& n : ns)
      for (auto& k : ks)
        if ((n.n == 1 || n.out == 1) && (m.n == 1 || m.out >= n.n)) f(m, n, k);
}
// Sets the matrices, and the loops over the dims that remain.
void set_matrices(MatrixProducts& p, const ContractDims& s, const MatrixDim& m, const MatrixDim& n,
                  const MatrixDim& k) {
  p.m = m;
  p.n = n;
  p.k = k;
  p.outer = s.batch;
  p.k_outer = {};
  for (auto& d : s.m)
    if (&d != &m) p.outer.push_back(d);
  for (auto& d : s.n)
    if (&d != &n) p.outer.push_back(d);
  for (auto& d : s.k)
    if (&d != &k) p.k_outer.push_back(d);
}
// Chooses the largest matrices that need no copy. Returns false if no choice fits.
bool choose(MatrixProducts& p, const ContractDims& s, bool unsplit_k) {
  std::int64_t best_size = 0;
  each_choice(s, unsplit_k, [&](const MatrixDim& m, const MatrixDim& n, const MatrixDim& k) {
    const bool fits = is_matrix(m.n, m.a, k.n, k.a) && is_matrix(k.n, k.b, n.n, n.b);
    if (!fits || m.n * n.n * k.n <= best_size) return;
    best_size = m.n * n.n * k.n;
    set_matrices(p, s, m, n, k);
  });
  return best_size > 0;
}

// The order of the dims of a packed operand, after those of the batch.
enum class PackOrder { k_last, k_first };
// Packs an operand, and replaces its strides in `s` by those of the packed copy.
Packing pack(ContractDims& s, MatrixStride stride, MatrixDims ContractDims::*own,
             PackOrder order = PackOrder::k_last) {
  Packing p;
  p.used = true;
  std::vector<MatrixDim*> packed;
  const bool k_last = order == PackOrder::k_last;
  for (auto* list : {&s.batch, k_last ? &(s.*own) : &s.k, k_last ? &s.k : &(s.*own)})
    for (auto& d : *list)
      if (d.*stride != 0 && d.n > 1) packed.push_back(&d);
  std::int64_t dense = 1;
  for (std::size_t i = packed.size(); i-- > 0;) {
    p.dims.insert(p.dims.begin(), packed[i]->n);
    p.from.insert(p.from.begin(), packed[i]->*stride);
    p.to.insert(p.to.begin(), dense);
    packed[i]->*stride = dense;
    dense *= packed[i]->n;
  }
  p.elements = dense;
  return p;
}

std::int64_t matrix_size(const MatrixProducts& p) { return p.m.n * p.n.n * p.k.n; }

// Replaces the strides of `out` by those of a contiguous array whose last dim is the largest of n,
// or with `in_order` the last one of n.
Packing pack_out(ContractDims& s, bool in_order = false) {
  Packing p;
  p.used = true;
  auto last = std::max_element(s.n.begin(), s.n.end(), [](auto& x, auto& y) { return x.n < y.n; });
  if (in_order) last = s.n.end();
  std::vector<MatrixDim*> order;
  for (auto* list : {&s.batch, &s.m, &s.n})
    for (auto& d : *list)
      if (list != &s.n || &d != &*last) order.push_back(&d);
  if (last != s.n.end()) order.push_back(&*last);
  std::int64_t dense = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    p.dims.insert(p.dims.begin(), order[i]->n);
    p.from.insert(p.from.begin(), dense);
    p.to.insert(p.to.begin(), order[i]->out);
    order[i]->out = dense;
    dense *= order[i]->n;
  }
  p.elements = dense;
  return p;
}

bool reads_windows(const Contract& c, const View& v) {
  const auto dims = dims_of(Step{.kind = Kind::contract, .contract = c});
  std::vector<std::pair<std::int64_t, std::int64_t>> all;  // strides and sizes
  for (std::size_t d = 0; d < dims.size(); ++d)
    if (dims[d] > 1 && v.strides[d] != 0) all.push_back({std::abs(v.strides[d]), dims[d]});
  std::sort(all.begin(), all.end());
  std::int64_t span = 1;  // elements from the first to the last one of the inner dims
  for (auto [stride, size] : all) {
    if (stride < span) return true;
    span += stride * (size - 1);
  }
  return false;
}

}  // namespace

bool reads_windows(const Contract& c) { return reads_windows(c, c.a) || reads_windows(c, c.b); }
std::vector<MatrixProducts> window_products(const Contract& c) {
  std::vector<MatrixProducts> all;
  auto add = [&](const MatrixProducts& p, ContractDims s) {
    s.normalize();
    each_choice(s, false, [&](const MatrixDim& m, const MatrixDim& n, const MatrixDim& k) {
      all.push_back(p);
      set_matrices(all.back(), s, m, n, k);
    });
  };
  const bool may_pack_out = !c.accumulate && !c.n.empty() && !c.m.empty();
  for (const bool swapped : {false, true}) {
    const bool first = reads_windows(c, swapped ? c.b : c.a),
               second = reads_windows(c, swapped ? c.a : c.b);
    auto dims = dims_of(c);
    if (swapped) dims.swap_operands();
    MatrixProducts plan;
    plan.swapped = swapped;
    add(plan, dims);
    if (may_pack_out) {
      auto [p, s] = std::pair(plan, dims);
      p.pack_out = pack_out(s);
      add(p, s);
    }
    if (first && second) continue;
    auto pack_operand = [](MatrixProducts& p, ContractDims& s, bool a, PackOrder order) {
      if (a)
        p.pack_a = pack(s, &MatrixDim::a, &ContractDims::m, order);
      else
        p.pack_b = pack(s, &MatrixDim::b, &ContractDims::n, order);
    };
    // A copy of the weights, which are the operand without windows. The copy is contiguous along
    // the last dim of k: by strides, or the largest one.
    for (const bool by_size : {false, true}) {
      auto [p, s] = std::pair(plan, dims);
      s.normalize();
      if (by_size) sort_by(s.k, [](auto& d) { return std::pair(-d.n, std::int64_t(0)); });
      pack_operand(p, s, !first, PackOrder::k_last);
      add(p, s);
    }
    for (const auto order : {PackOrder::k_first, PackOrder::k_last}) {
      auto [p, s] = std::pair(plan, dims);
      s.normalize();
      pack_operand(p, s, first, order);
      add(p, s);
      if (!may_pack_out) continue;
      // The copy, and the result, have their dims in the order in which the array has them.
      auto [in_order, t] = std::pair(plan, dims);
      const auto stride = first ? &MatrixDim::a : &MatrixDim::b;
      for (auto* list : {&t.batch, first ? &t.m : &t.n, &t.k})
        sort_by(*list, [&](auto& d) { return std::pair(std::abs(d.*stride), std::int64_t(0)); });
      pack_operand(in_order, t, first, order);
      in_order.pack_out = pack_out(t, true);
      add(in_order, t);
    }
  }
  return all;
}

void ContractDims::swap_operands() {
  std::swap(m, n);
  for (auto* list : {&batch, &m, &n, &k})
    for (auto& d : *list) std::swap(d.a, d.b);
}
void ContractDims::normalize() {
  for (auto* list : {&batch, &m, &n, &k}) merge(*list);
}
ContractDims dims_of(const Contract& c) {
  ContractDims s;
  std::size_t at = 0;
  auto take = [&](MatrixDims& list, const Dims& sizes) {
    for (auto n : sizes) {
      list.push_back({n, c.a.strides.at(at), c.b.strides.at(at), c.out.strides.at(at)});
      ++at;
    }
  };
  take(s.batch, c.batch);
  take(s.m, c.m);
  take(s.n, c.n);
  take(s.k, c.k);
  return s;
}

namespace {

// A copy of an operand is faster than matmuls of at most kSmallMatrix multiplications each, and
// than at least kManySums sums of fewer than kShortSum terms.
constexpr std::int64_t kSmallMatrix = 4096;
constexpr std::int64_t kShortSum = 32, kManySums = 8;

// The arrays to pack: operands that must be packed, and the result.
struct Packs {
  bool a = false, b = false, out = false;
};
std::optional<MatrixProducts> fewest_copies(const Contract& c, bool unsplit_k, Packs packs) {
  auto unit = [](const MatrixDims& dims) {
    return std::any_of(dims.begin(), dims.end(), [](auto& d) { return d.n > 1 && d.out == 1; });
  };
  auto unpacked = dims_of(c);
  const bool swapped = !unit(unpacked.n) && unit(unpacked.m);
  if (swapped) {
    unpacked.swap_operands();
    std::swap(packs.a, packs.b);
  }

  for (int copies = 0; copies < 4; ++copies) {  // pack nothing, a, b, both
    const bool a = copies & 1, b = copies & 2;
    if ((packs.a && !a) || (packs.b && !b)) continue;
    auto s = unpacked;
    MatrixProducts p;
    p.swapped = swapped;
    if (packs.out) p.pack_out = pack_out(s);
    s.normalize();
    if (a) p.pack_a = pack(s, &MatrixDim::a, &ContractDims::m);
    if (b) p.pack_b = pack(s, &MatrixDim::b, &ContractDims::n);
    s.normalize();
    if (!choose(p, s, unsplit_k)) continue;
    const bool short_sums = p.k.n < kShortSum && points(p.k_outer) >= kManySums;
    const bool copy_is_faster = matrix_size(p) <= kSmallMatrix || short_sums;
    if (copies < 3 && !p.k_outer.empty() && copy_is_faster) continue;
    return p;
  }
  return {};
}

}  // namespace

std::optional<MatrixProducts> matrix_products(const Contract& c, const MatrixOptions& options) {
  // Matrices with fewer columns, and with fewer multiplications, are slower than a copy of the
  // result, if the copy allows matrices that are larger by this factor.
  constexpr std::int64_t kFewColumns = 16, kSmall = 1 << 15, kWorthCopy = 4;
  const bool a = options.must_pack_a, b = options.must_pack_b;
  auto best = fewest_copies(c, options.unsplit_k, {.a = a, .b = b});
  const bool small = best && best->n.n < kFewColumns && matrix_size(*best) < kSmall;
  if (!options.may_pack_out || !small || c.accumulate || c.m.empty() || c.n.empty()) return best;
  auto copied = fewest_copies(c, options.unsplit_k, {.a = a, .b = b, .out = true});
  return copied && matrix_size(*copied) >= kWorthCopy * matrix_size(*best) ? copied : best;
}

double computed_fraction(const Contract& c, const unsigned char* flags) {
  auto& at = c.block_mask;
  auto part = [](const Contract::BlockMask::Flags& f, const Dims& side, std::int64_t i) {
    const auto n = points(side);
    return f.size == 0 ? 1 : double(std::min(f.size, n - i * f.size)) / double(n);
  };
  double sum = 0;
  for (std::int64_t i = 0; i < at.m.blocks(c.m); ++i)
    for (std::int64_t j = 0; j < at.n.blocks(c.n); ++j)
      for (std::int64_t l = 0; l < at.k.blocks(c.k); ++l)
        if (flags[i * at.m.stride + j * at.n.stride + l * at.k.stride])
          sum += part(at.m, c.m, i) * part(at.n, c.n, j) * part(at.k, c.k, l);
  return sum;
}

}  // namespace haliax::program
