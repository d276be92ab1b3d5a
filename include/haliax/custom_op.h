// Ops that a program defines itself: a CPU kernel, a rule for each axis, and a gradient. See
// docs/how-to/custom-op.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "haliax/array.h"

namespace [[gnu::visibility("default")]] haliax {

struct Op;

/// The behavior of a custom op along an axis that a call names.
///
/// Along all other axes the op maps: the kernel runs once per position and does not receive them.
/// A reduction rule is a promise: the results for two blocks of an axis, combined by the reduction,
/// are the result for the axis. With such a rule, an axis of size 0 yields the identity.
enum class AxisRule : std::uint8_t {
  map,          ///< maps, and the kernel receives the axis
  whole,        ///< requires the full axis, and the result has it, as in a sort
  gone,         ///< requires the full axis, and the result lacks it, as in a median
  made,         ///< the result adds the axis, and calls specify its size, as for histogram bins
  reduce_sum,   ///< reduces the axis by a sum
  reduce_prod,  ///< reduces the axis by multiplication
  reduce_max,   ///< reduces the axis by a maximum
  reduce_min,   ///< reduces the axis by a minimum
};

/// An array as a kernel receives it: the axes that the call names, in that order.
///
/// Along an axis that the array lacks, any index is valid. An op that names no axis receives one
/// axis of any length. No axis has size 0. Strides may be 0 or negative.
///
/// @tparam T  element type: `const` for an operand
template <class T> class Strided {
 public:
  using value_type = T;  ///< element type
  /// Creates a view of memory with sizes and strides in elements.
  Strided(T* first, const std::int64_t* sizes, const std::int64_t* strides)
      : first_(first), sizes_(sizes), strides_(strides) {}
  /// Returns the size of axis `k`.
  std::int64_t size(std::size_t k = 0) const { return sizes_[k]; }
  /// Returns the stride of axis `k` in elements.
  std::int64_t stride(std::size_t k = 0) const { return strides_[k]; }
  /// Returns the address of the first element.
  T* data() const { return first_; }
  /// Returns the element at an index for each axis: `x(i, j)`.
  template <class... Index> T& operator()(Index... index) const {
    std::int64_t at = 0;
    auto* stride = strides_;
    ((at += std::int64_t(index) * *stride++), ...);
    return first_[at];
  }

 private:
  T* first_;
  const std::int64_t *sizes_, *strides_;
};

namespace detail {

template <class T> constexpr DType dtype_of_kernel() {
  constexpr bool known = std::is_arithmetic_v<T> && sizeof(T) <= 8;
  static_assert(
      known, "a kernel accepts float, double, bool and integers; others are cast before the call");
  if constexpr (std::is_same_v<T, bool>)
    return DType::boolean;
  else if constexpr (std::is_floating_point_v<T>)
    return sizeof(T) == 4 ? DType::f32 : DType::f64;
  else if constexpr (std::is_signed_v<T>)
    return sizeof(T) == 1   ? DType::i8
           : sizeof(T) == 2 ? DType::i16
           : sizeof(T) == 4 ? DType::i32
                            : DType::i64;
  else
    return sizeof(T) == 1   ? DType::u8
           : sizeof(T) == 2 ? DType::u16
           : sizeof(T) == 4 ? DType::u32
                            : DType::u64;
}
// Stores the exception that is being handled, for the call that runs the program.
void kernel_has_thrown() noexcept;
template <class F> struct KernelCall;
template <class F, class... T> struct KernelCall<void (F::*)(Strided<T>...) const> {
  static constexpr bool reads_then_writes() {
    std::size_t k = 0;
    return ((std::is_const_v<T> == (++k < sizeof...(T))) && ...);
  }
  static_assert(sizeof...(T) > 1 && reads_then_writes(),
                "a kernel accepts Strided<const T> for each operand, then Strided<T>, the result");
  static std::vector<DType> dtypes() { return {dtype_of_kernel<std::remove_const_t<T>>()...}; }
  static void run(void* const* data, const std::int64_t* sizes,
                  const std::int64_t* const* strides) noexcept {
    try {
      [&]<std::size_t... k>(std::index_sequence<k...>) {
        F{}(Strided<T>(static_cast<T*>(data[k]), sizes, strides[k])...);
      }
      (std::index_sequence_for<T...>());
    } catch (...) {
      kernel_has_thrown();
    }
  }
};

}  // namespace detail

/// A kernel on the CPU: a lambda without captures, with the operands first and the result last.
///
/// The parameter types define the dtypes: `Strided<const T>` for each operand, then `Strided<T>`.
/// `T` is `float`, `double`, `bool` or an integer type. A kernel must write every element of the
/// result, which is uninitialized. Kernels run concurrently on several threads, at different
/// positions of the mapped axes. An exception is rethrown by the call that runs the program.
///
///     [](Strided<const float> x, Strided<float> y) {
///       for (std::int64_t i = 0; i < x.size(); ++i) y(i) = x(i) * x(i);
///     }
struct CpuKernel {
  std::vector<DType> dtypes;  ///< dtypes of the operands, then of the result
  /// Runs the kernel on arrays without types.
  void (*run)(void* const* data, const std::int64_t* sizes,
              const std::int64_t* const* strides) noexcept;
  /// Converts a lambda.
  template <class F>
  requires(std::is_empty_v<F>) CpuKernel(F)
      : dtypes(detail::KernelCall<decltype(&F::operator())>::dtypes()),
        run(detail::KernelCall<decltype(&F::operator())>::run) {}
};

/// A call of a custom op, as its gradient receives it.
struct CustomCall {
  std::span<const NamedArray> in;  ///< operands
  const NamedArray& out;           ///< result
  const NamedArray& g;             ///< cotangent of the result
  const Axes& along;               ///< axes that the call names
};

/// The definition of a custom op.
struct CustomOp {
  const char* name = "";             ///< name in error messages and reports
  std::vector<AxisRule> along = {};  ///< rule of each axis that a call names
  std::vector<CpuKernel> cpu = {};  ///< kernels; the first one whose dtypes match the operands runs
  /// Returns the cotangents of the operands. Null: a gradient through the op raises.
  ///
  /// A cotangent may have any axes that an operand or the result has. Axes that its operand lacks
  /// are summed, and axes that the cotangent lacks are broadcast. An empty array means no gradient.
  /// The function consists of ops, including custom ops, so higher derivatives exist.
  std::vector<NamedArray> (*grad)(const CustomCall&) = nullptr;
  /// Indices of the operands in each of which the op is linear. On a mesh, a partial sum of such an
  /// operand may pass through the op.
  std::vector<int> linear = {};
};

/// A custom op as a function, which `custom_op` returns.
class CustomFunction {
 public:
  /// Calls the op.
  ///
  /// The result has the axes of the largest operand, then the axes that other operands add, then
  /// the axes that the op adds. Operands broadcast along mapped axes: one operand must have the
  /// mapped axes of all others. C++ scalars are cast to the dtype of the kernel.
  ///
  /// `along` lists the axes that the op names, in order. An axis that the op adds needs a size.
  ///
  /// @throws haliax::Error if no kernel matches the dtypes, or the axes do not match the rules
  ///
  ///     op(x, "n");
  ///     op({ids, w}, {"n", Axis("bin", 8)});
  NamedArray operator()(Arr x, const AxisSelection& along = Names{}) const;
  NamedArray operator()(std::initializer_list<Arr> operands,
                        const AxisSelection& along = Names{}) const;
  NamedArray operator()(const std::vector<Arr>& operands,
                        const AxisSelection& along = Names{}) const;

 private:
  friend CustomFunction custom_op(CustomOp, SourceLocation);
  explicit CustomFunction(const Op* op) : op_(op) {}
  const Op* op_;
};

/// Creates an op from its definition. `jit`, `grad`, `vmap`, `scan`, `chunked_reduce` and meshes
/// support it like any other op.
///
/// Define an op once, for example at namespace scope: each call creates another op, which exists as
/// long as the process.
///
/// @throws haliax::Error if the definition has no name or no kernel, or its parts contradict each
/// other
///
///     const CustomFunction cube = custom_op({
///         .name = "cube",
///         .cpu = {[](Strided<const float> x, Strided<float> y) {
///           for (std::int64_t i = 0; i < y.size(); ++i) y(i) = x(i) * x(i) * x(i);
///         }},
///         .grad = [](const CustomCall& c) -> std::vector<NamedArray> {
///           return {c.g * 3. * square(c.in[0])};
///         },
///     });
///     auto y = cube(x);
CustomFunction custom_op(CustomOp definition, SourceLocation at = SourceLocation::current());

}  // namespace haliax
