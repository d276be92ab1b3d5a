"""The diffs that CONTRIBUTING.md shows apply to the sources, and the files that they change
compile.

If a diff does not apply any more, apply it by hand to a clean tree, and write it again:
    git apply --reject tests/contributing/NAME.diff
        # then mend the rejected hunks, and `git add --intent-to-add` new files
    git diff -U1 > tests/contributing/NAME.diff
"""
import concurrent.futures
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIFFS = sorted((ROOT / "tests/contributing").glob("*.diff"))
COMPILER = next((found for found in map(shutil.which, ("g++-12", "g++")) if found), None)
NO_COPY = shutil.ignore_patterns("golden", "fuzz", "__pycache__")


def changed_files(diff):
    return re.findall(r"^\+\+\+ b/(.*)$", diff.read_text(), re.MULTILINE)


def apply(diff, folder, *options):
    """Applies the diff to the folder. Returns the message of git, or an empty string."""
    done = subprocess.run(["git", "apply", *options, diff], cwd=folder, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    return done.stdout if done.returncode else ""


def errors_of(folder, source):
    """Checks the syntax and the types of a source file. Returns the messages of the compiler."""
    include = [f"-I{folder / name}" for name in ("include", "src", "", "tests")]
    done = subprocess.run([COMPILER, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                           "-Wno-subobject-linkage", "-DHALIAX_ISA=baseline", *include,
                           folder / source],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout if done.returncode else ""


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
    def test_changed_files_compile(self):
        for diff in DIFFS:
            with self.subTest(diff.name), tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                for part in ("include", "src", "backends", "tests", "docs"):
                    shutil.copytree(ROOT / part, folder / part, ignore=NO_COPY)
                self.assertEqual(apply(diff, folder), "")
                sources = [name for name in changed_files(diff) if name.endswith(".cpp")]
                with concurrent.futures.ThreadPoolExecutor(2) as pool:
                    found = list(pool.map(lambda name: errors_of(folder, name), sources))
                self.assertEqual("".join(found), "")


if __name__ == "__main__":
    unittest.main()
