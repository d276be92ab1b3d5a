// Gathers and scatters. The ids of a line of elements are resolved to offsets first; the elements
// are then moved in a loop over these offsets.
#include <cmath>
#include <limits>

#include "base/scalar.h"
#include "base/thread_pool.h"
#include "kernels.h"
#include "strided_copy.h"

namespace haliax::cpu {
namespace {

constexpr std::int64_t kOutside = IdRun::outside;
constexpr int kMaxDims = 64;
constexpr int kSegment = 1024;  // positions of a line that are resolved at a time

// Index arrays. Negative ids count from the end.
class Ids {
 public:
  Ids(const std::vector<program::Indexed>& indexed, bool clamp) : indexed_(indexed), clamp_(clamp) {
    for (const program::Indexed& i : indexed) places_.emplace_back(i.ids);
    bases_.resize(indexed.size());
  }
  void set(const Frame& frame) {
    for (std::size_t k = 0; k < places_.size(); ++k) bases_[k] = places_[k].at(frame);
  }
  std::size_t arrays() const { return indexed_.size(); }
  bool varies(std::size_t dim) const {
    return std::any_of(indexed_.begin(), indexed_.end(),
                       [&](const program::Indexed& i) { return i.ids.strides[dim] != 0; });
  }
  std::int64_t stride(std::size_t k, std::size_t dim) const { return indexed_[k].ids.strides[dim]; }
  // Returns true if the kernels read the ids of array k.
  bool has_kernel(std::size_t k) const {
    const DType dtype = indexed_[k].ids.dtype;
    return dtype == DType::i32 || dtype == DType::i64;
  }
  // Returns true if the ids and the offsets of array k have 32 bits.
  bool are_small(std::size_t k) const {
    const auto& i = indexed_[k];
    return i.ids.dtype == DType::i32 && i.size > 0 && i.stride >= 0 &&
           i.size <= INT32_MAX / std::max<std::int64_t>(1, i.stride);
  }
  // Returns the ids of array k, from element `at` on along a dim.
  IdRun run(std::size_t k, std::int64_t at, std::size_t dim) const {
    const DType dtype = indexed_[k].ids.dtype;
    return run_of(k, bases_[k] + at * haliax::bytes_of(dtype), dtype, stride(k, dim));
  }
  // Adds the ids of array k, from element `at` on along a dim, to n offsets. An id out of range
  // sets the offset to kOutside.
  void add(std::size_t k, std::int64_t at, std::size_t dim, std::int64_t* offsets,
           std::int64_t n) const {
    const DType dtype = indexed_[k].ids.dtype;
    const std::byte* ids = bases_[k] + at * haliax::bytes_of(dtype);
    const std::int64_t step = n > 1 ? stride(k, dim) : 0;
    if (has_kernel(k)) return kernels().add_ids(offsets, run_of(k, ids, dtype, step), n);
    // Other dtypes are read one by one. A u64 out of range does not count from the end.
    const bool unsigned_64 = dtype == DType::u64;
    for (std::int64_t j = 0; j < n; ++j) {
      std::int64_t id = scalar::load(dtype, ids + j * step * haliax::bytes_of(dtype)).integer;
      if (unsigned_64 && id < 0) id = indexed_[k].size;
      kernels().add_ids(offsets + j, run_of(k, &id, DType::i64, 0), 1);
    }
  }

