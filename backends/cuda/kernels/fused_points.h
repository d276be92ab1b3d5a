// The common base of all kernels of fused steps: the iteration space, its instructions as source
// code, chunks of adjacent elements, and kernels without reductions.
#pragma once
#include <fmt/format.h>

#include <algorithm>

#include "codes.h"

namespace haliax::cuda {

// Per instruction, within a pass: 0, or computed in this pass, or retained in registers by an
// earlier pass.
using Marks = std::vector<char>;
inline constexpr char kComputed = 1, kSaved = 2;

// The iteration space and the instructions of a fused step.
struct FusedFacts {
  using Dims = program::Dims;

  FusedFacts(const program::Fused& f, NestContext* in)
      : nest(in), code(f.code), needed(needed_instructions(f)), levels(reduction_levels(f)),
        dims(f.dims), outer(std::size_t(f.outer)), serial(writes_repeatedly(f)) {
    for (auto& i : code) {
      strides.push_back(access_strides(f, i));
      folds |= is_reduction(i.code);
      stores_rows |= is_store(i.code) && !i.inner;
    }
    program::merge_dims(dims, outer, strides);
    rows = program::points(part(0, outer));
    inner = program::points(part(outer, dims.size()));
    empty = inner == 0;
    needs_64_bits = program::points(dims) >= kMax32BitPosition;
    for (std::size_t i = 0; i < code.size(); ++i) needs_64_bits |= reach(i) >= kMax32BitPosition;
  }
  // Describes one instruction of code that another class iterates over (tiles.h).
  FusedFacts(const std::vector<program::Instr>& all, std::size_t which, const Dims& along,
             NestContext* in)
      : nest(in), code(all), strides(all.size()) {
    strides[which] = along;
  }

  Dims part(std::size_t from, std::size_t to) const {
    return Dims(dims.begin() + std::ptrdiff_t(from), dims.begin() + std::ptrdiff_t(to));
  }
  std::int64_t reach(std::size_t i) const {
    std::int64_t out = 0;
    for (std::size_t d = 0; d < strides[i].size(); ++d) out += std::abs(strides[i][d]) * dims[d];
    return out;
  }

  std::vector<std::size_t> all_folds() const {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < code.size(); ++i)
      if (needed[i] && is_reduction(code[i].code)) out.push_back(i);
    return out;
  }
  bool is_plain() const { return nest || serial; }  // no chunks: one element after another
  bool is_load(std::size_t i) const { return code[i].code == program::Code::load; }
  // Returns true if the value differs between rows.
  bool is_of_row(std::size_t i) const {
    auto& s = strides[i];
    return !s.empty() &&
           std::any_of(s.begin(), s.begin() + std::ptrdiff_t(outer), [](auto x) { return x != 0; });
  }
  // Returns two flags for views that vary with both: rows are adjacent in memory; elements of a row
  // are adjacent.
  std::pair<bool, bool> sides() const {
    bool along_rows = false, along = false;
    for (std::size_t i = 0; i < code.size(); ++i) {
      auto& s = strides[i];
      if (!needed[i] || s.empty() || !code[i].inner) continue;
      along |= s.back() == 1 && (outer == 0 || is_of_row(i));
      along_rows |= outer > 0 && s[outer - 1] == 1;
    }
    return {along_rows, along};
  }
  int last_level() const {
    return levels.empty() ? 0 : *std::max_element(levels.begin(), levels.end());
  }
  // Returns the number of elements per chunk along a dim, up to 16 bytes of the widest dtype.
  // Returns 1 unless all loads and stores are contiguous or constant along the dim.
  int few_along(std::size_t dim, bool inner_only) const {
    std::int64_t widest = 0;
    for (std::size_t i = 0; i < code.size(); ++i) {
      auto& in = code[i];
      if (!needed[i] || !(is_load(i) || is_store(in.code)) || (inner_only && !in.inner)) continue;
      const auto s = strides[i][dim];
      if (s != 0 && s != 1) return 1;
      if (s == 1) widest = std::max<std::int64_t>(widest, bytes_of(in.view.dtype));
    }
    auto few = widest == 0 ? 1 : std::min(8, int(16 / widest));
    while (few > 1 && dims[dim] < 4 * few) few /= 2;
    return few;
  }

  NestContext* const nest;
  std::vector<program::Instr> code;
  std::vector<Dims> strides;  // per load, store and iota, along dims
  std::vector<bool> needed;
  std::vector<int> levels;  // reduction_levels
  Dims dims;                // merged
  std::size_t outer = 0;
  std::int64_t rows = 0, inner = 0;  // number of elements
  bool folds = false, stores_rows = false, serial = false, empty = false;
  bool needs_64_bits = false;  // positions require 64 bits
};

