// A contraction as matmuls, for backends with a matmul library. Neighboring dims merge where
// strides allow it. One dim each of m, n and k forms the matrices, and a loop runs over the
// remaining dims. If no choice of dims has unit strides, an operand is packed first, that is,
// copied into contiguous memory.
#pragma once
#include <optional>
#include <vector>

#include "program/program.h"

namespace haliax::program {

struct MatrixDim {
  // size, and strides in elements; a stride of 0 is a broadcast
  std::int64_t n = 1, a = 0, b = 0, out = 0;
};
using MatrixDims = std::vector<MatrixDim>;
using MatrixStride = std::int64_t MatrixDim::*;
std::int64_t points(const MatrixDims&);
// Returns the offset of an operand, in elements, at a row-major position over the dims.
std::int64_t offset_at(const MatrixDims&, MatrixStride, std::int64_t position);

struct ContractDims {
  MatrixDims batch, m, n, k;
  // Orders each kind of dims by strides, largest first, and merges neighbors.
  void normalize();
  // Sets the dims of out^T = b^T a^T.
  void swap_operands();
};
ContractDims dims_of(const Contract&);

struct Packing {  // the copy is contiguous, in the order batch, m (or n), k
  bool used = false;
  Dims dims, from, to;  // sizes; strides of the operand and of the copy, in elements
  std::int64_t elements = 0;
};
struct MatrixProducts {
  bool swapped = false;    // computes out^T = b^T a^T; below, a is the b of the contraction
  Packing pack_a, pack_b;  // an operand with windows may have another order
  Packing pack_out;        // `out` is computed in contiguous memory and copied to its place
  // The matrices. Operands have unit stride along one of their dims, `out` along n.
  MatrixDim m, n, k;
  MatrixDims outer, k_outer;  // one matmul per position; those of k_outer are summed
};
struct MatrixOptions {
  bool unsplit_k = false;  // one matmul covers all of k, so that no results are summed
  bool must_pack_a = false, must_pack_b = false;
  // The result may be computed in contiguous memory, if matrices would otherwise have few columns.
  bool may_pack_out = false;
};
// Returns the largest matrices with the fewest packed operands, or nothing if no choice fits.
std::optional<MatrixProducts> matrix_products(const Contract&, const MatrixOptions&);
// Returns true if an operand reads an element at several positions of dims that overlap, as the
// windows of a convolution do. A copy of such an operand is larger than the operand.
bool reads_windows(const Contract&);
// Returns the choices for a contraction of windows by a kernel that accepts operands with any
// strides: the windows are read in place, or from a copy in one of several orders.
std::vector<MatrixProducts> window_products(const Contract&);

// Returns the fraction of multiplications in blocks whose flag (Contract::BlockMask) is true.
double computed_fraction(const Contract&, const unsigned char* flags);

}  // namespace haliax::program
