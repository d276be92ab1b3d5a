// Checks messages that the verifier raises after "a pass", the name that tests of its rules use.
#pragma once
#include <doctest/doctest.h>

#include <string>

inline bool reports(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  return text.starts_with("[verify] ") && text.find("after a pass: " + part) != text.npos;
}
