"""Checks that C++ files are formatted by clang-format with the configuration of this repository,
and that lines of Python have at most 100 columns."""
import pathlib
import re
import shutil
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("include", "src", "backends", "tests", "examples", "bench", "tools")
VERSION = "14"  # other versions format differently


def formatter():
    """Returns the name of clang-format 14, or None."""
    for name in (f"clang-format-{VERSION}", "clang-format"):
        if shutil.which(name):
            version = subprocess.run([name, "--version"], stdout=subprocess.PIPE, text=True).stdout
            if re.search(rf"version {VERSION}\.", version):
                return name
    return None


@unittest.skipUnless(formatter(),
                     f"clang-format {VERSION} is not installed: tools/setup --tests")
class Format(unittest.TestCase):
    def unformatted(self, *files):
        command = [formatter(), "--dry-run", *map(str, files)]
        printed = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True).stderr
        return sorted(set(re.findall(r"^(\S+?):\d+:\d+: warning", printed, re.MULTILINE)))

    def test_all_files_are_formatted(self):
        files = [f for folder in FOLDERS for f in (ROOT / folder).rglob("*")
                 if f.suffix in {".h", ".cpp", ".inc"}]
        self.assertGreater(len(files), 500)
        self.assertEqual(self.unformatted(*files), [], "clang-format -i FILE")

    def test_an_unformatted_file_is_detected(self):
        import tempfile
        with tempfile.NamedTemporaryFile("w", suffix=".cpp", dir=ROOT) as file:
            file.write("int  f( ){return 1;}\n")
            file.flush()
            self.assertEqual(self.unformatted(file.name), [file.name])


def python_files():
    """Yields the Python files of this repository: *.py, and scripts without a suffix."""
    for folder in (*FOLDERS, "docs"):
        for file in (ROOT / folder).rglob("*"):
            script = not file.suffix and file.is_file() and file.read_bytes()[:99].splitlines()[:1]
            if file.suffix == ".py" or script and b"python3" in script[0]:
                yield file


class Columns(unittest.TestCase):
    def test_lines_of_python_have_at_most_100_columns(self):
        files = list(python_files())
        self.assertGreater(len(files), 30)
        self.assertEqual([f"{file.relative_to(ROOT)}:{number}" for file in files
                          for number, line in enumerate(file.read_text().splitlines(), 1)
                          if len(line) > 100], [])


if __name__ == "__main__":
    unittest.main()
