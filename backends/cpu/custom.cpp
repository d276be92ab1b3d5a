// Functions of the user's, point by point.
#include <algorithm>

#include "base/thread_pool.h"
#include "step.h"

namespace haliax::cpu {
namespace {

class CustomStep final : public CompiledStep {
 public:
  explicit CustomStep(const program::Custom& what)
      : what_(what), outer_(static_cast<std::size_t>(what.outer)), arrays_(what.in.size() + 1) {
    const Dims rows(what.dims.begin(), what.dims.begin() + what.outer), inner(what.dims.begin() + what.outer, what.dims.end());
    points_ = product(rows);
    per_block_ = std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, product(inner)));
    workers_ = static_cast<int>(std::clamp<std::int64_t>(blocks(), 1, threads()));
    auto add = [&](const program::View& view) {
      places_.emplace_back(view);
      inner_.push_back(view.strides.data() + outer_);
      for (std::size_t d = 0; d < outer_; ++d) steps_.push_back(view.strides[d] * haliax::bytes_of(view.dtype));
    };
    for (auto& view : what.in) add(view);
    add(what.out);
    first_.resize(arrays_);
    at_.resize(arrays_ * static_cast<std::size_t>(workers_));
    index_.resize(outer_ * static_cast<std::size_t>(workers_));
  }

  void run(Frame& frame) override {
    for (std::size_t k = 0; k < arrays_; ++k) first_[k] = places_[k].at(frame);
    parallel_for(blocks(), workers_, [&](std::int64_t block, int worker) {
      points(block * per_block_, std::min(points_, (block + 1) * per_block_), static_cast<std::size_t>(worker));
    });
  }

 private:
  std::int64_t blocks() const { return (points_ + per_block_ - 1) / per_block_; }
  // At the points [from, to), the last of the outer dims fastest.
  void points(std::int64_t from, std::int64_t to, std::size_t worker) {
    void** const at = at_.data() + worker * arrays_;
    std::int64_t* const index = index_.data() + worker * outer_;
    std::copy(first_.begin(), first_.end(), at);
    auto move = [&](std::size_t d, std::int64_t by) {
      for (std::size_t k = 0; k < arrays_; ++k) at[k] = static_cast<std::byte*>(at[k]) + steps_[k * outer_ + d] * by;
    };
    auto rest = from;
    for (std::size_t d = outer_; d-- > 0; rest /= what_.dims[d]) move(d, index[d] = rest % what_.dims[d]);
    for (auto point = from; point < to; ++point) {
      what_.run(at, what_.dims.data() + outer_, inner_.data());
      for (std::size_t d = outer_; d-- > 0;) {
        if (++index[d] < what_.dims[d]) {
          move(d, 1);
          break;
        }
        move(d, 1 - what_.dims[d]);
        index[d] = 0;
      }
    }
  }

  const program::Custom& what_;
  std::size_t outer_, arrays_;
  std::int64_t points_ = 0, per_block_ = 1;
  int workers_ = 1;
  std::vector<Place> places_;                  // of each array
  std::vector<const std::int64_t*> inner_;     // its strides along the dims that the function sees
  std::vector<std::int64_t> steps_;            // and along the others, in bytes
  std::vector<void*> first_;                   // its first element, in this run
  std::vector<void*> at_;                      // of each worker
  std::vector<std::int64_t> index_;
};

}  // namespace

std::unique_ptr<CompiledStep> make_custom(const program::Step& step) { return std::make_unique<CustomStep>(step.custom); }

}  // namespace haliax::cpu
