// Plan and run: running sums along lines.
#include <algorithm>
#include <concepts>
#include <type_traits>

#include "backends/cpu/kernels.h"
#include "base/scalar.h"
#include "base/thread_pool.h"
#include "lines.h"

namespace haliax::cpu {
namespace {

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
    RunningSums all = kernel_call(sums, count);
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
  // Returns a kernel call for `count` full lines, without their arrays. Initializes the sums.
  RunningSums kernel_call(double* sums, std::int64_t count) const {
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
    RunningSums part = kernel_call(sums, count);
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

std::unique_ptr<CompiledStep> make_cumulative(const program::Step& step, const Context&) {
  return std::make_unique<CumulativeStep>(step.cumulative);
}

}  // namespace haliax::cpu
