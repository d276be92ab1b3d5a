// NamedArray, an array whose dimensions have names, and `Arr`, the parameter type of ops.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "haliax/axis.h"
#include "haliax/dtype.h"
#include "haliax/error.h"
#include "haliax/where.h"

namespace [[gnu::visibility("default")]] haliax {

class Node;
/// A shared handle to an immutable node of the graph. The type is opaque to users.
using NodePtr = std::shared_ptr<const Node>;
class Arr;
class Picks;  // defined in the headers of haliax/ops.h, like the next six
class PickedPart;
struct LabelBinding;
struct ReduceOptions;
struct SliceLength;
struct VarOptions;
struct DotOptions;

/// An array whose dimensions are axes with names.
///
/// A `NamedArray` is a handle to an immutable node of the graph. Copies are cheap and share the
/// value. Ops build nodes and return at once; reading an array (`item`, `floats`, `eval`, printing,
/// conversion to `bool`) computes the value and caches it. A default-constructed array is empty: it
/// has no axes, no dtype and no value, and most functions raise for it.
///
///     Axis Batch{"batch", 2}, Embed{"embed", 3};
///     auto x = array({1, 2, 3, 4, 5, 6}, {Batch, Embed});
///     auto y = mean(x * 2., "embed");   // (batch=2), nothing is computed yet
///     y.floats();                       // computes {4, 10}
///
/// Several threads may read one array. Assignment to a shared handle needs a lock, as with other
/// C++ objects.
class NamedArray {
 public:
  /// Creates an empty array, for example the gradient of an integer parameter.
  NamedArray() noexcept;
  /// Creates a handle to a node. For implementations of ops.
  explicit NamedArray(NodePtr node);
  NamedArray(const NamedArray&);
  NamedArray(NamedArray&&) noexcept;
  NamedArray& operator=(const NamedArray&) &;
  NamedArray& operator=(NamedArray&&) & noexcept;
  /// Rejects assignment to a temporary, such as `x[{"n", 3}] = 1.`, at compile time.
  template <class T> void operator=(const T&) && {
    static_assert(sizeof(T) == 0,
                  "haliax: indexing returns a new array, so this assignment has no effect; x = "
                  "x.at({\"n\", 3}).set(y) "
                  "changes a part of x.");
  }
  ~NamedArray();
  /// Creates a scalar array of dtype `f32`, for fields, results and the initial carry of a loop.
  ///
  /// Unlike a C++ scalar, it is not weakly typed: it promotes as an `f32` array.
  NamedArray(double value, SourceLocation at = SourceLocation::current());

  /// Returns true if the handle refers to no array.
  bool empty() const { return node_ == nullptr; }
  /// Returns true if the single element of the array is not 0. Computes the array.
  ///
  /// @throws haliax::Error if the array is empty, has several elements (use `all` or `any`), or has
  /// no value yet inside `jit`, `scan` and `vmap` (use `where` or `cond`)
  explicit operator bool() const;
  /// Returns the node of the graph, or null if the array is empty.
  const NodePtr& node() const { return node_; }

  /// @name Properties
  /// These functions compute nothing. They raise for an empty array.
  /// @{

