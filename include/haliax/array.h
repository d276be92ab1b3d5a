// NamedArray: an array whose dimensions have names. A handle on a frozen node of the graph; values
// are made when they are read.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <memory>
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
using NodePtr = std::shared_ptr<const Node>;
class Arr;
class Picks;  // of haliax/ops.h, as these
class PickedPart;
struct ReduceOptions;
struct VarOptions;

class NamedArray {
 public:
  NamedArray() noexcept;  // empty: no array at all, e.g. the gradient of an integer
  explicit NamedArray(NodePtr node);
  NamedArray(const NamedArray&);
  NamedArray(NamedArray&&) noexcept;
  NamedArray& operator=(const NamedArray&) &;
  NamedArray& operator=(NamedArray&&) & noexcept;
  template <class T> void operator=(const T&) && {  // x[{"n", 3}] = 1. would change nothing
    static_assert(sizeof(T) == 0,
                  "haliax: what is assigned to is a new array, which nobody holds; x = "
                  "x.at({\"n\", 3}).set(y) "
                  "changes a part of x.");
  }
  ~NamedArray();
  // A scalar of dtype f32, so that numbers can be fields, results and what a scan starts from.
  NamedArray(double value, SourceLocation = SourceLocation::current());

  bool empty() const { return node_ == nullptr; }
  // The truth of a single element that is known: it is not 0. Raises for more elements (say all or
  // any), inside jit, scan and vmap (say where), and for an empty array.
  explicit operator bool() const;
  const NodePtr& node() const { return node_; }

  // These raise for an empty array.
  // without those that an enclosing vmap hides
  Axes axes(SourceLocation = SourceLocation::current()) const;
  DType dtype(SourceLocation = SourceLocation::current()) const;
  std::int64_t ndim(SourceLocation = SourceLocation::current()) const;
  std::int64_t size(SourceLocation = SourceLocation::current()) const;
  std::int64_t nbytes(SourceLocation = SourceLocation::current()) const;
  // all of them
  bool has_axis(const AxisSelection&, SourceLocation = SourceLocation::current()) const;
  // Raise for an axis that is missing, naming the nearest, or of another size.
  std::int64_t axis_size(const AxisSelector&, SourceLocation = SourceLocation::current()) const;
  Axis resolve_axis(const AxisSelector&, SourceLocation = SourceLocation::current()) const;

  // Reading evaluates (and remembers) the value. Raises inside jit, grad of jit, scan and vmap,
  // where there is no value yet.
  double item(SourceLocation = SourceLocation::current()) const;  // of an array with one element
  // Row-major in the order of axes(), converted; what does not fit an integer becomes the nearest
  // that does, NaN 0.
  std::vector<float> floats(SourceLocation = SourceLocation::current()) const;
  std::vector<double> doubles(SourceLocation = SourceLocation::current()) const;
  std::vector<std::int64_t> integers(SourceLocation = SourceLocation::current()) const;
  // row-major, as stored
  std::vector<std::byte> bytes(SourceLocation = SourceLocation::current()) const;
  const NamedArray& eval(SourceLocation = SourceLocation::current()) const;  // computes now
  // NamedArray(f32, (batch=2, embed=3), [[1, 2, 3], [4, 5, 6]]). Of more than 1000 elements the
  // first and the last three along each axis. What has no value says so: while it is traced, or
  // donated. Else it reads, and raises what reading raises.
  std::string to_string() const;
  // itself if it is 0-d, else raises
  const NamedArray& scalar(SourceLocation = SourceLocation::current()) const;

  // x += y is x = x + y: this handle holds the sum from then on, with its axes and dtype; others
  // keep what they hold.
  NamedArray& operator+=(const Arr&) &;
  NamedArray& operator-=(const Arr&) &;
  NamedArray& operator*=(const Arr&) &;
  NamedArray& operator/=(const Arr&) &;
  NamedArray& operator%=(const Arr&) &;
  NamedArray& operator&=(const Arr&) &;
  NamedArray& operator|=(const Arr&) &;
  NamedArray& operator^=(const Arr&) &;
  NamedArray& operator<<=(const Arr&) &;
  NamedArray& operator>>=(const Arr&) &;

  // x[{"batch", 3}], x[{Pos, Slice{0, 4}}], x[{"vocab", ids}], x[{{"batch", 3}, {"pos", ds(i,
  // 4)}}]: index of haliax/ops.h.
  NamedArray operator[](const Picks&) const;
  // x.at({"batch", 3}).set(y), .add(y), ...: x with that part changed
  PickedPart at(const Picks&) const;

