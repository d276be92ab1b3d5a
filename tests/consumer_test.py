"""Other projects use the installed library: by pkg-config and CMake, shared and static, with g++
and clang."""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ROOT / "tests/consumer"
LIBRARY = ROOT / "build/libhaliax.so"
STRICT = "-std=c++20 -Wall -Wextra -Wshadow -Wconversion -Werror".split()
GCC = next((c for c in ("g++-12", "g++") if shutil.which(c)), None)
CLANG = next((c for c in ("clang++-14", "clang++") if shutil.which(c)), None)


def install(folder):
    """Installs build/ below a folder. Returns the prefix and the library directory."""
    meson = ROOT / ".venv/bin/meson" if (ROOT / ".venv/bin/meson").exists() else "meson"
    run(meson, "install", "-C", ROOT / "build", "--no-rebuild", "--destdir", folder)
    files = list(pathlib.Path(folder).rglob("haliax*.pc"))
    configured = files[0].read_text().split("prefix=")[1].split("\n")[0]
    prefix = pathlib.Path(f"{folder}{configured}")
    for file in files:
        file.write_text(file.read_text().replace(f"prefix={configured}", f"prefix={prefix}"))
    return prefix, files[0].parent.parent


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        raise AssertionError(f"{shlex.join(map(str, command))}\n{done.stdout}")
    return done.stdout


@unittest.skipUnless(LIBRARY.exists(), "build/ has no shared library: tools/build library")
class Consumer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.prefix, cls.libdir = install(cls.folder.name)

    def pkg_config(self, *arguments):
        path = dict(os.environ, PKG_CONFIG_PATH=self.libdir / "pkgconfig")
        return shlex.split(run("pkg-config", *arguments, env=path))

    def check_output(self, program):
        """Runs a program, which must find the shared library without LD_LIBRARY_PATH."""
        environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
        self.assertEqual(run(program, env=environment), "right\n")

    def check_pkg_config(self, compiler):
        program = pathlib.Path(self.folder.name) / pathlib.Path(compiler).name
        # Eigen's headers cause warnings, which are not errors in system folders.
        flags = [f.replace("-I/usr", "-isystem/usr") for f in self.pkg_config("--cflags", "haliax")]
        run(compiler, *STRICT, *flags, "-c", SOURCES / "main.cpp", "-o", f"{program}.o")
        for kind in ("haliax", "haliax-static"):
            with self.subTest(kind):
                libraries = self.pkg_config("--libs", kind)
                run(compiler, f"{program}.o", "-o", f"{program}-{kind}", *libraries)
                self.check_output(f"{program}-{kind}")

    @unittest.skipUnless(GCC, "g++ is not installed")
    def test_gcc_links_by_pkg_config(self):
        self.check_pkg_config(GCC)

    @unittest.skipUnless(CLANG, "clang is not installed: tools/setup --tests")
    def test_clang_links_the_library_of_gcc(self):
        self.check_pkg_config(CLANG)

    @unittest.skipUnless(shutil.which("cmake"), "CMake is not installed: tools/setup --tests")
    def test_cmake_links_both_libraries(self):
        build = pathlib.Path(self.folder.name) / "cmake"
        run("cmake", "-S", SOURCES, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}",
            "-DCMAKE_BUILD_TYPE=Debug")
        run("cmake", "--build", build)
        self.check_output(build / "with_shared")
        self.check_output(build / "with_static")

    @unittest.skipUnless(shutil.which("cmake"), "CMake is not installed: tools/setup --tests")
    def test_cmake_rejects_another_minor_version(self):
        project = pathlib.Path(self.folder.name) / "other"
        project.mkdir()
        lists = (SOURCES / "CMakeLists.txt").read_text().replace("haliax 0.1", "haliax 0.2")
        (project / "CMakeLists.txt").write_text(lists)
        with self.assertRaisesRegex(AssertionError, 'requested\\s+version "0.2"'):
            run("cmake", "-S", project, "-B", project / "build",
                f"-DCMAKE_PREFIX_PATH={self.prefix}")

    def test_a_running_program_loads_the_shared_library(self):
        load = f"import ctypes; ctypes.CDLL('{LIBRARY}')"   # as Python loads extensions
        in_thread = ("import ctypes, threading\n"
                     f"t = threading.Thread(target=ctypes.CDLL, args=('{LIBRARY}',))\n"
                     "t.start(); t.join()")
        for program in (load, in_thread):
            self.assertEqual(run(sys.executable, "-c", program), "")

    def test_the_shared_library_has_a_version_and_exports_only_public_names(self):
        self.assertIn("libhaliax.so.0.1]", run("readelf", "-d", LIBRARY))
        symbols = run("nm", "-DC", "--defined-only", LIBRARY).splitlines()
        names = [line.split(" ", 2)[2] for line in symbols]
        public = ("haliax::", "typeinfo for haliax::", "typeinfo name for haliax::",
                  "vtable for haliax::")
        self.assertEqual([n for n in names if not n.startswith(public)], [])
        self.assertTrue(any(n.startswith("haliax::sum(") for n in names))
        internal = ("haliax::prim::", "haliax::ops::", "haliax::program::", "haliax::cpu::",
                    "haliax::make(", "haliax::Buffer")
        self.assertEqual([n for n in names if n.startswith(internal)], [])

    def test_functions_that_tests_of_public_headers_call_are_exported(self):
        def includes_only_public_headers(source):
            if not source.exists():
                return False
            return all(name.startswith("haliax/") or
                       includes_only_public_headers(ROOT / "tests" / name)
                       for name in re.findall(r'#include "([^"]+)"', source.read_text()))
        sources = [source for source in (ROOT / "tests").glob("*/*_test.cpp")
                   if includes_only_public_headers(source)]
        self.assertGreater(len(sources), 20)
        units = json.loads((ROOT / "build/units.json").read_text())["units"]
        folder, objects = ROOT / "build/tests/libunit_test_objects.a.p", set()
        for source in sources:
            unit = units.get(source.relative_to(ROOT).as_posix())
            found = [*folder.glob(f"{source.parent.name}_{source.name}.o"),
                     *folder.glob(f"*_{unit}.cpp.o" if unit else "-")]
            self.assertTrue(found, source)
            objects.update(found)
        exported = set(names_of("-D", "--defined-only", LIBRARY))
        hidden = set(names_of("--defined-only", ROOT / "build/libhaliax.a")) - exported
        used = names_of("--undefined-only", *objects)
        self.assertEqual([name for name in used if name in hidden], [])


def names_of(*arguments):
    """Returns the sorted symbols that nm lists."""
    return sorted({line.split()[-1] for line in run("nm", *arguments).splitlines()
                   if re.match(r"[\da-f ]+ \w \S+$", line)})


if __name__ == "__main__":
    unittest.main()