  /// Returns the axes, in order. Inside `vmap`, the mapped axis is not listed.
  Axes axes(SourceLocation at = SourceLocation::current()) const;
  /// Returns the dtype.
  DType dtype(SourceLocation at = SourceLocation::current()) const;
  /// Returns the sizes by name: `x.shape()["batch"]`.
  Shape shape(SourceLocation at = SourceLocation::current()) const { return Shape(axes(at)); }
  /// Returns the number of axes.
  std::int64_t ndim(SourceLocation at = SourceLocation::current()) const;
  /// Returns the number of elements.
  std::int64_t size(SourceLocation at = SourceLocation::current()) const;
  /// Returns the size of the elements in bytes.
  std::int64_t nbytes(SourceLocation at = SourceLocation::current()) const;
  /// Returns true if the array has all of the selected axes, in their sizes where given.
  bool has_axis(const AxisSelection& axis, SourceLocation at = SourceLocation::current()) const;
  /// Returns the size of an axis.
  ///
  /// @throws haliax::Error if the array lacks the axis, or it has another size
  std::int64_t axis_size(const AxisSelector& axis,
                         SourceLocation at = SourceLocation::current()) const;
  /// Returns an axis with its size.
  ///
  /// @throws haliax::Error if the array lacks the axis, or it has another size
  Axis resolve_axis(const AxisSelector& axis, SourceLocation at = SourceLocation::current()) const;
  /// Returns the sizes of several axes, in the order of the selectors.
  std::vector<std::int64_t> axis_size(std::initializer_list<AxisSelector> axes,
                                      SourceLocation at = SourceLocation::current()) const;
  /// Returns several axes with their sizes, in the order of the selectors.
  Axes resolve_axis(std::initializer_list<AxisSelector> axes,
                    SourceLocation at = SourceLocation::current()) const;
  /// Returns the place of an axis in `axes()`, or nothing if the array lacks it.
  ///
  /// @throws haliax::Error if the axis has another size
  std::optional<std::size_t> axis_indices(const AxisSelector& axis,
                                          SourceLocation at = SourceLocation::current()) const;
  /// Returns the places of several axes.
  std::vector<std::optional<std::size_t>> axis_indices(
      std::initializer_list<AxisSelector> axes,
      SourceLocation at = SourceLocation::current()) const;
  /// Returns true if the names of the axes match a specification, and the dtype is `dtype` if set.
  ///
  /// The specification lists names in order. `...` stands for any axes. In braces, the order does
  /// not matter.
  ///
  /// @throws haliax::Error if the specification has two `...`
  ///
  ///     x.matches_axes("batch ... embed");     // starts with batch and ends with embed
  ///     x.matches_axes("{embed batch}");       // has these two axes, in any order
  bool matches_axes(std::string_view spec, std::optional<DType> dtype = {},
                    SourceLocation at = SourceLocation::current()) const;

  /// @}

  /// @name Reading values
  /// Reading computes the array and caches the value. It raises for an empty or donated array, and
  /// inside `jit`, `scan` and `vmap`, where arrays have no values. Vectors are row-major in the
  /// order of `axes()`. A value that the element type of the vector cannot hold becomes the nearest
  /// value that it holds; NaN becomes 0 in `integers`.
  /// @{

  /// Returns the value of an array with one element. Raises for any other number of elements.
  double item(SourceLocation at = SourceLocation::current()) const;
  /// Returns the elements as `float`.
  std::vector<float> floats(SourceLocation at = SourceLocation::current()) const;
  /// Returns the elements as `double`.
  std::vector<double> doubles(SourceLocation at = SourceLocation::current()) const;
  /// Returns the elements as `std::int64_t`.
  std::vector<std::int64_t> integers(SourceLocation at = SourceLocation::current()) const;
  /// Returns the elements as they are stored, in the dtype of the array.
  std::vector<std::byte> bytes(SourceLocation at = SourceLocation::current()) const;
  /// Computes the array and returns it.
  const NamedArray& eval(SourceLocation at = SourceLocation::current()) const;
  /// Returns the dtype, the axes and the values:
  /// `NamedArray(f32, (batch=2, embed=3), [[1, 2, 3], [4, 5, 6]])`.
  ///
  /// Arrays of more than 1,000 elements show the first and the last three along each axis. An array
  /// without a value shows the reason: it is traced, or donated.
  std::string to_string() const;
  /// Returns the array itself, which must have no axes.
  ///
  /// @throws haliax::Error if the array has axes
  const NamedArray& scalar(SourceLocation at = SourceLocation::current()) const;

  /// @}

  /// @name Compound assignment
  /// `x += y` is `x = x + y`: it rebinds the handle to a new array. Other handles are unchanged.
  /// @{
  NamedArray& operator+=(const Arr& y) &;
  NamedArray& operator-=(const Arr& y) &;
  NamedArray& operator*=(const Arr& y) &;
  NamedArray& operator/=(const Arr& y) &;
  NamedArray& operator%=(const Arr& y) &;
  NamedArray& operator&=(const Arr& y) &;
  NamedArray& operator|=(const Arr& y) &;
  NamedArray& operator^=(const Arr& y) &;
  NamedArray& operator<<=(const Arr& y) &;
  NamedArray& operator>>=(const Arr& y) &;
  /// @}

  /// @name Indexing
  /// @{

  /// Returns the indexed part, as `index` of haliax/ops.h.
  ///
  ///     x[{"batch", 3}]                                  // a position: removes the axis
  ///     x[{Pos, Slice{0, 4}}]                            // a range
  ///     x[{"vocab", ids}]                                // the axes of ids replace the axis
  ///     x[{{"batch", 3}, {"pos", ds(i, Window)}}]        // several axes
  NamedArray operator[](const Picks& picks) const;
  /// Refers to a part, to create a changed copy: `x.at({"batch", 3}).set(y)`, `.add(y)`, ...
  PickedPart at(const Picks& picks) const;

