// The ops. Each takes axes by name; results and errors follow Haliax (docs/semantics.md), stricter
// where Haliax is silent. Unless said otherwise an op keeps the dtype and the axes of its input;
// numbers take the dtype of what they meet.
#pragma once
#include <optional>

#include "haliax/array.h"

namespace [[gnu::visibility("default")]] haliax {

// ---- making arrays ----
NamedArray zeros(const AxisSpec&, DType = DType::f32, SourceLocation = SourceLocation::current());
NamedArray ones(const AxisSpec&, DType = DType::f32, SourceLocation = SourceLocation::current());
// the dtype of the value unless given
NamedArray full(const AxisSpec&, Arr value, std::optional<DType> = {});
NamedArray zeros_like(Arr, std::optional<DType> = {});
NamedArray ones_like(Arr, std::optional<DType> = {});
NamedArray full_like(Arr, Arr value, std::optional<DType> = {});
// f32 if start or step is a fraction, else i32, or i64 where that does not hold both ends; raises
// where the dtype does not.
struct ArangeOptions {
  double start = 0, step = 1;
  std::optional<DType> dtype = {};
};
// several axes: row-major
NamedArray arange(const AxisSpec&, ArangeOptions = {}, SourceLocation = SourceLocation::current());
struct LinspaceOptions {
  double start = 0, stop = 1;
  bool endpoint = true;
};
NamedArray linspace(const Axis&, LinspaceOptions = {}, SourceLocation = SourceLocation::current());
// out (..., Class): 1 where the id is the position along Class; ids outside give zeros.
NamedArray one_hot(Arr ids, const Axis& Class, DType = DType::f32);

// ---- elementwise, one input ----
// Functions that are not closed over integers (exp, sqrt, tanh, ...) give f32 for integers and
// bools.
NamedArray abs(Arr), sign(Arr), negative(Arr), positive(Arr), square(Arr), reciprocal(Arr);
NamedArray exp(Arr), exp2(Arr), expm1(Arr), log(Arr), log2(Arr), log10(Arr), log1p(Arr), sqrt(Arr),
    rsqrt(Arr), cbrt(Arr);
NamedArray sin(Arr), cos(Arr), tan(Arr), arcsin(Arr), arccos(Arr), arctan(Arr), sinh(Arr),
    cosh(Arr), tanh(Arr), arcsinh(Arr), arccosh(Arr), arctanh(Arr), erf(Arr), erfinv(Arr),
    deg2rad(Arr), rad2deg(Arr);
NamedArray floor(Arr), ceil(Arr), trunc(Arr), round(Arr, int decimals = 0);  // halves go to even
NamedArray isfinite(Arr), isnan(Arr), isinf(Arr), isneginf(Arr), isposinf(Arr), signbit(Arr),
    logical_not(Arr), bitwise_not(Arr);
NamedArray astype(Arr, DType);
NamedArray stop_gradient(Arr);  // the value, with no gradient

// ---- elementwise, two or three inputs ----
// The axes of one must be a subset of the other's; the result has the larger one's axes in its
// order (the left one's, if equal sets).
NamedArray add(Arr, Arr), subtract(Arr, Arr), multiply(Arr, Arr), divide(Arr, Arr), power(Arr, Arr);
NamedArray maximum(Arr, Arr), minimum(Arr, Arr);
NamedArray floor_divide(Arr, Arr), mod(Arr, Arr), fmod(Arr, Arr), arctan2(Arr, Arr),
    hypot(Arr, Arr), logaddexp(Arr, Arr);
NamedArray nextafter(Arr, Arr);
NamedArray equal(Arr, Arr), not_equal(Arr, Arr), less(Arr, Arr), less_equal(Arr, Arr),
    greater(Arr, Arr), greater_equal(Arr, Arr);
NamedArray logical_and(Arr, Arr), logical_or(Arr, Arr), logical_xor(Arr, Arr);
NamedArray bitwise_and(Arr, Arr), bitwise_or(Arr, Arr), bitwise_xor(Arr, Arr), left_shift(Arr, Arr),
    right_shift(Arr, Arr);
NamedArray fmax(Arr, Arr), fmin(Arr, Arr);  // NaN loses
NamedArray where(Arr condition, Arr x, Arr y);
NamedArray clip(Arr, std::optional<Arr> min, std::optional<Arr> max);

inline NamedArray operator+(Arr a, Arr b) { return add(a, b); }
inline NamedArray operator-(Arr a, Arr b) { return subtract(a, b); }
inline NamedArray operator*(Arr a, Arr b) { return multiply(a, b); }
inline NamedArray operator/(Arr a, Arr b) { return divide(a, b); }
inline NamedArray operator%(Arr a, Arr b) { return mod(a, b); }
inline NamedArray operator-(Arr a) { return negative(a); }
inline NamedArray operator+(Arr a) { return positive(a); }
inline NamedArray operator==(Arr a, Arr b) { return equal(a, b); }
inline NamedArray operator!=(Arr a, Arr b) { return not_equal(a, b); }
inline NamedArray operator<(Arr a, Arr b) { return less(a, b); }
inline NamedArray operator<=(Arr a, Arr b) { return less_equal(a, b); }
inline NamedArray operator>(Arr a, Arr b) { return greater(a, b); }
inline NamedArray operator>=(Arr a, Arr b) { return greater_equal(a, b); }
inline NamedArray operator&(Arr a, Arr b) { return bitwise_and(a, b); }
inline NamedArray operator|(Arr a, Arr b) { return bitwise_or(a, b); }
inline NamedArray operator^(Arr a, Arr b) { return bitwise_xor(a, b); }
inline NamedArray operator~(Arr a) { return bitwise_not(a); }
// On every element, and always on both sides. An error names the place where the right operand was
// made.
NamedArray operator!(const NamedArray&), operator&&(const NamedArray&, const NamedArray&),
                                         operator&&(const NamedArray&, bool),
                                         operator&&(bool, const NamedArray&),
                                         operator||(const NamedArray&, const NamedArray&),
                                         operator||(const NamedArray&, bool),
                                         operator||(bool, const NamedArray&);
inline NamedArray operator<<(Arr a, Arr b) { return left_shift(a, b); }
inline NamedArray operator>>(Arr a, Arr b) { return right_shift(a, b); }

// ---- reductions: over the axes given, all of them if none is (Names{}: over none) ----
struct ReduceOptions {
  std::optional<NamedArray> where = {};  // a bool mask, broadcast by name
  std::optional<DType> dtype = {};
};
// bool and narrow integers sum as i32 (u32 if unsigned)
NamedArray sum(Arr, const AxisSelection& = {}, ReduceOptions = {});
// of integers: f32; of a mask's selection
NamedArray mean(Arr, const AxisSelection& = {}, ReduceOptions = {});
NamedArray prod(Arr, const AxisSelection& = {}, ReduceOptions = {});
// NaN wins.
NamedArray max(Arr, const AxisSelection& = {}, ReduceOptions = {}),
    min(Arr, const AxisSelection& = {}, ReduceOptions = {});
struct VarOptions {
  std::optional<NamedArray> where = {};
  int ddof = 0;
};
NamedArray var(Arr, const AxisSelection& = {}, VarOptions = {}),
    std_dev(Arr, const AxisSelection& = {}, VarOptions = {});
NamedArray any(Arr, const AxisSelection& = {}, ReduceOptions = {}),
    all(Arr, const AxisSelection& = {}, ReduceOptions = {});
// i32, of more than 2^31 - 1 positions i64; no axis: flat, in storage order.
NamedArray argmax(Arr, std::optional<AxisSelector> = {}),
    argmin(Arr, std::optional<AxisSelector> = {});
NamedArray logsumexp(Arr, const AxisSelection& = {});

// ---- along axes ----
// over all the axes jointly
NamedArray softmax(Arr, const AxisSelection&), log_softmax(Arr, const AxisSelection&);
// (x - mean) / sqrt(var + epsilon)
NamedArray standardize(Arr, const AxisSelection&, double epsilon = 1e-5);
NamedArray cumsum(Arr, const AxisSelector&), cumprod(Arr, const AxisSelector&);
// ascending, stable, NaN last; i32 or i64
NamedArray sort(Arr, const AxisSelector&), argsort(Arr, const AxisSelector&);
// values, indices (i32 or i64), greatest first; the axis shrinks to k in its place, or is replaced
// by new_axis.
std::pair<NamedArray, NamedArray> top_k(Arr, const AxisSelector&, std::int64_t k,
                                        std::optional<Name> new_axis = {});

// ---- contraction ----
// Sums over `axis` the product of all the arrays; other axes they share are batched. Result axes:
// in order of first appearance. Every axis summed must be in at least two of the arrays (`einsum`
// says otherwise). dtype: promoted; sums are f32 inside for bf16.
struct DotOptions {
  std::optional<Names> out_axes = {};
  std::optional<DType> preferred_element_type = {};
};
NamedArray dot(Arr, Arr, const AxisSelection& axis, DotOptions = {});
NamedArray dot(std::initializer_list<Arr>, const AxisSelection& axis, DotOptions = {});
NamedArray einsum(std::string_view spec, std::initializer_list<Arr>,
                  const std::vector<std::pair<std::string, AxisSelector>>& aliases = {});

// ---- shape ----
// Simultaneous; raises for a name that is not there.
NamedArray rename(Arr, std::initializer_list<std::pair<Name, Name>>);
NamedArray rename(Arr, const AxisSelector& from, const AxisSelector& to);
NamedArray rename(Arr, const std::vector<std::pair<Name, Name>>&);
// "..." stands for what is not named. An Axis also checks the size.
NamedArray rearrange(Arr, std::initializer_list<AxisSelector> order);
NamedArray rearrange(Arr, const Names& order);
NamedArray rearrange(Arr, const Axes& order);
NamedArray rearrange(Arr, std::string_view spec,
                     const std::vector<std::pair<std::string, AxisSelector>>& bindings = {});
NamedArray broadcast_axis(Arr, const AxisSpec&);  // new axes come first
NamedArray broadcast_to(Arr, const AxisSpec&, bool ensure_order = true,
                        bool enforce_no_extra_axes = true);
// Row-major in the order given, in the place of the first.
NamedArray flatten_axes(Arr, const AxisSelection& old_axes, const AxisSelector& new_axis);
NamedArray unflatten_axis(Arr, const AxisSelector& axis, const AxisSpec& new_axes);
NamedArray ravel(Arr, const AxisSelector& new_axis);
std::vector<NamedArray> unbind(Arr, const AxisSelector&);  // one array for each position
// Pieces: sizes that add up, names of their own.
std::vector<NamedArray> split(Arr, const AxisSelector&, const AxisSpec& pieces);
// The new axis comes first.
NamedArray stack(const AxisSelector& axis, const std::vector<NamedArray>&,
                 SourceLocation = SourceLocation::current());
NamedArray concatenate(const AxisSelector& axis, const std::vector<NamedArray>&,
                       SourceLocation = SourceLocation::current());
NamedArray repeat(Arr, const AxisSelector&, std::int64_t n);  // each element n times
// a new name: a new first axis
NamedArray tile(Arr, const std::vector<std::pair<Name, std::int64_t>>&);
NamedArray roll(Arr, Arr shift, const AxisSelector&);
NamedArray pad(Arr, const std::vector<std::pair<Name, std::pair<std::int64_t, std::int64_t>>>&,
               Arr value = 0);
NamedArray flip(Arr, const AxisSelector&);
NamedArray tril(Arr, const AxisSelector&, const AxisSelector&, int k = 0);  // these two move last
NamedArray triu(Arr, const AxisSelector&, const AxisSelector&, int k = 0);
NamedArray trace(Arr, const AxisSelector&, const AxisSelector&, int offset = 0);

// ---- picking and placing ----
// Rows of `axis` at the index; the index's axes take the place of the axis. Names they share are
// paired. Outside: NaN or the least integer.
NamedArray take(Arr, const AxisSelector& axis, Arr index);
// `length` positions from `start` (a number or a 0-d integer array; clamped so that the slice
// fits). new_axis names the result's axis.
NamedArray slice(Arr, const AxisSelector& axis, Arr start, std::int64_t length,
                 std::optional<Name> new_axis = {});
NamedArray at(Arr, const AxisSelector& axis, Arr position);  // one position; the axis is dropped
NamedArray updated_slice(Arr, const std::vector<std::pair<Name, NamedArray>>& start, Arr update);

// What an index of one axis may be: a position (the axis goes), a range, or an array of positions
// (its axes take the axis's place). As Python's start:stop:step, but a bound outside of the axis
// raises.
struct Slice {
  std::optional<std::int64_t> start = {}, stop = {};
  std::int64_t step = 1;
};
// dynamic start, static length
struct DSlice {
  Arr start;
  std::int64_t length;
  std::optional<Name> name = {};
};
DSlice ds(Arr start, const AxisSelector& length);
struct Index {
  enum class Kind : std::uint8_t { position, range, window, array } kind;
  std::int64_t position = 0;
  Slice range = {};
  NamedArray array = {};
  std::int64_t length = 0;
  Name name = {};
  Index(int i) : kind(Kind::position), position(i) {}
  Index(long i) : kind(Kind::position), position(i) {}
  Index(long long i) : Index(long(i)) {}
  Index(unsigned i) : Index(long(i)) {}
  Index(std::size_t i) : Index(long(i)) {}
  Index(Slice s) : kind(Kind::range), range(s) {}
  Index(const DSlice& d)
      : kind(Kind::window), array(d.start.array()), length(d.length),
        name(d.name.value_or(Name())) {}
  Index(const NamedArray& a) : kind(Kind::array), array(a) {}
};
using Indices = std::vector<std::pair<AxisSelector, Index>>;
// Numpy's rules by name; outside: clamped.
NamedArray index(Arr, const Indices&);
// at_set(x, {{"embed", 3}}, update): x with the indexed part set (added to, ...); the update is
// broadcast to that part.
NamedArray at_set(Arr, const Indices&, Arr update), at_add(Arr, const Indices&, Arr update);
NamedArray at_mul(Arr, const Indices&, Arr update);
NamedArray at_min(Arr, const Indices&, Arr update), at_max(Arr, const Indices&, Arr update);

// What stands between the brackets of x[...]: one axis and its index, or a list of such pairs.
class Picks {
 public:
  Picks(AxisSelector axis, Index index, SourceLocation = SourceLocation::current());
  Picks(std::initializer_list<std::pair<AxisSelector, Index>>,
        SourceLocation = SourceLocation::current());
  Picks(Indices, SourceLocation = SourceLocation::current());
  const Indices& indices() const { return indices_; }
  SourceLocation where() const { return where_; }

 private:
  Indices indices_;
  SourceLocation where_;
};
// What x.at(...) gives: `set` makes x with that part replaced, as at_set(x, ...) does; the others
// likewise.
class PickedPart {
 public:
  PickedPart(NamedArray x, Picks picks) : x_(std::move(x)), picks_(std::move(picks)) {}
  [[nodiscard("x stays as it is; x = x.at(...).set(y) keeps the new array")]] NamedArray set(
      const Arr& update) const;
  [[nodiscard("x stays as it is; x = x.at(...).set(y) keeps the new array")]] NamedArray add(
      const Arr& update) const;
  [[nodiscard("x stays as it is; x = x.at(...).set(y) keeps the new array")]] NamedArray mul(
      const Arr& update) const;
  [[nodiscard("x stays as it is; x = x.at(...).set(y) keeps the new array")]] NamedArray min(
      const Arr& update) const;
  [[nodiscard("x stays as it is; x = x.at(...).set(y) keeps the new array")]] NamedArray max(
      const Arr& update) const;

 private:
  NamedArray x_;
  Picks picks_;
};

}  // namespace haliax
