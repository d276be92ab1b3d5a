// Reductions and matmuls of nest_code.h.
#if defined(HALIAX_XBYAK)
#include <limits>
#include <memory>

#include "nest_code.h"

namespace haliax::cpu {

using program::Code;
using Xbyak::Xmm;
using Xbyak::Ymm;
using Xbyak::Zmm;

namespace {

constexpr int most_columns = 8, most_rows = 4;  // of a block of a matmul
constexpr std::int64_t most_unrolled = 16;      // positions along k

}  // namespace

// ---- reductions: sums in f64, rounded once ----

NestCode::Accumulator NestCode::start(int value) {
  Accumulator sum{value, nest_->code[std::size_t(value)].code, reg(take()), {}};
  if (sum.code == Code::reduce_sum) {
    sum.high.emplace(reg(take()));
    bits_xor(sum.low, sum.low, sum.low);
    bits_xor(*sum.high, *sum.high, *sum.high);
  } else {
    const float infinity = std::numeric_limits<float>::infinity();
    vbroadcastss(sum.low, at(sum.code == Code::reduce_max ? -infinity : infinity));
  }
  return sum;
}
// Returns the register of half as many bits.
Xmm NestCode::half(const Vector& z) const {
  return wide_ ? static_cast<Xmm>(Ymm(z.getIdx())) : Xmm(z.getIdx());
}
void NestCode::upper_half(const Vector& to, const Vector& z) {
  if (wide_)
    vextractf64x4(Ymm(to.getIdx()), Zmm(z.getIdx()), 1);
  else
    vextractf128(Xmm(to.getIdx()), Ymm(z.getIdx()), 1);
}
void NestCode::accumulate(Accumulator& sum) {
  const int source = nest_->code[std::size_t(sum.value)].args[0];
  Vector x = vector(source);
  std::optional<Temporary> cleared;
  if (rest_ && reduces_lanes()) {  // elements past the end must not count
    cleared.emplace(*this);
    const float infinity = std::numeric_limits<float>::infinity();
    const float nothing = sum.code == Code::reduce_sum   ? 0
                          : sum.code == Code::reduce_max ? -infinity
                                                         : infinity;
    vbroadcastss(cleared->z, at(nothing));
    if (wide_)
      vmovaps(cleared->z | Opmask(rest_mask), x);
    else
      vblendvps(cleared->z, cleared->z, x, reg(rest_lanes));
    x = cleared->z;
  }
  if (sum.code == Code::reduce_sum) {
    Temporary t(*this);
    vcvtps2pd(t.z, half(x));
    vaddpd(sum.low, sum.low, t.z);
    upper_half(t.z, x);
    vcvtps2pd(t.z, half(t.z));
    vaddpd(*sum.high, *sum.high, t.z);
  } else {
    combine(sum.code == Code::reduce_max ? Code::max : Code::min, sum.low, x);
  }
  cleared.reset();
  used(source);
}
// to = max(to, x) or min(to, x), NaN if either is NaN.
void NestCode::combine(Code code, const Vector& to, const Vector& x) {
  const auto better = [&](const auto& out) {
    code == Code::max ? vmaxps(out, to, x) : vminps(out, to, x);
  };
  if (wide_) {
    vcmpps(Opmask(scratch_mask), to, to, 7);  // ordered
    better(to | Opmask(scratch_mask));
  } else {
    Temporary unordered(*this), other(*this);
    const Vector u = to.isYMM() ? unordered.z : Xmm(unordered.z.getIdx()),
                 o = to.isYMM() ? other.z : Xmm(other.z.getIdx());
    vcmpps(u, to, to, 3);
    better(o);
    vblendvps(to, o, to, u);
  }
}
void NestCode::finish_reduction(Accumulator& sum) {
  const Vector z = sum.low;
  if (sum.code != Code::reduce_sum) {
    if (reduces_lanes()) combine_lanes(sum);
  } else if (reduces_lanes()) {
    const Vector& other = *sum.high;
    const Xmm x(z.getIdx()), y(other.getIdx());
    vaddpd(z, z, other);
    if (wide_) {
      upper_half(other, z);
      vaddpd(Ymm(x.getIdx()), Ymm(x.getIdx()), Ymm(y.getIdx()));
      vextractf32x4(y, Ymm(x.getIdx()), 1);
    } else {
      vextractf128(y, Ymm(x.getIdx()), 1);
    }
    vaddpd(x, x, y);
    vunpckhpd(y, x, x);
    vaddsd(x, x, y);
    vcvtsd2ss(x, x, x);
    vbroadcastss(z, x);
  } else {
    vcvtpd2ps(half(z), z);
    vcvtpd2ps(half(*sum.high), *sum.high);
    if (wide_)
      vinsertf64x4(Zmm(z.getIdx()), Zmm(z.getIdx()), Ymm(sum.high->getIdx()), 1);
    else
      vinsertf128(Ymm(z.getIdx()), Ymm(z.getIdx()), Xmm(sum.high->getIdx()), 1);
  }
  if (sum.high) free_.set(std::size_t(sum.high->getIdx()));
  places_[std::size_t(sum.value)] = {Place::vector, z.getIdx()};
}
void NestCode::combine_lanes(const Accumulator& sum) {
  const Code code = sum.code == Code::reduce_max ? Code::max : Code::min;
  Temporary t(*this);
  const Xmm x(sum.low.getIdx()), y(t.z.getIdx());
  upper_half(t.z, sum.low);
  if (wide_) {
    combine(code, Ymm(x.getIdx()), Ymm(y.getIdx()));
    vextractf32x4(y, Ymm(x.getIdx()), 1);
  }
  combine(code, x, y);
  vpermilps(y, x, 0x4e);
  combine(code, x, y);
  vpermilps(y, x, 0xb1);
  combine(code, x, y);
  vbroadcastss(sum.low, x);
}

// ---- matmuls ----

void NestCode::emit_product(const ProductNest& p) {
  begin(p.dims, p.vector);
  row_ = p.row;
  start_cursors({&p.a, &p.b, &p.out});
  if (p.vector >= p.outer) return each_position(0, p.outer, [&] { emit_dot(p); });
  const auto columns = std::size_t(p.vector), row = std::size_t(p.row);
  const std::int64_t n = dims_[columns], rows = p.row < 0 ? 1 : dims_[row],
                     registers = (n + lanes() - 1) / lanes(), rest = n % lanes();
  // the sums, the columns of b and an element of a fill the registers
  const int widest = rows == 1 ? most_columns : wide_ ? 4 : 2;
  const int highest = registers == 1 ? 2 * most_rows : most_rows;
  each_position(0, p.outer, [&] {
    each_block(row, rows, 1, highest, [&](int r, bool) {
      each_block(columns, registers, lanes(), widest,
                 [&](int c, bool is_last) { emit_block(p, r, c, is_last ? rest : 0); });
    });
  });
}
// Runs f for blocks of at most `most` units of a dim, of `width` positions each. The last block is
// emitted apart if it is smaller or has a unit that is not full.
void NestCode::each_block(std::size_t dim, std::int64_t count, std::int64_t width, int most,
                          const std::function<void(int, bool)>& f) {
  if (count <= most) return f(int(count), true);
  const std::int64_t blocks = (count - 1) / most, moved = blocks * most;
  counted(blocks, [&] {
    f(most, false);
    move_cursors(dim, most * width);
  });
  f(int(count - moved), true);
  move_cursors(dim, -moved * width);
}
Xbyak::Address NestCode::block_address(int cursor, int row, int column) {
  const auto& c = cursors_[std::size_t(cursor)];
  const std::int64_t rows = row_ < 0 ? 0 : c.access->strides[std::size_t(row_)] * row * c.unit;
  return ptr[cursor_register(cursor) + std::size_t(c.offset + rows + 4 * lanes() * column)];
}
// Computes `rows` times `columns` registers of the result. The last column has `rest` elements, if
// it is not full. In a small block, several sums hide the latency of an addition.
void NestCode::emit_block(const ProductNest& p, int rows, int columns, std::int64_t rest) {
  const int size = rows * columns, sums = size == 1 ? 4 : size <= 3 ? 2 : 1;
  set_rest(rest);
  rest_ = false;
  std::vector<Vector> acc;
  for (int k = 0; k < sums * size; ++k) {
    acc.push_back(reg(take()));
    bits_xor(acc.back(), acc.back(), acc.back());
  }
  int next = 0;
  const auto multiply = [&] {
    std::vector<std::unique_ptr<Temporary>> b;
    for (int c = 0; c < columns && (rows > 1 || !wide_); ++c) {
      b.push_back(std::make_unique<Temporary>(*this));
      load_block(b.back()->z, 1, 0, c, rest > 0 && c == columns - 1);
    }
    for (int r = 0; r < rows; ++r) {
      Temporary x(*this);
      vbroadcastss(x.z, block_address(0, r, 0));
      for (int c = 0; c < columns; ++c) {
        const Vector& sum = acc[std::size_t(next * size + r * columns + c)];
        if (!b.empty())
          vfmadd231ps(sum, x.z, b[std::size_t(c)]->z);
        else if (rest > 0 && c == columns - 1)
          vfmadd231ps(sum | Opmask(rest_mask), x.z, block_address(1, 0, c));
        else
          vfmadd231ps(sum, x.z, block_address(1, 0, c));
      }
    }
    next = (next + 1) % sums;
  };
  each_product(p.outer, multiply);
  for (int k = size; k < sums * size; ++k)
    vaddps(acc[std::size_t(k % size)], acc[std::size_t(k % size)], acc[std::size_t(k)]);
  store_block(p, acc, rows, columns, rest);
  for (auto& z : acc) free_.set(std::size_t(z.getIdx()));
}
void NestCode::load_block(const Vector& z, int cursor, int row, int column, bool is_part) {
  const auto from = block_address(cursor, row, column);
  if (!is_part)
    vmovups(z, from);
  else if (wide_)
    vmovups(z | Opmask(rest_mask) | T_z, from);
  else
    vmaskmovps(z, reg(rest_lanes), from);
}
void NestCode::store_block(const ProductNest& p, const std::vector<Vector>& sums, int rows,
                           int columns, std::int64_t rest) {
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) {
      const Vector& sum = sums[std::size_t(r * columns + c)];
      const bool is_part = rest > 0 && c == columns - 1;
      const auto to = block_address(2, r, c);
      if (p.accumulate) {
        Temporary before(*this);
        load_block(before.z, 2, r, c, is_part);
        vaddps(sum, sum, before.z);
      }
      if (!is_part)
        vmovups(to, sum);
      else if (wide_)
        vmovups(to | Opmask(rest_mask), sum);
      else
        vmaskmovps(to, reg(rest_lanes), sum);
    }
}
// Runs f at each position of the dims that are summed, several positions of the last one per
// iteration.
void NestCode::each_product(int first, const std::function<void()>& f) {
  const int last = int(dims_.size()) - 1;
  if (first > last) return f();
  each_position(first, last, [&] {
    const auto dim = std::size_t(last);
    const std::int64_t n = dims_[dim], at_once = n <= most_unrolled ? n : most_unrolled / 2,
                       iterations = n / at_once;
    const auto several = [&](std::int64_t count) {
      for (std::int64_t k = 0; k < count; ++k) unrolled(dim, k, f);
    };
    if (iterations == 1) {
      several(at_once);
    } else {
      counted(iterations, [&] {
        several(at_once);
        move_cursors(dim, at_once);
      });
      several(n - iterations * at_once);
      move_cursors(dim, -iterations * at_once);
      return;
    }
    if (n > at_once) unrolled(dim, at_once, [&] { several(n - at_once); });
  });
}
// Computes one element of the result, with the lanes along k.
void NestCode::emit_dot(const ProductNest& p) {
  std::vector<Vector> acc;
  for (int k = 0; k < 2; ++k) {
    acc.push_back(reg(take()));
    bits_xor(acc.back(), acc.back(), acc.back());
  }
  int next = 0;
  each_position(p.outer, int(dims_.size()), [&] {
    each_register([&] {
      const Vector& sum = acc[std::size_t(next)];
      next = 1 - next;
      Temporary x(*this);
      load_target(x.z, 0, 1);
      if (!rest_) {
        vfmadd231ps(sum, x.z, array_address(1));
      } else if (wide_) {
        vfmadd231ps(sum | Opmask(rest_mask), x.z, array_address(1));
      } else {
        Temporary y(*this);
        load_target(y.z, 1, 1);
        vfmadd231ps(sum, x.z, y.z);
      }
    });
  });
  const Vector &z = acc[0], &t = acc[1];
  const Xmm x(z.getIdx()), y(t.getIdx());
  vaddps(z, z, t);
  upper_half(t, z);
  if (wide_) {
    vaddps(Ymm(x.getIdx()), Ymm(x.getIdx()), Ymm(y.getIdx()));
    vextractf32x4(y, Ymm(x.getIdx()), 1);
  }
  vaddps(x, x, y);
  vpermilps(y, x, 0x4e);
  vaddps(x, x, y);
  vpermilps(y, x, 0xb1);
  vaddss(x, x, y);
  if (p.accumulate) vaddss(x, x, array_address(2));
  vmovss(array_address(2), x);
  for (auto& r : acc) free_.set(std::size_t(r.getIdx()));
}

}  // namespace haliax::cpu
#endif
