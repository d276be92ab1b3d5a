// Functions that are traced to a Compilation, and strings that are compared with stored files.
#pragma once
#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "compile/pipeline.h"
#include "haliax/haliax.h"
#include "ops/prim.h"
#include "support/update.h"
#include "transforms/sharding.h"

namespace haliax::test {

struct TracedArgument {
  const char* name;
  Axes axes;
  Mapping at = {};
  DType dtype = DType::f32;
};
// Traces f on these arguments. out: the mapping of the results, on a mesh.
inline Compilation traced(const std::vector<TracedArgument>& arguments, Leaves (*f)(const Leaves&),
                          CompileOptions options, const Mapping& out) {
  Compilation c{{}, {}, std::move(options)};
  auto sharding = [&](const Axes& axes, const Mapping& at, const char* what) {
    return c.options.mesh ? sharding_for(axes, at, *c.options.mesh, what) : Sharding{};
  };
  Leaves in;
  for (auto& a : arguments) {
    c.inputs.push_back(prim::input(a.axes, a.dtype, Name(a.name)));
    c.options.in.push_back(sharding(a.axes, a.at, a.name));
    in.push_back(NamedArray(c.inputs.back()));
  }
  for (auto& r : f(in)) {
    c.roots.push_back(r.node());
    c.options.out.push_back(sharding(r.node()->axes, out, "a result"));
  }
  return c;
}

inline std::string file_text(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}
// Checks that the file has this text. With --update, writes the text instead.
inline void matches_file(const std::string& path, const std::string& text) {
  CAPTURE(path);
  if (updates()) {
    std::ofstream(path) << text;
    return;
  }
  CHECK_MESSAGE(
      file_text(path) == text,
      "if this is as it should be: build/tests/compile --update, and read the difference");
}

}  // namespace haliax::test