 private:
  IdRun run_of(std::size_t k, const void* ids, DType dtype, std::int64_t step) const {
    const program::Indexed& indexed = indexed_[k];
    return {ids, dtype, step, indexed.size, indexed.stride, clamp_ && indexed.size > 0};
  }
  const std::vector<program::Indexed>& indexed_;
  std::vector<Place> places_;
  std::vector<const std::byte*> bases_;
  bool clamp_;
};

// Positions [first, last) of one dim.
struct PartOfDim {
  std::size_t dim = 0;
  std::int64_t first = 0, last = 0;
};
// The elements of `dims` as lines times runs. A line is the last dim along which an id varies. A
// run covers dims along which no id varies; all of its elements have the same ids. The dims along
// which ids vary keep their order, so the order of the updates of one element does not change.
class PickedLines {
 public:
  static constexpr std::int64_t most_packed = 512;  // elements of a run that is copied
  // `here` and `there`: strides of the dense side (out, updates), and of the table or target.
  // `packs`: a run that is dense there, and that other runs share, may be strided here.
  PickedLines(const char* op, const Dims& dims, const Dims& here, const Dims& there, const Ids& ids,
              bool packs)
      : ids_(ids) {
    if (dims.size() > kMaxDims) throw Error(std::string("[") + op + "] more than 64 dimensions");
    std::size_t line = dims.size();  // the last dim along which an id varies
    auto varies = [&](std::size_t d) { return dims[d] != 1 && ids.varies(d); };
    while (line > 0 && !varies(line - 1)) --line;
    one_id_ = line == 0;
    bool is_shared = false;
    for (std::size_t d = 0; d < dims.size(); ++d)
      is_shared |= !varies(d) && dims[d] > 1 && here[d] == 0;
    auto is_packed = [&](std::size_t d) {
      return packs && is_shared && there[d] == 1 && dims[d] >= 8 && dims[d] <= most_packed;
    };
    // Other dims with larger strides than the line are iterated outside of it, if
    // their positions have no element in common.
    auto outside = [&](std::size_t d) {
      return !one_id_ && !varies(d) && there[d] != 0 && !is_packed(d) &&
             std::abs(here[d]) >= std::abs(here[line - 1]);
    };
    auto add = [&](std::size_t d) {
      sizes_.push_back(dims[d]);
      here_.push_back(here[d]);
      there_.push_back(there[d]);
      dim_.push_back(d);
    };
    for (std::size_t d = 0; d < dims.size(); ++d)
      if (outside(d)) add(d);
    for (std::size_t d = 0; d < dims.size(); ++d) {
      if (varies(d))
        add(d);
      else if (!outside(d))
        run_.add(dims[d], {here[d], there[d]});
    }
    if (one_id_) {  // one line of one position
      sizes_ = {1};
      here_ = there_ = {0};
      dim_ = {0};
    }
    rows_ = program::points(sizes_);
    if (run_.count == 0) {
      run_.size[0] = 1;
      run_.stride[0][0] = run_.stride[1][0] = 1;
      run_.count = 1;
    }
    if (run_.count > 1) runs_ = run_.size[run_.count - 2];
    outer_runs_ = run_.points(0, run_.count - 1) / std::max<std::int64_t>(1, runs_);
  }
  std::int64_t rows() const { return rows_; }  // positions of all lines
  std::int64_t run_points() const { return outer_runs_ * runs_ * run_.size[run_.count - 1]; }
  // Returns the number of neighboring runs, if they have no element of `there` in common; else 1.
  std::int64_t disjoint_runs() const {
    const bool disjoint = run_.count > 1 && run_.stride[1][run_.count - 2] != 0;
    return disjoint ? std::max<std::int64_t>(1, runs_) : 1;
  }
  std::int64_t run_size() const { return run_.size[run_.count - 1]; }
  std::int64_t run_stride(int side) const { return run_.stride[side][run_.count - 1]; }
  std::int64_t line_stride() const { return here_.back(); }  // stride of the dense side
  // Returns all positions of the largest dim along which `there` moves, so that its
  // positions have no element in common. last = 0: there is none.
  PartOfDim disjoint() const {
    PartOfDim best;
    for (std::size_t d = 0; d < sizes_.size(); ++d)
      if (there_[d] != 0 && sizes_[d] > best.last) best = {d, 0, sizes_[d]};
    return best;
  }

