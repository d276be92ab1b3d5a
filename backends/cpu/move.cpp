// Steps that move values: copy, gather and scatter.
#include <cmath>
#include <limits>

#include "base/scalar.h"
#include "base/thread_pool.h"
#include "strided_copy.h"

namespace haliax::cpu {
namespace {

constexpr std::int64_t copy_grain = 1 << 17;  // bytes per block

// Copies rows x cols in squares, so that each cache line is used while it is cached.
template <class T>
void copy_tile(const T* from, T* to, std::int64_t rows, std::int64_t cols, std::int64_t fr,
               std::int64_t fc, std::int64_t tr, std::int64_t tc) {
  constexpr std::int64_t side = 32;
  for (std::int64_t r = 0; r < rows; r += side)
    for (std::int64_t c = 0; c < cols; c += side)
      for (std::int64_t i = r; i < std::min(rows, r + side); ++i)
        for (std::int64_t j = c; j < std::min(cols, c + side); ++j)
          to[i * tr + j * tc] = from[i * fr + j * fc];
}
template <class T>
void copy_run(const T* from, T* to, std::int64_t n, std::int64_t fs, std::int64_t ts) {
  if (fs == 1 && ts == 1)
    std::memmove(to, from, static_cast<std::size_t>(n) * sizeof(T));
  else if (fs == 0 && ts == 1)
    std::fill_n(to, n, *from);
  else
    for (std::int64_t i = 0; i < n; ++i) to[i * ts] = from[i * fs];
}

}  // namespace

Copier::Copier(const Dims& dims, const Dims& from, const Dims& to, int bytes) : bytes_(bytes) {
  Dims order;
  for (std::size_t d = 0; d < dims.size(); ++d) order.push_back(static_cast<std::int64_t>(d));
  // In the order of the target's memory, so that writes are sequential.
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return std::abs(to[static_cast<std::size_t>(a)]) > std::abs(to[static_cast<std::size_t>(b)]);
  });
  for (std::int64_t o : order) {
    const std::size_t d = static_cast<std::size_t>(o);
    dims_merged_.add(dims[d], {from[d], to[d]});
  }
  if (dims_merged_.count == 0) {
    dims_merged_.size[dims_merged_.count] = 1;
    dims_merged_.stride[0][0] = dims_merged_.stride[1][0] = 1;
    dims_merged_.count = 1;
  }

  // If the source is contiguous along another dim, that dim becomes the last but one, for square
  // tiles.
  const int last = dims_merged_.count - 1;
  for (int d = 0; d < last && std::abs(dims_merged_.stride[0][last]) > 1; ++d) {
    if (std::abs(dims_merged_.stride[0][d]) != 1) continue;
    for (int e = d; e + 1 < last; ++e) {
      std::swap(dims_merged_.size[e], dims_merged_.size[e + 1]);
      for (auto& stride : dims_merged_.stride) std::swap(stride[e], stride[e + 1]);
    }
    break;
  }
  outer_ = std::max(0, dims_merged_.count - 2);
  outer_points_ = dims_merged_.points(0, outer_);
  const std::int64_t tile_bytes = dims_merged_.points(outer_, dims_merged_.count) * bytes;
  if (outer_points_ == 1 && dims_merged_.size[outer_] > 1) {  // splits the tile itself
    const std::int64_t row = std::max<std::int64_t>(1, tile_bytes / dims_merged_.size[outer_]);
    per_block_ = std::max<std::int64_t>(1, copy_grain / row);
    if (dims_merged_.count > 1) per_block_ = (per_block_ + 31) / 32 * 32;
    blocks_ = (dims_merged_.size[outer_] + per_block_ - 1) / per_block_;
  } else {
    per_block_ = std::max<std::int64_t>(1, copy_grain / std::max<std::int64_t>(1, tile_bytes));
    blocks_ = tile_bytes == 0 ? 0 : (outer_points_ + per_block_ - 1) / per_block_;
  }
}

