// Functions of the user, split into blocks of elements for the workers.
#include <algorithm>

#include "base/thread_pool.h"
#include "program/custom.h"
#include "step.h"

namespace haliax::cpu {
namespace {

class CustomStep final : public CompiledStep {
 public:
  explicit CustomStep(const program::Custom& what)
      : workers_(threads()), calls_(what, workers_), first_(what.arrays.size()) {
    for (auto& view : what.arrays) places_.emplace_back(view);
    const std::int64_t each =
        program::points(Dims(what.dims.begin() + what.outer, what.dims.end()));
    per_block_ = std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, each));
  }
  void run(Frame& frame) override {
    for (std::size_t k = 0; k < places_.size(); ++k) first_[k] = places_[k].at(frame);
    const std::int64_t points = calls_.points();
    parallel_for((points + per_block_ - 1) / per_block_, workers_,
                 [&](std::int64_t block, int worker) {
                   calls_.run(first_.data(), block * per_block_,
                              std::min(points, (block + 1) * per_block_), worker);
                 });
    calls_.rethrow();
  }

 private:
  int workers_;
  program::CustomCalls calls_;
  std::vector<Place> places_;  // by array
  std::vector<void*> first_;   // first element of each array, in this run
  std::int64_t per_block_ = 1;
};

}  // namespace

std::unique_ptr<CompiledStep> make_custom(const program::Step& step) {
  return std::make_unique<CustomStep>(step.custom);
}

}  // namespace haliax::cpu
