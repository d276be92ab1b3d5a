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
# Mistakes in types, and what is said of each: one error, in fewer than 30 lines, that names the field and its type.
HEAD = """
#include <unordered_map>
#include "haliax/haliax.h"
using namespace haliax;
const Axis N("n", 3);
class Rate { double r_; public: explicit Rate(double r) : r_(r) {} };
NamedArray plus(const NamedArray& a, const NamedArray& b) { return a + b; }
"""
MISTAKES = {
    "a pointer": ("struct Layer { NamedArray w; const char* title = \"\"; }; struct Model { std::vector<Layer> layers; };"
                  "void f(Model m) { jit([](const Model& x) { return x; })(m); }",
                  ["must not be a raw pointer to data", "Module = Layer", "Type = const char*", '"title"']),
    "a class with a constructor": ("struct Model { nn::Linear up; std::optional<Rate> rate; };"
                                   "void f(Model m) { optim::adamw().init(m); }",
                                   ["a module must be a plain struct", "Module = Model", "std::optional<Rate>", '"rate"']),
    "an Arr": ("struct Model { Arr x; }; void f(Model m) { flatten(m); }",
               ["make the field a NamedArray", "Type = haliax::Arr", '"x"']),
    "a field of a listed class": ("class Model { nn::Linear up_; int* step_; public: HALIAX_FIELDS(up_, step_) };"
                                  "void f(Model m) { tree_paths(m); }",
                                  ["must not be a raw pointer", "Type = int*", "step_"]),
    "an unordered map": ("struct Model { std::unordered_map<std::string, nn::Linear> heads; }; void f(Model m) { flatten(m); }",
                         ["a std::map with keys of std::string", "Module = Model", '"heads"']),
    "a closure": ("void f() { double by = 2; auto scale = [by](const NamedArray& x) { return x * by; };"
                  "struct Model { decltype(scale) s; }; Model m{scale}; flatten(m); }",
                  ["haliax::StaticFunction", "Model", '"s"']),
    "a result that holds a pointer": ("struct Out { NamedArray y; const NamedArray* of; };"
                                      "auto f() { return jit([](const NamedArray& x) { return Out{x, &x}; })(ones(N)); }",
                                      ["must not be a raw pointer", "Module = Out", '"of"']),
    "a carry that starts as a number": ("auto f() { auto turn = [](const NamedArray& c, const NamedArray& x) {"
                                        "return std::pair{c + x, x}; }; return scan(turn, N)(0., ones(N)); }",
                                        ["the next carry, which has the type of the first one", "C = double"]),
    "a turn that gives no pair": ("auto f() { return scan(plus, N)(zeros({}), ones(N)); }", ["gives a std::pair: the next carry"]),
    "a turn that takes something else": ("auto f() { return scan(plus, N)(zeros({}), ones(N), ones(N)); }",
                                         ["takes the carry, and then a position"]),
    "a fold to another type": ("auto f() { return fold([](const auto& c, const NamedArray& x) { return c + x; }, N)(0., ones(N)); }",
                               ["the next carry, which has the type of the first one"]),
    "a loss that is a number": ("auto f() { return grad([](const NamedArray& x) { return sum(x).item(); })(ones(N)); }",
                                ["gives a NamedArray, or a std::pair of it"]),
    "a jitted function without a result": ("void f() { NamedArray y; jit([&](const NamedArray& x) { y = x; })(ones(N)); }",
                                           ["a jitted function gives its results"]),
    "a call that lacks an argument": ("void f() { jit(plus)(ones(N)); }", ["called with what the function takes"]),
}


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

    def test_mistakes_in_types_are_told_in_one_sentence(self):
        for name, (code, words) in MISTAKES.items():
            with self.subTest(name):
                out = compiled(HEAD + code)
                lines = out.stderr.splitlines()
                self.assertNotEqual(out.returncode, 0)
                self.assertLess(len(lines), 30, out.stderr)
                errors = [line for line in lines if "error:" in line]
                self.assertIn("haliax: ", errors[0], out.stderr)
                self.assertEqual(len(errors), 1, out.stderr)
                for word in words:
                    self.assertIn(word, out.stderr)


if __name__ == "__main__":
    unittest.main()
