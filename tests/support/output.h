// The output of another process.
#pragma once
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

// Returns the output of the command on both streams.
inline std::string output_of(const std::string& command) {
  std::array<char, 256> part;
  std::string out;
  auto* pipe = popen((command + " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  while (std::fgets(part.data(), int(part.size()), pipe)) out += part.data();
  pclose(pipe);
  return out;
}
// Returns the output of a test case of this program that is skipped otherwise.
inline std::string output_of_case(const std::string& name) {
  return output_of("/proc/" + std::to_string(getpid()) + "/exe --no-skip -tc='" + name + "'");
}