// Source code of the instructions, and of kernels without reductions.
class FusedPoints {
 public:
  explicit FusedPoints(FusedFacts f) : f_(std::move(f)), source_(f_.nest), loaded_(f_.code.size()) {
    source_.needs_64_bits = f_.needs_64_bits;
  }
  // Returns the source of one instruction: its value, or its store.
  std::string one(std::size_t i) { return is_store(f_.code[i].code) ? stored(i) : value_of(i); }
  Launch all_points() { return points(f_.rows * f_.inner); }

 protected:
  using Code = program::Code;
  using Dims = program::Dims;
  using Instr = program::Instr;

  // ---- chunks: adjacent elements along `along_` ----
  int few_of(std::size_t i) const {
    return chunk_size_ > 1 && f_.strides[i][along_] == 0 ? 1 : chunk_size_;
  }
  std::string chunk_of(std::size_t i) const {
    return fmt::format("Few<{}, {}>", few_of(i), element_of(f_.code[i].view.dtype));
  }
  // Emits a load from memory to `to`. `count`: number of existing elements.
  void fetch(std::size_t i, const std::string& to, const std::string& count) {
    auto& v = f_.code[i].view;
    auto base = source_.base(v), at = source_.at(v, f_.strides[i]);
    source_.line(fmt::format("{} = load_few<{}, {}>({}, {}, {});", to, few_of(i),
                             element_of(v.dtype), base, at, count));
  }
  void unroll(const std::string& loop) {
    source_.line("#pragma unroll");
    source_.open(loop);
  }
  // Emits the instructions for each element of a chunk. Stores write to the chunk y, and
  // `store_chunks` writes y to memory.
  template <class Each> void each_of_chunk(const Marks& marks, const Each& each) {
    bool counts = false;
    for (std::size_t i = 0; i < f_.code.size(); ++i) {
      if (!marks[i]) continue;
      if (is_store(f_.code[i].code)) source_.line(fmt::format("{} y{}{{}};", chunk_of(i), i));
      counts |= f_.code[i].code == Code::iota && f_.strides[i][along_] != 0;
    }
    if (counts) source_.line(fmt::format("const I begin = i{};", along_));
    unroll(fmt::format("for (int k = 0; k < {}; ++k)", chunk_size_));
    if (counts) source_.line(fmt::format("const I i{} = begin + k;", along_));
    for (std::size_t i = 0; i < f_.code.size(); ++i)
      if (marks[i]) each(i);
    source_.close();
  }
  void into_chunk(std::size_t i) {
    source_.line(fmt::format("y{}.at[k] = element<{}>({});", i, element_of(f_.code[i].view.dtype),
                             to_store(i)));
  }
  void store_chunks(const Marks& marks) {
    for (std::size_t i = 0; i < f_.code.size(); ++i) {
      auto& in = f_.code[i];
      if (!marks[i] || !is_store(in.code)) continue;
      auto base = source_.base(in.view, true), at = source_.at(in.view, f_.strides[i]);
      if (in.code == Code::store)
        source_.line(fmt::format("store_few({}, {}, y{}, here);", base, at, i));
      else
        source_.line(
            fmt::format("update_few({}, {}, y{}, here, {});", base, at, i, fold_of(in.code)));
    }
  }

  // ---- instructions ----
  std::string name(int i) const { return fmt::format("v{}", i); }
  std::string value_of(std::size_t i) {
    auto& in = f_.code[i];
    auto S = element_of(in.dtype);
    switch (in.code) {
      case Code::constant:
        return fmt::format("constant<{}>({})", S,
                           source_.argument(bits_of(in.dtype, in.number, in.integer)));
      case Code::load: {
        auto V = element_of(in.view.dtype);
        if (auto& x = loaded_[i]; !x.empty())
          return fmt::format("cast<{}, {}>(number({}))", S, V, x);
        auto base = source_.base(in.view);
        return fmt::format("cast<{}, {}>(load<{}>({}, {}))", S, V, V, base,
                           source_.at(in.view, f_.strides[i]));
      }
      case Code::iota: {
        KernelArgument start{-1, in.integer};
        for (auto& t : in.view.terms) start.loops.push_back({t.loop, t.stride});
        auto from = source_.argument(std::move(start)), moved = source_.sum_of(f_.strides[i]);
        return fmt::format("cast<{}, std::int64_t>({}{}{})", S, from, moved.empty() ? "" : " + ",
                           moved);
      }
      default:
        break;
    }
    std::string x[4];
    for (int a = 0; a < 4; ++a) x[a] = name(in.args[a]);
    return value_source(in, x, f_.code[std::size_t(in.args[0])].dtype);
  }
  std::string to_store(std::size_t i) {
    auto& in = f_.code[i];
    auto from = element_of(f_.code[std::size_t(in.args[0])].dtype);
    return fmt::format("cast<{}, {}>({})", element_of(in.view.dtype), from, name(in.args[0]));
  }
  std::string stored(std::size_t i) {
    auto& in = f_.code[i];
    auto V = element_of(in.view.dtype);
    auto base = source_.base(in.view, true), at = source_.at(in.view, f_.strides[i]),
         x = to_store(i);
    if (in.code != Code::store)
      x = fmt::format("result<{0}>({1}(wide(load<{0}>({2}, {3})), wide({4})))", V, fold_of(in.code),
                      base, at, x);
    return fmt::format("store<{}>({}, {}, {});", V, base, at, x);
  }
  void write(std::size_t i) {
    if (is_store(f_.code[i].code))
      source_.line(stored(i));
    else
      source_.line(fmt::format("const Number<{}> {} = {};", element_of(f_.code[i].dtype),
                               name(int(i)), value_of(i)));
  }

