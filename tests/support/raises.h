// Helpers that catch errors and check their messages.
#pragma once
#include <doctest/doctest.h>

#include <exception>
#include <initializer_list>
#include <string>

#include "haliax/error.h"

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
// Returns the message of the exception that f raises; empty if f raises none.
template <class F> std::string error_of(F f) {
  try {
    (void)f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}
// Returns the message of the `haliax::Error` that f raises; empty if f raises none. Other
// exceptions propagate to the caller.
template <class F> std::string message_of(F f) {
  try {
    (void)f();
  } catch (const haliax::Error& e) {
    return e.what();
  }
  return "";
}
// Checks that the message has the form of the library's errors and contains all parts.
inline void check_parts(const std::string& text, std::initializer_list<const char*> parts) {
  CAPTURE(text);
  CHECK(text.starts_with("["));
  for (std::string part : parts) CHECK_MESSAGE(text.find(part) != std::string::npos, part);
}
template <class F> void raises(F f, std::initializer_list<const char*> parts) {
  check_parts(error_of(f), parts);
}
