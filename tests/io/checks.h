// Comparisons of trees and checks of messages, for the tests of files.
#pragma once
#include <doctest/doctest.h>

#include <string>

#include "haliax/haliax.h"

namespace haliax {

inline bool same(const NamedArray& a, const NamedArray& b) {
  return a.axes() == b.axes() && a.dtype() == b.dtype() && a.bytes() == b.bytes();
}
template <class T> bool same_trees(const T& a, const T& b) {
  auto x = flatten(a), y = flatten(b);
  bool equal = x.size() == y.size();
  for (std::size_t i = 0; equal && i < x.size(); ++i) equal = same(x[i], y[i]);
  return equal;
}
// Returns the message of the error that f raises.
template <class F> std::string message(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
inline bool has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != text.npos;
  if (!found) MESSAGE(text << " does not contain " << part);
  return found;
}

}  // namespace haliax