  // ---- kernels without reductions ----
  static constexpr const char* kEachPoint =
      "for (I p = my_block * I(blockDim_x) + threadIdx_x; "
      "p < I({}); p += I(all_blocks) * blockDim_x)";
  // Returns the kernel that computes n elements. A thread computes one element, or a chunk of
  // adjacent ones, per iteration. A serial step runs on one thread, in order. All values precede
  // all stores, because a store may overwrite an input.
  Launch points(std::int64_t n) {
    if (!f_.serial && !f_.dims.empty()) {
      along_ = f_.dims.size() - 1;
      chunk_size_ = f_.few_along(along_, false);
    }

    if (chunk_size_ > 1) return chunks();
    auto count = source_.argument(n);
    source_.open(f_.serial ? fmt::format("for (I p = 0; p < I({}); ++p)", count)
                           : fmt::format(kEachPoint, count));
    source_.indices("p", f_.dims);
    for (bool stores : {false, true})
      for (std::size_t i = 0; i < f_.code.size(); ++i)
        if (f_.needed[i] && is_store(f_.code[i].code) == stores)
          is_reduction(f_.code[i].code) ? fold_of_one(i) : write(i);
    source_.close();
    // f64 functions need many registers, and the functions of an element run interleaved. These
    // launch bounds allow more registers than the default.
    const auto is_wide = [](auto& in) { return in.dtype == DType::f64 && is_expensive(in.code); };
    const bool several = std::count_if(f_.code.begin(), f_.code.end(), is_wide) > 1;
    auto out = source_.launch(f_.serial ? 1 : n, false, several ? "256, 3" : nullptr);
    if (f_.serial) out.threads = 1;
    return out;
  }
  Launch chunks() {
    Dims of_chunks = f_.dims;
    of_chunks.back() = (f_.dims.back() + chunk_size_ - 1) / chunk_size_;
    const auto n = program::points(of_chunks);
    auto size = source_.argument(f_.dims.back());
    source_.open(fmt::format(
        kEachPoint, f_.dims.size() == 1 ? fmt::format("few_chunks<{}>(I({}))", chunk_size_, size)
                                        : source_.argument(n)));
    source_.indices("p", of_chunks, 0, chunk_size_);
    source_.line(
        fmt::format("const int here = few_there<{}>(I({}) - i{});", chunk_size_, size, along_));
    const Marks all(f_.needed.begin(), f_.needed.end());
    for (std::size_t i = 0; i < f_.code.size(); ++i)
      if (all[i] && f_.is_load(i)) {
        fetch(i, fmt::format("const auto x{}", i), "here");
        fetched(i, "");
      }

    each_of_chunk(all, [&](std::size_t i) {
      if (is_store(f_.code[i].code))
        into_chunk(i);
      else
        is_reduction(f_.code[i].code) ? fold_of_one(i) : write(i);
    });
    store_chunks(all);
    source_.close();
    return source_.launch(n, false, "256");
  }
  // Lets instruction i read its value from x, or from x[m] of several chunks.
  void fetched(std::size_t i, const std::string& which) {
    loaded_[i] = fmt::format("x{}{}.at[{}]", i, which, few_of(i) > 1 ? "k" : "0");
  }
  // A reduction over a single inner element.
  void fold_of_one(std::size_t i) {
    auto& in = f_.code[i];
    auto from = std::size_t(in.args[0]);
    auto S = element_of(in.dtype);
    auto x =
        finds_position(in.code)
            ? "0"
            : fmt::format("cast<{}, {}>({})", S, element_of(f_.code[from].dtype), name(int(from)));
    source_.line(fmt::format("const Number<{}> {} = {};", S, name(int(i)), x));
  }

  const FusedFacts f_;
  SourceWriter source_;
  std::vector<std::string> loaded_;  // variables that hold loaded values
  std::size_t along_ = 0;            // the dim of chunks
  int chunk_size_ = 1;               // elements per chunk
};

}  // namespace haliax::cuda
