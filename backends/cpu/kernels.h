// Kernels: loops over short runs of values, compiled for several instruction sets. `kernels()`
// returns the best set for the machine.
//
// A register is an array that holds the values of one instruction for one tile. Dtypes of 8 and 16
// bits are widened on load: bf16 and f16 become f32 (rounded after each instruction), i8 and i16
// become i32, and u8, u16 and bool become u32.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "program/program.h"

namespace haliax::cpu {

enum class LaneType : std::uint8_t { f32, f64, i32, u32, i64, u64 };
constexpr int lane_types = 6;

constexpr LaneType lane_type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return LaneType::f64;
    case DType::i8:
    case DType::i16:
    case DType::i32:
      return LaneType::i32;
    case DType::u8:
    case DType::u16:
    case DType::u32:
    case DType::boolean:
      return LaneType::u32;
    case DType::i64:
      return LaneType::i64;
    case DType::u64:
      return LaneType::u64;
    default:
      return LaneType::f32;
  }
}
constexpr int bytes_of(LaneType lane) {
  return lane == LaneType::f64 || lane == LaneType::i64 || lane == LaneType::u64 ? 8 : 4;
}
// Returns true if the dtype is widened between memory and a register.
constexpr bool is_widened(DType dtype) {
  return dtype != DType::f32 && dtype != DType::f64 && dtype != DType::i32 && dtype != DType::u32 &&
         dtype != DType::i64 && dtype != DType::u64;
}

// out[i] = f(in[0][i], in[1][i], ...). `out` may be one of the inputs.
using Kernel = void (*)(void* out, const void* const* in, std::int64_t n);
// Prefetches memory into the second-level cache, a few lines at a time, interleaved with
// computation. Further ranges wait in a small stack.
struct Prefetcher {
  const std::byte *at = nullptr, *end = nullptr;
  void set(const std::byte* memory, std::int64_t bytes) {
    if (at < end && waiting < most)
      more[waiting++] = {memory, memory + bytes};
    else {
      at = memory;
      end = memory + bytes;
    }
  }
  void fetch(std::int64_t lines) {
    for (; lines > 0; --lines, at += 64) {
      if (at >= end) {
        if (waiting == 0) return;
        at = more[--waiting].at;
        end = more[waiting].end;
      }
      __builtin_prefetch(at, 0, 2);
    }
  }
  // Discards waiting ranges, because their memory is being read already.
  void drop() { waiting = 0; }
  // Returns the next lines for a caller that prefetches them itself, or null if none are left.
  const std::byte* next_lines(std::int64_t lines) {
    if (at >= end && waiting > 0) {
      at = more[--waiting].at;
      end = more[waiting].end;
    }

    if (at >= end) return nullptr;
    const std::byte* taken = at;
    at += 64 * lines;
    return taken;
  }

 private:
  static constexpr int most = 8;
  struct Range {
    const std::byte *at, *end;
  };
  Range more[most];  // waiting ranges; the newest is fetched first
  int waiting = 0;
};
// A function of one or two full registers of f32 values: operands and result are in the vector
// registers of the calling convention. Emitted code casts it and calls it.
using RegisterKernel = void (*)();
// A kernel that runs long enough to prefetch one line per line of output.
using FetchingKernel = void (*)(void* out, const void* const* in, std::int64_t n, Prefetcher&);
// The operands of a binary kernel: one value per element, or one scalar.
enum class Shape : std::uint8_t { vector_vector, vector_scalar, scalar_vector };
// Copies between a dense register and strided memory. Strides are in elements.
using Load = void (*)(void* reg, const void* memory, std::int64_t stride, std::int64_t n);
using Store = void (*)(void* memory, const void* reg, std::int64_t stride, std::int64_t n);
// The distance between rows and between neighbors of a row, in elements.
struct RowStrides {
  std::int64_t row, column;
};
// Copy `rows` rows of n elements between a dense register and strided memory.
using LoadRows = void (*)(void* reg, const void* memory, RowStrides, std::int64_t rows,
                          std::int64_t n);
using StoreRows = void (*)(void* memory, RowStrides, const void* reg, std::int64_t rows,
                           std::int64_t n);

// The ids of a line of a gather or a scatter, as i32 or i64. Negative ids count from the end.
struct IdRun {
  static constexpr std::int64_t outside = INT64_MIN;  // the offset of an id out of range
  const void* ids;
  DType dtype;
  std::int64_t step;          // distance between ids, in elements
  std::int64_t size, stride;  // positions of the indexed dim, and their distance
  bool clamps;                // ids out of range become the first or the last position
};

