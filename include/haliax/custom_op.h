// An op of your own, in one block outside of the library: docs/custom_op.md.
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

// What an op does along an axis that a call names. Along all others it maps, and its kernel never
// sees them.
enum class AxisRule : std::uint8_t {
  map,    // position by position
  whole,  // needs all of it at once, and the result has it: a sort
  gone,   // needs all of it at once, and the result lacks it: a median
  made,   // of the result alone; calls give its size: the bins of a histogram
  // Folds it away: the result for an axis in two blocks is the sum (product, ...) of the results
  // for the blocks.
  reduce_sum,
  reduce_prod,
  reduce_max,
  reduce_min,
};

// What a kernel sees of an array: the axes that the call names, in that order, and no others. Along
// an axis that the array lacks any index will do. An op that names no axis sees a row of positions,
// as many as there happen to be. No axis has size 0.
template <class T> class Strided {
 public:
  using value_type = T;
  Strided(T* first, const std::int64_t* sizes, const std::int64_t* strides)
      : first_(first), sizes_(sizes), strides_(strides) {}
  std::int64_t size(std::size_t k = 0) const { return sizes_[k]; }
  std::int64_t stride(std::size_t k = 0) const { return strides_[k]; }  // in elements
  T* data() const { return first_; }
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
  static_assert(known,
                "a kernel takes float, double, bool and integers; others are cast before the call");
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
void kernel_has_thrown() noexcept;  // what is being caught goes to whoever runs the program
template <class F> struct KernelCall;
template <class F, class... T> struct KernelCall<void (F::*)(Strided<T>...) const> {
  static constexpr bool reads_then_writes() {
    std::size_t k = 0;
    return ((std::is_const_v<T> == (++k < sizeof...(T))) && ...);
  }
  static_assert(sizeof...(T) > 1 && reads_then_writes(),
                "a kernel takes Strided<const T> for each operand, then Strided<T>, the result");
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

// A lambda without captures: [](Strided<const float> x, Strided<float> out) {...}, operands first.
// Its types say for which dtypes it is. It runs on several threads at once, at different positions
// of the mapped axes; what it throws ends the call of the program, and is thrown there.
struct CpuKernel {
  std::vector<DType> dtypes;  // of the operands, then of the result
  void (*run)(void* const* data, const std::int64_t* sizes,
              const std::int64_t* const* strides) noexcept;
  template <class F>
  requires(std::is_empty_v<F>) CpuKernel(F)
      : dtypes(detail::KernelCall<decltype(&F::operator())>::dtypes()),
        run(detail::KernelCall<decltype(&F::operator())>::run) {}
};

// A call, as the gradient sees it.
struct CustomCall {
  std::span<const NamedArray> in;
  const NamedArray& out;
  const NamedArray& g;  // the cotangent of the result
  const Axes& along;    // the axes that the call names
};

struct CustomOp {
  const char* name = "";
  std::vector<AxisRule> along = {};  // for each axis that a call names
  std::vector<CpuKernel> cpu = {};   // the first whose dtypes are the operands' is taken
  // Cotangents of the operands, in any axes that an operand or the result has: what its own operand
  // lacks is summed, what the cotangent lacks repeated. An empty one is none. Made of ordinary ops
  // (or custom ones), so that there is a second derivative. Null: a gradient through the op raises.
  std::vector<NamedArray> (*grad)(const CustomCall&) = nullptr;
  // the operands in each of which it is linear: sums that are pending on a mesh may go through it
  std::vector<int> linear = {};
};

// y = op(x, "n"), y = op({x, w}, {"n", Axis("bin", 8)}). Result: the axes of the largest operand,
// what the others add, what is made.
class CustomFunction {
 public:
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
// To be kept, at namespace scope say: each call of it makes another op, which lives as long as the
// process.
CustomFunction custom_op(CustomOp, SourceLocation = SourceLocation::current());

}  // namespace haliax
