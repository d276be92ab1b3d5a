// Eigen matrices: views of arrays, and arrays from matrices. haliax.h does not include this.
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

template <class T>
using MatrixView = Eigen::Map<const detail::RowMajor<T>, Eigen::Unaligned,
                              Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
template <class T> using VectorView = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, 1>>;

// An array with two axes, whichever comes first in memory: as_matrix<float>(w, "embed", "mlp"). No
// copy: the view is good while the array lives and is not donated. Computes the array if need be;
// raises if T is not its dtype.
template <class T>
MatrixView<T> as_matrix(const NamedArray& a, const AxisSelector& rows, const AxisSelector& columns,
                        SourceLocation at = SourceLocation::current()) {
  auto v = host_view(a, detail::eigen_dtype<T>(), {rows, columns}, at);
  return {static_cast<const T*>(v.data), v.sizes[0], v.sizes[1], {v.strides[0], v.strides[1]}};
}
template <class T>
VectorView<T> as_vector(const NamedArray& a, const AxisSelector& axis,
                        SourceLocation at = SourceLocation::current()) {
  auto v = host_view(a, detail::eigen_dtype<T>(), {axis}, at);
  return {static_cast<const T*>(v.data), v.sizes[0]};
}

// A copy: out (rows, columns). Raises if the matrix has other sizes.
template <class M>
NamedArray from_eigen(const Eigen::DenseBase<M>& m, const Axis& rows, const Axis& columns,
                      SourceLocation at = SourceLocation::current()) {
  using T = typename M::Scalar;
  // Named by what the matrix has, so that a wrong size is told axis by axis.
  auto found = detail::from_row_major<T>(detail::RowMajor<T>(m),
                                         {rows.resize(m.rows()), columns.resize(m.cols())}, at);
  return named(found, {rows, columns}, at);
}
// out (axis), from a row or a column.
template <class M>
NamedArray from_eigen(const Eigen::DenseBase<M>& v, const Axis& axis,
                      SourceLocation at = SourceLocation::current()) {
  static_assert(M::IsVectorAtCompileTime, "haliax: a matrix needs two axes");
  using T = typename M::Scalar;
  return named(detail::from_row_major<T>(detail::RowMajor<T>(v), axis.resize(v.size()), at), axis,
               at);
}

}  // namespace haliax