// The kernels of a reduction. A reduction has one accumulator of `bytes` bytes for each outer
// element.
struct Reduction {
  int bytes = 0;
  void (*init)(void* acc, std::int64_t n) = nullptr;
  // acc[r] combines with x[r * cols ... + cols). position: index of x[r * cols] in the complete
  // reduction.
  void (*rows)(void* acc, const void* x, std::int64_t rows, std::int64_t cols,
               std::int64_t position) = nullptr;
  // acc[j] combines with x[i * pitch + j] for i in [0, count), j in [0, lanes)
  void (*lanes)(void* acc, const void* x, std::int64_t count, std::int64_t lanes,
                std::int64_t pitch, std::int64_t position) = nullptr;
  void (*merge)(void* acc, const void* other, std::int64_t n) = nullptr;  // `other` is later
  void (*finish)(void* out, const void* acc, std::int64_t n) = nullptr;   // writes into a register
};

// The blocks of a contraction that are computed (program::Contract::BlockMask).
struct KernelBlockMask {
  struct Side {
    int shift = kNone;  // log2 of the block size, in positions
    // stride of the flags in bytes; first position of this matmul
    std::int64_t stride = 0, first = 0;
    static constexpr int kNone = 62;  // a single block covers all positions
    std::int64_t block(std::int64_t at) const { return (first + at) >> shift; }
  };
  const unsigned char* flags = nullptr;  // null: all blocks are computed
  Side m, n, k;
  bool zero = false;
};
// A term of a sum of matmuls: offsets of its operands, in elements.
struct MatmulTap {
  std::int64_t a, b;
};
// A matmul: c[m, n] = or += a[m, k] b[k, n]. Strides are in elements; the stride of c along n is 1.
// Both operands are f32 or both are bf16. The result has their dtype or f32.
struct Matmul {
  std::int64_t m, n, k;
  DType type;  // dtype of a and b
  const void* a;
  std::int64_t a_m, a_k;
  const void* b;
  std::int64_t b_k, b_n;
  void* c;
  std::int64_t c_m;
  DType out;
  bool accumulate;
  // A kernel may ignore it and compute all blocks. It does not vary along k if there are taps.
  KernelBlockMask block_mask = {};
  // Computes the sum of the matmuls at these offsets, if it is not null.
  const MatmulTap* taps = nullptr;
  std::int64_t tap_count = 0;
  // Columns of the matmul of which this one is a block; 0: n. The order of sums may depend on it,
  // but not on n.
  std::int64_t all_n = 0;
};
constexpr std::int64_t most_summed_taps = 64;  // that a tile sums in its registers
// Returns true if taps read one packed block of b, each with its own offset in columns. reach:
// difference of the largest and the smallest offset. The shared block must be smaller than one
// block of `columns` columns per tap.
constexpr bool taps_share_block(std::int64_t taps, std::int64_t columns, std::int64_t reach) {
  constexpr std::int64_t most_reach = 1536;
  return taps >= 2 && taps <= most_summed_taps && reach <= most_reach &&
         2 * reach <= (taps - 1) * columns;
}
struct MatmulKernel {
  void (*run)(const Matmul&, void* scratch);  // scratch is aligned to 64 bytes
  std::int64_t (*scratch_bytes)(const Matmul&);
  // the kernel packs all rows of a at once, requires unit strides, ignores `block_mask`, and does
  // not support `taps`
  bool only_small = false;
};

// A vector-matrix product: y[n] += sum over k of x[k] w[k, n]. w is f32 or bf16. The rows of w run
// along n for each k, or along k for each n (`rows_are_n`). Rows are dense, with a distance of
// `pitch` elements.
struct Gemv {
  std::int64_t n, k;
  const float* x;
  const void* w;
  std::int64_t pitch;
  DType type;
  bool rows_are_n;
  float* y;
};

// A weighted sum of shifted rows of x, for a block of rows of the result:
//
//   out[j, i] = start + sum over the taps t that row j reads of weight[t, j] * x[offset[t] + i]
//
// x and the result are f32 or bf16, and sums are f32. The taps are sorted into runs, and those of a
// run are read by the same rows.
struct Stencil {
  static constexpr int most_rows = 4;
  struct Run {
    std::int64_t taps;
    int first, count;  // rows of the block
  };
  std::int64_t n;  // columns
  int rows;        // rows to write
  const void* x;
  DType type;
  const Run* runs;
  std::int64_t run_count;
  const std::int64_t* offsets;  // in elements, by tap
  const float* weights;         // by tap and row
  float start;
  void* out;  // overlaps neither x nor the weights
  std::int64_t out_row;
  DType out_type;
};

// Products of rows of y with shifted rows of x, summed over rows and columns:
//
//   sums[t] = sum over r and i of y[r, i] * x[r, offset[t] + i]
//
// x and y are f32 or bf16, and sums are f32.
struct Correlation {
  static constexpr int most_taps = 8;
  std::int64_t n, rows;  // columns and rows
  const void *x, *y;
  std::int64_t x_row, y_row;  // distances of rows, in elements
  DType type;
  int taps;
  const std::int64_t* offsets;  // in elements, by tap
  float* sums;                  // by tap
};

