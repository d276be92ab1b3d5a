// Contractions as library matmuls; see product.h.
#include "product.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "program/matrices.h"
#include "kernel_source.h"

namespace haliax::cuda {
namespace {

using namespace program;

// Limit per step; with more matmuls, a kernel of this backend is faster.
constexpr std::int64_t kMostProducts = 64;

// Returns true if the address of the view is known on the device only.
bool reads_slot(const View& v) {
  return std::any_of(v.terms.begin(), v.terms.end(), [](auto& t) { return t.slot >= 0; });
}
bool is_for_library(const Contract& c) {
  auto d = c.a.dtype;
  bool narrow = d == DType::bf16 || d == DType::f16;
  bool fits =
      is_float(d) && d == c.b.dtype && (c.out.dtype == d || (narrow && c.out.dtype == DType::f32));
  return fits && !reads_slot(c.out) &&
         points(c.batch) * points(c.m) * points(c.n) * points(c.k) > 0;
}
std::int64_t packed_bytes(const MatrixProducts& p, const Contract& c) {
  auto bytes = [&](const Packing& pack) {
    return pack.used ? aligned(pack.elements * bytes_of(c.a.dtype)) : 0;
  };
  return bytes(p.pack_a) + bytes(p.pack_b);
}
// scratch: bytes that are available for optional packing.
std::optional<MatrixProducts> plan_of(const Contract& c, std::int64_t scratch) {
  if (!is_for_library(c)) return {};
  // partial sums must not be rounded
  bool unsplit_k = c.out.dtype != DType::f32 && c.out.dtype != DType::f64;
  program::MatrixOptions options{
      .unsplit_k = unsplit_k, .must_pack_a = reads_slot(c.a), .must_pack_b = reads_slot(c.b)};
  auto p = matrix_products(c, options);
  if (!p || p->k_outer.empty()) return p;
  // Each matmul but the first reads and writes the partial results again. A copy of an operand may
  // move fewer bytes.
  options.unsplit_k = true;
  auto unsplit = matrix_products(c, options);
  const auto repeated_bytes = (points(p->k_outer) - 1) * points(c.batch) * points(c.m) *
                              points(c.n) * bytes_of(c.out.dtype);
  const bool is_less =
      unsplit && packed_bytes(*unsplit, c) < repeated_bytes && packed_bytes(*unsplit, c) <= scratch;
  return is_less ? unsplit : p;
}

struct ProductMaker {
  const Step& step;
  const MatrixProducts& p;
  MatrixDim batch = {};
  std::vector<Launch> out = {};

