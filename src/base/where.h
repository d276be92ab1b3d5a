// Printing of a location in the user's code.
#pragma once
#include <string>

#include "haliax/where.h"

namespace haliax {

// Returns the file name without folders and the line, as in model.cpp:41, or "" if the location is
// unknown.
inline std::string to_string(const SourceLocation& at) {
  std::string file = at.file_name() ? at.file_name() : "";
  if (auto slash = file.rfind('/'); slash != file.npos) file.erase(0, slash + 1);
  return file.empty() ? file : file + ":" + std::to_string(at.line());
}

}  // namespace haliax
