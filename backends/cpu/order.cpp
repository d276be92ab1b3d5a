// Sorts and running sums, line by line.
#include <bit>
#include <utility>

#include "base/scalar.h"
#include "base/thread_pool.h"
#include "kernels.h"
#include "walk.h"

namespace haliax::cpu {
namespace {

// Which lines there are along the last dim.
struct Lines {
  Dims dims;
  std::int64_t count = 1, length = 1;

  Lines(const Dims& all, const char* op) : dims(all) {
    if (all.empty()) throw Error(std::string("[") + op + "] needs a dimension to go along");
    length = all.back();
    dims.pop_back();
    count = product(dims);
  }
  std::int64_t offset(const program::View& view, std::int64_t line) const {
    std::int64_t sum = 0;
    for (std::size_t d = dims.size(); d-- > 0;) {
      sum += line % dims[d] * view.strides[d];
      line /= dims[d];
    }
    return sum;
  }
  std::int64_t per_block() const { return std::max<std::int64_t>(1, 8192 / std::max<std::int64_t>(1, length)); }
  std::int64_t blocks() const { return (count + per_block() - 1) / per_block(); }
};

struct Keyed {
  std::uint64_t key;  // in the order of the values
  std::int64_t index;
};

// An unsigned number that sorts as the value does: NaN after all others, both zeros alike.
std::uint64_t key_of(DType dtype, scalar::Value v) {
  if (is_float(dtype)) {
    if (v.real != v.real) return ~std::uint64_t(0);
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(v.real + 0.0);
    return bits >> 63 ? ~bits : bits | std::uint64_t(1) << 63;
  }
  return static_cast<std::uint64_t>(v.whole) ^ (is_signed(dtype) ? std::uint64_t(1) << 63 : 0);
}

// Stable: runs of twice the length, again and again. Leaves the result in `items`.
void merge_sort(Keyed* items, Keyed* spare, std::int64_t n) {
  constexpr std::int64_t small = 16;
  for (std::int64_t lo = 0; lo < n; lo += small)  // insertion
    for (std::int64_t i = lo + 1; i < std::min(n, lo + small); ++i) {
      const Keyed x = items[i];
      std::int64_t j = i;
      for (; j > lo && items[j - 1].key > x.key; --j) items[j] = items[j - 1];
      items[j] = x;
    }
  Keyed *from = items, *to = spare;
  for (std::int64_t width = small; width < n; width *= 2, std::swap(from, to))
    for (std::int64_t lo = 0; lo < n; lo += 2 * width) {
      std::int64_t a = lo, b = std::min(n, lo + width);
      const std::int64_t mid = b, end = std::min(n, lo + 2 * width);
      for (std::int64_t k = lo; k < end; ++k) to[k] = a < mid && (b >= end || from[a].key <= from[b].key) ? from[a++] : from[b++];
    }
  if (from != items) std::copy(from, from + n, items);
}

// For each worker: two arrays of keys, and the values.
std::int64_t line_bytes(const program::Sort& sort) {
  const std::int64_t n = sort.dims.empty() ? 1 : sort.dims.back();
  return (n * static_cast<std::int64_t>(2 * sizeof(Keyed) + sizeof(scalar::Value)) + 63) / 64 * 64;
}
int sort_workers(const program::Sort& sort, int most) {
  return static_cast<int>(std::clamp<std::int64_t>(Lines(sort.dims, "sort").blocks(), 1, most));
}

class SortStep final : public CompiledStep {
 public:
  SortStep(const program::Step& step, const Context& context)
      : sort_(step.sort),
        lines_(sort_.dims, "sort"),
        x_(sort_.x),
        out_(sort_.out),
        indices_(sort_.indices),
        workers_(sort_workers(sort_, context.workers)),
        scratch_(step, context.arena_slot, line_bytes(sort_) * workers_) {}

  void run(Frame& frame) override {
    const std::byte* x = x_.at(frame);
    std::byte *out = out_.at(frame), *indices = indices_.at(frame), *scratch = scratch_.at(frame);
    const std::int64_t n = lines_.length, per_block = lines_.per_block();
    parallel_for(lines_.blocks(), workers_, [&](std::int64_t block, int worker) {
      Keyed* items = reinterpret_cast<Keyed*>(scratch + worker * line_bytes(sort_));
      Keyed* spare = items + n;
      scalar::Value* values = reinterpret_cast<scalar::Value*>(spare + n);
      for (std::int64_t line = block * per_block; line < std::min(lines_.count, (block + 1) * per_block); ++line) {
        each(sort_.x, line, [&](std::int64_t i, std::int64_t at) {
          values[i] = scalar::load(sort_.x.dtype, x + at);
          items[i] = {key_of(sort_.x.dtype, values[i]), i};
        });
        merge_sort(items, spare, n);
        if (out)
          each(sort_.out, line,
               [&](std::int64_t i, std::int64_t at) { scalar::store(sort_.out.dtype, out + at, values[items[i].index]); });
        if (indices)
          each(sort_.indices, line, [&](std::int64_t i, std::int64_t at) {
            scalar::store(sort_.indices.dtype, indices + at, scalar::cast({0, items[i].index}, DType::i64, sort_.indices.dtype));
          });
      }
    });
  }

