// Plan and run: sorts along lines.
#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>
#include <utility>

#include "backends/cpu/kernels.h"
#include "base/scalar.h"
#include "base/thread_pool.h"
#include "lines.h"

namespace haliax::cpu {
namespace {

struct Keyed {
  std::uint64_t key;  // ordered like the values
  std::int64_t index;
};

// Returns an unsigned integer that sorts like the value: NaN last, both zeros equal.
std::uint64_t key_of(DType dtype, scalar::Value v) {
  if (is_float(dtype)) {
    if (v.real != v.real) return ~std::uint64_t(0);
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(v.real + 0.0);
    return bits >> 63 ? ~bits : bits | std::uint64_t(1) << 63;
  }
  return static_cast<std::uint64_t>(v.integer) ^ (is_signed(dtype) ? std::uint64_t(1) << 63 : 0);
}

// Stable merge sort, bottom up. Leaves the result in `items`.
void merge_sort(Keyed* items, Keyed* buffer, std::int64_t n) {
  constexpr std::int64_t small = 16;
  for (std::int64_t lo = 0; lo < n; lo += small)  // insertion sort
    for (std::int64_t i = lo + 1; i < std::min(n, lo + small); ++i) {
      const Keyed x = items[i];
      std::int64_t j = i;
      for (; j > lo && items[j - 1].key > x.key; --j) items[j] = items[j - 1];
      items[j] = x;
    }
  Keyed *from = items, *to = buffer;
  for (std::int64_t width = small; width < n; width *= 2, std::swap(from, to))
    for (std::int64_t lo = 0; lo < n; lo += 2 * width) {
      std::int64_t a = lo, b = std::min(n, lo + width);
      const std::int64_t mid = b, end = std::min(n, lo + 2 * width);
      for (std::int64_t k = lo; k < end; ++k)
        to[k] = a < mid && (b >= end || from[a].key <= from[b].key) ? from[a++] : from[b++];
    }
  if (from != items) std::copy(from, from + n, items);
}

// A key of 32 bits and a position. Integers compare like (key, position).
using Packed = std::int64_t;

// Stable radix sort by the keys, lowest digit first. Leaves the result in `items`.
void radix_sort(Packed* items, Packed* buffer, std::int64_t n) {
  constexpr int digits = 3, bits = 11;  // together at least 32 bits
  constexpr std::uint64_t mask = (1 << bits) - 1;
  auto digit_of = [](Packed item, int digit) {
    const std::uint64_t key = (static_cast<std::uint64_t>(item) >> 32) ^ (std::uint64_t(1) << 31);
    return key >> (digit * bits) & mask;
  };
  std::uint32_t start[digits][mask + 1] = {};
  for (std::int64_t i = 0; i < n; ++i)
    for (int d = 0; d < digits; ++d) ++start[d][digit_of(items[i], d)];
  Packed *from = items, *to = buffer;
  for (int d = 0; d < digits; ++d) {
    if (start[d][digit_of(items[0], d)] == n) continue;  // all items have the same digit
    std::uint32_t sum = 0;
    for (std::uint32_t& count : start[d]) sum += std::exchange(count, sum);
    for (std::int64_t i = 0; i < n; ++i) to[start[d][digit_of(from[i], d)]++] = from[i];
    std::swap(from, to);
  }
  if (from != items) std::copy(from, from + n, items);
}

// Returns a signed integer that sorts like the value with these bits: NaN last, both zeros equal.
template <DType dtype, class Bits> std::int32_t short_key(Bits bits) {
  if constexpr (scalar::holds_real(dtype)) {
    constexpr int magnitude_bits = 8 * sizeof(Bits) - 1;
    constexpr std::int32_t infinity = dtype == DType::f32    ? 0x7f800000
                                      : dtype == DType::bf16 ? 0x7f80
                                                             : 0x7c00;
    const auto size = static_cast<std::int32_t>(bits & ((Bits(1) << magnitude_bits) - 1));
    if (size > infinity) return std::numeric_limits<std::int32_t>::max();
    return bits >> magnitude_bits ? -size : size;
  }
  if constexpr (!scalar::is_unsigned(dtype)) return static_cast<std::make_signed_t<Bits>>(bits);
  return static_cast<std::int32_t>(std::uint32_t(bits) ^ (std::uint32_t(1) << 31));
}

// values of the longest lines that a network sorts: always, and if the lines fill at least half of
// its columns
constexpr std::int64_t most_of_network = 256, most_of_filled_network = 2048;
constexpr std::int64_t sorted_values_of_block = 8192;

// How a sort is computed, chosen by dtype and sizes.
struct SortPlan {
  enum class Method { network, radix, merge };
  Method method = Method::merge;
  std::int64_t together = 1;   // lines that are sorted together
  std::int64_t per_block = 1;  // lines
  std::int64_t blocks = 0;
  std::int64_t bytes = 0;  // scratch per worker

