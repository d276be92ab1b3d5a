// What HALIAX_PRINT prints.
#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <filesystem>

#include "compile/pipeline.h"
#include "haliax/haliax.h"

using namespace haliax;

namespace {

// What the test case with that name says on stderr, in a process of its own.
std::string printed(const std::string& name, const std::string& wanted) {
  auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  auto command = "HALIAX_PRINT=" + wanted + " " + self + " --no-skip -tc='" + name + "' 2>&1 >/dev/null";
  std::array<char, 256> part;
  std::string out;
  auto* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  while (std::fgets(part.data(), int(part.size()), pipe)) out += part.data();
  CHECK(pclose(pipe) == 0);
  return out;
}
std::size_t times(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

const char* const kHeads = "print: products of heads";

}  // namespace

TEST_CASE("print: products of heads" * doctest::skip()) {   // run by the one below: (b, n, h, d) lies head by head
  Axis b("b", 2), n("n", 3), h("h", 4), d("d", 5), m("m", 3);
  auto x = random::normal(random::key(1), {b, n, h, d}), y = random::normal(random::key(2), {b, m, h, d});
  auto f = [](const NamedArray& q, const NamedArray& k) { return dot(sin(q), exp(k), "d") * 2.; };
  for (int i = 0; i < 2; ++i) {
    Compilation c{{f(x, y + double(i)).node()}, {}};
    run(c);
    CHECK(c.layouts.size() > 0);
  }
}

TEST_CASE("print: what a pass left, how values lie in memory, and a word about a name that is none") {
  CHECK(printed(kHeads, "''") == "");
  auto layout = printed(kHeads, "layout"), before = printed(kHeads, "accumulate_updates");
  CHECK(times(layout, "---- after ") == 2);
  CHECK(times(layout, "---- after layout\n") == 2);
  CHECK(times(layout, "  in memory (b=2, h=4, ") >= 4);   // of both
  CHECK(times(before, "  in memory ") == 0);
  CHECK(times(printed(kHeads, "all"), "---- after ") == 2 * (passes().size() - 5));   // all but those of a mesh, emit aside
  auto wrong = printed(kHeads, "layuot");
  CHECK(wrong.starts_with("haliax: HALIAX_PRINT=layuot: there is no such pass, but all strip_wraps "));
  CHECK(times(wrong, "\n") == 1);
  for (auto& p : passes()) CHECK(times(wrong, std::string(" ") + p.name) > 0);
}
