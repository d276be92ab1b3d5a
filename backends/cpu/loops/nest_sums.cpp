// Kernel: the reductions and matmuls of nest_code.h.
#if defined(HALIAX_XBYAK)
#include <algorithm>
#include <limits>
#include <memory>

#include "nest_code.h"

namespace haliax::cpu {

using program::Code;
using Xbyak::Xmm;
using Xbyak::Ymm;
using Xbyak::Zmm;

namespace {

constexpr std::int64_t most_unrolled = 16;  // positions along k

}  // namespace

// ---- reductions: sums in f64, rounded once ----

NestCode::Accumulator NestCode::start(int value) {
  Accumulator sum{value, nest_->code[std::size_t(value)].code, {Vector(0), Vector(0)}};
  if (sum.code == Code::reduce_sum) {
    sum.sum = zero_sum();
  } else {
    const float infinity = std::numeric_limits<float>::infinity();
    sum.sum.low = reg(take());
    vbroadcastss(sum.sum.low, at(sum.code == Code::reduce_max ? -infinity : infinity));
  }
  return sum;
}
NestCode::F64Sum NestCode::zero_sum() {
  F64Sum sum{reg(take()), reg(take())};
  for (const Vector& z : {sum.low, sum.high}) bits_xor(z, z, z);
  return sum;
}
void NestCode::add_as_f64(const F64Sum& sum, const Vector& x) {
  Temporary t(*this);
  vcvtps2pd(t.z, lower_half(x));
  vaddpd(sum.low, sum.low, t.z);
  upper_half(t.z, x);
  vcvtps2pd(t.z, lower_half(t.z));
  vaddpd(sum.high, sum.high, t.z);
}
// Rounds the sums to f32, in the register `low`.
void NestCode::round_to_f32(const F64Sum& sum) {
  vcvtpd2ps(lower_half(sum.low), sum.low);
  vcvtpd2ps(lower_half(sum.high), sum.high);
  const int low = sum.low.getIdx(), high = sum.high.getIdx();
  if (avx512_)
    vinsertf64x4(Zmm(low), Zmm(low), Ymm(high), 1);
  else
    vinsertf128(Ymm(low), Ymm(low), Xmm(high), 1);
  free_.set(std::size_t(high));
}
// Adds the sums of all lanes and rounds once, in each lane of the register `low`.
void NestCode::add_lanes(const F64Sum& sum) {
  const Xmm x(sum.low.getIdx()), y(sum.high.getIdx());
  vaddpd(sum.low, sum.low, sum.high);
  if (avx512_) {
    upper_half(sum.high, sum.low);
    vaddpd(Ymm(x.getIdx()), Ymm(x.getIdx()), Ymm(y.getIdx()));
    vextractf32x4(y, Ymm(x.getIdx()), 1);
  } else {
    vextractf128(y, Ymm(x.getIdx()), 1);
  }
  vaddpd(x, x, y);
  vunpckhpd(y, x, x);
  vaddsd(x, x, y);
  vcvtsd2ss(x, x, x);
  vbroadcastss(sum.low, x);
  free_.set(std::size_t(y.getIdx()));
}
// Returns the register of half as many bits.
Xmm NestCode::lower_half(const Vector& z) const {
  return avx512_ ? static_cast<Xmm>(Ymm(z.getIdx())) : Xmm(z.getIdx());
}
void NestCode::upper_half(const Vector& to, const Vector& z) {
  if (avx512_)
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
    if (avx512_)
      vmovaps(cleared->z | Opmask(rest_mask), x);
    else
      vblendvps(cleared->z, cleared->z, x, reg(rest_lanes));
    x = cleared->z;
  }
  if (sum.code == Code::reduce_sum)
    add_as_f64(sum.sum, x);
  else
    combine(sum.code == Code::reduce_max ? Code::max : Code::min, sum.sum.low, x);
  cleared.reset();
  finish_read(source);
}
// to = max(to, x) or min(to, x), NaN if either is NaN.
void NestCode::combine(Code code, const Vector& to, const Vector& x) {
  const auto better = [&](const auto& out) {
    code == Code::max ? vmaxps(out, to, x) : vminps(out, to, x);
  };
  if (avx512_) {
    vcmpps(Opmask(scratch_mask), to, to, float_compare::ordered);
    better(to | Opmask(scratch_mask));
  } else {
    Temporary unordered(*this), other(*this);
    const Vector u = to.isYMM() ? unordered.z : Xmm(unordered.z.getIdx()),
                 o = to.isYMM() ? other.z : Xmm(other.z.getIdx());
    vcmpps(u, to, to, float_compare::unordered);
    better(o);
    vblendvps(to, o, to, u);
  }
}
void NestCode::finish_reduction(Accumulator& sum) {
  if (sum.code == Code::reduce_sum)
    reduces_lanes() ? add_lanes(sum.sum) : round_to_f32(sum.sum);
  else if (reduces_lanes())
    combine_lanes(sum);
  places_[std::size_t(sum.value)] = {Place::vector, sum.sum.low.getIdx()};
}
void NestCode::combine_lanes(const Accumulator& sum) {
  const Code code = sum.code == Code::reduce_max ? Code::max : Code::min;
  Temporary t(*this);
  const Xmm x(sum.sum.low.getIdx()), y(t.z.getIdx());
  upper_half(t.z, sum.sum.low);
  if (avx512_) {
    combine(code, Ymm(x.getIdx()), Ymm(y.getIdx()));
    vextractf32x4(y, Ymm(x.getIdx()), 1);
  }
  combine(code, x, y);
  vpermilps(y, x, 0x4e);
  combine(code, x, y);
  vpermilps(y, x, 0xb1);
  combine(code, x, y);
  vbroadcastss(sum.sum.low, x);
}

