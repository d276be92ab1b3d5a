// Plan and run: sorts and running sums along lines.
#include <bit>
#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>

#include "backends/cpu/kernels.h"
#include "base/scalar.h"
#include "base/thread_pool.h"
#include "strided_copy.h"

namespace haliax::cpu {
namespace {

// The lines along the last dim.
struct Lines {
  Dims dims;
  std::int64_t count = 1, length = 1;

  Lines(const Dims& all, const char* op) : dims(all) {
    if (all.empty()) throw Error(std::string("[") + op + "] requires a dimension");
    length = all.back();
    dims.pop_back();
    count = program::points(dims);
  }
  std::int64_t offset(const program::View& view, std::int64_t line) const {
    std::int64_t sum = 0;
    for (std::size_t d = dims.size(); d-- > 0;) {
      sum += line % dims[d] * view.strides[d];
      line /= dims[d];
    }
    return sum;
  }
};

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
      const bool is_small = n <= 256 || (n <= 2048 && lines.count >= sort_columns / 2);
      method = is_small ? Method::network : Method::radix;
      together = is_small ? sort_columns : 1;
      const std::int64_t arrays = is_small ? 1 : 2;
      item_bytes = together * std::int64_t(arrays * sizeof(Packed) + sizeof(std::uint32_t));
    }
    bytes = (n * item_bytes + 63) / 64 * 64;
    per_block = std::max(together, 8192 / n / together * together);
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

template <class M, class T> T combined(program::Monoid monoid, T a, T b) {
  switch (monoid) {
    case program::Monoid::sum:
      return static_cast<T>(static_cast<M>(a) + static_cast<M>(b));
    case program::Monoid::prod:
      return static_cast<T>(static_cast<M>(a) * static_cast<M>(b));
    case program::Monoid::max:
      return scalar::max(a, b);
    case program::Monoid::min:
      return scalar::min(a, b);
  }
  return a;
}

class CumulativeStep final : public CompiledStep {
 public:
  explicit CumulativeStep(const program::Cumulative& what)
      : what_(what), lines_(what.dims, "cumulative"), x_(what.x), out_(what.out) {}

  // Running sums of floats accumulate in f64 and are rounded when they are written.
  void run(Frame& frame) override {
    const std::byte* x = x_.at(frame);
    std::byte* out = out_.at(frame);
    const DType type = what_.out.dtype;  // the dtype of x, too
    const bool has_kernel =
        (type == DType::f32 || type == DType::bf16 || type == DType::f16) &&
        (what_.monoid == program::Monoid::sum || what_.monoid == program::Monoid::prod);
    const auto by = lines_by(type, what_.monoid);
    const std::int64_t per_block =
        std::clamp<std::int64_t>((lines_.count + threads() - 1) / threads(), 1, kMost);
    parallel_for((lines_.count + per_block - 1) / per_block, threads(),
                 [&](std::int64_t block, int) {
                   const std::byte* from[kMost];
                   std::byte* to[kMost];
                   const std::int64_t first = block * per_block,
                                      count = std::min(lines_.count - first, per_block);
                   bool side_by_side = true;
                   for (std::int64_t l = 0; l < count; ++l) {
                     from[l] = x + lines_.offset(what_.x, first + l) * haliax::bytes_of(type);
                     to[l] = out + lines_.offset(what_.out, first + l) * haliax::bytes_of(type);
                     side_by_side &= from[l] == from[0] + l * haliax::bytes_of(type);
                   }
                   if (has_kernel) return sums_by_kernel(from, to, count);
                   // few lines at a time if they are not adjacent, because they compete for the
                   // same cache lines
                   const std::int64_t together = side_by_side ? kMost : 8;
                   for (std::int64_t l = 0; l < count; l += together)
                     (this->*by)(from + l, to + l, std::min(together, count - l));
                 });
  }

 private:
  static constexpr std::int64_t kMost = RunningSums::most;
  using LinesBy = void (CumulativeStep::*)(const std::byte* const* from, std::byte* const* to,
                                           std::int64_t count) const;

