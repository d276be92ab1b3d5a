// The first positions of an order: one pass over each row, which compares the elements with the
// largest of the candidates.
#include "ops/first_positions.h"

#include <algorithm>
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

// The inner dims of the step are (n, count), and its arrays are x and the positions.
template <DType dtype>
void run_first(void* const* data, const std::int64_t* sizes,
               const std::int64_t* const* strides) noexcept {
  try {
    const auto n = sizes[0], step = strides[0][0];
    const auto* x = static_cast<const std::byte*>(data[0]);
    Candidates<dtype> best(sizes[1]);
    std::int64_t i = 0;
    while (i < n) {
      if constexpr (dtype == DType::f32)
        if (step == 1 && best.has_limit())
          while (i + 32 <= n &&
                 !any_less(reinterpret_cast<const float*>(x) + i, float(best.limit())))
            i += 32;
      for (auto end = std::min(n, i + 32); i < end; ++i)
        best.add(scalar::load(dtype, x + i * step * scalar::bytes_per(dtype)), i);
    }
    const bool wide = n - 1 > std::int64_t(std::numeric_limits<std::int32_t>::max());
    best.write([&](std::int64_t k, std::int64_t position) {
      const auto at = k * strides[1][1];
      if (wide)
        static_cast<std::int64_t*>(data[1])[at] = position;
      else
        static_cast<std::int32_t*>(data[1])[at] = std::int32_t(position);
    });
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
auto value = [&](I i) { return load<S0>(array[0], i * stride[0][0]); };
auto position = [&](I k) { return reinterpret_cast<S1*>(array[1]) + k * stride[1][1]; };
for (I i = 0, known = 0; i < size[0]; ++i) {
  const auto x = value(i);
  I k = known < size[1] ? known++ : size[1];
  for (; k > 0; --k) {
    const auto other = value(*position(k - 1));
    if (is_nan(x) || !(is_nan(other) || x < other)) break;
    if (k < size[1]) *position(k) = *position(k - 1);
  }
  if (k < size[1]) *position(k) = S1(i);
}
)";

void first_lower(const Node& n, Emit& e) {
  if (n.size() == 0) return;
  const Name axis = AlongAttr::of(n).axis;
  auto outer = without(n.axes, {*find(n, axis)});
  auto view = [&](const Place& p, const Axes& axes, std::size_t inner) {
    auto v = Emit::view(p, axes, outer);
    const auto along = Emit::view(p, axes, {*find_axis(axes, axis)}).strides[0];
    v.strides.insert(v.strides.end(), {inner == 0 ? along : 0, inner == 1 ? along : 0});
    return v;
  };
  program::Step s;
  s.kind = program::Kind::custom;
  s.custom.dims = Emit::sizes(outer);
  s.custom.dims.insert(s.custom.dims.end(), {find(*n.in[0], axis)->size, find(n, axis)->size});
  s.custom.outer = int(outer.size());
  s.custom.arrays.push_back(view(e.operand(0), n.in[0]->axes, 0));
  s.custom.arrays.push_back(view(e.result(), n.axes, 1));
  s.custom.run = run_of(n.in[0]->dtype);
  s.custom.text.statements = kFirstText;
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

NodePtr first_positions(G x, Name axis, std::int64_t count) {
  auto all = *find(*x, axis);
  return make(kFirstPositions, {x}, replaced(x->axes, axis, {all.resize(count)}),
              position_dtype(all.size), AlongAttr{axis}.attr());
}

namespace {
const bool first_positions_registered = register_ops({&kFirstPositions});
}  // namespace
}  // namespace haliax::prim
