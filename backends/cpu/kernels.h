// Loops over short runs of values, compiled for several instruction sets; `kernels()` gives the
// best ones for this machine.
//
// A register holds the values of an instruction for one tile. Narrow dtypes are widened when
// loaded: bf16 and f16 live as f32 (and are rounded after each instruction), i8 and i16 as i32, u8,
// u16 and bool as u32.
#pragma once
#include <cstddef>
#include <cstdint>

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
constexpr bool is_narrow(DType dtype) {  // memory and register differ
  return dtype != DType::f32 && dtype != DType::f64 && dtype != DType::i32 && dtype != DType::u32 &&
         dtype != DType::i64 && dtype != DType::u64;
}

// out[i] = f(in[0][i], in[1][i], ...). `out` may be one of the inputs.
using Kernel = void (*)(void* out, const void* const* in, std::int64_t n);
// Memory that is needed soon: fetched into the second cache some lines at a time, between other
// work, so that nobody waits for it.
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
  void drop() { waiting = 0; }  // what waits is read now
  // The next lines, which somebody else fetches; null: there are none.
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
  Range more[most];  // what is fetched then, the newest first
  int waiting = 0;
};
// A kernel that takes long enough to fetch a line with each line that it makes.
using FetchingKernel = void (*)(void* out, const void* const* in, std::int64_t n, Prefetcher&);
// Which operands of a binary kernel are one value for all i.
enum class Shape : std::uint8_t { vector_vector, vector_scalar, scalar_vector };
// Between a register (dense) and memory (strided; strides in elements).
using Load = void (*)(void* reg, const void* memory, std::int64_t stride, std::int64_t n);
using Store = void (*)(void* memory, const void* reg, std::int64_t stride, std::int64_t n);

// A reduction holds one accumulator (of `bytes`) for each outer point.
struct Reduction {
  int bytes = 0;
  void (*init)(void* acc, std::int64_t n) = nullptr;
  // acc[r] takes in x[r * cols ... + cols); position: of x[r * cols] in the whole reduction.
  void (*rows)(void* acc, const void* x, std::int64_t rows, std::int64_t cols,
               std::int64_t position) = nullptr;
  // acc[j] takes in x[i * pitch + j] for i in [0, count), j in [0, lanes)
  void (*lanes)(void* acc, const void* x, std::int64_t count, std::int64_t lanes,
                std::int64_t pitch, std::int64_t position) = nullptr;
  void (*merge)(void* acc, const void* other, std::int64_t n) = nullptr;  // `other` comes later
  void (*finish)(void* out, const void* acc, std::int64_t n) = nullptr;   // into a register
};

// Which blocks of a product are worth making (program::Contract::Shown).
struct KernelBlockMask {
  struct Side {
    int shift = kNone;                   // positions of a block: 2 to that
    std::int64_t stride = 0, first = 0;  // bytes; where the product begins
    static constexpr int kNone = 62;     // all are in one block
    std::int64_t block(std::int64_t at) const { return (first + at) >> shift; }
  };
  const unsigned char* flags = nullptr;  // null: all are
  Side m, n, k;
  bool zero = false;
};
// c[m, n] = or += a[m, k] b[k, n]; strides in elements, that of c along n is 1. Operands are both
// f32 or both bf16, the result is of their type or f32.
struct Product {
  std::int64_t m, n, k;
  DType type;  // of a and b
  const void* a;
  std::int64_t a_m, a_k;
  const void* b;
  std::int64_t b_k, b_n;
  void* c;
  std::int64_t c_m;
  DType out;
  bool accumulate;
  KernelBlockMask block_mask = {};  // which may be ignored
};
struct ProductKernel {
  void (*run)(const Product&, void* scratch);  // at a cache line
  std::int64_t (*scratch_bytes)(const Product&);
  // packs all rows of a at once, takes strides of 1 alone, and does not look at `shown`
  bool only_small = false;
};

// y[n] += sum over k of x[k] w[k, n]: w is f32 or bf16, its rows are those of k, or of n, `pitch`
// elements apart, and dense.
struct VectorProduct {
  std::int64_t n, k;
  const float* x;
  const void* w;
  std::int64_t pitch;
  DType type;
  bool rows_are_n;
  float* y;
};

// Of each line the sums so far, made in f64 and rounded where they are written; reverse: from its
// end on.
struct RunningSums {
  static constexpr std::int64_t most = 64;  // lines of a call
  std::int64_t lines, n;                    // n: values of each
  const float* const* x;                    // where each line begins
  float* const* out;
  std::int64_t x_step, out_step;  // between neighbours of a line, in elements
  bool reverse;
};

struct Kernels {
  const char* name;
  // Null where there is none. `lane` is that of the operands; results of comparisons are u32.
  Kernel (*map)(program::Code, LaneType lane, Shape);
  // exp(in[0][i] - in[1][0]) of f32: the bits of both steps, in one
  FetchingKernel exp_difference;
  Kernel (*cast)(LaneType from, DType to);
  Kernel (*wrap)(DType);  // rounds a register to a narrow dtype; null where nothing is to be done
  // start, start + step, ...
  void (*count)(LaneType, void* reg, std::int64_t start, std::int64_t step, std::int64_t n);
  Load (*load)(DType);
  Store (*store)(DType);
  Reduction (*reduce)(program::Code, LaneType lane, DType result);
  // c (m, n) += a (m, k) b (k, n), all dense, rows of b and c of whole 64 bytes, n at most 64: for
  // what oneDNN does not do.
  void (*multiply)(LaneType lane, void* c, const void* a, const void* b, std::int64_t m,
                   std::int64_t n, std::int64_t k);
  // f32 with a stride for rows and one for columns to f64 with `pitch` elements a row, and back.
  void (*widen)(double* to, std::int64_t pitch, const float* from, std::int64_t row,
                std::int64_t column, std::int64_t rows, std::int64_t columns);
  void (*narrow)(float* to, std::int64_t row, std::int64_t column, const double* from,
                 std::int64_t pitch, std::int64_t rows, std::int64_t columns);
  const ProductKernel* product;  // null where oneDNN is as good
  void (*vector_product)(const VectorProduct&);
  void (*running_sums)(const RunningSums&);
};

const Kernels& kernels();

// Our own kernel for operands of a type, the best for this machine; null where oneDNN is better.
const ProductKernel* product_kernel(DType);

namespace amx {
const ProductKernel& kernel();
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
