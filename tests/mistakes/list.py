"""Checks the mistakes that README.md lists: each is compiled with g++ and clang, run with the
shared library, and must have the result that the list states."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import typing
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
BUILD = ROOT / "build"
KINDS = ("Returns", "Raises", "Prints", "Refused", "Warned")
COMPILERS = [found for found in (next((c for c in names if shutil.which(c)), None) for names in (
    ("g++-12", "g++"), ("clang++-14", "clang++"))) if found]
HEAD = """
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <functional>
#include <map>
#include <numeric>
#include <thread>
#include <unordered_map>
#include <variant>
#include "haliax/haliax.h"
#include "haliax/state_dict.h"
using namespace haliax;
"""
SETUP = """
[[maybe_unused]] const Axis N("n", 3);
[[maybe_unused]] const auto x = arange(N, {.dtype = DType::f32}), y = x + 1;
"""
MAIN = """
template <class T> void show(const T& v) {
  if constexpr (std::is_same_v<T, NamedArray>) {
    for (bool first = true; float e : v.floats())\
 std::cout << (first ? "" : " ") << e, first = false;
  } else {
    std::cout << v;
  }
}
template <class F> void run(F f) {
  try {
    if constexpr (std::is_void_v<decltype(f())>) f();
    else show(f());
  } catch (const Error& e) {
    std::cout << "raises " << e.what();
  }
  std::cout << std::endl;
}
"""


class Mistake(typing.NamedTuple):
    number: int
    title: str
    line: int      # the line of README.md in which the code begins
    code: str
    kind: str
    words: list

    def source(self):
        """Returns the code as a definition of f. Code that defines no function f is its body."""
        at = f'#line {self.line} "README.md"\n'
        return (at + self.code if re.search(r"^(auto|void) f\(", self.code, re.MULTILINE)
                else f"auto f() {{\n{at}{self.code}}}\n")


def read_mistakes():
    text = (FOLDER / "README.md").read_text()
    form = re.compile(r"^### ([^\n]*)\n```cpp\n(.*?)```\n(\w+) ([^\n]*)\n",
                      re.MULTILINE | re.DOTALL)
    found = []
    for entry in form.finditer(text):
        title, code, kind, words = entry.groups()
        line = text.count("\n", 0, entry.start()) + 3
        words = re.findall(r"`([^`]*)`|line (\d+)", words)
        words = [quoted or f"README.md:{line + int(row) - 1}" for quoted, row in words]
        found.append(Mistake(len(found), title, line, code, kind, words))
    return found


class Compiler:
    """A compiler with a precompiled header. clang 14 crashes on some declarations of this header.
    A mistake for which it crashes is compiled without the precompiled header."""

    def __init__(self, name, folder):
        self.name, self.folder = name, pathlib.Path(folder) / name
        self.folder.mkdir()
        header = self.folder / "head.h"
        header.write_text(HEAD + SETUP)
        self.flags = ["-std=c++20", "-Wall", "-I", ROOT / "include"]
        self.clang = "clang" in name
        self.precompiled = ["-include", header]
        done = self.call(*["-fpch-instantiate-templates"] * self.clang, "-x", "c++-header", header,
                         "-o", header.with_suffix(".h.pch" if self.clang else ".h.gch"))
        assert done.returncode == 0, done.stdout

    def call(self, *arguments):
        return subprocess.run([self.name, *map(str, [*self.flags, *arguments])],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=dict(os.environ, LC_ALL="C"))

    def check(self, mistake):
        """Compiles a mistake. Returns the completed process."""
        source = self.folder / f"{mistake.number}.cpp"
        source.write_text(mistake.source())
        done = self.call(*self.precompiled, *["-fno-crash-diagnostics"] * self.clang,
                         "-fsyntax-only", source)
        if "frontend command failed" in done.stdout:
            source.write_text(HEAD + SETUP + mistake.source())
            done = self.call("-fsyntax-only", source)
        return done

    def program(self, mistakes):
        """Compiles a program that runs the mistake with the number that is its argument."""
        source, program = self.folder / "all.cpp", self.folder / "all"
        cases = "".join(
            f"    case {m.number}: run([] {{ return mistake_{m.number}::f(); }}); break;\n"
            for m in mistakes)
        source.write_text(
            (HEAD + SETUP) * self.clang
            + "".join(f"namespace mistake_{m.number} {{\n{m.source()}}}\n" for m in mistakes) + MAIN
            + f"int main(int, char** argv) {{\n  switch (std::atoi(argv[1])) {{\n{cases}  }}\n}}\n")
        done = self.call(*self.precompiled * (not self.clang), "-w", source, "-o", program,
                         f"-L{BUILD}", "-lhaliax", f"-Wl,-rpath,{BUILD}", "-pthread")
        assert done.returncode == 0, done.stdout
        return program


class Mistakes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder, cls.all = pathlib.Path(folder.name), read_mistakes()
        cls.compilers = [Compiler(name, folder.name) for name in COMPILERS]
        cls.pool = concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        cls.addClassCleanup(cls.pool.shutdown)

    def test_every_entry_is_parsed(self):
        text = (FOLDER / "README.md").read_text()
        self.assertEqual(len(self.all), len(re.findall("^### ", text, re.MULTILINE)))
        self.assertGreaterEqual(len(self.all), 100)
        self.assertEqual([m.title for m in self.all if m.kind not in KINDS or not m.words], [])

    def check_message(self, mistake, text):
        """Checks that the text contains all words of the mistake."""
        for word in mistake.words:
            # clang prints the name of a field as characters: 't', 'i', 't', 'l', 'e'.
            letters = ", ".join(f"'{c}'" for c in word.strip('"')) if word.startswith('"') else word
            self.assertTrue(word in text or letters in text,
                            f"{word} is not in the message:\n{text}")

    def test_messages_of_the_compilers(self):
        mistakes = [m for m in self.all if m.kind in ("Refused", "Warned")]
        for compiler in self.compilers:
            for mistake, done in zip(mistakes, self.pool.map(compiler.check, mistakes)):
                with self.subTest(mistake.title, compiler=compiler.name):
                    lines = done.stdout.splitlines()
                    messages = [line for line in lines if re.search(r"error:|warning:", line)]
                    self.assertEqual(done.returncode != 0, mistake.kind == "Refused", done.stdout)
                    self.assertEqual(len(messages), 1, done.stdout)
                    self.assertIn("haliax: " if mistake.kind == "Refused" else mistake.words[0],
                                  messages[0])
                    self.assertLess(len(lines), 30, done.stdout)
                    self.check_message(mistake, done.stdout)

    @unittest.skipUnless((BUILD / "libhaliax.so").exists(),
                         "build/ has no shared library: tools/build")
    def test_results_and_errors_of_programs(self):
        mistakes = [m for m in self.all if m.kind in ("Returns", "Raises", "Prints")]
        for compiler, program in zip(self.compilers,
                                     self.pool.map(lambda c: c.program(mistakes), self.compilers)):
            run = lambda m: subprocess.run([program, str(m.number)], capture_output=True, text=True,
                                           cwd=self.folder)
            for mistake, done in zip(mistakes, self.pool.map(run, mistakes)):
                with self.subTest(mistake.title, compiler=compiler.name):
                    self.assertEqual(done.returncode, 0, done.stderr)
                    output = done.stdout.rstrip("\n")
                    self.assertEqual(output.startswith("raises "), mistake.kind == "Raises",
                                     output)
                    if mistake.kind == "Prints":
                        self.check_message(mistake, done.stderr)
                    elif mistake.kind == "Raises" or len(mistake.words) > 1:
                        self.check_message(mistake, output)
                    else:
                        self.assertEqual([output], mistake.words)
                    if mistake.kind != "Prints":
                        self.assertEqual(done.stderr, "")


if __name__ == "__main__":
    unittest.main()