void Copier::run(const std::byte* from, std::byte* to, std::int64_t block) const {
  with_bytes(bytes_, [&](auto zero) {
    using T = decltype(zero);
    const T* source = reinterpret_cast<const T*>(from);
    T* target = reinterpret_cast<T*>(to);
    const std::int64_t *f = dims_merged_.stride[0], *t = dims_merged_.stride[1];
    const int a = outer_, b = dims_merged_.count - 1;
    auto piece = [&](const T* s, T* d, std::int64_t rows) {
      if (a == b) return copy_run(s, d, rows, f[a], t[a]);
      if (f[b] == 1 || f[b] == 0 || std::abs(f[a]) != 1) {
        for (std::int64_t r = 0; r < rows; ++r)
          copy_run(s + r * f[a], d + r * t[a], dims_merged_.size[b], f[b], t[b]);
      } else {
        copy_tile(s, d, rows, dims_merged_.size[b], f[a], f[b], t[a], t[b]);
      }
    };
    const std::int64_t first = block * per_block_;
    if (outer_points_ == 1)
      return piece(source + first * f[a], target + first * t[a],
                   std::min(per_block_, dims_merged_.size[a] - first));
    for (std::int64_t p = first; p < std::min(outer_points_, first + per_block_); ++p)
      piece(source + dims_merged_.offset(0, p, 0, outer_),
            target + dims_merged_.offset(1, p, 0, outer_), dims_merged_.size[a]);
  });
}

namespace {

class CopyStep final : public CompiledStep {
 public:
  CopyStep(const program::Copy& copy, const Context& context)
      : x_(copy.x), out_(copy.out),
        copier_(copy.dims, copy.x.strides, copy.out.strides, haliax::bytes_of(copy.x.dtype)) {
    if (copy.x.dtype != copy.out.dtype)
      throw Error("[copy] the dtypes of source and target differ");
    itself_ = copy.x == copy.out && context.overlap(copy.x.slot, copy.out.slot);
  }
  void run(Frame& frame) override {
    const std::byte* x = x_.at(frame);
    std::byte* out = out_.at(frame);
    if (itself_) return;
    parallel_for(copier_.blocks(), threads(),
                 [&](std::int64_t block, int) { copier_.run(x, out, block); });
  }

 private:
  Place x_, out_;
  Copier copier_;
  bool itself_ = false;
};

// ---- gather and scatter ----

// Index arrays. The ids at an element add to an offset. Negative ids count from the end.
class Ids {
 public:
  Ids(const std::vector<program::Indexed>& indexed, bool clamp) : indexed_(indexed), clamp_(clamp) {
    for (const program::Indexed& i : indexed) places_.emplace_back(i.ids);
    bases_.resize(indexed.size());
  }
  void set(const Frame& frame) {
    for (std::size_t k = 0; k < places_.size(); ++k) bases_[k] = places_[k].at(frame);
  }
  // Adds the ids of an element to `offset`. ids_offset(k): offset of the id in the k-th view, in
  // elements. Returns false if an id is out of range.
  template <class F> bool pick(const F& ids_offset, std::int64_t& offset) const {
    bool inside = true;
    for (std::size_t k = 0; k < indexed_.size(); ++k) {
      const program::Indexed& i = indexed_[k];
      std::int64_t id =
          scalar::load(i.ids.dtype, bases_[k] + ids_offset(k) * haliax::bytes_of(i.ids.dtype))
              .integer;
      if (id < 0) id = i.ids.dtype == DType::u64 ? i.size : id + i.size;
      if (clamp_ && i.size > 0) id = std::clamp<std::int64_t>(id, 0, i.size - 1);
      inside &= id >= 0 && id < i.size;
      offset += id * i.stride;
    }
    return inside;
  }
  bool varies(std::size_t dim) const {
    return std::any_of(indexed_.begin(), indexed_.end(),
                       [&](const program::Indexed& i) { return i.ids.strides[dim] != 0; });
  }
  std::int64_t stride(std::size_t k, std::size_t dim) const { return indexed_[k].ids.strides[dim]; }

