// A contraction as products of matrices, for backends with a library of those: neighbouring dims
// merge where strides allow, one dim of each kind makes the matrices, what is left is walked. Only
// where no such choice has unit strides is an operand packed first: copied, so that it lies dense.
#pragma once
#include <optional>

#include "program/program.h"

namespace haliax::program {

struct MatrixDim {
  // size; strides, in elements: 0 where it is broadcast
  std::int64_t n = 1, a = 0, b = 0, out = 0;
};
using MatrixDims = std::vector<MatrixDim>;
using MatrixStride = std::int64_t MatrixDim::*;
std::int64_t points(const MatrixDims&);
// The offset of an operand at a flat position over the dims, the last of them fastest.
std::int64_t offset_at(const MatrixDims&, MatrixStride, std::int64_t position);

struct ContractDims {
  MatrixDims batch, m, n, k;
  void normalize();  // orders each kind by strides, largest first, and merges neighbours
};
ContractDims dims_of(const Contract&);

struct Packing {  // dense, in the order batch, m (or n), k
  bool used = false;
  Dims dims, from, to;  // sizes; strides of what is copied, and of the copy
  std::int64_t elements = 0;
};
struct MatrixProducts {
  bool swapped = false;  // b a in place of a b: below, a is the contraction's b
  Packing pack_a, pack_b;
  // of the matrices: along m or k an operand has a unit stride, out has it along n
  MatrixDim m, n, k;
  MatrixDims outer, k_outer;  // a product for each point; those of k_outer are added up
};
// The largest matrices that can be made with the fewest copies. k_whole: nothing is added up.
// Nothing: no choice fits.
std::optional<MatrixProducts> matrix_products(const Contract&, bool unsplit_k,
                                              bool must_pack_a = false, bool must_pack_b = false);

// What part of a contraction's multiplications lies in blocks that are to be made
// (Contract::Shown), by their flags.
double computed_fraction(const Contract&, const unsigned char* flags);

}  // namespace haliax::program
