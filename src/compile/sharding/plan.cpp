// Readers of versions, and versions that nothing reads.
#include "compile/sharding/plan.h"

namespace haliax::partitioning {

std::vector<std::vector<int>> readers_of(const Plan& plan) {
  std::vector<std::vector<int>> out(plan.versions.size());
  auto read = [&](int x, int by) {
    if (x >= 0) out[std::size_t(x)].push_back(by);
  };
  for (int r : plan.roots) read(r, -1);
  for (int k = 0; k < int(plan.versions.size()); ++k) {
    auto& v = plan.version(k);
    if (!v.live) continue;
    for (int x : v.in) read(x, k);
    if (!v.is<RunLoop>()) continue;
    for (auto& values : plan.loop(v.loop()).value)
      for (int x : values) read(x, -1);
  }
  return out;
}

// Marks the versions that no result depends on as not live, so that they are neither computed nor
// communicated.
void drop_dead_versions(Plan& plan) {
  for (auto& v : plan.versions) v.live = false;
  std::vector<int> todo = plan.roots;
  while (!todo.empty()) {
    int k = todo.back();
    todo.pop_back();
    if (k < 0) continue;
    auto& v = plan.version(k);
    if (v.live) continue;
    v.live = true;
    todo.insert(todo.end(), v.in.begin(), v.in.end());
    if (!v.is<RunLoop>()) continue;
    auto& l = plan.loop(v.loop());
    for (auto& values : l.value) todo.insert(todo.end(), values.begin(), values.end());
    for (auto& carries : l.carry) todo.insert(todo.end(), carries.begin(), carries.end());
  }
  plan.bytes = 0;
  for (auto& v : plan.versions)
    if (v.live) plan.bytes += v.step().bytes * plan.body(v.body).iterations;
}

}  // namespace haliax::partitioning
