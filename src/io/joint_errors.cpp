// Errors that all processes of a group raise together.
#include "io/joint_errors.h"

namespace haliax {

std::vector<std::string> on_all_processes(const ProcessGroup& group, std::string (*call)(void*),
                                          void* f) {
  std::string mine;
  try {
    mine = "+" + call(f);
  } catch (const std::exception& e) {
    mine = "-" + without_op(e.what());
  }
  auto all = group.all_gather(mine);
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r].starts_with('-')) {
      auto text = all[r].substr(1);
      throw Error("[processes] " +
                  (group.count == 1 ? text : fmt::format("process {}: {}", r, text)));
    }
  for (auto& text : all) text.erase(0, 1);
  return all;
}

}  // namespace haliax
