"""Other projects that use what is installed: by pkg-config and CMake, shared and static, with g++ and clang."""
import os
import json
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
    """(prefix, libdir) of what tools/build has made, as if it had been installed below this folder."""
    meson = ROOT / ".venv/bin/meson" if (ROOT / ".venv/bin/meson").exists() else "meson"
    run(meson, "install", "-C", ROOT / "build", "--no-rebuild", "--destdir", folder)
    files = list(pathlib.Path(folder).rglob("haliax*.pc"))
    wanted = files[0].read_text().split("prefix=")[1].split("\n")[0]
    prefix = pathlib.Path(f"{folder}{wanted}")
    for file in files:
        file.write_text(file.read_text().replace(f"prefix={wanted}", f"prefix={prefix}"))
    return prefix, files[0].parent.parent


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        raise AssertionError(f"{shlex.join(map(str, command))}\n{done.stdout}")
    return done.stdout


@unittest.skipUnless(LIBRARY.exists(), "build/ has no shared library: tools/build")
class Consumer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.prefix, cls.libdir = install(cls.folder.name)

    def pkg_config(self, *arguments):
        path = dict(os.environ, PKG_CONFIG_PATH=self.libdir / "pkgconfig")
        return shlex.split(run("pkg-config", *arguments, env=path))

    def runs(self, program):
        self.assertEqual(run(program, env=dict(os.environ, LD_LIBRARY_PATH=str(self.libdir))), "right\n")

    def by_pkg_config(self, compiler):
        made = pathlib.Path(self.folder.name) / pathlib.Path(compiler).name
        # Warnings of our headers are errors, those of Eigen's are not ours.
        flags = [f.replace("-I/usr", "-isystem/usr") for f in self.pkg_config("--cflags", "haliax")]
        run(compiler, *STRICT, *flags, "-c", SOURCES / "main.cpp", "-o", f"{made}.o")
        for kind in ("haliax", "haliax-static"):
            with self.subTest(kind):
                run(compiler, f"{made}.o", "-o", f"{made}-{kind}", *self.pkg_config("--libs", kind))
                self.runs(f"{made}-{kind}")

    @unittest.skipUnless(GCC, "there is no g++")
    def test_gcc_by_pkg_config(self):
        self.by_pkg_config(GCC)

    @unittest.skipUnless(CLANG, "there is no clang: tools/setup --tests installs it")
    def test_clang_links_what_gcc_built(self):
        self.by_pkg_config(CLANG)

    @unittest.skipUnless(shutil.which("cmake"), "there is no cmake: tools/setup --tests installs it")
    def test_cmake(self):
        made = pathlib.Path(self.folder.name) / "cmake"
        run("cmake", "-S", SOURCES, "-B", made, f"-DCMAKE_PREFIX_PATH={self.prefix}", "-DCMAKE_BUILD_TYPE=Debug")
        run("cmake", "--build", made)
        self.runs(made / "with_shared")
        self.runs(made / "with_static")

    @unittest.skipUnless(shutil.which("cmake"), "there is no cmake: tools/setup --tests installs it")
    def test_cmake_takes_no_other_minor_version(self):
        made = pathlib.Path(self.folder.name) / "other"
        made.mkdir()
        (made / "CMakeLists.txt").write_text((SOURCES / "CMakeLists.txt").read_text().replace("haliax 0.1", "haliax 0.2"))
        with self.assertRaisesRegex(AssertionError, 'requested\\s+version "0.2"'):
            run("cmake", "-S", made, "-B", made / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}")

    def test_the_shared_library_is_loaded_by_a_program_that_runs(self):
        for load in (f"import ctypes; ctypes.CDLL('{LIBRARY}')",   # as extensions of Python are, also from a thread
                     f"import ctypes, threading; t = threading.Thread(target=ctypes.CDLL, args=('{LIBRARY}',)); t.start(); t.join()"):
            self.assertEqual(run(sys.executable, "-c", load), "")

    def test_the_shared_library_has_a_version_and_exports_public_names_alone(self):
        self.assertIn("libhaliax.so.0.1]", run("readelf", "-d", LIBRARY))
        names = [line.split(" ", 2)[2] for line in run("nm", "-DC", "--defined-only", LIBRARY).splitlines()]
        ours = ("haliax::", "typeinfo for haliax::", "typeinfo name for haliax::", "vtable for haliax::")
        self.assertEqual([n for n in names if not n.startswith(ours)], [])
        self.assertTrue(any(n.startswith("haliax::sum(") for n in names))
        inside = ("haliax::prim::", "haliax::ops::", "haliax::program::", "haliax::cpu::", "haliax::make(", "haliax::Buffer")
        self.assertEqual([n for n in names if n.startswith(inside)], [])

    def test_all_that_tests_use_of_public_headers_alone_is_exported(self):
        def public(source):
            own = re.findall(r'#include "([^"]+)"', source.read_text()) if source.exists() else [""]
            return all(name.startswith("haliax/") or (name and public(ROOT / "tests" / name)) for name in own)
        sources = [s for s in (ROOT / "tests").glob("*/*_test.cpp") if public(s)]
        self.assertGreater(len(sources), 20)
        compiled_with = json.loads((ROOT / "build/units.json").read_text())["with"]   # several sources as one: tools/sources.py
        folder, objects = ROOT / "build/tests/libroom_objects.a.p", set()
        for source in sources:
            unit = compiled_with.get(source.relative_to(ROOT).as_posix())
            found = [*folder.glob(f"{source.parent.name}_{source.name}.o"), *folder.glob(f"*_{unit}.cpp.o" if unit else "-")]
            self.assertTrue(found, source)
            objects.update(found)
        exported = set(names_of("-D", "--defined-only", LIBRARY))
        inside = set(names_of("--defined-only", ROOT / "build/libhaliax.a"))
        self.assertEqual([n for n in names_of("--undefined-only", *objects) if n in inside - exported], [])


def names_of(*arguments):
    return sorted({line.split()[-1] for line in run("nm", *arguments).splitlines() if re.match(r"[\da-f ]+ \w \S+$", line)})


if __name__ == "__main__":
    unittest.main()
