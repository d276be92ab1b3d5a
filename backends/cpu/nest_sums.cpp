// Reductions and matmuls of nest_code.h.
#if defined(HALIAX_XBYAK)
#include <limits>

#include "nest_code.h"

namespace haliax::cpu {

using program::Code;
using Xbyak::Xmm;
using Xbyak::Ymm;
using Xbyak::Zmm;

namespace {

constexpr int most_columns = 8;             // registers of columns at once
constexpr std::int64_t most_unrolled = 16;  // positions along k

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
  start_cursors({&p.a, &p.b, &p.out});
  if (p.vector >= p.outer) return each_position(0, p.outer, [&] { emit_dot(p); });
  const auto dim = std::size_t(p.vector);
  const std::int64_t width = lanes(), n = dims_[dim], full = n / width, rest = n % width,
                     total = full + (rest > 0);
  each_position(0, p.outer, [&] {
    const std::int64_t blocks = total > most_columns ? full / most_columns : 0;
    if (blocks > 0) {
      counted(blocks, [&] {
        emit_columns(p, most_columns, 0);
        move_cursors(dim, most_columns * width);
      });
    }
    const std::int64_t left = total - blocks * most_columns;
    if (left > 0) emit_columns(p, int(left), rest);
    if (blocks > 0) move_cursors(dim, -blocks * most_columns * width);
  });
}
// Computes `columns` registers of a row of the result. The last one has `rest` elements, if it is
// not full. With few columns, several sums hide the latency of an addition.
void NestCode::emit_columns(const ProductNest& p, int columns, std::int64_t rest) {
  const std::int64_t width = lanes();
  const int sums = columns == 1 ? 4 : columns <= 3 ? 2 : 1;
  set_rest(rest);
  rest_ = false;
  std::vector<Vector> acc;
  for (int k = 0; k < sums * columns; ++k) {
    acc.push_back(reg(take()));
    bits_xor(acc.back(), acc.back(), acc.back());
  }
  const auto at = [&](int cursor, int column) {
    return ptr[cursor_register(cursor) +
               std::size_t(cursors_[std::size_t(cursor)].offset + 4 * width * column)];
  };
  const auto is_part = [&](int column) { return rest > 0 && column == columns - 1; };
  int next = 0;
  const auto multiply = [&] {
    Temporary x(*this);
    vbroadcastss(x.z, at(0, 0));
    for (int c = 0; c < columns; ++c) {
      const Vector& sum = acc[std::size_t(next * columns + c)];
      if (!is_part(c)) {
        vfmadd231ps(sum, x.z, at(1, c));
      } else if (wide_) {
        vfmadd231ps(sum | Opmask(rest_mask), x.z, at(1, c));
      } else {
        Temporary w(*this);
        vmaskmovps(w.z, reg(rest_lanes), at(1, c));
        vfmadd231ps(sum, x.z, w.z);
      }
    }
    next = (next + 1) % sums;
  };
  each_product(p.outer, multiply);
  for (int k = 1; k < sums; ++k)
    for (int c = 0; c < columns; ++c)
      vaddps(acc[std::size_t(c)], acc[std::size_t(c)], acc[std::size_t(k * columns + c)]);
  for (int c = 0; c < columns; ++c) {
    const Vector& sum = acc[std::size_t(c)];
    if (!is_part(c)) {
      if (p.accumulate) vaddps(sum, sum, at(2, c));
      vmovups(at(2, c), sum);
    } else if (wide_) {
      if (p.accumulate) vaddps(sum | Opmask(rest_mask), sum, at(2, c));
      vmovups(at(2, c) | Opmask(rest_mask), sum);
    } else {
      if (p.accumulate) {
        Temporary before(*this);
        vmaskmovps(before.z, reg(rest_lanes), at(2, c));
        vaddps(sum, sum, before.z);
      }
      vmaskmovps(at(2, c), reg(rest_lanes), sum);
    }
  }
  for (auto& z : acc) free_.set(std::size_t(z.getIdx()));
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
