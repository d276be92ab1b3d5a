// The first positions of an order: one pass over each row, which compares the elements with the
// largest of the candidates. Short rows are compared four at a time.
#include "ops/first_positions.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/scalar.h"
#include "graph/emit.h"
#include "haliax/custom_op.h"
#include "ops/attr.h"
#include "ops/fault.h"

namespace haliax::prim {
namespace {

// The candidates of a row. They are twice as many as needed, so that a selection of the smaller
// half, which is linear, is due only after as many new candidates.
template <DType dtype> class Candidates {
 public:
  struct RankedValue {
    scalar::Value value;
    std::int64_t position;
  };
  explicit Candidates(std::int64_t count) : count_(count) {
    items_.reserve(std::size_t(2 * count));
  }
  void add(scalar::Value v, std::int64_t position) {
    if (full_ && !before(v, limit_)) return;
    items_.push_back({v, position});
    if (std::int64_t(items_.size()) == 2 * count_ ||
        (!full_ && std::int64_t(items_.size()) == count_))
      select();
  }
  bool has_limit() const { return full_ && !scalar::is_nan(dtype, limit_); }
  double limit() const { return limit_.real; }
  // Writes the positions in order.
  template <class F> void write(const F& f) {
    std::sort(items_.begin(), items_.end(), less);
    for (std::int64_t k = 0; k < count_; ++k) f(k, items_[std::size_t(k)].position);
  }

 private:
  // NaN is after all other values.
  static bool before(scalar::Value a, scalar::Value b) {
    if (scalar::is_nan(dtype, a)) return false;
    return scalar::is_nan(dtype, b) || scalar::less(dtype, a, b);
  }
  static bool less(const RankedValue& a, const RankedValue& b) {
    return before(a.value, b.value) || (!before(b.value, a.value) && a.position < b.position);
  }
  void select() {
    std::nth_element(items_.begin(), items_.begin() + count_ - 1, items_.end(), less);
    items_.resize(std::size_t(count_));
    limit_ = items_.back().value;
    full_ = true;
  }

  std::int64_t count_;
  std::vector<RankedValue> items_;
  scalar::Value limit_;
  bool full_ = false;
};

// Returns true if one of 32 adjacent floats is less than the limit. False for NaN.
bool any_less(const float* x, float limit) {
  using Vector [[gnu::vector_size(16)]] = float;
  using Flags [[gnu::vector_size(16)]] = std::int32_t;
  const Vector top = {limit, limit, limit, limit};
  Flags any = {0, 0, 0, 0};
  for (int i = 0; i < 32; i += 4) {
    Vector v;
    std::memcpy(&v, x + i, sizeof v);
    any |= v < top;
  }
  return (any[0] | any[1] | any[2] | any[3]) != 0;
}

// ---- four rows at a time ----

using Lanes [[gnu::vector_size(16)]] = std::int32_t;
constexpr std::int64_t kLanes = 4, kMostSlots = 8;
constexpr std::int64_t kShortRow = 512;  // elements; in longer rows, few elements are candidates

// Returns an integer that compares like the bits of an f32: NaN last, both zeros equal.
template <class T> T ordered(T bits) {
  const T size = bits & 0x7fffffff, sign = bits >> 31, nan = size > 0x7f800000;
  if constexpr (std::is_same_v<T, Lanes>)
    return (((size ^ sign) - sign) & ~nan) | (nan & 0x7fffffff);
  else
    return nan ? 0x7fffffff : (size ^ sign) - sign;
}
template <DType dtype> constexpr bool has_lanes() { return scalar::bytes_per(dtype) <= 4; }
// True for dtypes whose elements are the high bits of an f32.
template <DType dtype> constexpr bool starts_f32() {
  return dtype == DType::f32 || dtype == DType::bf16;
}
// Returns the bits of an element as f32.
template <DType dtype> std::int32_t bits_of(const std::byte* x) {
  if constexpr (dtype == DType::bf16)
    return static_cast<std::int32_t>(std::uint32_t(scalar::read<std::uint16_t>(x)) << 16);
  else
    return scalar::read<std::int32_t>(x);
}
template <DType dtype> Lanes bits_of_adjacent(const std::byte* x) {
  Lanes bits;
  if constexpr (dtype == DType::bf16) {
    using Halves [[gnu::vector_size(8)]] = std::uint16_t;
    Halves halves;
    std::memcpy(&halves, x, sizeof halves);
    bits = __builtin_convertvector(halves, Lanes) << 16;
  } else {
    std::memcpy(&bits, x, sizeof bits);
  }
  return bits;
}
template <DType dtype> std::int32_t key_of_element(const std::byte* x) {
  if constexpr (starts_f32<dtype>()) return ordered(bits_of<dtype>(x));
  const scalar::Value v = scalar::load(dtype, x);
  if constexpr (scalar::holds_real(dtype))
    return ordered(std::bit_cast<std::int32_t>(float(v.real)));
  constexpr std::int64_t shift = dtype == DType::u32 ? std::int64_t(1) << 31 : 0;
  return static_cast<std::int32_t>(v.integer - shift);
}
// Returns the keys of one element of each row. `row`: the distance of rows, in bytes.
template <DType dtype> Lanes keys_at(const std::byte* x, std::int64_t row) {
  Lanes keys;
  if constexpr (starts_f32<dtype>()) {
    if (row == scalar::bytes_per(dtype)) return ordered(bits_of_adjacent<dtype>(x));
    for (int l = 0; l < kLanes; ++l) keys[l] = bits_of<dtype>(x + l * row);
    return ordered(keys);
  }
  for (int l = 0; l < kLanes; ++l) keys[l] = key_of_element<dtype>(x + l * row);
  return keys;
}
// Returns the keys of four adjacent elements of each row, by element.
using FourKeys = std::array<Lanes, 4>;
template <DType dtype> FourKeys keys_of_four(const std::byte* x, std::int64_t row) {
  FourKeys v;
  for (int l = 0; l < kLanes; ++l) v[std::size_t(l)] = bits_of_adjacent<dtype>(x + l * row);
  const Lanes low01 = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5),
              high01 = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7),
              low23 = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5),
              high23 = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
  return {ordered(Lanes(__builtin_shufflevector(low01, low23, 0, 1, 4, 5))),
          ordered(Lanes(__builtin_shufflevector(low01, low23, 2, 3, 6, 7))),
          ordered(Lanes(__builtin_shufflevector(high01, high23, 0, 1, 4, 5))),
          ordered(Lanes(__builtin_shufflevector(high01, high23, 2, 3, 6, 7)))};
}
// The candidates of four rows, in ascending order.
class CandidateLanes {
 public:
  explicit CandidateLanes(std::int64_t count) : count_(int(count)) {}
  // Adds the element at `position` of each row. Equal elements keep their order.
  void add(Lanes keys, std::int32_t position) {
    const bool full = position >= count_;
    if (full && !any(keys < keys_[count_ - 1])) return;
    const Lanes here = {position, position, position, position};
    Lanes before = full ? Lanes(keys < keys_[count_ - 1]) : ~Lanes{};  // before candidate j
    for (int j = full ? count_ - 1 : position; j >= 0; --j) {
      const Lanes moves = j > 0 ? Lanes(keys < keys_[j - 1]) : Lanes{};
      const int from = j > 0 ? j - 1 : 0;
      keys_[j] = pick(before, pick(moves, keys_[from], keys), keys_[j]);
      positions_[j] = pick(before, pick(moves, positions_[from], here), positions_[j]);
      before = moves;
    }
  }
  // Adds four elements of each row, from `position` on.
  void add_four(const FourKeys& keys, std::int32_t position) {
    const Lanes limit = keys_[count_ - 1];
    const bool full = position >= count_;
    if (full && !any((keys[0] < limit) | (keys[1] < limit) | (keys[2] < limit) | (keys[3] < limit)))
      return;
    for (int k = 0; k < 4; ++k) add(keys[std::size_t(k)], position + k);
  }
  std::int32_t position(std::int64_t k, int lane) const { return positions_[k][lane]; }

