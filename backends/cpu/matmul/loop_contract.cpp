// Run: small contractions, and those of dtypes that oneDNN does not support.
#include "loop_contract.h"

#include <algorithm>
#include <cstring>

#include "backends/cpu/kernels.h"
#include "backends/cpu/workspace.h"
#include "base/thread_pool.h"
#include "flush_subnormals.h"
#include "matmul_plan.h"
#include "program/matrices.h"

namespace haliax::cpu {
namespace {

using program::Contract;
using program::ContractDims;
using program::MatrixDim;
using program::MatrixDims;
using program::MatrixStride;
using program::offset_at;
using program::points;

// Widens tiles of both operands into registers.
class LoopContractStep final : public CompiledStep {
 public:
  explicit LoopContractStep(const Contract& c)
      : contract_(c), a_(c.a), b_(c.b), out_(c.out), lane_(lane_type_of(c.out.dtype)),
        shape_(program::dims_of(c)) {
    shape_.normalize();
    m_ = points(shape_.m);
    n_ = points(shape_.n);
    k_ = points(shape_.k);
    batch_ = points(shape_.batch);
    // f64 sums cost nothing at this size
    if (c.out.dtype == DType::f32 && batch_ * m_ * n_ * k_ <= fewest_macs) lane_ = LaneType::f64;
    m_blocks_ = (m_ + rows - 1) / rows;
    n_blocks_ = (n_ + cols - 1) / cols;
    workers_ = batch_ * m_ * n_ * k_ < least_shared_macs ? 1 : threads();
  }
  void run(Frame& frame) override {
    const std::byte *a = a_.at(frame), *b = b_.at(frame);
    std::byte* out = out_.at(frame);
    parallel_for(batch_ * n_blocks_ * m_blocks_, workers_, [&](std::int64_t task, int) {
      const FlushSubnormals flush;
      const std::int64_t m = task % m_blocks_ * rows, n = task / m_blocks_ % n_blocks_ * cols,
                         batch = task / m_blocks_ / n_blocks_;
      tile(a, b, out, batch, m, std::min(rows, m_ - m), n, std::min(cols, n_ - n));
    });
  }

 private:
  static constexpr std::int64_t rows = 32, cols = 64, depth = 256;
  static constexpr std::int64_t least_shared_macs = 1 << 18;  // that several threads share

  void tile(const std::byte* a, const std::byte* b, std::byte* out, std::int64_t batch,
            std::int64_t m, std::int64_t mm, std::int64_t n, std::int64_t nn) const {
    const std::int64_t width = cpu::bytes_of(lane_), pitch = round_up(nn, 64 / width);
    std::byte* sum = workspace();
    std::byte* left = sum + rows * cols * width;
    std::byte* right = left + rows * depth * width;
    const std::int64_t at_a = offset_at(shape_.batch, &MatrixDim::a, batch),
                       at_b = offset_at(shape_.batch, &MatrixDim::b, batch);
    const std::int64_t at_out = offset_at(shape_.batch, &MatrixDim::out, batch);
    const Part m_part{shape_.m, m, mm}, n_part{shape_.n, n, nn};
    std::memset(sum, 0, static_cast<std::size_t>(mm * pitch * width));
    if (contract_.accumulate)
      each_piece(m_part, n_part, &MatrixDim::out,
                 [&](const Piece& p) { load(sum, pitch, contract_.out.dtype, out, at_out, p); });
    for (std::int64_t k = 0; k < k_; k += depth) {
      const Part k_part{shape_.k, k, std::min(depth, k_ - k)};
      each_piece(m_part, k_part, &MatrixDim::a,
                 [&](const Piece& p) { load(left, k_part.count, contract_.a.dtype, a, at_a, p); });
      if (nn < pitch) std::memset(right, 0, static_cast<std::size_t>(k_part.count * pitch * width));
      each_piece(k_part, n_part, &MatrixDim::b,
                 [&](const Piece& p) { load(right, pitch, contract_.b.dtype, b, at_b, p); });
      kernels().multiply(lane_, sum, left, right, mm, pitch, k_part.count);
    }
    each_piece(m_part, n_part, &MatrixDim::out,
               [&](const Piece& p) { store(out, at_out, p, sum, pitch); });
  }

