"""C++ files are formatted by clang-format with the configuration of this repository."""
import pathlib
import re
import shutil
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("include", "src", "backends", "tests", "examples", "bench", "tools")
VERSION = "14"  # another version breaks lines elsewhere


def formatter():
    """Returns the name of clang-format 14, or None."""
    for name in (f"clang-format-{VERSION}", "clang-format"):
        if shutil.which(name):
            said = subprocess.run([name, "--version"], stdout=subprocess.PIPE, text=True).stdout
            if re.search(rf"version {VERSION}\.", said):
                return name
    return None


@unittest.skipUnless(formatter(), f"there is no clang-format {VERSION}: tools/setup --tests installs it")
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
        with tempfile.NamedTemporaryFile("w", suffix=".cpp", dir=ROOT / "tests") as file:
            file.write("int  f( ){return 1;}\n")
            file.flush()
            self.assertEqual(self.unformatted(file.name), [file.name])


if __name__ == "__main__":
    unittest.main()