 private:
  static bool any(Lanes flags) {
    std::uint64_t halves[2];
    std::memcpy(halves, &flags, sizeof halves);
    return (halves[0] | halves[1]) != 0;
  }
  static Lanes pick(Lanes flags, Lanes a, Lanes b) { return (flags & a) | (~flags & b); }

  int count_;
  Lanes keys_[kMostSlots] = {}, positions_[kMostSlots] = {};
};

// The inner dims of the step are (rows, n, count), and its arrays are x and the positions.
struct FirstRows {
  std::int64_t rows, n, count;
  const std::int64_t *from, *to;  // strides
};
template <DType dtype>
void find_in_lanes(const FirstRows& f, const std::byte* x, std::int32_t* out) {
  const std::int64_t row = f.from[0] * scalar::bytes_per(dtype),
                     step = f.from[1] * scalar::bytes_per(dtype);
  CandidateLanes best(f.count);
  std::int64_t i = 0;
  if constexpr (starts_f32<dtype>())
    if (step == scalar::bytes_per(dtype))
      for (; i + 4 <= f.n; i += 4)
        best.add_four(keys_of_four<dtype>(x + i * step, row), std::int32_t(i));
  for (; i < f.n; ++i) best.add(keys_at<dtype>(x + i * step, row), std::int32_t(i));
  for (int l = 0; l < kLanes; ++l)
    for (std::int64_t k = 0; k < f.count; ++k) out[l * f.to[0] + k * f.to[2]] = best.position(k, l);
}
template <DType dtype> void find_in_row(const FirstRows& f, const std::byte* x, void* out) {
  const auto n = f.n, step = f.from[1];
  Candidates<dtype> best(f.count);
  std::int64_t i = 0;
  while (i < n) {
    if constexpr (dtype == DType::f32)
      if (step == 1 && best.has_limit())
        while (i + 32 <= n && !any_less(reinterpret_cast<const float*>(x) + i, float(best.limit())))
          i += 32;
    for (auto end = std::min(n, i + 32); i < end; ++i)
      best.add(scalar::load(dtype, x + i * step * scalar::bytes_per(dtype)), i);
  }
  const bool wide = n - 1 > std::int64_t(std::numeric_limits<std::int32_t>::max());
  best.write([&](std::int64_t k, std::int64_t position) {
    const auto at = k * f.to[2];
    if (wide)
      static_cast<std::int64_t*>(out)[at] = position;
    else
      static_cast<std::int32_t*>(out)[at] = std::int32_t(position);
  });
}
template <DType dtype>
void run_first(void* const* data, const std::int64_t* sizes,
               const std::int64_t* const* strides) noexcept {
  const FirstRows f{sizes[0], sizes[1], sizes[2], strides[0], strides[1]};
  const auto* x = static_cast<const std::byte*>(data[0]);
  auto* out = static_cast<std::byte*>(data[1]);
  const std::int64_t x_row = f.from[0] * scalar::bytes_per(dtype),
                     out_row = f.to[0] * bytes_of(position_dtype(f.n));
  try {
    std::int64_t r = 0;
    if constexpr (has_lanes<dtype>())
      if (f.n <= kShortRow && f.count <= kMostSlots)
        for (; r + kLanes <= f.rows; r += kLanes)
          find_in_lanes<dtype>(f, x + r * x_row,
                               reinterpret_cast<std::int32_t*>(out + r * out_row));
    for (; r < f.rows; ++r) find_in_row<dtype>(f, x + r * x_row, out + r * out_row);
  } catch (...) {
    haliax::detail::kernel_has_thrown();
  }
}
program::CustomRun run_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return run_first<DType::f32>;
    case DType::f64:
      return run_first<DType::f64>;
    case DType::bf16:
      return run_first<DType::bf16>;
    case DType::f16:
      return run_first<DType::f16>;
    case DType::i8:
      return run_first<DType::i8>;
    case DType::i16:
      return run_first<DType::i16>;
    case DType::i32:
      return run_first<DType::i32>;
    case DType::i64:
      return run_first<DType::i64>;
    case DType::u8:
      return run_first<DType::u8>;
    case DType::u16:
      return run_first<DType::u16>;
    case DType::u32:
      return run_first<DType::u32>;
    case DType::u64:
      return run_first<DType::u64>;
    case DType::boolean:
      break;
  }
  return run_first<DType::boolean>;
}
// On a GPU, a thread inserts the elements of a row into the sorted positions in memory.
constexpr const char* kFirstText = R"(
auto value = [&](I i) { return load<S0>(array[0], at[0] * stride[0][0] + i * stride[0][1]); };
auto position = [&](I k) {
  return reinterpret_cast<S1*>(array[1]) + at[0] * stride[1][0] + k * stride[1][2];
};
for (I i = 0, known = 0; i < size[1]; ++i) {
  const auto x = value(i);
  I k = known < size[2] ? known++ : size[2];
  for (; k > 0; --k) {
    const auto other = value(*position(k - 1));
    if (is_nan(x) || !(is_nan(other) || x < other)) break;
    if (k < size[2]) *position(k) = *position(k - 1);
  }
  if (k < size[2]) *position(k) = S1(i);
}
)";

