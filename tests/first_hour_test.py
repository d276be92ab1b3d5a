"""A new user's first commands: installation, a copied or moved checkout, packages installed between
two commands, and the list of skipped tests."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The folders in which tools/build finds sources.
FOLDERS = ("src", "backends", "tests", "examples", "bench", "tools")

# A project with the targets of meson.build that tools/install installs.
PROJECT = """
project('stub', 'cpp', version: '0.1.0')
library = shared_library('stub', 'src/library.cpp', install: true, version: '0.1.0')
plugin = shared_module('stub_plugin', 'src/plugin.cpp', install: true)
alias_target('library', TARGETS)
install_subdir('include', install_dir: get_option('includedir'))
"""


def run(*command, **options):
    return subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, **options)


def link_virtual_environment(checkout):
    """Links .venv, in which tools/setup installs meson if the distribution's version is too old."""
    if (ROOT / ".venv").exists():
        (checkout / ".venv").symlink_to(ROOT / ".venv")


def files_below(folder):
    return {f.relative_to(folder).as_posix() for f in folder.rglob("*") if not f.is_dir()}


class TemporaryFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()


class Install(TemporaryFolder):
    """Runs tools/install in a small project, which compiles in a second."""

    def setUp(self):
        super().setUp()
        self.checkout, self.prefix = self.folder / "checkout", self.folder / "prefix"
        for name in FOLDERS:
            (self.checkout / name).mkdir(parents=True)
        for name in ("build", "install"):
            shutil.copy(ROOT / "tools" / name, self.checkout / "tools" / name)
        link_virtual_environment(self.checkout)
        self.write("tools/setup", "#!/bin/sh\n").chmod(0o755)
        self.write("include/stub.h", "int answer();\n")
        self.write("src/library.cpp", "int answer() { return 42; }\n")
        self.write("src/plugin.cpp", "int plugin() { return 1; }\n")
        self.write("meson.build", PROJECT.replace("TARGETS", "[library, plugin]"))

    def write(self, name, text):
        file = self.checkout / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return file

    def install(self, prefix=None):
        return run(self.checkout / "tools/install", prefix or self.prefix)

    def test_the_library_and_its_plugins_are_installed(self):
        done = self.install()
        self.assertEqual(done.returncode, 0, done.stdout)
        installed = {name.rpartition("/")[2] for name in files_below(self.prefix)}
        self.assertLessEqual({"libstub.so.0.1.0", "libstub_plugin.so", "stub.h"}, installed)
        (self.prefix / "other").write_text("a file of another project")
        second = self.install()   # over the first one
        self.assertEqual(second.returncode, 0, second.stdout)
        self.assertTrue((self.prefix / "other").exists())

    def test_a_failed_installation_leaves_the_prefix_unchanged(self):
        for cause, name, text in (
                ("a plugin does not compile", "src/plugin.cpp", "int plugin() { return one; }\n"),
                ("a plugin is not built", "meson.build", PROJECT.replace("TARGETS", "[library]"))):
            with self.subTest(cause):
                self.write(name, text)
                done = self.install()
                self.assertNotEqual(done.returncode, 0, done.stdout)
                self.assertFalse(self.prefix.exists(), done.stdout)
                shutil.rmtree(self.checkout / "build")
                self.write("src/plugin.cpp", "int plugin() { return 1; }\n")

    def test_a_prefix_that_cannot_be_written_fails_before_the_build(self):
        self.write("file", "")
        done = self.install(self.checkout / "file/prefix")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, "cannot write to .*/file/prefix")
        self.assertFalse((self.checkout / "build").exists())


@unittest.skipUnless((ROOT / "build/meson-info/intro-installed.json").exists(),
                     "build/ is not configured: tools/build")
class InstalledTargets(unittest.TestCase):
    def test_the_target_library_builds_every_installed_file(self):
        build = ROOT / "build"
        installed = json.loads((build / "meson-info/intro-installed.json").read_text())
        targets = json.loads((build / "meson-info/intro-targets.json").read_text())
        wanted = {pathlib.Path(file).name for target in targets if target["installed"]
                  for file in target["filename"] if file in installed}
        self.assertLessEqual({"libhaliax.a", "libhaliax.so.0.1.0"}, wanted)
        query = run("ninja", "-C", build, "-t", "query", "library").stdout
        built = {line.split()[-1] for line in query.splitlines() if line.startswith("    ")}
        self.assertLessEqual(wanted, built)