  // ---- ops of haliax/ops.h as methods: x.sum("embed") is sum(x, "embed") ----
  NamedArray sum(const AxisSelection& = {}, SourceLocation = SourceLocation::current()) const;
  NamedArray sum(const AxisSelection&, const ReduceOptions&,
                 SourceLocation = SourceLocation::current()) const;
  NamedArray mean(const AxisSelection& = {}, SourceLocation = SourceLocation::current()) const;
  NamedArray mean(const AxisSelection&, const ReduceOptions&,
                  SourceLocation = SourceLocation::current()) const;
  NamedArray prod(const AxisSelection& = {}, SourceLocation = SourceLocation::current()) const;
  NamedArray prod(const AxisSelection&, const ReduceOptions&,
                  SourceLocation = SourceLocation::current()) const;
  NamedArray max(const AxisSelection& = {}, SourceLocation = SourceLocation::current()) const;
  NamedArray max(const AxisSelection&, const ReduceOptions&,
                 SourceLocation = SourceLocation::current()) const;
  NamedArray min(const AxisSelection& = {}, SourceLocation = SourceLocation::current()) const;
  NamedArray min(const AxisSelection&, const ReduceOptions&,
                 SourceLocation = SourceLocation::current()) const;
  NamedArray any(const AxisSelection& = {}, SourceLocation = SourceLocation::current()) const;
  NamedArray any(const AxisSelection&, const ReduceOptions&,
                 SourceLocation = SourceLocation::current()) const;
  NamedArray all(const AxisSelection& = {}, SourceLocation = SourceLocation::current()) const;
  NamedArray all(const AxisSelection&, const ReduceOptions&,
                 SourceLocation = SourceLocation::current()) const;
  NamedArray var(const AxisSelection& = {}, SourceLocation = SourceLocation::current()) const;
  NamedArray var(const AxisSelection&, const VarOptions&,
                 SourceLocation = SourceLocation::current()) const;
  NamedArray std_dev(const AxisSelection& = {}, SourceLocation = SourceLocation::current()) const;
  NamedArray std_dev(const AxisSelection&, const VarOptions&,
                     SourceLocation = SourceLocation::current()) const;
  NamedArray argmax(SourceLocation = SourceLocation::current()) const;
  NamedArray argmax(const AxisSelector&, SourceLocation = SourceLocation::current()) const;
  NamedArray argmin(SourceLocation = SourceLocation::current()) const;
  NamedArray argmin(const AxisSelector&, SourceLocation = SourceLocation::current()) const;
  NamedArray cumsum(const AxisSelector&, SourceLocation = SourceLocation::current()) const;
  NamedArray cumprod(const AxisSelector&, SourceLocation = SourceLocation::current()) const;
  NamedArray sort(const AxisSelector&, SourceLocation = SourceLocation::current()) const;
  NamedArray argsort(const AxisSelector&, SourceLocation = SourceLocation::current()) const;
  NamedArray astype(DType, SourceLocation = SourceLocation::current()) const;
  NamedArray clip(const Arr& min, const Arr& max, SourceLocation = SourceLocation::current()) const;
  NamedArray round(int decimals = 0, SourceLocation = SourceLocation::current()) const;
  NamedArray trace(const AxisSelector&, const AxisSelector&, int offset = 0,
                   SourceLocation = SourceLocation::current()) const;
  NamedArray dot(const NamedArray& other, const AxisSelection&,
                 SourceLocation = SourceLocation::current()) const;
  NamedArray rename(std::initializer_list<std::pair<Name, Name>>,
                    SourceLocation = SourceLocation::current()) const;
  NamedArray rename(const AxisSelector& from, const AxisSelector& to,
                    SourceLocation = SourceLocation::current()) const;
  NamedArray rearrange(std::initializer_list<AxisSelector> order,
                       SourceLocation = SourceLocation::current()) const;
  NamedArray rearrange(const Names& order, SourceLocation = SourceLocation::current()) const;
  NamedArray rearrange(const Axes& order, SourceLocation = SourceLocation::current()) const;
  NamedArray rearrange(std::string_view spec, SourceLocation = SourceLocation::current()) const;
  NamedArray broadcast_axis(const AxisSpec&, SourceLocation = SourceLocation::current()) const;
  NamedArray broadcast_to(const AxisSpec&, SourceLocation = SourceLocation::current()) const;
  NamedArray flatten_axes(const AxisSelection& old_axes, const AxisSelector& new_axis,
                          SourceLocation = SourceLocation::current()) const;
  NamedArray unflatten_axis(const AxisSelector&, const AxisSpec& new_axes,
                            SourceLocation = SourceLocation::current()) const;
  NamedArray ravel(const AxisSelector& new_axis, SourceLocation = SourceLocation::current()) const;
  NamedArray take(const AxisSelector&, const Arr& index,
                  SourceLocation = SourceLocation::current()) const;
  NamedArray slice(const AxisSelector&, const Arr& start, std::int64_t length,
                   SourceLocation = SourceLocation::current()) const;
  NamedArray updated_slice(const std::vector<std::pair<Name, NamedArray>>& start, const Arr& update,
                           SourceLocation = SourceLocation::current()) const;
  std::vector<NamedArray> unbind(const AxisSelector&,
                                 SourceLocation = SourceLocation::current()) const;
  std::vector<NamedArray> split(const AxisSelector&, const AxisSpec& pieces,
                                SourceLocation = SourceLocation::current()) const;

