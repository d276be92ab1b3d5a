// Eigen matrices: views of arrays, and arrays from matrices. See docs/how-to/interchange.md.
// haliax.h does not include this header.
#pragma once
#include <Eigen/Core>
#include <type_traits>

#include "haliax/view.h"

namespace [[gnu::visibility("default")]] haliax {
namespace detail {

template <class T> constexpr DType eigen_dtype() {
  if constexpr (std::is_same_v<T, Eigen::bfloat16>)
    return DType::bf16;
  else if constexpr (std::is_same_v<T, Eigen::half>)
    return DType::f16;
  else
    return element_dtype<T>();
}

template <class T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T, class M>
NamedArray from_row_major(const M& m, const AxisSpec& axes, SourceLocation at) {
  return from_bytes(std::as_bytes(std::span<const T>(m.data(), std::size_t(m.size()))),
                    eigen_dtype<T>(), axes, at);
}

}  // namespace detail

/// A read-only matrix over the memory of an array, with any strides.
template <class T>
using MatrixView = Eigen::Map<const detail::RowMajor<T>, Eigen::Unaligned,
                              Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
/// A read-only vector over the memory of an array.
template <class T> using VectorView = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, 1>>;

/// Returns an array with two axes as a matrix, without a copy. Evaluates the array if necessary.
/// The view is valid until the array is destroyed or donated.
///
///     auto w = as_matrix<float>(weight, "embed", "mlp");
///
/// @param a        array with the axes `rows` and `columns`, in any order
/// @param rows     axis of the rows
/// @param columns  axis of the columns
/// @throws haliax::Error if `T` is not the dtype of the array, or if the array has other axes
template <class T>
MatrixView<T> as_matrix(const NamedArray& a, const AxisSelector& rows, const AxisSelector& columns,
                        SourceLocation at = SourceLocation::current()) {
  auto v = host_view(a, detail::eigen_dtype<T>(), {rows, columns}, at);
  return {static_cast<const T*>(v.data), v.sizes[0], v.sizes[1], {v.strides[0], v.strides[1]}};
}
/// Returns an array with one axis as a vector, as `as_matrix` does.
template <class T>
VectorView<T> as_vector(const NamedArray& a, const AxisSelector& axis,
                        SourceLocation at = SourceLocation::current()) {
  auto v = host_view(a, detail::eigen_dtype<T>(), {axis}, at);
  return {static_cast<const T*>(v.data), v.sizes[0]};
}

/// Returns a copy of a matrix as an array `(rows, columns)`, or of a vector as an array `(axis)`,
/// in the dtype of its scalars.
/// @throws haliax::Error if the sizes differ
template <class M>
NamedArray from_eigen(const Eigen::DenseBase<M>& m, const Axis& rows, const Axis& columns,
                      SourceLocation at = SourceLocation::current()) {
  using T = typename M::Scalar;
  // The array has the sizes of the matrix first, so that `named` reports a wrong size for each
  // axis.
  auto found = detail::from_row_major<T>(detail::RowMajor<T>(m),
                                         {rows.resize(m.rows()), columns.resize(m.cols())}, at);
  return named(found, {rows, columns}, at);
}
template <class M>
NamedArray from_eigen(const Eigen::DenseBase<M>& v, const Axis& axis,
                      SourceLocation at = SourceLocation::current()) {
  static_assert(M::IsVectorAtCompileTime, "haliax: a matrix needs two axes");
  using T = typename M::Scalar;
  return named(detail::from_row_major<T>(detail::RowMajor<T>(v), axis.resize(v.size()), at), axis,
               at);
}

}  // namespace haliax