  explicit SortPlan(const program::Sort& sort) {
    const Lines lines(sort.dims, "sort");
    const std::int64_t n = std::max<std::int64_t>(1, lines.length);
    std::int64_t item_bytes = 2 * sizeof(Keyed) + sizeof(scalar::Value);
    if (haliax::bytes_of(sort.x.dtype) <= 4 && n <= std::numeric_limits<std::int32_t>::max()) {
      const bool is_small =
          n <= most_of_network || (n <= most_of_filled_network && lines.count >= sort_columns / 2);
      method = is_small ? Method::network : Method::radix;
      together = is_small ? sort_columns : 1;
      const std::int64_t arrays = is_small ? 1 : 2;
      item_bytes = together * std::int64_t(arrays * sizeof(Packed) + sizeof(std::uint32_t));
    }
    bytes = (n * item_bytes + 63) / 64 * 64;
    per_block = std::max(together, sorted_values_of_block / n / together * together);
    blocks = (lines.count + per_block - 1) / per_block;
  }
  int workers(int most) const {
    return static_cast<int>(std::clamp<std::int64_t>(blocks, 1, most));
  }
};

class SortStep final : public CompiledStep {
 public:
  SortStep(const program::Step& step, const Context& context)
      : sort_(step.sort), lines_(sort_.dims, "sort"), plan_(sort_), x_(sort_.x), out_(sort_.out),
        indices_(sort_.indices), workers_(plan_.workers(context.workers)),
        scratch_(step, context.arena_slot, plan_.bytes * workers_) {
    const DType positions = sort_.indices.dtype;
    if (sort_.indices.slot >= 0 && positions != DType::i32 && positions != DType::i64)
      throw Error("[sort] the dtype of positions must be i32 or i64");
  }

  void run(Frame& frame) override {
    const Memory memory{x_.at(frame), out_.at(frame), indices_.at(frame)};
    std::byte* scratch = scratch_.at(frame);
    const auto sort_lines = method();
    parallel_for(plan_.blocks, workers_, [&](std::int64_t block, int worker) {
      const std::int64_t end = std::min(lines_.count, (block + 1) * plan_.per_block);
      for (std::int64_t line = block * plan_.per_block; line < end; line += plan_.together)
        (this->*sort_lines)(memory, scratch + worker * plan_.bytes, line,
                            std::min(plan_.together, end - line));
    });
  }

 private:
  struct Memory {
    const std::byte* x;
    std::byte *out, *indices;  // null if absent
  };
  using SortLines = void (SortStep::*)(const Memory&, std::byte* scratch, std::int64_t line,
                                       std::int64_t count) const;

  SortLines method() const {
    if (plan_.method == SortPlan::Method::merge) return &SortStep::sort_keyed;
    switch (sort_.x.dtype) {
      case DType::f32:
        return &SortStep::sort_packed<DType::f32, std::uint32_t>;
      case DType::bf16:
        return &SortStep::sort_packed<DType::bf16, std::uint16_t>;
      case DType::f16:
        return &SortStep::sort_packed<DType::f16, std::uint16_t>;
      case DType::i8:
        return &SortStep::sort_packed<DType::i8, std::uint8_t>;
      case DType::i16:
        return &SortStep::sort_packed<DType::i16, std::uint16_t>;
      case DType::i32:
        return &SortStep::sort_packed<DType::i32, std::uint32_t>;
      case DType::u16:
        return &SortStep::sort_packed<DType::u16, std::uint16_t>;
      case DType::u32:
        return &SortStep::sort_packed<DType::u32, std::uint32_t>;
      case DType::u8:
        return &SortStep::sort_packed<DType::u8, std::uint8_t>;
      default:
        return &SortStep::sort_packed<DType::boolean, std::uint8_t>;
    }
  }