  /// @}

  /// @name Ops as methods
  /// Each method is the function of its name in haliax/ops.h: `x.sum("embed")` is
  /// `sum(x, "embed")`.
  /// @{

  /// Computes `haliax::sum`.
  NamedArray sum(const AxisSelection& axis = {},
                 SourceLocation at = SourceLocation::current()) const;
  NamedArray sum(const AxisSelection& axis, const ReduceOptions& options,
                 SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::mean`.
  NamedArray mean(const AxisSelection& axis = {},
                  SourceLocation at = SourceLocation::current()) const;
  NamedArray mean(const AxisSelection& axis, const ReduceOptions& options,
                  SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::prod`.
  NamedArray prod(const AxisSelection& axis = {},
                  SourceLocation at = SourceLocation::current()) const;
  NamedArray prod(const AxisSelection& axis, const ReduceOptions& options,
                  SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::max`.
  NamedArray max(const AxisSelection& axis = {},
                 SourceLocation at = SourceLocation::current()) const;
  NamedArray max(const AxisSelection& axis, const ReduceOptions& options,
                 SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::min`.
  NamedArray min(const AxisSelection& axis = {},
                 SourceLocation at = SourceLocation::current()) const;
  NamedArray min(const AxisSelection& axis, const ReduceOptions& options,
                 SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::any`.
  NamedArray any(const AxisSelection& axis = {},
                 SourceLocation at = SourceLocation::current()) const;
  NamedArray any(const AxisSelection& axis, const ReduceOptions& options,
                 SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::all`.
  NamedArray all(const AxisSelection& axis = {},
                 SourceLocation at = SourceLocation::current()) const;
  NamedArray all(const AxisSelection& axis, const ReduceOptions& options,
                 SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::var`.
  NamedArray var(const AxisSelection& axis = {},
                 SourceLocation at = SourceLocation::current()) const;
  NamedArray var(const AxisSelection& axis, const VarOptions& options,
                 SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::std_dev`.
  NamedArray std_dev(const AxisSelection& axis = {},
                     SourceLocation at = SourceLocation::current()) const;
  NamedArray std_dev(const AxisSelection& axis, const VarOptions& options,
                     SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::argmax`: the flat position without `axis`.
  NamedArray argmax(SourceLocation at = SourceLocation::current()) const;
  NamedArray argmax(const AxisSelector& axis, SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::argmin`: the flat position without `axis`.
  NamedArray argmin(SourceLocation at = SourceLocation::current()) const;
  NamedArray argmin(const AxisSelector& axis, SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::ptp`.
  NamedArray ptp(const AxisSelection& axis = {},
                 SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::cumsum`.
  NamedArray cumsum(const AxisSelector& axis, SourceLocation at = SourceLocation::current()) const;
  NamedArray cumsum(const AxisSelector& axis, DType dtype,
                    SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::cumprod`.
  NamedArray cumprod(const AxisSelector& axis, SourceLocation at = SourceLocation::current()) const;
  NamedArray cumprod(const AxisSelector& axis, DType dtype,
                     SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::sort`.
  NamedArray sort(const AxisSelector& axis, SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::argsort`.
  NamedArray argsort(const AxisSelector& axis, SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::astype`.
  NamedArray astype(DType dtype, SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::clip`. Either bound may be `std::nullopt`.
  NamedArray clip(const std::optional<Arr>& min, const std::optional<Arr>& max,
                  SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::round`.
  NamedArray round(int decimals = 0, SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::trace`.
  NamedArray trace(const AxisSelector& row, const AxisSelector& column, int offset = 0,
                   SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::dot` with one or more other arrays: `a.dot(b, "n")`, `a.dot(b, c, "n")`.
  NamedArray dot(const NamedArray& other, const AxisSelection& axis,
                 SourceLocation at = SourceLocation::current()) const;
  NamedArray dot(const NamedArray& other, const AxisSelection& axis, const DotOptions& options,
                 SourceLocation at = SourceLocation::current()) const;
  NamedArray dot(const NamedArray& b, const NamedArray& c, const AxisSelection& axis,
                 SourceLocation at = SourceLocation::current()) const;
  NamedArray dot(const std::vector<NamedArray>& others, const AxisSelection& axis,
                 const DotOptions& options, SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::rename`.
  NamedArray rename(std::initializer_list<std::pair<AxisSelector, AxisSelector>> renames,
                    SourceLocation at = SourceLocation::current()) const;
  NamedArray rename(const AxisSelector& from, const AxisSelector& to,
                    SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::rearrange`.
  NamedArray rearrange(std::initializer_list<AxisSelector> order,
                       SourceLocation at = SourceLocation::current()) const;
  NamedArray rearrange(const Names& order, SourceLocation at = SourceLocation::current()) const;
  NamedArray rearrange(const Axes& order, SourceLocation at = SourceLocation::current()) const;
  NamedArray rearrange(std::string_view spec, SourceLocation at = SourceLocation::current()) const;
  NamedArray rearrange(std::string_view spec, std::initializer_list<LabelBinding> bindings,
                       SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::broadcast_axis`.
  NamedArray broadcast_axis(const AxisSpec& axes,
                            SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::broadcast_to`.
  NamedArray broadcast_to(const AxisSpec& axes,
                          SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::flatten_axes`.
  NamedArray flatten_axes(const AxisSelection& old_axes, const AxisSelector& new_axis,
                          SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::unflatten_axis`.
  NamedArray unflatten_axis(const AxisSelector& axis, const AxisSpec& new_axes,
                            SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::ravel`.
  NamedArray ravel(const AxisSelector& new_axis,
                   SourceLocation at = SourceLocation::current()) const;
  NamedArray flatten(const AxisSelector& new_axis,
                     SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::take`.
  NamedArray take(const AxisSelector& axis, const Arr& index,
                  SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::slice`.
  NamedArray slice(const AxisSelector& axis, const Arr& start, std::int64_t length,
                   SourceLocation at = SourceLocation::current()) const;
  NamedArray slice(const std::vector<std::pair<AxisSelector, Arr>>& start,
                   const std::vector<std::pair<AxisSelector, SliceLength>>& length,
                   SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::updated_slice`.
  NamedArray updated_slice(const std::vector<std::pair<AxisSelector, NamedArray>>& start,
                           const Arr& update, SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::unbind`.
  std::vector<NamedArray> unbind(const AxisSelector& axis,
                                 SourceLocation at = SourceLocation::current()) const;
  /// Computes `haliax::split`.
  std::vector<NamedArray> split(const AxisSelector& axis, const AxisSpec& pieces,
                                SourceLocation at = SourceLocation::current()) const;

  /// @}

 private:
  NodePtr node_;
};

/// Writes `x.to_string()`.
std::ostream& operator<<(std::ostream& out, const NamedArray& x);

/// Computes several arrays in one program, which shares their common subexpressions. Empty arrays
/// are skipped.
///
/// Call it in a loop that updates an array without reading it: an array that is never read retains
/// its graph.
void eval(std::span<const NamedArray> arrays, SourceLocation at = SourceLocation::current());

/// The parameter type of ops: a `NamedArray` or a C++ scalar, with the source location of the
/// caller.
///
/// C++ scalars are weakly typed: they adopt the dtype of the arrays they meet (`bf16 + 1.0` is
/// `bf16`). Use `Arr` as the parameter type of a layer, so that errors name the line of its caller.
class Arr {
 public:
  /// Converts an array.
  Arr(const NamedArray& a, SourceLocation at = SourceLocation::current()) : array_(a), at_(at) {}
  /// Converts a C++ scalar. A `std::size_t` that `std::int64_t` cannot hold raises.
  Arr(double v, SourceLocation at = SourceLocation::current())
      : number_(v), kind_(Kind::real), at_(at) {}
  Arr(float v, SourceLocation at = SourceLocation::current()) : Arr(double(v), at) {}
  Arr(long v, SourceLocation at = SourceLocation::current())
      : number_(double(v)), integer_(v), kind_(Kind::integer), at_(at) {}
  Arr(int v, SourceLocation at = SourceLocation::current()) : Arr(long(v), at) {}
  Arr(long long v, SourceLocation at = SourceLocation::current()) : Arr(long(v), at) {}
  Arr(unsigned v, SourceLocation at = SourceLocation::current()) : Arr(long(v), at) {}
  Arr(unsigned long v, SourceLocation at = SourceLocation::current());
  Arr(unsigned long long v, SourceLocation at = SourceLocation::current())
      : Arr(static_cast<unsigned long>(v), at) {}
  Arr(bool v, SourceLocation at = SourceLocation::current())
      : number_(v), integer_(v), kind_(Kind::boolean), at_(at) {}
  Arr(const void*, SourceLocation = SourceLocation::current()) = delete;

  /// Returns true if the argument is a C++ scalar.
  bool is_number() const { return kind_ != Kind::array; }
  /// Returns the array. A C++ scalar becomes a scalar array: `f32`, `i32` (or `i64`) or `bool`.
  const NamedArray& array() const;
  operator const NamedArray&() const { return array(); }
  /// Returns the source location of the caller.
  SourceLocation at() const { return at_; }
  /// Returns the value of a C++ scalar.
  double number() const { return number_; }
  /// Returns the value of a C++ integer or bool.
  std::int64_t integer() const { return integer_; }
  /// Returns true if the argument is a C++ floating-point value.
  bool is_real() const { return kind_ == Kind::real; }
  /// Returns true if the argument is a C++ bool.
  bool is_boolean() const { return kind_ == Kind::boolean; }

  /// Returns the axes of the array.
  Axes axes() const { return array().axes(at_); }
  /// Returns the dtype of the array.
  DType dtype() const { return array().dtype(at_); }
  /// Returns true if the array has all of the selected axes.
  bool has_axis(const AxisSelection& a) const { return array().has_axis(a, at_); }
  /// Returns an axis of the array with its size. Raises if the axis is missing.
  Axis resolve_axis(const AxisSelector& a) const { return array().resolve_axis(a, at_); }
  /// Returns the node of the array.
  const NodePtr& node() const { return array().node(); }
  /// Writes a C++ scalar as a number, and an array as `NamedArray::to_string`.
  friend std::ostream& operator<<(std::ostream& out, const Arr& a);

 private:
  enum class Kind : std::uint8_t { array, real, integer, boolean };
  mutable NamedArray array_;
  double number_ = 0;
  std::int64_t integer_ = 0;
  Kind kind_ = Kind::array;
  SourceLocation at_;
};

/// @name Arrays from host memory
/// @{

/// Copies values into an array, row-major in the order of `axes`.
///
/// The dtype is the dtype of the elements: `f32` for `float`, `f64` for `double`, `i32`, `i64` or
/// `u32` for integers. A list in braces is `f32`.
///
/// @throws haliax::Error if the number of values is not the size of `axes`
///
/// `f64` is contagious: every result that depends on a `std::vector<double>` is `f64`. Convert with
/// `astype(DType::f32)` if the parameters are `f32`.
///
///     array({1, 2, 3, 4}, {Batch, Embed});             // f32
///     array(std::vector<std::int32_t>{2, 0}, Batch);   // i32
/// @see from_span, from_bytes
NamedArray array(std::span<const float> values, const AxisSpec& axes,
                 SourceLocation at = SourceLocation::current());
NamedArray array(std::span<const double> values, const AxisSpec& axes,
                 SourceLocation at = SourceLocation::current());
NamedArray array(std::span<const std::int32_t> values, const AxisSpec& axes,
                 SourceLocation at = SourceLocation::current());
NamedArray array(std::span<const std::int64_t> values, const AxisSpec& axes,
                 SourceLocation at = SourceLocation::current());
NamedArray array(std::span<const std::uint32_t> values, const AxisSpec& axes,
                 SourceLocation at = SourceLocation::current());
NamedArray array(std::initializer_list<double> values, const AxisSpec& axes,
                 SourceLocation at = SourceLocation::current());

/// Copies elements of any dtype from their bytes, row-major in the order of `axes`.
///
/// A bool is one byte; any nonzero byte is true.
///
/// @throws haliax::Error if the number of bytes does not match
NamedArray from_bytes(std::span<const std::byte> values, DType dtype, const AxisSpec& axes,
                      SourceLocation at = SourceLocation::current());

/// Returns `a` with all axes renamed, in order. The sizes must match.
///
/// A name without a size keeps the size of the array.
///
/// @throws haliax::Error if the number of axes or a size differs
///
///     named(x, {"batch", Embed});   // checks the size of the second axis
NamedArray named(const NamedArray& a, const AxisSpec& axes,
                 SourceLocation at = SourceLocation::current());
NamedArray named(const NamedArray& a, std::initializer_list<AxisSelector> axes,
                 SourceLocation at = SourceLocation::current());
NamedArray named(const NamedArray& a, const Names& names,
                 SourceLocation at = SourceLocation::current());

/// @}

}  // namespace haliax
