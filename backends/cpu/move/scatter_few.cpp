// Run: scatters that combine many updates in few elements, such as a histogram.
#include <algorithm>
#include <vector>

#include "base/thread_pool.h"
#include "picked_lines.h"
#include "scatter_updates.h"

namespace haliax::cpu {
namespace {

constexpr std::int64_t updates_per_block = 8192, most_private_blocks = 16;
constexpr std::int64_t most_private_elements = 4096, updates_per_element = 64;

// Returns the distance in memory from the first element that ids select to the end of the last one.
std::int64_t span_of(const program::Scatter& s) {
  return (s.indexed[0].size - 1) * s.indexed[0].stride + 1;
}
// Returns the value that changes no element that it is combined with.
scalar::Value neutral(program::Update update, DType dtype) {
  switch (update) {
    case program::Update::mul:
      return {1, 1};
    case program::Update::min:
      return scalar::highest(dtype);
    case program::Update::max:
      return scalar::lowest(dtype);
    default:
      return {-0., 0};
  }
}

// Each block of updates has its own elements, which are combined with the target in the order of
// blocks. The number of blocks depends on sizes only, and therefore also the result.
class ScatterToFew final : public CompiledStep {
 public:
  explicit ScatterToFew(const program::Scatter& s)
      : updates_(s.updates), target_(s.target), ids_(s.indexed, s.clamp), dtype_(s.target.dtype),
        update_(s.update),
        lines_("scatter", s.dims, s.updates.strides, s.target.strides, ids_, false),
        stride_(s.indexed[0].stride), span_(span_of(s)),
        blocks_(std::min(most_private_blocks, lines_.rows() / updates_per_block)),
        partial_(std::size_t(blocks_ * span_ * haliax::bytes_of(dtype_))) {
    scalar::store(dtype_, neutral_, neutral(update_, dtype_));
  }
  void run(Frame& frame) override {
    ids_.set(frame);
    const std::byte* updates = updates_.at(frame);
    std::byte* target = target_.at(frame);
    with_update(dtype_, update_, [&](auto zero, const auto& f) {
      using T = decltype(zero);
      T* const partial = reinterpret_cast<T*>(partial_.data());
      parallel_for(blocks_, threads(), [&](std::int64_t block, int) {
        combine(reinterpret_cast<const T*>(updates), partial + block * span_, block, f);
      });
      T* const to = reinterpret_cast<T*>(target);
      for (std::int64_t k = 0; k < blocks_ * span_; k += span_)
        for (std::int64_t e = 0; e < span_; e += stride_) to[e] = f(to[e], partial[k + e]);
    });
  }

 private:
  template <class T, class F>
  void combine(const T* updates, T* partial, std::int64_t block, const F& f) const {
    T none;
    std::memcpy(&none, neutral_, sizeof none);
    std::fill_n(partial, span_, none);
    const std::int64_t rows = lines_.rows(), first = rows * block / blocks_,
                       last = rows * (block + 1) / blocks_, step = lines_.line_stride();
    if (lines_.has_small_ids() && lines_.line_size() >= kLongLine)
      return lines_.each_run_of_ids(first, last, [&](auto here, auto, const IdRun& ids, auto n) {
        update_picked(updates + here, step, partial, ids, n, f);
      });
    lines_.each(first, last, [&](auto here, auto, const auto* offsets, auto n) {
      update_elements(updates + here, step, partial, offsets, n, f);
    });
  }
  // Updates elements without the offsets of the ids, which take as long as the updates.
  template <class T, class F>
  [[gnu::noinline]] static void update_picked(const T* updates, std::int64_t step, T* elements,
                                              const IdRun& run, std::int64_t n, const F& f) {
    const auto* ids = static_cast<const std::int32_t*>(run.ids);
    const auto size = static_cast<std::int32_t>(run.size);
    for (std::int64_t j = 0; j < n; ++j) {
      std::int32_t id = ids[j] < 0 ? ids[j] + size : ids[j];
      if (run.clamps) id = std::clamp(id, 0, size - 1);
      if (id < 0 || id >= size) continue;
      T& element = elements[id * run.stride];
      element = f(element, updates[j * step]);
    }
  }
  static constexpr std::int64_t kLongLine = 64;  // ids

  Place updates_, target_;
  Ids ids_;
  DType dtype_;
  program::Update update_;
  PickedLines lines_;
  std::int64_t stride_, span_, blocks_;
  std::vector<std::byte> partial_;  // the elements of each block
  std::byte neutral_[8] = {};
};

}  // namespace

// Sums and products of 16-bit floats are rounded after each update, so their order matters more.
bool updates_few(const program::Scatter& s) {
  using program::Update;
  const bool is_rounded = is_float(s.target.dtype) && haliax::bytes_of(s.target.dtype) == 2 &&
                          (s.update == Update::add || s.update == Update::mul);
  if (s.update == Update::set || is_rounded || s.indexed.size() != 1) return false;
  if (s.indexed[0].size < 1 || s.indexed[0].stride < 1) return false;
  for (std::size_t d = 0; d < s.dims.size(); ++d) {
    const bool only_ids = s.target.strides[d] == 0 && s.indexed[0].ids.strides[d] != 0;
    if (s.dims[d] > 1 && !only_ids) return false;
  }
  return span_of(s) <= most_private_elements &&
         program::points(s.dims) >=
             std::max(2 * updates_per_block, updates_per_element * span_of(s));
}
std::unique_ptr<CompiledStep> make_scatter_to_few(const program::Scatter& scatter) {
  return std::make_unique<ScatterToFew>(scatter);
}

}  // namespace haliax::cpu