class Configuration(TemporaryFolder):
    """A copy of this checkout, which is configured but not built."""

    def setUp(self):
        super().setUp()
        self.checkout = self.folder / "checkout"
        for name in (*FOLDERS, "include", "subprojects"):
            shutil.copytree(ROOT / name, self.checkout / name,
                            ignore=shutil.ignore_patterns("__pycache__", "golden"))
        for file in ROOT.glob("meson*"):
            shutil.copy(file, self.checkout)
        link_virtual_environment(self.checkout)
        self.environment = dict(os.environ)

    def configure(self):
        done = run(self.checkout / "tools/build", "build.ninja", env=self.environment)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def targets(self):
        file = self.checkout / "build/meson-info/intro-targets.json"
        return {target["name"] for target in json.loads(file.read_text())}

    def hide_mpi(self):
        """Makes MPI invisible to meson; returns the folder of pkg-config files."""
        hidden = ("mpi", "ompi", "opal", "orte")
        path = []
        for k, place in enumerate(map(pathlib.Path, os.environ["PATH"].split(":"))):
            if place.is_dir() and any(place.glob("mpi*")):
                programs, place = place, self.folder / f"bin{k}"
                place.mkdir()
                for program in programs.iterdir():
                    if not program.name.startswith(hidden):
                        (place / program.name).symlink_to(program)
            path.append(str(place))
        libraries = self.folder / "pkgconfig"
        libraries.mkdir()
        known = run("pkg-config", "--variable", "pc_path", "pkg-config").stdout.strip().split(":")
        for place in filter(pathlib.Path.is_dir, map(pathlib.Path, reversed(known))):
            for file in place.glob("*.pc"):
                if not file.name.startswith(hidden):
                    (libraries / file.name).unlink(missing_ok=True)
                    (libraries / file.name).symlink_to(file)
        self.environment.update(PATH=":".join(path), PKG_CONFIG_LIBDIR=str(libraries))
        return libraries

    def test_a_build_folder_of_another_checkout_is_configured_again(self):
        self.assertNotIn("deleted", self.configure())
        moved = self.folder / "moved"
        self.checkout.rename(moved)
        original, self.checkout = self.checkout, moved
        printed = self.configure()
        self.assertIn(f"tools/build: build/ was configured for {original}; "
                      "it is deleted and configured again.", printed)
        self.assertFalse(original.exists())
        self.assertIn(f"Source dir: {moved}\n", printed)
        self.assertNotIn("Source dir", self.configure())   # nothing changed since

    def test_a_package_that_is_installed_after_the_first_build_is_found(self):
        libraries = self.hide_mpi()
        self.configure()
        self.assertNotIn("haliax_mpi", self.targets())
        (libraries / "ompi-cxx.pc").write_text(
            "Name: ompi-cxx\nDescription: MPI\nVersion: 4.1\nLibs:\nCflags:\n")
        self.configure()
        self.assertIn("haliax_mpi", self.targets())
        self.assertNotIn("Source dir", self.configure())


class SkippedTests(TemporaryFolder):
    def test_skipped_tests_are_listed_and_counted_before_the_closing_line(self):
        tests = self.folder / "tests"
        (tests / "some").mkdir(parents=True)
        (tests / "some/first_test.cpp").write_text("")
        (tests / "script_test.py").write_text(
            "import unittest\n"
            "class Script(unittest.TestCase):\n"
            "    def test_passes(self):\n        pass\n"
            "    @unittest.skip('MPI is not installed')\n"
            "    def test_is_skipped(self):\n        pass\n")
        program = self.folder / "build/tests/some"
        program.parent.mkdir(parents=True)
        program.write_text(
            "#!/bin/sh\n"
            "echo 'skipped: a kernel: NVRTC is not installed'\n"
            "echo '[doctest] test cases:  3 |  3 passed | 0 failed | 0 skipped'\n")
        program.chmod(0o755)
        (self.folder / "tools").mkdir()
        shutil.copy(ROOT / "tools/run_tests.py", self.folder / "tools")
        done = run(sys.executable, self.folder / "tools/run_tests.py", "build", "--suite", "some",
                   "--suite", "scripts")
        self.assertEqual(done.returncode, 0, done.stdout)
        lines = done.stdout.splitlines()
        at = lines.index("2 tests skipped:")
        self.assertEqual(lines[at + 1:at + 3],
                         ["  scripts/script_test.py (1): MPI is not installed",
                          "  some/first_test.cpp (1): a kernel: NVRTC is not installed"])
        self.assertEqual(lines[-1], "3 passed, 0 failed")


if __name__ == "__main__":
    unittest.main()