  // A range of positions over flattened dims, and a part of a tile in which both sides have a
  // constant stride.
  struct Part {
    const MatrixDims& dims;
    std::int64_t first, count;
  };
  struct Piece {
    std::int64_t row, column, rows, columns;         // in the tile
    std::int64_t offset, row_stride, column_stride;  // in memory, in elements
  };
  template <class F>
  static void each_piece(const Part& rows, const Part& columns, MatrixStride stride, const F& f) {
    each_run(rows, stride,
             [&](std::int64_t row, std::int64_t at, std::int64_t row_stride, std::int64_t m) {
               each_run(columns, stride,
                        [&](std::int64_t column, std::int64_t offset, std::int64_t column_stride,
                            std::int64_t n) {
                          f(Piece{.row = row,
                                  .column = column,
                                  .rows = m,
                                  .columns = n,
                                  .offset = at + offset,
                                  .row_stride = row_stride,
                                  .column_stride = column_stride});
                        });
             });
  }
  // Calls f(position in the part, offset, stride, count) for each run of constant stride.
  template <class F> static void each_run(const Part& part, MatrixStride stride, const F& f) {
    if (part.dims.empty()) return f(std::int64_t{0}, std::int64_t{0}, std::int64_t{1}, part.count);
    auto& last = part.dims.back();
    for (std::int64_t done = 0; done < part.count;) {
      const std::int64_t i = part.first + done,
                         count = std::min(part.count - done, last.n - i % last.n);
      f(done, offset_at(part.dims, stride, i), last.*stride, count);
      done += count;
    }
  }
  // Converts values of any dtype into a tile of this step's lane type.
  void load(std::byte* tile, std::int64_t pitch, DType dtype, const std::byte* memory,
            std::int64_t at, const Piece& p) const {
    const std::int64_t width = cpu::bytes_of(lane_), bytes = haliax::bytes_of(dtype);
    std::byte* reg = tile + (p.row * pitch + p.column) * width;
    memory += (at + p.offset) * bytes;
    if (dtype == DType::f32 && lane_ == LaneType::f64)
      return kernels().f32_to_f64(reinterpret_cast<double*>(reg), pitch,
                                  reinterpret_cast<const float*>(memory), p.row_stride,
                                  p.column_stride, p.rows, p.columns);
    for (std::int64_t r = 0; r < p.rows;
         ++r, reg += pitch * width, memory += p.row_stride * bytes) {
      if (lane_type_of(dtype) == lane_) {
        kernels().load(dtype)(reg, memory, p.column_stride, p.columns);
        continue;
      }
      std::uint64_t buffer[64];
      for (std::int64_t i = 0; i < p.columns; i += 64) {
        const std::int64_t some = std::min<std::int64_t>(64, p.columns - i);
        kernels().load(dtype)(buffer, memory + i * p.column_stride * bytes, p.column_stride, some);
        const void* in[] = {buffer};
        kernels().cast(lane_type_of(dtype), dtype_of(lane_))(reg + i * width, in, some);
      }
    }
  }
  void store(std::byte* memory, std::int64_t at, const Piece& p, const std::byte* tile,
             std::int64_t pitch) const {
    const DType dtype = contract_.out.dtype;
    const std::int64_t width = cpu::bytes_of(lane_), bytes = haliax::bytes_of(dtype);
    const std::byte* reg = tile + (p.row * pitch + p.column) * width;
    memory += (at + p.offset) * bytes;
    if (dtype == DType::f32 && lane_ == LaneType::f64)
      return kernels().f64_to_f32(reinterpret_cast<float*>(memory), p.row_stride, p.column_stride,
                                  reinterpret_cast<const double*>(reg), pitch, p.rows, p.columns);
    for (std::int64_t r = 0; r < p.rows; ++r, reg += pitch * width, memory += p.row_stride * bytes)
      kernels().store(dtype)(memory, reg, p.column_stride, p.columns);
  }
  static DType dtype_of(LaneType lane) {
    constexpr DType all[] = {DType::f32, DType::f64, DType::i32,
                             DType::u32, DType::i64, DType::u64};
    return all[static_cast<int>(lane)];
  }

  const Contract& contract_;
  Place a_, b_, out_;
  LaneType lane_;
  ContractDims shape_;
  std::int64_t m_ = 1, n_ = 1, k_ = 1, batch_ = 1, m_blocks_ = 1, n_blocks_ = 1;
  int workers_ = 1;
};

}  // namespace

std::unique_ptr<CompiledStep> make_loop_contract(const Contract& c) {
  return std::make_unique<LoopContractStep>(c);
}

}  // namespace haliax::cpu