  // Calls f(here, there, offsets, n) for segments of lines that cover the rows [first, last), in
  // order. The element at position j of a segment has the offsets here + j * line_stride() and
  // there + offsets[j]. With a part, the rows are those of the part of the dim.
  template <class F>
  void each(std::int64_t first, std::int64_t last, const F& f, PartOfDim part = {}) const {
    std::int64_t known[kMaxDims], offsets[kSegment], known_start = -1, known_count = 0;
    const std::size_t arrays = one_id_ ? 0 : ids_.arrays();
    each_segment(
        first, last,
        [&](std::int64_t here, std::int64_t there, const std::int64_t* id_at, std::int64_t start,
            std::int64_t n) {
          const bool same =
              known_start == start && known_count >= n && std::equal(id_at, id_at + arrays, known);
          if (!same) {
            resolve(one_id_ ? nullptr : id_at, start, offsets, n);
            std::copy_n(id_at, arrays, known);
            known_start = start;
            known_count = n;
          }
          f(here, there, offsets, n);
        },
        part);
  }
  // Returns true if the elements of a line of the table differ by one id only, the ids are dense,
  // and the offsets have 32 bits.
  bool has_small_ids() const {
    return !one_id_ && ids_.arrays() == 1 && there_.back() == 0 && ids_.are_small(0) &&
           (sizes_.back() == 1 || ids_.stride(0, dim_.back()) == 1);
  }
  // Calls f(here, there, ids, n) for the segments of lines, if has_small_ids().
  template <class F> void each_run_of_ids(std::int64_t first, std::int64_t last, const F& f) const {
    each_segment(first, last,
                 [&](std::int64_t here, std::int64_t there, const std::int64_t* id_at, std::int64_t,
                     std::int64_t n) { f(here, there, ids_.run(0, id_at[0], dim_.back()), n); });
  }
  // Calls f(here, there, id_at, start, n) for the segments of lines. The ids of array k of a
  // segment start at element id_at[k], and its positions along the line at `start`. `here` is the
  // offset at `start`; `there` excludes the position along the line, which the offsets of `resolve`
  // include.
  template <class F>
  void each_segment(std::int64_t first, std::int64_t last, const F& f, PartOfDim part = {}) const {
    const std::size_t line = sizes_.size() - 1;
    std::int64_t begin[kMaxDims], end[kMaxDims], at[kMaxDims], id_at[kMaxDims];
    for (std::size_t d = 0; d <= line; ++d) {
      begin[d] = 0;
      end[d] = sizes_[d];
    }
    if (part.last > 0) {
      begin[part.dim] = part.first;
      end[part.dim] = part.last;
    }
    std::int64_t row = first;
    for (std::size_t d = line + 1; d-- > 0; row /= end[d] - begin[d])
      at[d] = begin[d] + row % (end[d] - begin[d]);
    while (first < last) {
      const std::int64_t start = at[line],
                         n = std::min({end[line] - start, last - first, std::int64_t(kSegment)});
      std::int64_t here = start * here_[line], there = 0;
      for (std::size_t d = 0; d < line; ++d) {
        here += at[d] * here_[d];
        there += at[d] * there_[d];
      }
      for (std::size_t k = 0; k < ids_.arrays() && !one_id_; ++k) {
        id_at[k] = 0;
        for (std::size_t d = 0; d <= line; ++d) id_at[k] += at[d] * ids_.stride(k, dim_[d]);
      }
      f(here, there, id_at, start, n);
      first += n;  // advances, with a carry into the outer dims
      at[line] += n;
      for (std::size_t d = line; d > 0 && at[d] == end[d]; --d) {
        at[d] = begin[d];
        ++at[d - 1];
      }
    }
  }
  // Calls f(here, there) for each contiguous or strided part of a run, or for the parts
  // [first, last) of neighboring ones.
  template <class F> void each_run(std::int64_t here, std::int64_t there, const F& f) const {
    each_run(here, there, 0, runs_, f);
  }
  template <class F>
  void each_run(std::int64_t here, std::int64_t there, std::int64_t first, std::int64_t last,
                const F& f) const {
    const int row = run_.count - 2;
    for (std::int64_t o = 0; o < outer_runs_; ++o) {
      const std::int64_t h = here + run_.offset(0, o, 0, std::max(0, row)),
                         t = there + run_.offset(1, o, 0, std::max(0, row));
      if (row < 0) return f(h, t);
      for (std::int64_t r = first; r < last; ++r)
        f(h + r * run_.stride[0][row], t + r * run_.stride[1][row]);
    }
  }

