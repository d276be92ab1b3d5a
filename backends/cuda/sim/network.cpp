// Transfers between simulated devices; see network.h.
#include "network.h"

#include <fmt/format.h>

#include <cstring>

namespace haliax::cuda::sim {
namespace {

[[noreturn]] void refuse_sizes(int from, std::int64_t sent, int to, std::int64_t requested) {
  throw Error(fmt::format("rank {} sends {} bytes to rank {}, which receives {}", from, sent, to,
                          requested));
}

}  // namespace

std::shared_ptr<PendingGroup> Network::begin(int rank, const std::vector<Transfer>& all) {
  auto mine = std::make_shared<PendingGroup>();
  for (auto& t : all) {
    if (t.peer < 0 || t.peer >= int(devices.size()))
      throw Error(fmt::format("there is no rank {}", t.peer));
    const auto key = t.sends ? std::pair{rank, t.peer} : std::pair{t.peer, rank};
    auto& side = sides[key];
    ++mine->left;
    (t.sends ? side.sends : side.receives).push_back({t, mine});
    if (!links)
      match(key);
    else if (t.sends)
      links->send(Packet::Kind::data, t.peer, t.at, t.bytes);
    else
      take(t.peer);
  }
  return mine;
}
// Matches transfers between two ranks of this process.
void Network::match(std::pair<int, int> key) {
  auto& side = sides[key];
  while (!side.sends.empty() && !side.receives.empty()) {
    auto &from = side.sends.front(), &to = side.receives.front();
    if (from.transfer.bytes != to.transfer.bytes)
      refuse_sizes(key.first, from.transfer.bytes, key.second, to.transfer.bytes);
    std::memcpy(to.transfer.at, from.transfer.at, std::size_t(from.transfer.bytes));
    --from.group->left;
    --to.group->left;
    side.sends.pop_front();
    side.receives.pop_front();
  }
}

// ---- other processes ----
void Network::take(int from) {
  auto& receives = sides[{from, linked}].receives;
  auto& come = here[from];
  while (!receives.empty() && !come.empty()) {
    auto& to = receives.front();
    if (std::int64_t(come.front().size()) != to.transfer.bytes)
      refuse_sizes(from, std::int64_t(come.front().size()), linked, to.transfer.bytes);
    std::memcpy(to.transfer.at, come.front().data(), come.front().size());
    --to.group->left;
    receives.pop_front();
    come.pop_front();
    links->send(Packet::Kind::taken, from, nullptr, 0);
  }
}
void Network::look() {
  if (!links) return;
  for (auto& p : links->receive_all()) {
    // the receiving memory may have been released
    if (!failed.empty() || aborted) continue;
    auto& sends = sides[{linked, p.other}].sends;
    if (p.kind == Packet::Kind::failed) failed = std::move(p.bytes);
    if (p.kind == Packet::Kind::data) here[p.other].push_back(std::move(p.bytes));
    if (p.kind == Packet::Kind::taken && !sends.empty()) {
      --sends.front().group->left;
      sends.pop_front();
    }

    if (p.kind == Packet::Kind::ended) ended.insert(p.other);
    try {
      take(p.other);
    } catch (const Error& e) {
      fail(e.what());
    }
  }
  for (int r : ended)
    if (failed.empty() && !aborted &&
        !(sides[{linked, r}].sends.empty() && sides[{r, linked}].receives.empty()))
      fail(fmt::format("rank {} has exited: its process has ended", r));
}
void Network::fail(const std::string& why) {
  if (!failed.empty()) return;
  failed = why;
  for (int r = 0; links && r < int(devices.size()); ++r)
    if (r != linked) links->send(Packet::Kind::failed, r, why.data(), std::int64_t(why.size()));
}

}  // namespace haliax::cuda::sim