 private:
  template <class F>
  void each(const program::View& view, std::int64_t line, const F& f) const {
    const std::int64_t bytes = haliax::bytes_of(view.dtype), start = lines_.offset(view, line);
    for (std::int64_t i = 0; i < lines_.length; ++i) f(i, (start + i * view.strides.back()) * bytes);
  }
  const program::Sort& sort_;
  Lines lines_;
  Place x_, out_, indices_;
  int workers_;
  Scratch scratch_;
};

template <class M, class T>
T combined(program::Monoid monoid, T a, T b) {
  switch (monoid) {
    case program::Monoid::sum: return static_cast<T>(static_cast<M>(a) + static_cast<M>(b));
    case program::Monoid::prod: return static_cast<T>(static_cast<M>(a) * static_cast<M>(b));
    case program::Monoid::max: return scalar::max(a, b);
    case program::Monoid::min: return scalar::min(a, b);
  }
  return a;
}

class CumulativeStep final : public CompiledStep {
 public:
  explicit CumulativeStep(const program::Cumulative& what)
      : what_(what), lines_(what.dims, "cumulative"), x_(what.x), out_(what.out) {}

  // Running sums of floats are kept in f64 and rounded where they are written.
  void run(Frame& frame) override {
    const std::byte* x = x_.at(frame);
    std::byte* out = out_.at(frame);
    const bool f32 = what_.x.dtype == DType::f32 && what_.out.dtype == DType::f32;
    if (f32 && what_.monoid == program::Monoid::sum)
      return f32_sums(reinterpret_cast<const float*>(x), reinterpret_cast<float*>(out));
    const std::int64_t n = lines_.length, per_block = lines_.per_block();
    parallel_for(lines_.blocks(), threads(), [&](std::int64_t block, int) {
      for (std::int64_t line = block * per_block; line < std::min(lines_.count, (block + 1) * per_block); ++line) {
        const std::byte* from = x + lines_.offset(what_.x, line) * haliax::bytes_of(what_.x.dtype);
        std::byte* to = out + lines_.offset(what_.out, line) * haliax::bytes_of(what_.out.dtype);
        f32 ? f32_line(from, to, n) : any_line(from, to, n);
      }
    });
  }

 private:
  void f32_sums(const float* x, float* out) const {
    constexpr std::int64_t most = RunningSums::most;
    parallel_for((lines_.count + most - 1) / most, threads(), [&](std::int64_t block, int) {
      const float* from[most];
      float* to[most];
      const std::int64_t first = block * most, lines = std::min(lines_.count - first, most);
      for (std::int64_t l = 0; l < lines; ++l)
        from[l] = x + lines_.offset(what_.x, first + l), to[l] = out + lines_.offset(what_.out, first + l);
      kernels().running_sums({lines, lines_.length, from, to, what_.x.strides.back(), what_.out.strides.back(), what_.reverse});
    });
  }
  void f32_line(const std::byte* from, std::byte* to, std::int64_t n) const {
    const float* x = reinterpret_cast<const float*>(from);
    float* out = reinterpret_cast<float*>(to);
    double acc = what_.monoid == program::Monoid::prod ? 1 : 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t k = what_.reverse ? n - 1 - i : i;
      const double value = x[k * what_.x.strides.back()];
      const bool first = i == 0 && what_.monoid != program::Monoid::sum && what_.monoid != program::Monoid::prod;
      acc = first ? value : combined<double>(what_.monoid, acc, value);
      out[k * what_.out.strides.back()] = static_cast<float>(acc);
    }
  }
  void any_line(const std::byte* from, std::byte* to, std::int64_t n) const {
    const DType in = what_.x.dtype, type = what_.out.dtype;
    scalar::Value acc;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t k = what_.reverse ? n - 1 - i : i;
      const scalar::Value value =
          scalar::cast(scalar::load(in, from + k * what_.x.strides.back() * haliax::bytes_of(in)), in, type);
      if (i == 0)
        acc = {what_.monoid == program::Monoid::sum ? value.real + 0.0 : value.real, value.whole};   // from 0 on: no -0
      else if (is_float(type))
        acc.real = combined<double>(what_.monoid, acc.real, value.real);
      else if (scalar::is_unsigned(type))
        acc = scalar::whole(type,
                            static_cast<std::int64_t>(combined<std::uint64_t>(what_.monoid, static_cast<std::uint64_t>(acc.whole),
                                                                              static_cast<std::uint64_t>(value.whole))));
      else
        acc = scalar::whole(type, combined<std::uint64_t>(what_.monoid, acc.whole, value.whole));
      scalar::store(type, to + k * what_.out.strides.back() * haliax::bytes_of(type), scalar::rounded(type, acc));
    }
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
  return line_bytes(step.sort) * sort_workers(step.sort, workers);
}
std::unique_ptr<CompiledStep> make_cumulative(const program::Step& step, const Context&) {
  return std::make_unique<CumulativeStep>(step.cumulative);
}

}  // namespace haliax::cpu
