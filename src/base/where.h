// A place in the user's code as people read it.
#pragma once
#include <string>

#include "haliax/where.h"

namespace haliax {

// model.cpp:41, without folders; empty if nothing is known
inline std::string to_string(const SourceLocation& at) {
  std::string file = at.file_name() ? at.file_name() : "";
  if (auto slash = file.rfind('/'); slash != file.npos) file.erase(0, slash + 1);
  return file.empty() ? file : file + ":" + std::to_string(at.line());
}

}  // namespace haliax
