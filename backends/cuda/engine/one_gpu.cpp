// Transfers within one GPU; see one_gpu.h.
#include "one_gpu.h"

#include <fmt/format.h>

namespace haliax::cuda {

OneGpu::Event OneGpu::recorded(Handle stream) const {
  Event e(api_.make_event(gpu_), api_.end_event);
  api_.record(e.get(), stream);
  return e;
}
void OneGpu::wait(std::unique_lock<std::mutex>& held, const std::function<bool()>& has_come) {
  changed_.wait(held, [&] { return !failed_.empty() || has_come(); });
  if (!failed_.empty()) throw Error(failed_);
}
void OneGpu::exchange(int rank, Handle stream, const std::vector<Transfer>& all) {
  const auto ready = recorded(stream);
  std::vector<std::shared_ptr<PeerCopy>> sent, received;
  std::unique_lock held(lock_);
  for (auto& t : all) {
    if (!t.sends) continue;
    sent.push_back(std::make_shared<PeerCopy>(PeerCopy{t.at, t.bytes, ready}));
    on_the_way_[{rank, t.peer}].push_back(sent.back());
  }
  changed_.notify_all();
  for (auto& t : all) {
    if (t.sends) continue;
    auto& from = on_the_way_[{t.peer, rank}];
    wait(held, [&] { return !from.empty(); });
    received.push_back(from.front());
    from.pop_front();
    auto& p = *received.back();
    if (p.bytes != t.bytes)
      throw Error(fmt::format("[{}] rank {} sends {} bytes to rank {}, which receives {}",
                              api_.name, t.peer, p.bytes, rank, t.bytes));
    held.unlock();
    api_.follow(stream, p.ready.get());
    if (p.bytes > 0) api_.copy(stream, t.at, p.at, p.bytes);
    held.lock();
  }
  held.unlock();
  const auto taken = recorded(stream);
  held.lock();
  for (auto& p : received) p->taken = taken;
  changed_.notify_all();
  for (auto& p : sent) {
    wait(held, [&] { return p->taken != nullptr; });
    held.unlock();
    api_.follow(stream, p->taken.get());
    held.lock();
  }
}
void OneGpu::fail(const std::string& why) {
  std::lock_guard hold(lock_);
  if (failed_.empty()) failed_ = why;
  changed_.notify_all();
}

}  // namespace haliax::cuda
