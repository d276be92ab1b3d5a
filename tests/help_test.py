"""Programs and scripts print their usage with --help, exit with 0, and do nothing else."""
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / os.environ.get("HALIAX_BUILD", "build")


def scripts():
    return sorted(file for file in (ROOT / "tools").iterdir()
                  if file.is_file() and file.read_bytes().startswith(b"#!"))


def programs():
    """Returns the programs that are built."""
    files = [BUILD / "tests/golden"]
    for folder in ("examples", "bench", "tools"):
        files += sorted((BUILD / folder).glob("*"))
    return [file for file in files
            if file.is_file() and not file.suffix and os.access(file, os.X_OK)]


class Help(unittest.TestCase):
    def prints_usage(self, file):
        with self.subTest(file.name), tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([file, "--help"], cwd=folder, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=30)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertRegex(done.stdout, rf"(?m)^[Uu]sage: (\S*/)?{file.name}\b")
            self.assertEqual(os.listdir(folder), [])

    def test_scripts_print_their_usage(self):
        self.assertGreater(len(scripts()), 10)
        for file in scripts():
            self.prints_usage(file)

    @unittest.skipUnless(programs(), "no program is built")
    def test_programs_print_their_usage(self):
        for file in programs():
            self.prints_usage(file)


if __name__ == "__main__":
    unittest.main()
