#include "compile/verify.h"

#include <cstdlib>

#include "transforms/rewrite.h"

namespace haliax {

bool verifies() {
  static const bool on = [] {
    auto* asked = std::getenv("HALIAX_VERIFY");
#ifdef NDEBUG
    return asked && *asked == '1';
#else
    return !asked || *asked != '0';
#endif
  }();
  return on;
}

void verify(const Nodes& roots, const char* after) {
  for (auto& n : everything(roots)) {
    auto bad = [&](const std::string& why) { fail_at(n->origin, n->op->name, std::string("after ") + after + ": " + why); };
    for (std::size_t i = 0; i < n->axes.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (n->axes[i].name == n->axes[j].name) bad("axis " + std::string(n->axes[i].name.text()) + " twice in " + to_string(n->axes));
    if (n->op->kind != Kind::map) continue;
    for (auto& x : n->in)
      for (auto& a : x->axes)
        if (auto* mine = find(*n, a.name); !mine || mine->size != a.size)
          bad("operand " + to_string(x->axes) + " does not fit " + to_string(n->axes));
  }
}

void verify(const program::Program&, const char*) {}

}  // namespace haliax
