"""What the compiler refuses, and the sentence that it says: headers alone, nothing is linked."""
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATIC = """
#include <map>
#include "haliax/tree.h"
using namespace haliax;
struct Part { std::string name; std::vector<NamedArray> weights; };
struct Direct { static constexpr bool is_static = true; int n; NamedArray x;
                bool operator==(const Direct&) const { return true; } };
struct Inside { static constexpr bool is_static = true; std::map<std::string, std::optional<Part>> parts;
                bool operator==(const Inside&) const { return true; } };
class Listed { int n; std::array<NamedArray, 2> x_;
 public: static constexpr bool is_static = true; HALIAX_FIELDS(n, x_) bool operator==(const Listed&) const { return true; } };
struct Fixed { static constexpr bool is_static = true; NamedArray x[2]; bool operator==(const Fixed&) const { return true; } };
struct Sizes { static constexpr bool is_static = true; int n[2]; std::vector<Sizes> more; std::optional<Axis> axis;
               NamedArray (*f)(const NamedArray&); bool operator==(const Sizes&) const = default; };
template <class T> constexpr auto kind = reflect::kind<T>;
static_assert(kind<Direct> == reflect::Kind::static_array && kind<Inside> == reflect::Kind::static_array);
static_assert(kind<Listed> == reflect::Kind::static_array && kind<Fixed> == reflect::Kind::static_array);
static_assert(kind<Sizes> == reflect::Kind::value);
struct Model { Inside config; NamedArray w; };
void f(Model m) { walk_of(m); }
"""
SCOPES = """
#include "haliax/mesh.h"
using namespace haliax;
void f() {
  use_mesh(Mesh{});
  axis_mapping(Mapping{});
  use_scopes(Scopes{});
  use_mesh mesh{Mesh{}};
  axis_mapping mapping{Mapping{}};
}
"""


def compiled(code):
    compiler = os.environ.get("CXX") or next(c for c in ("g++-12", "g++", "clang++") if shutil.which(c))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "main.cpp"
        source.write_text(code)
        return subprocess.run([*compiler.split(), "-std=c++20", "-Wall", "-fsyntax-only", "-I", ROOT / "include", source],
                              capture_output=True, text=True)


class CompileErrors(unittest.TestCase):
    def test_an_array_in_a_static_type_is_refused(self):
        out = compiled(STATIC)
        self.assertNotEqual(out.returncode, 0)
        errors = [line for line in out.stderr.splitlines() if "error:" in line]
        self.assertEqual(len(errors), 1, out.stderr)
        self.assertIn("must not hold a NamedArray", errors[0])
        self.assertIn("Inside", out.stderr)

    def test_scopes_without_a_name_are_told(self):
        out = compiled(SCOPES)
        self.assertEqual(out.returncode, 0, out.stderr)
        warnings = [line for line in out.stderr.splitlines() if "warning:" in line]
        self.assertEqual(len(warnings), 3, out.stderr)
        for line in warnings:
            self.assertIn("give it a name", line)


if __name__ == "__main__":
    unittest.main()