  // Sorts lines of a dtype of at most 4 bytes. Item i of line l is items[i * pitch + l].
  template <DType dtype, class Bits>
  void sort_packed(const Memory& memory, std::byte* scratch, std::int64_t line,
                   std::int64_t count) const {
    const std::int64_t n = lines_.length, pitch = plan_.together;
    Packed* items = reinterpret_cast<Packed*>(scratch);
    Packed* buffer = items + n * pitch;  // second buffer, for the radix sort
    const bool is_network = plan_.method == SortPlan::Method::network;
    Bits* values = reinterpret_cast<Bits*>(is_network ? buffer : buffer + n);
    const Bits* from[sort_columns];
    starts(sort_.x, memory.x, line, count, from);
    const std::int64_t step = sort_.x.strides.back();
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t l = 0; l < count; ++l) {
        Bits bits = from[l][i * step];
        if (dtype == DType::boolean) bits = bits != 0;
        values[i * pitch + l] = bits;
        items[i * pitch + l] = short_key<dtype>(bits) * (Packed(1) << 32) + i;
      }
    if (is_network)
      kernels().sort_block(items, n);
    else
      radix_sort(items, buffer, n);
    auto index = [&](std::int64_t i, std::int64_t l) {
      return static_cast<std::uint32_t>(items[i * pitch + l]);
    };
    if (memory.out)
      store<Bits>(sort_.out, memory.out, line, count,
                  [&](std::int64_t i, std::int64_t l) { return values[index(i, l) * pitch + l]; });
    if (memory.indices) store_indices(memory.indices, line, count, index);
  }
  template <class F>
  void store_indices(std::byte* indices, std::int64_t line, std::int64_t count,
                     const F& index) const {
    if (sort_.indices.dtype == DType::i64)
      store<std::int64_t>(sort_.indices, indices, line, count, index);
    else
      store<std::int32_t>(sort_.indices, indices, line, count, index);
  }
  // Stores value(i, l) as element i of line l.
  template <class T, class F>
  void store(const program::View& view, std::byte* memory, std::int64_t line, std::int64_t count,
             const F& value) const {
    T* to[sort_columns];
    starts(view, memory, line, count, to);
    const std::int64_t step = view.strides.back();
    for (std::int64_t i = 0; i < lines_.length; ++i)
      for (std::int64_t l = 0; l < count; ++l) to[l][i * step] = static_cast<T>(value(i, l));
  }
  // Sets the starts of the lines [line, line + count).
  template <class Byte, class T>
  void starts(const program::View& view, Byte* memory, std::int64_t line, std::int64_t count,
              T** start) const {
    for (std::int64_t l = 0; l < count; ++l)
      start[l] = reinterpret_cast<T*>(memory) + lines_.offset(view, line + l);
  }

  // Sorts one line of any dtype.
  void sort_keyed(const Memory& memory, std::byte* scratch, std::int64_t line,
                  std::int64_t count) const {
    const std::int64_t n = lines_.length;
    Keyed* items = reinterpret_cast<Keyed*>(scratch);
    Keyed* buffer = items + n;
    scalar::Value* values = reinterpret_cast<scalar::Value*>(buffer + n);
    each(sort_.x, line, [&](std::int64_t i, std::int64_t at) {
      values[i] = scalar::load(sort_.x.dtype, memory.x + at);
      items[i] = {key_of(sort_.x.dtype, values[i]), i};
    });
    merge_sort(items, buffer, n);
    if (memory.out)
      each(sort_.out, line, [&](std::int64_t i, std::int64_t at) {
        scalar::store(sort_.out.dtype, memory.out + at, values[items[i].index]);
      });
    if (memory.indices)
      store_indices(memory.indices, line, count,
                    [&](std::int64_t i, std::int64_t) { return items[i].index; });
  }
  template <class F> void each(const program::View& view, std::int64_t line, const F& f) const {
    const std::int64_t bytes = haliax::bytes_of(view.dtype), start = lines_.offset(view, line);
    for (std::int64_t i = 0; i < lines_.length; ++i)
      f(i, (start + i * view.strides.back()) * bytes);
  }
  const program::Sort& sort_;
  Lines lines_;
  SortPlan plan_;
  Place x_, out_, indices_;
  int workers_;
  Scratch scratch_;
};

}  // namespace

std::unique_ptr<CompiledStep> make_sort(const program::Step& step, const Context& context) {
  return std::make_unique<SortStep>(step, context);
}
std::int64_t sort_scratch(const program::Step& step, int workers) {
  const SortPlan plan(step.sort);
  return plan.bytes * plan.workers(workers);
}

}  // namespace haliax::cpu
