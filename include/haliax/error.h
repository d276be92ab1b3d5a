// The one exception family. Every message reads `[op] what is wrong; hint; file:line, in
// module.path`.
#pragma once
#include <stdexcept>
#include <string>

namespace [[gnu::visibility("default")]] haliax {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what) : std::runtime_error(what) {}
};

}  // namespace haliax
