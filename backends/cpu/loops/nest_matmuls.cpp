// Kernel: the matmuls of nest_code.h.
#if defined(HALIAX_XBYAK)
#include <algorithm>
#include <memory>

#include "nest_code.h"

namespace haliax::cpu {

using Xbyak::Xmm;

namespace {

// terms that are added in f32; the sums of such groups are added in f64
constexpr std::int64_t most_in_group = 16;

}  // namespace

void NestCode::emit_matmul(const MatmulNest& p) {
  begin(p.dims, p.vector);
  row_ = p.row;
  start_cursors({&p.a, &p.b, &p.out});
  if (p.sums_lanes()) return each_position(0, p.outer, [&] { emit_dot(p); });
  const auto columns = std::size_t(p.vector), row = std::size_t(p.row);
  const std::int64_t n = dims_[columns], rows = p.row < 0 ? 1 : dims_[row],
                     registers = (n + lanes() - 1) / lanes(), rest = n % lanes();
  // A block has up to `highest` rows and `widest` registers per row, `most` registers in all. A
  // register of results requires up to one register of f32 and two of f64.
  const int most = avx512_ ? 8 : 4, highest = registers == 1 ? most : 2;
  const int widest = rows == 1 ? most : most / 2;
  const std::int64_t full =
      std::min<std::int64_t>(rows, highest) * std::min<std::int64_t>(registers, widest);
  const std::size_t sets = full == 1 ? 4 : full <= 3 ? 2 : 1;
  each_position(0, p.outer, [&] {
    each_block(row, rows, 1, highest, [&](int r, bool) {
      each_block(columns, registers, lanes(), widest, [&](int c, bool is_last) {
        emit_block(p, {r, c, is_last ? rest : 0, sets});
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
  const auto sums = p.is_exact ? sum_exactly(p, block) : sum_in_groups(p, block);
  for (int r = 0; r < block.rows; ++r)
    for (int c = 0; c < block.columns; ++c) {
      const Vector& sum = sums[std::size_t(r * block.columns + c)];
      if (p.accumulate) {
        Temporary before(*this);
        load_register(before.z, block_address(2, r, c), block.is_part(c));
        vaddps(sum, sum, before.z);
      }
      store_register(block_address(2, r, c), sum, block.is_part(c));
      free_.set(std::size_t(sum.getIdx()));
    }
}
// Returns registers with the sums in f64, rounded to f32.
std::vector<Xmm> NestCode::sum_exactly(const MatmulNest& p, const ResultBlock& block) {
  const std::size_t size = block.size(), sets = block.sets;
  std::vector<F64Sum> sums;
  for (std::size_t k = 0; k < sets * size; ++k) sums.push_back(zero_sum());
  std::size_t set = 0;
  each_group(p.outer, [&](std::int64_t count) {
    for (std::int64_t k = 0; k < count; ++k, set = (set + 1) % sets)
      unrolled(dims_.size() - 1, k,
               [&] { add_exact_products(block, std::span(sums).subspan(set * size, size)); });
  });
  std::vector<Vector> out;
  for (std::size_t k = 0; k < size; ++k) {
    for (std::size_t other = k + size; other < sums.size(); other += size) {
      vaddpd(sums[k].low, sums[k].low, sums[other].low);
      vaddpd(sums[k].high, sums[k].high, sums[other].high);
      free_.set(std::size_t(sums[other].low.getIdx()));
      free_.set(std::size_t(sums[other].high.getIdx()));
    }
    round_to_f32(sums[k]);
    out.push_back(sums[k].low);
  }
  return out;
}
// Adds a * b at one position of k.
void NestCode::add_exact_products(const ResultBlock& block, std::span<const F64Sum> sums) {
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
// Returns registers with sums. Groups of terms are added in f32, and the groups in f64.
std::vector<Xmm> NestCode::sum_in_groups(const MatmulNest& p, const ResultBlock& block) {
  const std::size_t size = block.size();
  std::vector<Vector> parts;
  for (std::size_t k = 0; k < block.sets * size; ++k) parts.push_back(reg(take()));
  std::vector<F64Sum> sums;
  for (std::size_t k = 0; k < size; ++k) sums.push_back(zero_sum());
  each_group(p.outer, [&](std::int64_t count) {
    sum_group(block, parts, count);
    for (std::size_t k = 0; k < size; ++k) add_as_f64(sums[k], parts[k]);
  });
  for (auto& part : parts) free_.set(std::size_t(part.getIdx()));
  std::vector<Vector> out;
  for (auto& sum : sums) {
    round_to_f32(sum);
    out.push_back(sum.low);
  }
  return out;
}
// Sets the first parts to the sums of a * b over `count` positions of the last dim of k. The parts
// are one or several sets of the registers of a block.
void NestCode::sum_group(const ResultBlock& block, std::span<const Vector> parts,
                         std::int64_t count) {
  const std::size_t size = block.size();
  const auto sets = std::min(std::int64_t(block.sets), count);
  for (std::int64_t k = 0; k < count; ++k)
    unrolled(dims_.size() - 1, k, [&] {
      add_products(block, parts.subspan(std::size_t(k % sets) * size, size), k < sets);
    });
  for (std::size_t k = size; k < std::size_t(sets) * size; ++k)
    vaddps(parts[k % size], parts[k % size], parts[k]);
}
// Adds a * b at one position of k, or sets the sums to it.
void NestCode::add_products(const ResultBlock& block, std::span<const Vector> sums, bool is_first) {
  std::vector<std::unique_ptr<Temporary>> b;
  for (int c = 0; c < block.columns && block.rows > 1; ++c) {
    b.push_back(std::make_unique<Temporary>(*this));
    load_register(b.back()->z, block_address(1, 0, c), block.is_part(c));
  }
  const auto add = [&](const Vector& sum, const Vector& x, const Xbyak::Operand& y) {
    is_first ? vmulps(sum, x, y) : vfmadd231ps(sum, x, y);
  };
  for (int r = 0; r < block.rows; ++r) {
    Temporary x(*this);
    vbroadcastss(x.z, block_address(0, r, 0));
    for (int c = 0; c < block.columns; ++c) {
      const Vector& sum = sums[std::size_t(r * block.columns + c)];
      const Address from = block_address(1, 0, c);
      if (block.rows > 1) {
        add(sum, x.z, b[std::size_t(c)]->z);
      } else if (block.is_part(c)) {
        Temporary y(*this);
        load_register(y.z, from, true);
        add(sum, x.z, y.z);
      } else {
        add(sum, x.z, from);
      }
    }
  }
}
// Runs f for groups of positions of the dims that are summed: f(count), at the first of `count`
// positions of the last dim.
void NestCode::each_group(int first, const std::function<void(std::int64_t)>& f) {
  const int last = int(dims_.size()) - 1;
  if (first > last) return f(1);
  each_position(first, last, [&] {
    const auto dim = std::size_t(last);
    const std::int64_t n = dims_[dim], count = std::min(n, most_in_group), groups = n / count,
                       moved = n > count ? groups * count : 0;
    counted(groups, [&] {
      f(count);
      if (moved > 0) move_cursors(dim, count);
    });
    if (moved < n && moved > 0) f(n - moved);
    if (moved > 0) move_cursors(dim, -moved);
  });
}
// Computes one element of the result, with the lanes along k.
void NestCode::emit_dot(const MatmulNest& p) {
  const F64Sum sum = zero_sum();
  const bool is_group =
      !p.is_exact && dims_[std::size_t(vector_)] <= most_in_group * std::int64_t(lanes());
  each_position(p.outer, int(dims_.size()), [&] {
    if (is_group) return add_group(sum);
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
// Adds a sum of products in f32 along the lanes.
void NestCode::add_group(const F64Sum& sum) {
  Temporary part(*this);
  bits_xor(part.z, part.z, part.z);
  each_register([&] {
    Temporary x(*this), y(*this);
    load_register(x.z, array_address(0), rest_);
    load_register(y.z, array_address(1), rest_);
    vfmadd231ps(part.z, x.z, y.z);
  });
  add_as_f64(sum, part.z);
}

}  // namespace haliax::cpu
#endif
