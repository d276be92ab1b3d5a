// Matmuls in the form of cuBLASLt. Its matrices are column-major, so a row-major matrix appears as
// its transpose, and the operands swap: out = x y in rows is out^T = y^T x^T in columns.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "program/program.h"

namespace haliax::cuda {

// A matrix in memory, rows x cols: element (r, c) of matrix i is at i * step + c * ld + r.
struct Matrix {
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0, ld = 0;
  std::int64_t step = 0;    // distance between matrices of the batch; 0: the same matrix
  int alignment = 1;        // alignment of the first element of each matrix, in bytes
  bool transposed = false;  // multiply by its transpose
  friend bool operator==(const Matrix&, const Matrix&) = default;
};
// out[i] = a[i] b[i] (+ out[i]). Accumulates in f64 if out is f64, else in f32, and rounds once.
struct Product {
  Matrix a, b, out;
  std::int64_t batch = 1;
  bool accumulate = false;
  friend bool operator==(const Product&, const Product&) = default;
};

std::string to_string(const Product&);                     // all fields
std::int64_t bytes_of(const Matrix&, std::int64_t batch);  // from the first to the last element

struct Launch;
// Returns a contraction as library matmuls, after copies to the step's scratch memory where strides
// do not fit. Returns nullopt if a kernel of this backend must compute it: integers, mixed dtypes,
// or many small matmuls.
std::optional<std::vector<Launch>> products_of(const program::Step&);
std::int64_t product_scratch(const program::Contract&);  // bytes

}  // namespace haliax::cuda