 private:
  void resolve(const std::int64_t* id_at, std::int64_t start, std::int64_t* offsets,
               std::int64_t n) const {
    const std::size_t line = sizes_.size() - 1;
    for (std::int64_t j = 0; j < n; ++j) offsets[j] = (start + j) * there_[line];
    for (std::size_t k = 0; k < ids_.arrays(); ++k)
      ids_.add(k, id_at ? id_at[k] : 0, dim_[line], offsets, n);
  }
  const Ids& ids_;
  Dims sizes_, here_, there_;     // the dims up to the line
  std::vector<std::size_t> dim_;  // their indices in `dims`
  MergedDims<2> run_;
  bool one_id_ = false;  // no id varies
  std::int64_t rows_ = 1;
  std::int64_t outer_runs_ = 1, runs_ = 1;  // runs: of the last but one dim, and of dims before it
};

class GatherStep final : public CompiledStep {
 public:
  explicit GatherStep(const program::Gather& gather)
      : table_(gather.table), out_(gather.out),
        ids_(gather.indexed, gather.outside == program::Outside::clamp),
        lines_("gather", gather.dims, gather.out.strides, gather.table.strides, ids_, false),
        bytes_(haliax::bytes_of(gather.out.dtype)) {
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
        1, kCopyGrain / std::max<std::int64_t>(8, lines_.run_points() * bytes_));
    with_bytes(bytes_, [&](auto zero) {
      using T = decltype(zero);
      T absent;
      std::memcpy(&absent, absent_, sizeof absent);
      parallel_for(
          (lines_.rows() + per_block - 1) / per_block, threads(), [&](std::int64_t block, int) {
            gather_rows(reinterpret_cast<const T*>(table), reinterpret_cast<T*>(out), absent,
                        block * per_block, std::min(lines_.rows(), (block + 1) * per_block));
          });
    });
  }