  // Returns the largest power of two, up to the alignment of slots, that divides all these
  // distances in bytes.
  static int alignment(const View& v, std::initializer_list<std::int64_t> elements) {
    auto all = std::gcd(kAlignment, v.offset * bytes_of(v.dtype));
    for (auto e : elements) all = std::gcd(all, e * bytes_of(v.dtype));
    for (auto& t : v.terms) all = std::gcd(all, t.stride * bytes_of(v.dtype));
    return int(all);
  }
  // Returns operand x (rows, cols) of a row-major matmul, with these strides, as a column-major
  // matrix: its transpose, or itself.
  static Matrix matrix(const View& v, std::int64_t rows, std::int64_t row, std::int64_t cols,
                       std::int64_t col, std::int64_t step, std::int64_t at) {
    Matrix m{.dtype = v.dtype, .step = step, .alignment = alignment(v, {step, at})};
    bool by_rows = cols == 1 ? rows == 1 || row != 1 : col == 1;
    m.rows = by_rows ? cols : rows;
    m.cols = by_rows ? rows : cols;
    m.ld = std::max(m.cols == 1 ? m.rows : by_rows ? row : col, m.rows);
    m.transposed = !by_rows;
    return m;
  }
  static KernelArgument argument(const View& v, std::int64_t at, bool writes = false) {
    KernelArgument w{v.slot, (v.offset + at) * bytes_of(v.dtype), {}, writes};
    for (auto& t : v.terms) w.loops.push_back({t.loop, t.stride * bytes_of(v.dtype)});
    return w;
  }
  // Copies a view to scratch memory, `at` bytes from its start.
  View packed(const View& v, const Packing& how, std::int64_t at) {
    View from = v, to{kArenaSlot, v.dtype, (step.scratch + at) / bytes_of(v.dtype), how.to, {}};
    from.strides = how.from;
    for (auto& l : launches_of({.kind = Kind::copy, .copy = {how.dims, from, to}}))
      out.push_back(std::move(l));
    return to;
  }
  void make() {
    auto& c = step.contract;
    View x = p.swapped ? c.b : c.a, y = p.swapped ? c.a : c.b;
    const auto x_bytes = p.pack_a.used ? aligned(p.pack_a.elements * bytes_of(x.dtype)) : 0;
    if (p.pack_a.used) x = packed(x, p.pack_a, 0);
    if (p.pack_b.used) y = packed(y, p.pack_b, x_bytes);
    auto iterated = p.outer;
    auto most = std::max_element(iterated.begin(), iterated.end(), [](auto& a, auto& b) {
      return (a.out != 0) * a.n < (b.out != 0) * b.n;
    });
    if (most != iterated.end() && most->out != 0) {
      batch = *most;
      iterated.erase(most);
    }

    for (std::int64_t o = 0; o < points(iterated); ++o)
      for (std::int64_t k = 0; k < points(p.k_outer); ++k) {
        auto at = [&](MatrixStride s) {
          return offset_at(iterated, s, o) + offset_at(p.k_outer, s, k);
        };
        add_even(x, at(&MatrixDim::a), y, at(&MatrixDim::b), at(&MatrixDim::out),
                 c.accumulate || k > 0);
      }
  }
  // Returns the number of positions beyond a multiple of 16 bytes, if v is contiguous along this
  // dim, its rows are aligned, and the matmul is large. Otherwise returns 0.
  std::int64_t over(const View& v, std::int64_t n, std::int64_t along, std::int64_t row,
                    std::int64_t at) const {
    constexpr std::int64_t step_bytes = 16, worth = 1 << 24;  // multiplications
    const auto each = step_bytes / bytes_of(v.dtype);
    const bool aligned_rows = along == 1 && row % each == 0 && alignment(v, {at}) % step_bytes == 0;
    return aligned_rows && n > each && double(p.m.n) * double(p.n.n) * double(p.k.n) >= worth
               ? n % each
               : 0;
  }
  // For odd sizes the library selects kernels that are 5x slower, so the remainder is a matmul of
  // its own.
  void add_even(const View& x, std::int64_t x_at, const View& y, std::int64_t y_at,
                std::int64_t out_at, bool accumulate) {
    auto& to = step.contract.out;
    const auto m_over = over(x, p.m.n, p.m.a, p.k.a, x_at);
    const auto n_over =
        std::max(over(y, p.n.n, p.n.b, p.k.b, y_at), over(to, p.n.n, p.n.out, p.m.out, out_at));
    const auto m = p.m.n - m_over, n = p.n.n - n_over;
    add(x, x_at, m, y, y_at, n, out_at, accumulate);
    if (n_over > 0) add(x, x_at, m, y, y_at + n * p.n.b, n_over, out_at + n * p.n.out, accumulate);
    if (m_over > 0)
      add(x, x_at + m * p.m.a, m_over, y, y_at, p.n.n, out_at + m * p.m.out, accumulate);
  }
  void add(const View& x, std::int64_t x_at, std::int64_t m, const View& y, std::int64_t y_at,
           std::int64_t n, std::int64_t out_at, bool accumulate) {
    auto& to = step.contract.out;
    Product w;  // column-major: out^T (n, m) = y^T (n, k) x^T (k, m)
    w.batch = batch.n;
    w.accumulate = accumulate;
    w.a = matrix(y, p.k.n, p.k.b, n, p.n.b, batch.b, y_at);
    w.b = matrix(x, m, p.m.a, p.k.n, p.k.a, batch.a, x_at);
    const auto ld = std::max(m == 1 ? n : p.m.out, n);
    w.out = {to.dtype, n, m, ld, batch.out, alignment(to, {batch.out, out_at})};
    out.push_back({.arguments = {argument(y, y_at), argument(x, x_at), argument(to, out_at, true)},
                   .product = w});
  }
};

}  // namespace

std::optional<std::vector<Launch>> products_of(const Step& s) {
  auto p = plan_of(s.contract, s.scratch < 0 ? 0 : s.scratch_bytes);
  if (!p || (s.scratch < 0 && (p->pack_a.used || p->pack_b.used))) return {};
  ProductMaker m{s, *p};
  auto all = points(p->outer) * points(p->k_outer), widest = std::int64_t(1);
  for (auto& d : p->outer) widest = std::max(widest, d.out != 0 ? d.n : 1);
  if (all / widest > kMostProducts) return {};
  m.make();
  return std::move(m.out);
}
std::string to_string(const Product& p) {
  auto one = [](const Matrix& m) {
    return fmt::format("{} {}x{} ld {} step {} align {}{}", name_of(m.dtype), m.rows, m.cols, m.ld,
                       m.step, m.alignment, m.transposed ? " transposed" : "");
  };
  return fmt::format("{} = {} by {}, {}{}", one(p.out), one(p.a), one(p.b), p.batch,
                     p.accumulate ? " added" : "");
}
std::int64_t bytes_of(const Matrix& m, std::int64_t batch) {
  return ((batch - 1) * m.step + (m.cols - 1) * m.ld + m.rows) * bytes_of(m.dtype);
}
std::int64_t product_scratch(const Contract& c) {
  auto p = plan_of(c, std::numeric_limits<std::int64_t>::max());
  return p ? packed_bytes(*p, c) : 0;
}

}  // namespace haliax::cuda
