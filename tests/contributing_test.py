"""The diffs that CONTRIBUTING.md shows apply to the sources, one by one and all together, compile,
and pass the tests that they bring.

If a diff does not apply any more, apply it by hand to a clean tree, and write it again:
    git apply --reject tests/contributing/NAME.diff
        # then mend the rejected hunks, and `git add --intent-to-add` new files
    git diff -U1 > tests/contributing/NAME.diff
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIFFS = sorted((ROOT / "tests/contributing").glob("*.diff"))
COMPILER = next(filter(None, map(shutil.which, ("g++-12", "g++"))), None)
PARTS = (".ci", "include", "src", "backends", "examples", "bench", "tests", "tools", "docs",
         "subprojects", "meson.build", "meson_options.txt", "README.md", "CONTRIBUTING.md",
         "LICENSE")
# The tests of all ops, which cover the ops of the diffs too.
OPS_TESTS = {"tests/ops/ops_test.cpp", "tests/ops/mesh_test.cpp"}


def changed_files(diff):
    return re.findall(r"^\+\+\+ b/(.*)$", diff.read_text(), re.MULTILINE)


def apply(diff, folder, *options):
    """Applies the diff to the folder. Returns the message of git, or an empty string."""
    done = subprocess.run(["git", "apply", *options, diff], cwd=folder, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.stdout if done.returncode else ""


def copy_with_all_diffs(folder):
    """Copies the project and applies all diffs. Returns the files that they change."""
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / part)
    for diff in DIFFS:
        if message := apply(diff, folder):
            raise AssertionError(f"{diff.name} does not apply beside the other diffs:\n{message}")
    return {name for diff in DIFFS for name in changed_files(diff)}


def run(folder, *command):
    """Runs a command in the folder. Returns its exit code and its output."""
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace")
    return done.returncode, done.stdout


class Contributing(unittest.TestCase):
    maxDiff = None

    def test_there_is_a_diff_for_each_kind_of_change(self):
        self.assertEqual({d.stem for d in DIFFS},
                         {"op", "rule", "pass", "step", "backend", "layer"})

    def test_diffs_apply_to_the_sources(self):
        for diff in DIFFS:
            with self.subTest(diff.name):
                self.assertEqual(apply(diff, ROOT, "--check"), "")

    def test_each_diff_brings_a_test(self):
        for diff in DIFFS:
            with self.subTest(diff.name):
                self.assertTrue(any(name.startswith("tests/") for name in changed_files(diff)))

    def test_contributing_shows_each_diff(self):
        page = (ROOT / "CONTRIBUTING.md").read_text()
        for diff in DIFFS:
            with self.subTest(diff.name):
                self.assertTrue(f"tests/contributing/{diff.name}" in page)

    def test_lines_that_contributing_shows_are_in_the_diffs(self):
        page, known = ((ROOT / "CONTRIBUTING.md").read_text(),
                       "\n".join(diff.read_text() for diff in DIFFS).splitlines())
        shown = [line
                 for block in re.findall(r"^```diff\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
                 for line in block.splitlines()]
        self.assertGreater(len(shown), 10)
        self.assertEqual([line for line in shown if line not in known], [])

    @unittest.skipUnless(COMPILER, "no g++")
    def test_all_diffs_build_together_and_pass_their_tests(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            changed = copy_with_all_diffs(folder)
            tests = {name for name in changed | OPS_TESTS if name.endswith("_test.cpp")}
            for script in ("house_test", "layers_test", "docs_test", "peers_test"):
                with self.subTest(script):
                    code, output = run(folder, sys.executable, f"tests/{script}.py")
                    self.assertEqual(code, 0, output[-4000:])

            for file in (folder / "tests").glob("*/*_test.cpp"):
                if file.relative_to(folder).as_posix() not in tests:
                    file.write_text("// Not compiled: no diff changes it.\n")
            programs = sorted({name.rsplit("/", 1)[0] for name in tests})

            code, output = run(folder, "tools/build", *programs)
            self.assertEqual(code, 0, output[-4000:])
            for program in programs:
                with self.subTest(program):
                    code, output = run(folder, f"build/{program}")
                    self.assertEqual(code, 0, output[-4000:])


if __name__ == "__main__":
    unittest.main()
