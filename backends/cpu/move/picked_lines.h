// Run: the elements of a gather or a scatter, as lines of positions that ids select. The ids of a
// line are resolved to offsets first; the elements are then moved in a loop over these offsets.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "backends/cpu/kernels.h"
#include "base/scalar.h"
#include "strided_copy.h"

namespace haliax::cpu {

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
  // sets the offset to IdRun::outside.
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
    return {.ids = ids,
            .dtype = dtype,
            .step = step,
            .size = indexed.size,
            .stride = indexed.stride,
            .clamps = clamp_ && indexed.size > 0};
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
  static constexpr std::int64_t segment = 1024;  // positions that are resolved at a time
  // `here` and `there`: strides of the dense side (out, updates), and of the table or target.
  // `packs`: a run that is dense there may be strided here, because the caller copies it.
  PickedLines(const char* op, const Dims& dims, const Dims& here, const Dims& there, const Ids& ids,
              bool packs)
      : ids_(ids) {
    if (dims.size() > std::size_t(most_dims))
      throw Error(std::string("[") + op + "] more than 64 dimensions");
    add_dims(dims, here, there, packs);
    one_id_ = sizes_.empty();
    if (one_id_) {  // one line of one position
      sizes_ = {1};
      here_ = there_ = {0};
      dim_ = {0};
    }
    rows_ = program::points(sizes_);
    const std::size_t last = sizes_.size() - 1;
    if (last > 0 && sizes_[last] > 0 && here_[last - 1] == here_[last] * sizes_[last])
      most_lines_ = std::max<std::int64_t>(1, most_joined / sizes_[last]);
    for (std::size_t d = 0; d < last && !one_id_; ++d)
      has_shared_ids_ = has_shared_ids_ && (sizes_[d] == 1 || !ids.varies(dim_[d]));
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
  std::int64_t line_size() const { return sizes_.back(); }
  std::int64_t lines() const { return rows_ / std::max<std::int64_t>(1, sizes_.back()); }
  // Returns true if all lines have the same ids.
  bool has_shared_ids() const { return has_shared_ids_; }
  // Returns true if a segment may have several lines: they are neighbors on the dense side.
  bool joins_lines() const { return most_lines_ > 1; }
  // Returns true if the elements of a position are neighbors on both sides, and those of
  // neighboring positions are neighbors on the dense side.
  bool has_dense_positions() const {
    const bool is_dense =
        run_points() == 1 || (run_.count == 1 && run_.stride[0][0] == 1 && run_.stride[1][0] == 1);
    return is_dense && line_stride() == run_points();
  }
  // Returns true if no two runs of a position have an element of `there` in common.
  bool has_distinct_runs() const {
    return std::all_of(run_.stride[1], run_.stride[1] + run_.count - 1,
                       [](std::int64_t s) { return s != 0; });
  }
  // Returns the number of neighboring runs, if they have no element of `there` in common; else 1.
  std::int64_t disjoint_runs() const {
    const bool disjoint = run_.count > 1 && run_.stride[1][run_.count - 2] != 0;
    return disjoint ? std::max<std::int64_t>(1, runs_) : 1;
  }
  std::int64_t runs() const { return runs_; }  // neighboring runs
  std::int64_t run_size() const { return run_.size[run_.count - 1]; }
  std::int64_t run_stride(int side) const { return run_.stride[side][run_.count - 1]; }
  std::int64_t line_stride() const { return here_.back(); }  // stride of the dense side
  // Returns all positions of the largest dim along which `there` moves, so that its
  // positions have no element in common. last = 0: there is none. Parts of a line are short, so a
  // dim before it is preferred.
  PartOfDim disjoint() const {
    constexpr std::int64_t enough = 16;  // positions, for all threads
    const std::size_t line = sizes_.size() - 1;
    PartOfDim best;
    for (std::size_t d = 0; d <= line; ++d)
      if (there_[d] != 0 && sizes_[d] > best.last && (d < line || best.last < enough))
        best = {d, 0, sizes_[d]};
    return best;
  }

  // Returns the positions [first, last) of all lines.
  PartOfDim part_of_lines(std::int64_t first, std::int64_t last) const {
    return {sizes_.size() - 1, first, last};
  }

  // Calls f(here, there, offsets, n) for segments that cover the rows [first, last), in order. The
  // element at position j of a segment has the offsets here + j * line_stride() and
  // there + offsets[j]. With a part, the rows are those of the part of the dim.
  template <class F>
  void each(std::int64_t first, std::int64_t last, const F& f, PartOfDim part = {}) const {
    std::int64_t known[most_dims], offsets[segment];
    Segment resolved{-1, 0, 0};
    const std::size_t arrays = one_id_ ? 0 : ids_.arrays();
    each_segment(
        first, last, most_lines_,
        [&](std::int64_t here, std::int64_t there, const std::int64_t* id_at, Segment now) {
          if (!resolved.covers(now) || !std::equal(id_at, id_at + arrays, known)) {
            resolve(id_at, now, offsets);
            std::copy_n(id_at, arrays, known);
            resolved = now;
          }
          f(here, there, offsets, now.n * now.lines);
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
  template <class F>
  void each_run_of_ids(std::int64_t first, std::int64_t last, const F& f,
                       PartOfDim part = {}) const {
    each_segment(
        first, last, 1,
        [&](auto here, auto there, const auto* id_at, Segment now) {
          f(here, there, ids_.run(0, id_at[0], dim_.back()), now.n);
        },
        part);
  }
  // Calls f(here, there) for the lines [first, last).
  template <class F> void each_line(std::int64_t first, std::int64_t last, const F& f) const {
    each_segment(first * sizes_.back(), last * sizes_.back(), 1,
                 [&](auto here, auto there, const auto*, Segment now) {
                   if (now.start == 0) f(here, there);
                 });
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
  static constexpr int most_dims = 64;
  static constexpr std::int64_t most_joined = 256;  // positions of a segment of several lines
  // Divides the dims into those of the lines and those of the runs. For example, a gather of
  // table[ids[i], j] into out[i, j] has one line, along i, and its runs are along j.
  void add_dims(const Dims& dims, const Dims& here, const Dims& there, bool packs) {
    auto varies = [&](std::size_t d) { return dims[d] != 1 && ids_.varies(d); };
    auto is_packed = [&](std::size_t d) { return packs && there[d] == 1 && dims[d] >= 8; };
    bool any_varies = false;
    std::int64_t step = std::numeric_limits<std::int64_t>::max();  // the smallest one along ids
    for (std::size_t d = 0; d < dims.size(); ++d) {
      if (!varies(d)) continue;
      any_varies = true;
      step = std::min(step, std::abs(here[d]));
    }
    // Other dims with larger strides than the ids are iterated outside of the line, if their
    // positions have no element in common.
    auto outside = [&](std::size_t d) {
      return any_varies && !varies(d) && there[d] != 0 && !is_packed(d) &&
             std::abs(here[d]) >= step;
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
  }
  // Positions [start, start + n) of neighboring lines.
  struct Segment {
    std::int64_t start, n, lines;
    // Returns true if the offsets of this segment start with those of the other one.
    bool covers(const Segment& other) const {
      if (start != other.start) return false;
      return n == other.n ? lines >= other.lines : n >= other.n && other.lines == 1;
    }
  };
  // Calls f(here, there, id_at, segment) for segments of at most `most_lines` lines. The ids of
  // array k of a segment start at element id_at[k].
  template <class F>
  void each_segment(std::int64_t first, std::int64_t last, std::int64_t most_lines, const F& f,
                    PartOfDim part = {}) const {
    const std::size_t line = sizes_.size() - 1;
    std::int64_t begin[most_dims], end[most_dims], at[most_dims], id_at[most_dims];
    for (std::size_t d = 0; d <= line; ++d) {
      begin[d] = 0;
      end[d] = sizes_[d];
    }
    if (part.last > 0) {
      begin[part.dim] = part.first;
      end[part.dim] = part.last;
    }
    std::int64_t rest = first;
    for (std::size_t d = line + 1; d-- > 0; rest /= end[d] - begin[d])
      at[d] = begin[d] + rest % (end[d] - begin[d]);
    while (first < last) {
      Segment now{at[line], std::min({end[line] - at[line], last - first, segment}), 1};
      if (most_lines > 1 && now.n == sizes_[line])
        now.lines = std::clamp<std::int64_t>((last - first) / now.n, 1,
                                             std::min(end[line - 1] - at[line - 1], most_lines));
      std::int64_t here = now.start * here_[line], there = 0;
      for (std::size_t d = 0; d < line; ++d) {
        here += at[d] * here_[d];
        there += at[d] * there_[d];
      }
      for (std::size_t k = 0; k < ids_.arrays() && !one_id_; ++k) {
        id_at[k] = 0;
        for (std::size_t d = 0; d <= line; ++d) id_at[k] += at[d] * ids_.stride(k, dim_[d]);
      }
      f(here, there, id_at, now);
      first += now.n * now.lines;
      at[line] += now.n;
      if (now.lines > 1) at[line - 1] += now.lines - 1;
      for (std::size_t d = line; d > 0 && at[d] == end[d]; --d) {
        at[d] = begin[d];
        ++at[d - 1];
      }
    }
  }
  // Sets the offsets of a segment, relative to its first line.
  void resolve(const std::int64_t* id_at, Segment now, std::int64_t* offsets) const {
    const std::size_t line = sizes_.size() - 1;
    const std::int64_t step = there_[line], next_line = line > 0 ? there_[line - 1] : 0;
    if (now.lines > 1 && has_shared_ids_) {  // later lines repeat the first one, moved
      resolve(id_at, {now.start, now.n, 1}, offsets);
      for (std::int64_t j = now.n; j < now.n * now.lines; ++j) {
        const std::int64_t before = offsets[j - now.n];
        offsets[j] = before == IdRun::outside ? before : before + next_line;
      }
      return;
    }
    for (std::int64_t l = 0; l < now.lines; ++l)
      for (std::int64_t j = 0; j < now.n; ++j)
        offsets[l * now.n + j] = l * next_line + (now.start + j) * step;
    for (std::size_t k = 0; k < ids_.arrays(); ++k) {
      const std::int64_t at = one_id_ ? 0 : id_at[k],
                         next = line > 0 ? ids_.stride(k, dim_[line - 1]) : 0;
      if (now.lines > 1 && next == ids_.stride(k, dim_[line]) * now.n) {
        ids_.add(k, at, dim_[line], offsets, now.n * now.lines);
        continue;
      }
      for (std::int64_t l = 0; l < now.lines; ++l)
        ids_.add(k, at + l * next, dim_[line], offsets + l * now.n, now.n);
    }
  }
  const Ids& ids_;
  Dims sizes_, here_, there_;     // the dims up to the line
  std::vector<std::size_t> dim_;  // their indices in `dims`
  MergedDims<2> run_;
  bool one_id_ = false;          // no id varies
  bool has_shared_ids_ = true;   // no id varies along dims before the line
  std::int64_t most_lines_ = 1;  // lines of a segment
  std::int64_t rows_ = 1;
  std::int64_t outer_runs_ = 1, runs_ = 1;  // runs: of the last but one dim, and of dims before it
};

}  // namespace haliax::cpu