  void sums_by_kernel(const std::byte* const* from, std::byte* const* to,
                      std::int64_t count) const {
    if (what_.x.dtype != DType::f32) {
      for (std::int64_t l = 0, end = 0; l < count; l = end) {
        end = end_of_columns(from, to, l, count);
        const bool columns = end - l >= 4;
        if (!columns) end = std::min(l + 8, count);
        sums_of_halves(from + l, to + l, end - l, columns);
      }
      return;
    }
    double sums[kMost];
    RunningSums all = all_sums(sums, count);
    const float* x[kMost];
    float* out[kMost];
    for (std::int64_t l = 0; l < count; ++l) {
      x[l] = reinterpret_cast<const float*>(from[l]);
      out[l] = reinterpret_cast<float*>(to[l]);
    }
    all.x = x;
    all.out = out;
    all.x_step = what_.x.strides.back();
    all.out_step = what_.out.strides.back();
    kernels().running_sums(all);
  }
  RunningSums all_sums(double* sums, std::int64_t count) const {
    RunningSums all{};
    all.lines = count;
    all.n = lines_.length;
    all.reverse = what_.reverse;
    all.multiplies = what_.monoid == program::Monoid::prod;
    all.sums = sums;
    std::fill_n(sums, count, all.multiplies ? 1. : 0.);
    return all;
  }
  // Returns the end of the lines from `first` on that are adjacent in memory.
  std::int64_t end_of_columns(const std::byte* const* from, std::byte* const* to,
                              std::int64_t first, std::int64_t count) const {
    const int bytes = haliax::bytes_of(what_.x.dtype);
    std::int64_t end = first + 1;
    while (end < count && from[end] == from[end - 1] + bytes && to[end] == to[end - 1] + bytes)
      ++end;
    return end;
  }
  // Converts values of 16 bits to f32 and back, a tile of positions at a time. `columns`: the lines
  // are adjacent in memory.
  void sums_of_halves(const std::byte* const* from, std::byte* const* to, std::int64_t count,
                      bool columns) const {
    constexpr std::int64_t tile_values = 4096;
    alignas(64) float values[tile_values];
    const DType type = what_.x.dtype;
    const std::int64_t tile = std::min(lines_.length, tile_values / count),
                       bytes = haliax::bytes_of(type), x_step = what_.x.strides.back(),
                       out_step = what_.out.strides.back();
    double sums[kMost];
    RunningSums part = all_sums(sums, count);
    const float* x[kMost];
    float* out[kMost];
    for (std::int64_t l = 0; l < count; ++l) x[l] = out[l] = values + l * (columns ? 1 : tile);
    part.x = x;
    part.out = out;
    part.x_step = part.out_step = columns ? count : 1;
    for (std::int64_t done = 0; done < lines_.length; done += tile) {
      part.n = std::min(tile, lines_.length - done);
      const std::int64_t first = what_.reverse ? lines_.length - done - part.n : done,
                         x_at = first * x_step * bytes, out_at = first * out_step * bytes;
      if (columns) kernels().load_rows(type)(values, from[0] + x_at, {x_step, 1}, part.n, count);
      for (std::int64_t l = 0; l < count && !columns; ++l)
        kernels().load(type)(out[l], from[l] + x_at, x_step, part.n);
      kernels().running_sums(part);
      if (columns) kernels().store_rows(type)(to[0] + out_at, {out_step, 1}, values, part.n, count);
      for (std::int64_t l = 0; l < count && !columns; ++l)
        kernels().store(type)(to[l] + out_at, out[l], out_step, part.n);
    }
  }
  // The accumulator type: f64, or a 64-bit integer whose low bits are the result.
  template <DType type> static auto part_of(scalar::Value v) {
    if constexpr (scalar::holds_real(type))
      return v.real;
    else if constexpr (scalar::is_unsigned(type))
      return static_cast<std::uint64_t>(v.integer);
    else
      return v.integer;
  }
  static scalar::Value value_of(double part) { return {part, 0}; }
  template <std::integral T> static scalar::Value value_of(T part) {
    return {0, static_cast<std::int64_t>(part)};
  }
  template <DType type> static auto identity(program::Monoid monoid) {
    switch (monoid) {
      case program::Monoid::sum:
        return part_of<type>({0, 0});
      case program::Monoid::prod:
        return part_of<type>({1, 1});
      case program::Monoid::max:
        return part_of<type>(scalar::lowest(type));
      case program::Monoid::min:
        break;
    }
    return part_of<type>(scalar::highest(type));
  }
  template <DType type, program::Monoid monoid>
  void lines_of(const std::byte* const* from, std::byte* const* to, std::int64_t count) const {
    using T = decltype(identity<type>(monoid));
    using Wraps = std::conditional_t<scalar::holds_real(type), double, std::uint64_t>;
    // Integers have a short latency, so that lines that are not adjacent are faster one by one.
    const bool separate =
        count == 1 || (!scalar::holds_real(type) && from[1] != from[0] + scalar::bytes_per(type));
    if (separate) {
      for (std::int64_t l = 0; l < count; ++l) one_line_of<type, monoid>(from[l], to[l]);
      return;
    }
    T sofar[kMost];
    std::fill_n(sofar, count, identity<type>(monoid));
    const std::int64_t n = lines_.length, step = scalar::bytes_per(type) * (what_.reverse ? -1 : 1);
    std::int64_t at = what_.reverse ? (1 - n) * step : 0;  // in bytes per unit of stride
    for (std::int64_t i = 0; i < n; ++i, at += step)
      for (std::int64_t l = 0; l < count; ++l) {
        const T x = part_of<type>(scalar::load(type, from[l] + at * what_.x.strides.back()));
        sofar[l] = combined<Wraps>(monoid, sofar[l], x);
        scalar::store(type, to[l] + at * what_.out.strides.back(), value_of(sofar[l]));
      }
  }
  template <DType type, program::Monoid monoid>
  void one_line_of(const std::byte* from, std::byte* to) const {
    using Wraps = std::conditional_t<scalar::holds_real(type), double, std::uint64_t>;
    const std::int64_t n = lines_.length,
                       bytes = scalar::bytes_per(type) * (what_.reverse ? -1 : 1),
                       from_step = bytes * what_.x.strides.back(),
                       to_step = bytes * what_.out.strides.back();
    if (what_.reverse) {
      from -= (n - 1) * from_step;
      to -= (n - 1) * to_step;
    }
    auto sofar = identity<type>(monoid);
    for (std::int64_t i = 0; i < n; ++i, from += from_step, to += to_step) {
      sofar = combined<Wraps>(monoid, sofar, part_of<type>(scalar::load(type, from)));
      scalar::store(type, to, value_of(sofar));
    }
  }
  template <DType type> static LinesBy lines_by(program::Monoid monoid) {
    switch (monoid) {
      case program::Monoid::sum:
        return &CumulativeStep::lines_of<type, program::Monoid::sum>;
      case program::Monoid::prod:
        return &CumulativeStep::lines_of<type, program::Monoid::prod>;
      case program::Monoid::max:
        return &CumulativeStep::lines_of<type, program::Monoid::max>;
      case program::Monoid::min:
        break;
    }
    return &CumulativeStep::lines_of<type, program::Monoid::min>;
  }
  static LinesBy lines_by(DType type, program::Monoid monoid) {
    switch (type) {
      case DType::f32:
        return lines_by<DType::f32>(monoid);
      case DType::f64:
        return lines_by<DType::f64>(monoid);
      case DType::bf16:
        return lines_by<DType::bf16>(monoid);
      case DType::f16:
        return lines_by<DType::f16>(monoid);
      case DType::i8:
        return lines_by<DType::i8>(monoid);
      case DType::i16:
        return lines_by<DType::i16>(monoid);
      case DType::i32:
        return lines_by<DType::i32>(monoid);
      case DType::i64:
        return lines_by<DType::i64>(monoid);
      case DType::u8:
        return lines_by<DType::u8>(monoid);
      case DType::u16:
        return lines_by<DType::u16>(monoid);
      case DType::u32:
        return lines_by<DType::u32>(monoid);
      case DType::u64:
        return lines_by<DType::u64>(monoid);
      case DType::boolean:
        break;
    }
    return lines_by<DType::boolean>(monoid);
  }

  const program::Cumulative& what_;
  Lines lines_;
  Place x_, out_;
};

}  // namespace

std::unique_ptr<CompiledStep> make_sort(const program::Step& step, const Context& context) {
  return std::make_unique<SortStep>(step, context);
}
std::int64_t sort_scratch(const program::Step& step, int workers) {
  const SortPlan plan(step.sort);
  return plan.bytes * plan.workers(workers);
}
std::unique_ptr<CompiledStep> make_cumulative(const program::Step& step, const Context&) {
  return std::make_unique<CumulativeStep>(step.cumulative);
}

}  // namespace haliax::cpu
