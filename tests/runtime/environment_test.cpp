// Environment variables: allowed values, and errors for others.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "haliax/haliax.h"
#include "support/output.h"
#include "support/raises.h"

using namespace haliax;

namespace {

// Returns the output of the case below in a process with these variables (shell syntax).
std::string output_with(const std::string& environment) {
  return output_of("env " + environment + " /proc/" + std::to_string(getpid()) +
                   "/exe --no-skip -tc='environment: a process'");
}

}  // namespace

TEST_CASE("environment: a process" * doctest::skip()) {
  const Axis N("n", 3);
  std::printf("says: %s.\n",
              error_of([&] { return sum(exp(ones(N))).item() + devices(); }).c_str());
}

TEST_CASE("environment: an invalid value raises with the variable and the allowed values") {
  struct Variable {
    const char* name;
    std::vector<const char*> bad, good;
    const char* allowed;
  };
  const std::vector<Variable> all{
      {"HALIAX_DEVICES",
       {"eight", "0", "-2", "8x", "99999999999"},
       {"4", "''"},
       "a number from 1 to 16777216; environment_test.cpp:"},
      {"HALIAX_THREADS",
       {"all", "0", "-1", "2.5", "5000"},
       {"2", "''"},
       "a number from 1 to 1024; environment_test.cpp:"},
      {"HALIAX_SCORES",
       {"many", "-2", "1e9", "64MiB"},
       {"-1", "0", "1000", "''"},
       "a number from -1 to 4611686018427387904; environment_test.cpp:"},
      {"HALIAX_NANS", {"yes", "2"}, {"0", "1", "''"}, "0 or 1; environment_test.cpp:"},
      {"HALIAX_VERIFY", {"on"}, {"0", "1", "''"}, "0 or 1; environment_test.cpp:"},
      {"HALIAX_POISON", {"true"}, {"0", "1", "''"}, "0 or 1; environment_test.cpp:"},
      {"HALIAX_PRINT", {"layuot"}, {"''"}, "all or a pass: strip_wraps "}};
  for (auto& v : all) {
    for (std::string value : v.bad) {
      auto output = output_with(v.name + ("=" + value));
      CAPTURE(output);
      CHECK(has(output, "says: [environment] " + std::string(v.name) + " is " + value +
                            "; it must be " + v.allowed));
    }
    for (std::string value : v.good) {
      auto output = output_with(v.name + ("=" + value));
      CAPTURE(output);
      CHECK(has(output, "says: ."));
    }
  }
}

TEST_CASE("environment: names of backends and paths of folders are accepted") {
  auto output = output_with("HALIAX_BACKEND=gpu");
  CAPTURE(output);
  CHECK(has(output,
            "says: [backend] there is no backend gpu (from HALIAX_BACKEND); did you mean cpu?; "
            "available are cpu and reference; "));
  CHECK(has(output, "; environment_test.cpp:"));
  CHECK(has(output_with("HALIAX_BACKEND=reference"), "says: ."));
  output = output_with("HALIAX_BACKEND=cuda-sim HALIAX_CACHE=/proc/none");
  CAPTURE(output);
  CHECK(has(output,
            "says: [environment] HALIAX_CACHE is /proc/none; "
            "it must be a folder that exists or can be created ("));
}

TEST_CASE("environment: settings in the code override the environment") {
  auto output = output_of("env HALIAX_DEVICES=eight /proc/" + std::to_string(getpid()) +
                          "/exe --no-skip -tc='environment: set'");
  CAPTURE(output);
  CHECK(has(output, "devices: 4\n"));
}
TEST_CASE("environment: set" * doctest::skip()) {
  set_devices(4);
  std::printf("devices: %d\n", devices());
}