 private:
  NodePtr node_;
};

std::ostream& operator<<(std::ostream&, const NamedArray&);  // as to_string

// all at once, as one program
void eval(std::span<const NamedArray> arrays, SourceLocation = SourceLocation::current());

// The parameter type of every op: a NamedArray or a plain number, and the place in the code where
// it was passed. Numbers are weakly typed: they take the dtype of what they meet (bf16 + 1.0 is
// bf16).
class Arr {
 public:
  Arr(const NamedArray& a, SourceLocation at = SourceLocation::current()) : array_(a), at_(at) {}
  Arr(double v, SourceLocation at = SourceLocation::current())
      : number_(v), kind_(Kind::real), at_(at) {}
  Arr(float v, SourceLocation at = SourceLocation::current()) : Arr(double(v), at) {}
  Arr(long v, SourceLocation at = SourceLocation::current())
      : number_(double(v)), integer_(v), kind_(Kind::integer), at_(at) {}
  Arr(int v, SourceLocation at = SourceLocation::current()) : Arr(long(v), at) {}
  Arr(long long v, SourceLocation at = SourceLocation::current()) : Arr(long(v), at) {}
  Arr(unsigned v, SourceLocation at = SourceLocation::current()) : Arr(long(v), at) {}
  // std::size_t; raises for what i64 does not hold
  Arr(unsigned long v, SourceLocation = SourceLocation::current());
  Arr(unsigned long long v, SourceLocation at = SourceLocation::current())
      : Arr(static_cast<unsigned long>(v), at) {}
  Arr(bool v, SourceLocation at = SourceLocation::current())
      : number_(v), integer_(v), kind_(Kind::boolean), at_(at) {}
  Arr(const void*, SourceLocation = SourceLocation::current()) = delete;

  bool is_number() const { return kind_ != Kind::array; }
  const NamedArray& array() const;  // a number becomes a scalar array: f32, i32 (or i64) or bool
  operator const NamedArray&() const { return array(); }
  SourceLocation at() const { return at_; }
  double number() const { return number_; }
  std::int64_t integer() const { return integer_; }
  bool is_real() const { return kind_ == Kind::real; }
  bool is_boolean() const { return kind_ == Kind::boolean; }

  Axes axes() const { return array().axes(at_); }
  DType dtype() const { return array().dtype(at_); }
  bool has_axis(const AxisSelection& a) const { return array().has_axis(a, at_); }
  Axis resolve_axis(const AxisSelector& a) const { return array().resolve_axis(a, at_); }
  const NodePtr& node() const { return array().node(); }
  friend std::ostream& operator<<(std::ostream&, const Arr&);  // a number as it is

 private:
  enum class Kind : std::uint8_t { array, real, integer, boolean };
  mutable NamedArray array_;
  double number_ = 0;
  std::int64_t integer_ = 0;
  Kind kind_ = Kind::array;
  SourceLocation at_;
};

// ---- arrays from host memory: row-major in the order of the axes; raises if the number of values
// does not fit ---- f32
NamedArray array(std::span<const float>, const AxisSpec&,
                 SourceLocation = SourceLocation::current());
// f64, also from a std::vector<double>; f64 makes f64 of all that it meets. astype(DType::f32) if
// the parameters are f32.
NamedArray array(std::span<const double>, const AxisSpec&,
                 SourceLocation = SourceLocation::current());
// i32
NamedArray array(std::span<const std::int32_t>, const AxisSpec&,
                 SourceLocation = SourceLocation::current());
// i64
NamedArray array(std::span<const std::int64_t>, const AxisSpec&,
                 SourceLocation = SourceLocation::current());
// u32
NamedArray array(std::span<const std::uint32_t>, const AxisSpec&,
                 SourceLocation = SourceLocation::current());
// f32
NamedArray array(std::initializer_list<double>, const AxisSpec&,
                 SourceLocation = SourceLocation::current());
NamedArray from_bytes(std::span<const std::byte>, DType, const AxisSpec&,
                      SourceLocation = SourceLocation::current());
// The same values, other names.
NamedArray named(const NamedArray& a, const AxisSpec& axes,
                 SourceLocation = SourceLocation::current());

}  // namespace haliax