 private:
  template <class T>
  void gather_rows(const T* table, T* out, T absent, std::int64_t first, std::int64_t last) const {
    const std::int64_t step = lines_.line_stride();
    if constexpr (sizeof(T) == 4)
      if (kernels().gather_words && lines_.run_points() == 1 && step == 1 && lines_.has_small_ids())
        return lines_.each_run_of_ids(
            first, last, [&](auto here, auto there, const IdRun& ids, auto n) {
              kernels().gather_words(out + here, table + there, ids, absent, n);
            });
    if (lines_.run_points() == 1)
      return lines_.each(first, last, [&](auto here, auto there, const auto* offsets, auto n) {
        gather_line(table + there, out + here, absent, offsets, n, step);
      });
    const std::int64_t n = lines_.run_size(), from = lines_.run_stride(1),
                       to = lines_.run_stride(0);
    lines_.each(first, last, [&](auto here, auto there, const auto* offsets, auto count) {
      for (std::int64_t j = 0; j < count; ++j) {
        const bool inside = offsets[j] != kOutside;
        lines_.each_run(here + j * step, inside ? there + offsets[j] : 0, [&](auto h, auto t) {
          inside ? copy_run(table + t, out + h, n, from, to) : copy_run(&absent, out + h, n, 0, to);
        });
      }
    });
  }
  template <class T>
  static void gather_line(const T* table, T* out, T absent, const std::int64_t* offsets,
                          std::int64_t n, std::int64_t step) {
    if (step == 1) return kernels().gather_values(sizeof(T), out, table, offsets, &absent, n);
    for (std::int64_t j = 0; j < n; ++j)
      out[j * step] = offsets[j] != kOutside ? table[offsets[j]] : absent;
  }
  Place table_, out_;
  Ids ids_;
  PickedLines lines_;
  int bytes_;
  std::byte absent_[8] = {};
};

// ---- scatter ----

// Calls g(zero, f): f(a, b) combines an element of the target with an update; zero is a value of
// the type in memory. Floats are combined in f32 (f64 in f64); integers wrap.
template <class Math, class Memory, class In, class Out, class G>
void with_update(program::Update update, Memory zero, const In& in, const Out& out, const G& g) {
  using program::Update;
  auto combined = [&](auto f) {
    g(zero, [=](Memory a, Memory b) { return static_cast<Memory>(out(f(in(a), in(b)))); });
  };
  switch (update) {
    case Update::set:
      return g(zero, [](Memory, Memory b) { return b; });
    case Update::add:
      return combined([](Math a, Math b) { return static_cast<Math>(a + b); });
    case Update::mul:
      return combined([](Math a, Math b) { return static_cast<Math>(a * b); });
    case Update::min:
      return combined([](Math a, Math b) { return scalar::min(a, b); });
    case Update::max:
      return combined([](Math a, Math b) { return scalar::max(a, b); });
  }
}
template <class T, class G> void with_plain_update(program::Update update, const G& g) {
  // Sums of small unsigned types are computed in a wider type and truncated, with a bitwise
  // identical result.
  using Math =
      std::conditional_t<(sizeof(T) < 4),
                         std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>, T>;
  using Wrap = std::conditional_t<
      std::is_floating_point_v<T>, T,
      std::make_unsigned_t<std::conditional_t<std::is_floating_point_v<T>, int, Math>>>;
  if (update == program::Update::min || update == program::Update::max)
    return with_update<Math>(
        update, T(), [](T x) { return static_cast<Math>(x); },
        [](Math x) { return static_cast<T>(x); }, g);
  with_update<Wrap>(
      update, T(), [](T x) { return static_cast<Wrap>(x); },
      [](Wrap x) { return static_cast<T>(x); }, g);
}
template <class G> void with_update(DType dtype, program::Update update, const G& g) {
  using Half = std::uint16_t;
  switch (dtype) {
    case DType::f32:
      return with_plain_update<float>(update, g);
    case DType::f64:
      return with_plain_update<double>(update, g);
    case DType::bf16:
      return with_update<float>(
          update, Half(), [](Half x) { return from_bf16(x); }, [](float x) { return to_bf16(x); },
          g);
    case DType::f16:
      return with_update<float>(
          update, Half(), [](Half x) { return from_f16(x); }, [](float x) { return to_f16(x); }, g);
    case DType::i8:
      return with_plain_update<std::int8_t>(update, g);
    case DType::i16:
      return with_plain_update<std::int16_t>(update, g);
    case DType::i32:
      return with_plain_update<std::int32_t>(update, g);
    case DType::i64:
      return with_plain_update<std::int64_t>(update, g);
    case DType::u8:
      return with_plain_update<std::uint8_t>(update, g);
    case DType::u16:
      return with_plain_update<std::uint16_t>(update, g);
    case DType::u32:
      return with_plain_update<std::uint32_t>(update, g);
    case DType::u64:
      return with_plain_update<std::uint64_t>(update, g);
    case DType::boolean:  // `add` is or, `mul` is and
      return with_update<std::uint32_t>(
          update, std::uint8_t(), [](std::uint8_t x) { return static_cast<std::uint32_t>(x != 0); },
          [](std::uint32_t x) { return static_cast<std::uint8_t>(x != 0); }, g);
  }
}

// Each worker iterates over rows in order, but writes only its own elements: its columns of all
// runs, its part of a dim of the target, or some of the runs of each position. This avoids races
// and fixes the order of sums.
class ScatterStep final : public CompiledStep {
 public:
  explicit ScatterStep(const program::Scatter& scatter)
      : updates_(scatter.updates), target_(scatter.target), ids_(scatter.indexed, scatter.clamp),
        lines_("scatter", scatter.dims, scatter.updates.strides, scatter.target.strides, ids_,
               true),
        dtype_(scatter.target.dtype), update_(scatter.update), of_halves_(kernel_of_halves()),
        part_(lines_.disjoint()), runs_per_block_(lines_.disjoint_runs()) {
    const std::int64_t n = lines_.run_size(), rows = lines_.rows(),
                       most = rows * lines_.run_points() / 16384;
    const bool distinct = lines_.run_stride(1) != 0;  // the columns of a run are distinct elements
    columns_ = std::max<std::int64_t>(n, 1);
    if (distinct && n >= 128 && most > 1) {
      part_ = {};
      const std::int64_t parts = std::min(n / 64, most);
      columns_ = std::min(n, ((n + parts - 1) / parts + 63) / 64 * 64);
      blocks_ = (n + columns_ - 1) / columns_;
    } else if (part_.last > 1 && most > 1) {
      const std::int64_t parts = std::min({part_.last, most, std::int64_t(64)});
      positions_ = (part_.last + parts - 1) / parts;
      blocks_ = (part_.last + positions_ - 1) / positions_;
    } else {
      part_ = {};
      const std::int64_t runs = lines_.disjoint_runs(),
                         parts =
                             std::clamp<std::int64_t>(most, 1, std::min<std::int64_t>(runs, 64));
      runs_per_block_ = (runs + parts - 1) / parts;
      splits_runs_ = runs_per_block_ < runs;
      blocks_ = (runs + runs_per_block_ - 1) / runs_per_block_;
    }
    if (n >= kShortest && lines_.run_stride(1) == 1) {
      const std::int64_t stride = lines_.run_stride(0);
      const Kernel dense = is_widened(dtype_) ? of_halves_ : kernel_of(1);
      packs_ = dense && stride != 1 && (stride != 0 || of_halves_) &&
               columns_ <= PickedLines::most_packed;
      if (!is_widened(dtype_)) combine_ = kernel_of(packs_ ? 1 : stride);
    }
    if (rows * lines_.run_points() == 0) blocks_ = 0;
  }
  void run(Frame& frame) override {
    ids_.set(frame);
    std::byte *updates = updates_.at(frame), *target = target_.at(frame);
    with_update(dtype_, update_, [&](auto zero, const auto& f) {
      using T = decltype(zero);
      parallel_for(blocks_, threads(), [&](std::int64_t block, int) {
        scatter_block(reinterpret_cast<const T*>(updates), reinterpret_cast<T*>(target), block, f);
      });
    });
  }

