// The number of devices, in this process and on all ranks, and the shards on the devices of this
// process.
#include <atomic>

#include "base/environment.h"
#include "graph/fail.h"
#include "haliax/mesh.h"
#include "haliax/ranks.h"
#include "devices/devices.h"
#include "devices/ranks.h"
#include "devices/shards.h"
#include "transforms/sharding.h"

namespace haliax {
namespace {

std::atomic<int> in_this_process = 0;      // 0: not yet determined
std::atomic<bool> explicitly_set = false;  // set by set_devices or HALIAX_DEVICES, not by default

}  // namespace

void set_devices(int n, SourceLocation at) {
  CallSite here(at);
  if (n < 1 || n > kMostDevices)
    fail("devices", "n is {}; expected 1 to {} devices", n, int(kMostDevices));
  in_this_process = n;
  explicitly_set = true;
}
int devices(SourceLocation at) {
  CallSite here(at);
  if (in_this_process == 0) {
    int unset = 0;
    auto requested = env_integer("HALIAX_DEVICES", 1, kMostDevices, context().origin.at);
    if (requested) explicitly_set = true;
    in_this_process.compare_exchange_strong(unset, int(requested.value_or(peers() ? 1 : 8)));
  }
  return in_this_process * rank_count();
}
bool has_requested(int n) {
  const bool enough = devices() >= n;  // also reads the environment
  return explicitly_set && enough;
}

int this_rank() {
  auto* p = peers();
  return p ? p->rank() : 0;
}
int rank_count() {
  auto* p = peers();
  return p ? p->count() : 1;
}

bool on_any_rank(bool mine, SourceLocation at) {
  CallSite here(at);
  auto* p = peers();
  return p ? p->any(mine) : mine;
}

std::vector<LocalShard> local_shards(const NamedArray& a, SourceLocation at) {
  CallSite here(at);
  if (a.empty()) fail("local_shards", "the array is empty");
  a.eval(at);
  auto& n = *a.node();
  auto value = n.value.get();
  auto* s = shards_in(*value);
  if (!s) return {{0, std::vector<std::int64_t>(n.axes.size()), a, true}};
  std::vector<LocalShard> out;
  for (std::size_t k = 0; k < s->blocks.size(); ++k) {
    LocalShard one;
    one.device = s->first + int(k);
    one.first = owner_of(s->at, s->mesh, one.device) == one.device;
    one.start = part_on(n.axes, s->at, s->mesh, one.device).start;
    one.value = NamedArray(
        make_data(s->blocks[k], local_axes(n.axes, s->at, s->mesh, one.device), n.dtype));
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace haliax
