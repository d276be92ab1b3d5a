#include "network.h"

#include <fmt/format.h>

#include <cstring>

namespace haliax::cuda::sim {

std::shared_ptr<Meeting> Network::begin(int rank, const std::vector<Transfer>& all) {
  auto mine = std::make_shared<Meeting>();
  for (auto& t : all) {
    if (t.peer < 0 || t.peer >= int(devices.size())) throw Error(fmt::format("there is no rank {}", t.peer));
    const auto key = t.sends ? std::pair{rank, t.peer} : std::pair{t.peer, rank};
    auto& side = sides[key];
    ++mine->left;
    (t.sends ? side.sends : side.receives).push_back({t, mine});
    while (!side.sends.empty() && !side.receives.empty()) {
      auto &from = side.sends.front(), &to = side.receives.front();
      if (from.transfer.bytes != to.transfer.bytes)
        throw Error(fmt::format("rank {} sends {} bytes to rank {}, which receives {}", key.first, from.transfer.bytes,
                                key.second, to.transfer.bytes));
      std::memcpy(to.transfer.at, from.transfer.at, std::size_t(from.transfer.bytes));
      --from.meeting->left, --to.meeting->left;
      side.sends.pop_front(), side.receives.pop_front();
    }
  }
  return mine;
}

}  // namespace haliax::cuda::sim
