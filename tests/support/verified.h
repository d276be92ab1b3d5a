// What the verifier says behind "a pass", as tests of its rules name it.
#pragma once
#include <doctest/doctest.h>

#include <string>

inline bool says(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  return text.starts_with("[verify] ") && text.find("after a pass: " + part) != text.npos;
}