 private:
  const std::vector<program::Indexed>& indexed_;
  std::vector<Place> places_;
  std::vector<const std::byte*> bases_;
  bool clamp_;
};

// The elements of `dims` as rows times runs. A row has one set of ids. A run covers the last dims,
// along which no id varies.
class Rows {
 public:
  // `here` and `there`: strides of the dense side (out, updates), and of the table or target.
  Rows(const Dims& dims, const Dims& here, const Dims& there, const Ids& ids)
      : dims_(dims), here_(here), there_(there), ids_(ids) {
    std::size_t d = dims.size();
    while (d > 0 && (dims[d - 1] == 1 || !ids.varies(d - 1))) --d;
    for (std::size_t e = d; e < dims.size(); ++e) run_.add(dims[e], {here[e], there[e]});
    outer_ = d;
    for (std::size_t e = 0; e < d; ++e) rows_ *= dims[e];
    if (run_.count == 0) {
      run_.size[0] = 1;
      run_.stride[0][0] = run_.stride[1][0] = 1;
      run_.count = 1;
    }

    inner_points_ = run_.points(0, run_.count - 1);
  }
  std::int64_t rows() const { return rows_; }
  std::int64_t run_points() const { return inner_points_ * run_.size[run_.count - 1]; }
  std::int64_t run_size() const { return run_.size[run_.count - 1]; }
  std::int64_t run_stride(int side) const { return run_.stride[side][run_.count - 1]; }

  // Calls f(here, there, inside) for each run of the rows [first, last).
  template <class F> void each(std::int64_t first, std::int64_t last, const F& f) const {
    for (std::int64_t row = first; row < last; ++row) {
      std::int64_t at[64], here = 0, there = 0, rest = row;
      for (std::size_t d = outer_; d-- > 0;) {
        at[d] = rest % dims_[d];
        rest /= dims_[d];
        here += at[d] * here_[d];
        there += at[d] * there_[d];
      }
      const bool inside = ids_.pick(
          [&](std::size_t k) {
            std::int64_t offset = 0;
            for (std::size_t d = 0; d < outer_; ++d) offset += at[d] * ids_.stride(k, d);
            return offset;
          },
          there);
      for (std::int64_t i = 0; i < inner_points_; ++i)
        f(here + run_.offset(0, i, 0, run_.count - 1), there + run_.offset(1, i, 0, run_.count - 1),
          inside);
    }
  }

 private:
  const Dims &dims_, &here_, &there_;
  const Ids& ids_;
  MergedDims<2> run_;
  std::size_t outer_ = 0;
  std::int64_t rows_ = 1, inner_points_ = 1;
};

void check_dims(const Dims& dims, const char* op) {
  if (dims.size() > 64) throw Error(std::string("[") + op + "] more than 64 dimensions");
}

class GatherStep final : public CompiledStep {
 public:
  explicit GatherStep(const program::Gather& gather)
      : table_(gather.table), out_(gather.out),
        ids_(gather.indexed, gather.outside == program::Outside::clamp),
        rows_(gather.dims, gather.out.strides, gather.table.strides, ids_),
        bytes_(haliax::bytes_of(gather.out.dtype)) {
    check_dims(gather.dims, "gather");
    const DType dtype = gather.out.dtype;
    scalar::Value absent = is_float(dtype)
                               ? scalar::Value{std::numeric_limits<double>::quiet_NaN(), 0}
                           : is_signed(dtype) ? scalar::lowest(dtype)
                                              : scalar::highest(dtype);
    if (gather.outside == program::Outside::zero) absent = {};
    scalar::store(dtype, absent_, absent);
  }
  void run(Frame& frame) override {
    ids_.set(frame);
    const std::byte* table = table_.at(frame);
    std::byte* out = out_.at(frame);
    const std::int64_t per_block = std::max<std::int64_t>(
        1, copy_grain / std::max<std::int64_t>(8, rows_.run_points() * bytes_));
    with_bytes(bytes_, [&](auto zero) {
      using T = decltype(zero);
      T absent;
      std::memcpy(&absent, absent_, sizeof absent);
      parallel_for(
          (rows_.rows() + per_block - 1) / per_block, threads(), [&](std::int64_t block, int) {
            rows_.each(block * per_block, std::min(rows_.rows(), (block + 1) * per_block),
                       [&](std::int64_t here, std::int64_t there, bool inside) {
                         T* to = reinterpret_cast<T*>(out) + here;
                         if (inside)
                           copy_run(reinterpret_cast<const T*>(table) + there, to, rows_.run_size(),
                                    rows_.run_stride(1), rows_.run_stride(0));
                         else
                           copy_run(&absent, to, rows_.run_size(), 0, rows_.run_stride(0));
                       });
          });
    });
  }

