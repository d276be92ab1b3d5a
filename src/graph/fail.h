// Errors with a format string: fail("sum", "axis {} is not in {}", name, axes).
#pragma once
#include "graph/node.h"
#include "haliax/fmt.h"

namespace haliax {

template <class First, class... Rest>
[[noreturn]] void fail(const std::string& op, fmt::format_string<const First&, const Rest&...> text,
                       const First& first, const Rest&... rest) {
  fail(op, fmt::format(text, first, rest...));
}

}  // namespace haliax
