// Errors, as tests look at them.
#pragma once
#include <doctest/doctest.h>

#include <exception>
#include <initializer_list>
#include <string>

#include "haliax/error.h"

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
// What f raises says; empty: nothing is raised.
template <class F> std::string error_of(F f) {
  try {
    (void)f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}
// Likewise, of the library's own errors alone: others go on to the caller.
template <class F> std::string message_of(F f) {
  try {
    (void)f();
  } catch (const haliax::Error& e) {
    return e.what();
  }
  return "";
}
// f raises one of the library's own errors, and the message has all these parts.
inline void check_parts(const std::string& text, std::initializer_list<const char*> parts) {
  CAPTURE(text);
  CHECK(text.starts_with("["));
  for (std::string part : parts) CHECK_MESSAGE(text.find(part) != std::string::npos, part);
}
template <class F> void raises(F f, std::initializer_list<const char*> parts) {
  check_parts(error_of(f), parts);
}