// Running sums of several lines, or the same with multiplications. They accumulate in f64 and are
// rounded when they are written. reverse: from the end of each line to its start.
struct RunningSums {
  static constexpr std::int64_t most = 64;  // lines per call
  std::int64_t lines, n;                    // n: values per line
  const float* const* x;                    // start of each line
  float* const* out;
  std::int64_t x_step, out_step;  // strides between neighbors of a line, in elements
  bool reverse, multiplies;
  double* sums;  // per line: the sum before these values, then the sum after them
};

constexpr std::int64_t sort_columns = 8;

// The kernels of one instruction set.
struct Kernels {
  const char* name;
  // Returns null if there is no such kernel. `lane` is the lane type of the operands; comparisons
  // return u32.
  Kernel (*map)(program::Code, LaneType lane, Shape);
  // Returns null if `map` has no kernel of one or two f32 operands and an f32 result.
  RegisterKernel (*of_registers)(program::Code);
  // exp(in[0][i] - in[1][0]) for f32, bitwise identical to the two separate operations
  FetchingKernel exp_difference;
  Kernel (*cast)(LaneType from, DType to);
  // Rounds or wraps the values of a register to a dtype of 8 or 16 bits. Null: not needed.
  Kernel (*wrap)(DType);
  // reg[r, c] = start + r * steps.row + c * steps.column
  void (*count)(LaneType, void* reg, std::int64_t start, RowStrides steps, std::int64_t rows,
                std::int64_t n);
  Load (*load)(DType);
  Store (*store)(DType);
  LoadRows (*load_rows)(DType);
  StoreRows (*store_rows)(DType);
  // Copies rows of n elements of `bytes` bytes. The arrays do not overlap.
  void (*copy_rows)(int bytes, void* to, RowStrides to_strides, const void* from,
                    RowStrides from_strides, std::int64_t rows, std::int64_t n);
  // Adds the id times its stride to each of n offsets, or sets the offset to IdRun::outside.
  void (*add_ids)(std::int64_t* offsets, const IdRun&, std::int64_t n);
  // out[j] = table[offsets[j]], or *absent if the offset is IdRun::outside
  void (*gather_values)(int bytes, void* out, const void* table, const std::int64_t* offsets,
                        const void* absent, std::int64_t n);
  // Gathers values of 4 bytes by dense i32 ids, where offsets in the table fit in i32:
  // out[j] = table[id j times its stride], or `absent` if the id is out of range. Null: there is no
  // faster kernel than those above.
  void (*gather_words)(std::uint32_t* out, const std::uint32_t* table, const IdRun&,
                       std::uint32_t absent, std::int64_t n);
  Reduction (*reduce)(program::Code, LaneType lane, DType result);
  Reduction (*reduce_bytes)(program::Code);  // reduce_max or reduce_min of bools in memory
  // c (m, n) += a (m, k) b (k, n) for dtypes and sizes that oneDNN does not handle. All operands
  // are dense; rows of b and c are multiples of 64 bytes; n is at most 64.
  void (*multiply)(LaneType lane, void* c, const void* a, const void* b, std::int64_t m,
                   std::int64_t n, std::int64_t k);
  // Convert f32 with a row stride and a column stride to f64 with `pitch` elements per row, and
  // back.
  void (*f32_to_f64)(double* to, std::int64_t pitch, const float* from, std::int64_t row,
                     std::int64_t column, std::int64_t rows, std::int64_t columns);
  void (*f64_to_f32)(float* to, std::int64_t row, std::int64_t column, const double* from,
                     std::int64_t pitch, std::int64_t rows, std::int64_t columns);
  const MatmulKernel* matmul;  // null where oneDNN is as fast
  void (*gemv)(const Gemv&);
  void (*running_sums)(const RunningSums&);
  void (*stencil)(const Stencil&);
  void (*correlation)(const Correlation&);
  // Sorts each column of a dense array of n rows of `sort_columns` values.
  void (*sort_block)(std::int64_t* items, std::int64_t n);
};

// Returns the best kernels that this machine supports and HALIAX_ISA allows.
const Kernels& kernels();
// Returns the kernels of baseline, avx2 or avx512, or null if this machine does not support them.
const Kernels* kernels_of(std::string_view isa);

// Returns the best kernel of this backend for operands of a dtype, or null where oneDNN is faster.
const MatmulKernel* matmul_kernel(DType);
// Returns the best kernel that accepts all strides and supports `taps`, or null for other dtypes.
const MatmulKernel* vector_kernel(DType);

namespace amx {
const MatmulKernel& kernel();
}
namespace bf16 {
const MatmulKernel& kernel();
}
namespace baseline {
const Kernels& table();
}
namespace avx2 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}

}  // namespace haliax::cpu