// The rows of one call: `count` positions of the outer dim `dim`.
struct RowsOfCall {
  std::size_t dim = 0;
  std::int64_t count = 1;
};
// Returns a divisor of the size of an outer dim, so that a call has rows for all lanes.
RowsOfCall rows_of_call(const program::Dims& outer) {
  constexpr std::int64_t most = 64;
  for (std::size_t d = outer.size(); d-- > 0;)
    for (std::int64_t count = std::min(most, outer[d]); count >= kLanes; --count)
      if (outer[d] % count == 0) return {d, count};
  return {};
}
void first_lower(const Node& n, Emit& e) {
  if (n.size() == 0) return;
  const Name axis = AlongAttr::of(n).axis;
  const auto outer = without(n.axes, {*find(n, axis)});
  const auto sizes = Emit::sizes(outer);
  const auto call = rows_of_call(sizes);
  auto view = [&](const Place& p, const Axes& axes, std::size_t inner) {
    auto v = Emit::view(p, axes, outer);
    const auto along = Emit::view(p, axes, {*find_axis(axes, axis)}).strides[0];
    std::int64_t row = 0;
    if (call.count > 1) {
      row = v.strides[call.dim];
      v.strides[call.dim] *= call.count;
    }
    v.strides.insert(v.strides.end(), {row, inner == 0 ? along : 0, inner == 1 ? along : 0});
    return v;
  };
  program::Step s;
  s.kind = program::Kind::custom;
  s.custom.dims = sizes;
  if (call.count > 1) s.custom.dims[call.dim] /= call.count;
  s.custom.dims.insert(s.custom.dims.end(),
                       {call.count, find(*n.in[0], axis)->size, find(n, axis)->size});
  s.custom.outer = int(outer.size());
  s.custom.arrays.push_back(view(e.operand(0), n.in[0]->axes, 0));
  s.custom.arrays.push_back(view(e.result(), n.axes, 1));
  s.custom.run = run_of(n.in[0]->dtype);
  s.custom.text.statements = kFirstText;
  s.custom.text.dims = {0};
  e.push(std::move(s));
}
// The axis of the operand and the axis of the positions have two sizes, so they are two axes of the
// iteration space.
Along first_along(const Node& n, std::size_t k, Name a) {
  if (a != AlongAttr::of(n).axis) return {Along::Way::map, a};
  return {Along::Way::full, k == kResultSide ? a : Name(std::string(a.text()) + " searched")};
}
std::string first_fault(const Node& n) {
  const Name axis = AlongAttr::of(n).axis;
  auto *all = find(*n.in[0], axis), *some = find(n, axis);
  if (!all || !some || some->size > all->size) return fault_of_sizes(n);
  return n.dtype == position_dtype(all->size) ? "" : "its dtype is not that of positions";
}

}  // namespace

const Op kFirstPositions{.name = "top_k",
                         .kind = Kind::step,
                         .lower = first_lower,
                         .along = first_along,
                         .fault = first_fault};

NodePtr first_positions(NodeRef x, Name axis, std::int64_t count) {
  auto all = *find(*x, axis);
  return make(kFirstPositions, {x}, replaced(x->axes, axis, {all.resize(count)}),
              position_dtype(all.size), AlongAttr{axis}.attr());
}

namespace {
const bool first_positions_registered = register_ops({&kFirstPositions});
}  // namespace
}  // namespace haliax::prim