// ---- matmuls: products and sums in f64, rounded once, as in matmuls that are called ----

void NestCode::emit_matmul(const MatmulNest& p) {
  begin(p.dims, p.vector);
  row_ = p.row;
  start_cursors({&p.a, &p.b, &p.out});
  if (p.sums_lanes()) return each_position(0, p.outer, [&] { emit_dot(p); });
  const auto columns = std::size_t(p.vector), row = std::size_t(p.row);
  const std::int64_t n = dims_[columns], rows = p.row < 0 ? 1 : dims_[row],
                     registers = (n + lanes() - 1) / lanes(), rest = n % lanes();
  // A block has up to `highest` rows and `widest` registers per row, `most` registers in all. A
  // register of results requires two registers of f64.
  const int most = avx512_ ? 8 : 4, highest = registers == 1 ? most : 2;
  const int widest = rows == 1 ? most : most / 2;
  each_position(0, p.outer, [&] {
    each_block(row, rows, 1, highest, [&](int r, bool) {
      each_block(columns, registers, lanes(), widest, [&](int c, bool is_last) {
        emit_block(p, {r, c, is_last ? rest : 0});
      });
    });
  });
}
// Runs f for blocks of at most `most` units of a dim, of `width` positions each. The last block has
// separate code, as it may be smaller or have a unit that is not full.
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
void NestCode::emit_block(const MatmulNest& p, const ResultBlock& block) {
  set_rest(block.rest);
  rest_ = false;
  // in a small block, several sums hide the latency of an addition
  const int size = block.rows * block.columns, sets = size == 1 ? 4 : size <= 3 ? 2 : 1;
  std::vector<F64Sum> sums;
  for (int k = 0; k < sets * size; ++k) sums.push_back(zero_sum());
  int set = 0;
  each_term(p.outer, [&] {
    add_products(block, std::span(sums).subspan(std::size_t(set * size), std::size_t(size)));
    set = (set + 1) % sets;
  });
  for (std::size_t k = std::size_t(size); k < sums.size(); ++k) {
    const F64Sum& total = sums[k % std::size_t(size)];
    vaddpd(total.low, total.low, sums[k].low);
    vaddpd(total.high, total.high, sums[k].high);
    free_.set(std::size_t(sums[k].low.getIdx()));
    free_.set(std::size_t(sums[k].high.getIdx()));
  }
  for (int r = 0; r < block.rows; ++r)
    for (int c = 0; c < block.columns; ++c) {
      const F64Sum& sum = sums[std::size_t(r * block.columns + c)];
      round_to_f32(sum);
      if (p.accumulate) {
        Temporary before(*this);
        load_register(before.z, block_address(2, r, c), block.is_part(c));
        vaddps(sum.low, sum.low, before.z);
      }
      store_register(block_address(2, r, c), sum.low, block.is_part(c));
      free_.set(std::size_t(sum.low.getIdx()));
    }
}
// Adds a * b at one position of k.
void NestCode::add_products(const ResultBlock& block, std::span<const F64Sum> sums) {
  std::vector<std::unique_ptr<F64Values>> b;
  for (int c = 0; c < block.columns && block.rows > 1; ++c)
    b.push_back(std::make_unique<F64Values>(*this, block_address(1, 0, c), block.is_part(c)));
  for (int r = 0; r < block.rows; ++r) {
    Temporary x(*this);
    if (avx512_) {
      vcvtps2pd(x.z, ptr_b[block_address(0, r, 0).getRegExp()]);
    } else {
      vbroadcastss(lower_half(x.z), block_address(0, r, 0));
      vcvtps2pd(x.z, lower_half(x.z));
    }
    for (int c = 0; c < block.columns; ++c) {
      const F64Sum& sum = sums[std::size_t(r * block.columns + c)];
      if (block.rows > 1) {
        vfmadd231pd(sum.low, x.z, b[std::size_t(c)]->low.z);
        vfmadd231pd(sum.high, x.z, b[std::size_t(c)]->high.z);
        continue;
      }
      const F64Values w(*this, block_address(1, 0, c), block.is_part(c));
      vfmadd231pd(sum.low, x.z, w.low.z);
      vfmadd231pd(sum.high, x.z, w.high.z);
    }
  }
}
NestCode::F64Values::F64Values(NestCode& code, const Address& from, bool is_part)
    : low(code), high(code) {
  if (is_part) {
    code.load_register(low.z, from, true);
    code.upper_half(high.z, low.z);
    code.vcvtps2pd(high.z, code.lower_half(high.z));
    code.vcvtps2pd(low.z, code.lower_half(low.z));
  } else {
    code.vcvtps2pd(low.z, from);
    code.vcvtps2pd(high.z, code.ptr[from.getRegExp() + std::size_t(2 * code.lanes())]);
  }
}
// Runs f at each position of the dims that are summed, several positions of the last one per
// iteration.
void NestCode::each_term(int first, const std::function<void()>& f) {
  const int last = int(dims_.size()) - 1;
  if (first > last) return f();
  each_position(first, last, [&] {
    const auto dim = std::size_t(last);
    const std::int64_t n = dims_[dim], at_once = std::min(n, most_unrolled),
                       iterations = n / at_once, moved = n > at_once ? iterations * at_once : 0;
    const auto several = [&](std::int64_t count) {
      for (std::int64_t k = 0; k < count; ++k) unrolled(dim, k, f);
    };
    counted(iterations, [&] {
      several(at_once);
      if (moved > 0) move_cursors(dim, at_once);
    });
    if (moved > 0) several(n - moved);
    if (moved > 0) move_cursors(dim, -moved);
  });
}
// Computes one element of the result, with the lanes along k.
void NestCode::emit_dot(const MatmulNest& p) {
  const F64Sum sum = zero_sum();
  each_position(p.outer, int(dims_.size()), [&] {
    each_register([&] {
      const F64Values x(*this, array_address(0), rest_), y(*this, array_address(1), rest_);
      vfmadd231pd(sum.low, x.low.z, y.low.z);
      vfmadd231pd(sum.high, x.high.z, y.high.z);
    });
  });
  add_lanes(sum);
  const Xmm x(sum.low.getIdx());
  if (p.accumulate) vaddss(x, x, array_address(2));
  vmovss(array_address(2), x);
  free_.set(std::size_t(sum.low.getIdx()));
}

}  // namespace haliax::cpu
#endif
