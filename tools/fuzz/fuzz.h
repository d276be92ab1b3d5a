// Fuzzing: external input (files, strings, sizes) is either accepted or raises an Error, and one-op
// programs on extreme values agree on both backends.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace fuzz {

using Bytes = std::vector<std::uint8_t>;

// Reads choices from the bytes of an input, and zeros after its end.
class Choices {
 public:
  explicit Choices(std::span<const std::uint8_t> bytes) : left_(bytes) {}
  std::uint8_t byte() {
    if (left_.empty()) return 0;
    auto b = left_[0];
    left_ = left_.subspan(1);
    return b;
  }
  std::int64_t below(std::int64_t n) { return n <= 1 ? 0 : std::int64_t(byte() | byte() << 8) % n; }
  template <class T> const T& of(const std::vector<T>& all) {
    return all[std::size_t(below(std::int64_t(all.size())))];
  }
  template <class T> T any(std::initializer_list<T> all) {
    return all.begin()[below(std::int64_t(all.size()))];
  }
  std::string rest() {
    std::string s(left_.begin(), left_.end());
    left_ = {};
    return s;
  }
  bool empty() const { return left_.empty(); }

 private:
  std::span<const std::uint8_t> left_;
};

struct Target {
  const char* name;
  // Raises haliax::Error for input that it refuses; any other exception is a finding.
  void (*run)(std::span<const std::uint8_t>);
  std::vector<std::string> seeds;  // inputs to start from
};
const std::vector<Target>& targets();

void one_op(std::span<const std::uint8_t>);  // ops.cpp

}  // namespace fuzz