 private:
  Place table_, out_;
  Ids ids_;
  Rows rows_;
  int bytes_;
  std::byte absent_[8] = {};
};

// Combines values with the target. Floats are combined in f32 (f64 in f64); integers wrap.
template <class Math, class Memory, class In, class Out>
void update_run(program::Update update, const Memory* from, Memory* to, std::int64_t n,
                std::int64_t fs, std::int64_t ts, const In& in, const Out& out) {
  using program::Update;
  auto each = [&](auto f) {
    for (std::int64_t i = 0; i < n; ++i) to[i * ts] = out(f(in(to[i * ts]), in(from[i * fs])));
  };
  switch (update) {
    case Update::set:
      return copy_run(from, to, n, fs, ts);
    case Update::add:
      return each([](Math a, Math b) { return static_cast<Math>(a + b); });
    case Update::mul:
      return each([](Math a, Math b) { return static_cast<Math>(a * b); });
    case Update::min:
      return each([](Math a, Math b) { return scalar::min(a, b); });
    case Update::max:
      return each([](Math a, Math b) { return scalar::max(a, b); });
  }
}
template <class T>
void update_plain(program::Update update, const std::byte* from, std::byte* to, std::int64_t n,
                  std::int64_t fs, std::int64_t ts) {
  // Sums of small unsigned types are computed in a wider type and truncated, with a bitwise
  // identical result.
  using Math =
      std::conditional_t<(sizeof(T) < 4),
                         std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>, T>;
  using Wrap = std::conditional_t<
      std::is_floating_point_v<T>, T,
      std::make_unsigned_t<std::conditional_t<std::is_floating_point_v<T>, int, Math>>>;
  if (update == program::Update::min || update == program::Update::max ||
      update == program::Update::set)
    return update_run<Math>(
        update, reinterpret_cast<const T*>(from), reinterpret_cast<T*>(to), n, fs, ts,
        [](T x) { return static_cast<Math>(x); }, [](Math x) { return static_cast<T>(x); });
  update_run<Wrap>(
      update, reinterpret_cast<const T*>(from), reinterpret_cast<T*>(to), n, fs, ts,
      [](T x) { return static_cast<Wrap>(x); }, [](Wrap x) { return static_cast<T>(x); });
}
void update_any(DType dtype, program::Update update, const std::byte* from, std::byte* to,
                std::int64_t n, std::int64_t fs, std::int64_t ts) {
  using Half = std::uint16_t;
  auto half = [&](auto in, auto out) {
    update_run<float>(update, reinterpret_cast<const Half*>(from), reinterpret_cast<Half*>(to), n,
                      fs, ts, in, out);
  };
  switch (dtype) {
    case DType::f32:
      return update_plain<float>(update, from, to, n, fs, ts);
    case DType::f64:
      return update_plain<double>(update, from, to, n, fs, ts);
    case DType::bf16:
      return half([](Half x) { return from_bf16(x); }, [](float x) { return to_bf16(x); });
    case DType::f16:
      return half([](Half x) { return from_f16(x); }, [](float x) { return to_f16(x); });
    case DType::i8:
      return update_plain<std::int8_t>(update, from, to, n, fs, ts);
    case DType::i16:
      return update_plain<std::int16_t>(update, from, to, n, fs, ts);
    case DType::i32:
      return update_plain<std::int32_t>(update, from, to, n, fs, ts);
    case DType::i64:
      return update_plain<std::int64_t>(update, from, to, n, fs, ts);
    case DType::u8:
      return update_plain<std::uint8_t>(update, from, to, n, fs, ts);
    case DType::u16:
      return update_plain<std::uint16_t>(update, from, to, n, fs, ts);
    case DType::u32:
      return update_plain<std::uint32_t>(update, from, to, n, fs, ts);
    case DType::u64:
      return update_plain<std::uint64_t>(update, from, to, n, fs, ts);
    case DType::boolean:  // `add` is or, `mul` is and
      return update_run<std::uint32_t>(
          update, reinterpret_cast<const std::uint8_t*>(from), reinterpret_cast<std::uint8_t*>(to),
          n, fs, ts, [](std::uint8_t x) { return static_cast<std::uint32_t>(x != 0); },
          [](std::uint32_t x) { return static_cast<std::uint8_t>(x != 0); });
  }
}

// Scatters. Each block iterates over all rows in order, but writes only its own range of columns.
// This avoids races and fixes the order of sums.
class ScatterStep final : public CompiledStep {
 public:
  explicit ScatterStep(const program::Scatter& scatter)
      : updates_(scatter.updates), target_(scatter.target), ids_(scatter.indexed, scatter.clamp),
        rows_(scatter.dims, scatter.updates.strides, scatter.target.strides, ids_),
        dtype_(scatter.target.dtype), update_(scatter.update) {
    check_dims(scatter.dims, "scatter");
    const std::int64_t n = rows_.run_size();
    const bool distinct = rows_.run_stride(1) != 0;  // the columns of a row are distinct elements
    std::int64_t parts = distinct ? std::min(n / 64, rows_.rows() * rows_.run_points() / 16384) : 1;
    per_block_ = std::max<std::int64_t>(
        1, (n + std::max<std::int64_t>(1, parts) - 1) / std::max<std::int64_t>(1, parts));
    per_block_ = std::min(n, (per_block_ + 63) / 64 * 64);
    blocks_ = n == 0 ? 0 : (n + per_block_ - 1) / per_block_;
  }
  void run(Frame& frame) override {
    ids_.set(frame);
    const std::byte* updates = updates_.at(frame);
    std::byte* target = target_.at(frame);
    const std::int64_t bytes = haliax::bytes_of(dtype_);
    parallel_for(blocks_, threads(), [&](std::int64_t block, int) {
      const std::int64_t first = block * per_block_,
                         n = std::min(per_block_, rows_.run_size() - first);
      const std::int64_t fs = rows_.run_stride(0), ts = rows_.run_stride(1);
      rows_.each(0, rows_.rows(), [&](std::int64_t here, std::int64_t there, bool inside) {
        if (inside)
          update_any(dtype_, update_, updates + (here + first * fs) * bytes,
                     target + (there + first * ts) * bytes, n, fs, ts);
      });
    });
  }

 private:
  Place updates_, target_;
  Ids ids_;
  Rows rows_;
  DType dtype_;
  program::Update update_;
  std::int64_t per_block_ = 1, blocks_ = 1;
};

}  // namespace

std::unique_ptr<CompiledStep> make_copy(const program::Step& step, const Context& context) {
  return std::make_unique<CopyStep>(step.copy, context);
}
std::unique_ptr<CompiledStep> make_gather(const program::Step& step, const Context&) {
  return std::make_unique<GatherStep>(step.gather);
}
std::unique_ptr<CompiledStep> make_scatter(const program::Step& step, const Context&) {
  return std::make_unique<ScatterStep>(step.scatter);
}

}  // namespace haliax::cpu