 private:
  template <class T, class F>
  void scatter_block(const T* updates, T* target, std::int64_t block, const F& f) const {
    PartOfDim part;
    std::int64_t rows = lines_.rows(), first = 0, n = lines_.run_size();
    if (part_.last > 0) {
      part = {part_.dim, block * positions_, std::min(part_.last, (block + 1) * positions_)};
      rows = rows / part_.last * (part.last - part.first);
    } else if (!splits_runs_) {
      first = block * columns_;
      n = std::min(columns_, n - first);
    }
    const std::int64_t step = lines_.line_stride(), from = lines_.run_stride(0),
                       to = lines_.run_stride(1);
    auto on_element = [&](auto here, auto there, const auto* offsets, auto count) {
      for (std::int64_t j = 0; j < count; ++j) {
        if (offsets[j] == kOutside) continue;
        T& element = target[there + offsets[j]];
        element = f(element, updates[here + j * step]);
      }
    };
    if (lines_.run_points() == 1) return lines_.each(0, rows, on_element, part);
    T packed[PickedLines::most_packed];
    std::int64_t packed_at = -1;  // the run of updates in `packed`
    auto on_run = [&](auto h, auto t) {
      const T* run = updates + h + first * from;
      if (!packs_) return update_run(run, target + t + first * to, n, from, to, f);
      if (packed_at != h) copy_run(run, packed, n, from, 1);
      packed_at = h;
      update_run(static_cast<const T*>(packed), target + t + first * to, n, 1, to, f);
    };
    auto on_segment = [&](auto here, auto there, const auto* offsets, auto count) {
      for (std::int64_t j = 0; j < count; ++j) {
        if (offsets[j] == kOutside) continue;
        const std::int64_t h = here + j * step, t = there + offsets[j];
        if (splits_runs_)
          lines_.each_run(h, t, block * runs_per_block_,
                          std::min(lines_.disjoint_runs(), (block + 1) * runs_per_block_), on_run);
        else
          lines_.each_run(h, t, on_run);
      }
    };
    lines_.each(0, rows, on_segment, part);
  }
  template <class T, class F>
  void update_run(const T* from, T* to, std::int64_t n, std::int64_t fs, std::int64_t ts,
                  const F& f) const {
    if (update_ == program::Update::set) return copy_run(from, to, n, fs, ts);
    if (combine_) {
      const void* in[] = {to, from};
      return combine_(to, in, n);
    }
    if (of_halves_ && fs == 1 && ts == 1) return update_halves(from, to, n);
    for (std::int64_t i = 0; i < n; ++i) to[i * ts] = f(to[i * ts], from[i * fs]);
  }
  // Updates neighbors of 16 bits by the vector kernels, with bitwise identical results.
  void update_halves(const void* from, void* to, std::int64_t n) const {
    constexpr std::int64_t most = 256;
    alignas(64) float a[most], b[most];
    const std::int64_t bytes = haliax::bytes_of(dtype_);
    const auto load = kernels().load(dtype_);
    const auto store = kernels().store(dtype_);
    for (std::int64_t i = 0; i < n; i += most) {
      const auto some = std::min(most, n - i);
      std::byte* at = static_cast<std::byte*>(to) + i * bytes;
      load(a, at, 1, some);
      load(b, static_cast<const std::byte*>(from) + i * bytes, 1, some);
      const void* in[] = {a, b};
      of_halves_(a, in, some);
      store(at, a, 1, some);
    }
  }
  // Returns the kernel for updates of 16-bit floats, which are combined in f32, or null.
  Kernel kernel_of_halves() const {
    const bool is_half = dtype_ == DType::bf16 || dtype_ == DType::f16;
    return is_half && update_ != program::Update::set
               ? kernels().map(code_of(update_), LaneType::f32, Shape::vector_vector)
               : nullptr;
  }
  static program::Code code_of(program::Update update) {
    using program::Code;
    using program::Update;
    return update == Update::add   ? Code::add
           : update == Update::mul ? Code::mul
           : update == Update::min ? Code::min
                                   : Code::max;
  }
  // Returns the vector kernel that combines a run of the target with updates of this stride. Null:
  // there is none.
  Kernel kernel_of(std::int64_t stride) const {
    if ((stride != 0 && stride != 1) || update_ == program::Update::set) return nullptr;
    return kernels().map(code_of(update_), lane_type_of(dtype_),
                         stride == 0 ? Shape::vector_scalar : Shape::vector_vector);
  }
  static constexpr std::int64_t kShortest = 8;  // elements of a run that a kernel combines
  Place updates_, target_;
  Ids ids_;
  PickedLines lines_;
  DType dtype_;
  program::Update update_;
  Kernel of_halves_;
  PartOfDim part_;  // the dim that is split over the workers; last = 0: the columns are split
  std::int64_t positions_ = 1, columns_ = 1, blocks_ = 1;
  std::int64_t runs_per_block_ = 1;
  bool splits_runs_ = false;  // blocks are runs of each position
  Kernel combine_ = nullptr;
  bool packs_ = false;  // updates of a run are copied to a dense one, which several runs share
};

}  // namespace

std::unique_ptr<CompiledStep> make_gather(const program::Step& step, const Context&) {
  return std::make_unique<GatherStep>(step.gather);
}
std::unique_ptr<CompiledStep> make_scatter(const program::Step& step, const Context&) {
  return std::make_unique<ScatterStep>(step.scatter);
}

}  // namespace haliax::cpu
