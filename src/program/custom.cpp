// Calls of a user's function over the outer dims, with exceptions recorded per worker.
#include "program/custom.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "haliax/custom_op.h"
#include "haliax/error.h"

namespace haliax {

// the exception of the calls of this thread
static thread_local std::exception_ptr* thrown = nullptr;
void detail::kernel_has_thrown() noexcept {
  if (thrown) *thrown = std::current_exception();
}

namespace program {

CustomCalls::CustomCalls(const Step& step, int workers)
    : custom_(step.custom), where_(step.where), outer_(std::size_t(custom_.outer)),
      arrays_(custom_.arrays.size()), at_(arrays_ * std::size_t(workers)),
      index_(outer_ * std::size_t(workers)), errors_(std::size_t(workers)) {
  for (std::size_t d = 0; d < outer_; ++d) points_ *= custom_.dims[d];
  for (auto& v : custom_.arrays) {
    inner_.push_back(v.strides.data() + outer_);
    for (std::size_t d = 0; d < outer_; ++d) steps_.push_back(v.strides[d] * bytes_of(v.dtype));
  }
}

void CustomCalls::run(void* const* first, std::int64_t from, std::int64_t to, int worker) {
  auto* at = at_.data() + std::size_t(worker) * arrays_;
  auto* index = index_.data() + std::size_t(worker) * outer_;
  auto move = [&](std::size_t d, std::int64_t by) {
    for (std::size_t k = 0; k < arrays_; ++k)
      at[k] = static_cast<std::byte*>(at[k]) + steps_[k * outer_ + d] * by;
  };
  std::copy(first, first + arrays_, at);
  auto rest = from;
  for (std::size_t d = outer_; d-- > 0; rest /= custom_.dims[d])
    move(d, index[d] = rest % custom_.dims[d]);
  auto& mine = errors_[std::size_t(worker)];
  auto* around = std::exchange(thrown, &mine);
  for (; from < to && !mine; ++from) {
    custom_.run(at, custom_.dims.data() + outer_, inner_.data());
    for (std::size_t d = outer_; d-- > 0;) {
      if (++index[d] < custom_.dims[d]) {
        move(d, 1);
        break;
      }
      move(d, 1 - custom_.dims[d]);
      index[d] = 0;
    }
  }
  thrown = around;
}
void CustomCalls::rethrow() {
  std::exception_ptr first;
  for (auto& t : errors_)
    if (auto mine = std::exchange(t, nullptr); mine && !first) first = mine;
  if (!first) return;
  try {
    std::rethrow_exception(first);
  } catch (const Error& e) {
    throw where_.empty() ? e : Error(e.what() + ("; " + where_));
  }
}

}  // namespace program
}  // namespace haliax
