"""Follows the pages docs/get-started/tutorial.md and quick-start.md as a new user: writes their
files, runs their commands, and compares the outputs with those of the pages."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from consumer_test import LIBRARY, ROOT, install

TUTORIAL, QUICK_START = (ROOT / "docs/get-started/tutorial.md",
                         ROOT / "docs/get-started/quick-start.md")
NUMBER = re.compile(r"\d[\d,]*\.?\d*")
LOCATION = re.compile(r"\w+\.cpp:\d+")


def matches(shown, printed):
    """True if the words and the source locations are equal and each other number differs by at most
    30 %: losses depend on the machine and on the text."""
    def value(number):
        return float(number.replace(",", ""))
    numbers = zip(NUMBER.findall(shown), NUMBER.findall(printed))
    return (NUMBER.sub("#", shown) == NUMBER.sub("#", printed) and
            LOCATION.findall(shown) == LOCATION.findall(printed) and
            all(abs(value(a) - value(b)) <= 0.3 * value(a) for a, b in numbers))


class Session:
    """Executes the blocks of a page in order. Each block starts in the folder in which the previous
    block ended."""

    def __init__(self, home):
        self.home = self.folder = pathlib.Path(home)
        self.files, self.printed = {}, []

    def write(self, code):
        """Writes the file that the first line names. Without a name, appends to the last file."""
        named = re.match(r"(?://|#) (\w+\.\w+)", code)
        if named:
            self.last = self.folder / named[1]
            self.last.write_text(code)
        else:
            self.last.write_text(self.last.read_text() + "\n" + code)

    def change(self, diff):
        """Applies a diff to the file that its first line names."""
        name = re.match(r"--- (\w+\.\w+)\n", diff)[1]
        lines = diff.splitlines(keepends=True)[1:]
        old, new = ("".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        text = (self.folder / name).read_text()
        if text.count(old) != 1:
            raise AssertionError(f"{name} must contain these lines once, but has them "
                                 f"{text.count(old)} times:\n{old}")
        (self.folder / name).write_text(text.replace(old, new))

    def run(self, commands):
        """Runs shell commands in the current folder. Raises AssertionError if one fails."""
        if commands.startswith("tools/install "):
            return   # setUpClass has installed the library
        script = f"set -euo pipefail\n{commands}\npwd >{self.home}/here"
        done = subprocess.run(["bash", "-c", script], cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True,
                              # a briefly trained model samples invalid UTF-8
                              errors="replace", env=dict(os.environ, HOME=str(self.home)))
        if done.returncode:
            raise AssertionError(f"{commands}{done.stdout}")
        self.folder = pathlib.Path((self.home / "here").read_text().strip())
        self.printed = done.stdout.splitlines()

    def compare(self, shown):
        """Checks that the last commands printed the lines of the page, in order."""
        printed = iter(self.printed)
        for line in shown.splitlines():
            if not any(matches(line, p) for p in printed):
                raise AssertionError(f"the page shows\n{shown}\nbut the commands print\n"
                                     + "\n".join(self.printed))

    def follow(self, page):
        """Executes all blocks of the page in order. Returns the kinds of the blocks."""
        found = re.findall(r"```(\w+)\n(.*?)```", page.read_text(), re.DOTALL)
        for kind, block in found:
            {"cpp": self.write, "cmake": self.write, "diff": self.change, "sh": self.run,
             "text": self.compare}[kind](block)
        return [kind for kind, _ in found]


@unittest.skipUnless(LIBRARY.exists(), "build/ has no shared library: tools/build")
@unittest.skipUnless(shutil.which("cmake"), "CMake is not installed: tools/setup --tests")
class GetStarted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        home = tempfile.TemporaryDirectory()
        cls.addClassCleanup(home.cleanup)
        cls.home = home.name
        prefix, _ = install(home.name + "/staging")
        prefix.rename(pathlib.Path(home.name) / "haliax")

    def test_the_tutorial_prints_the_outputs_that_it_shows(self):
        session = Session(self.home)
        kinds = session.follow(TUTORIAL)
        self.assertGreater(min(map(kinds.count, ("cpp", "sh", "text", "diff"))), 2)
        self.assertIn("<polyline", (session.folder / "loss.svg").read_text())

    def test_the_quick_start_prints_the_outputs_that_it_shows(self):
        kinds = Session(self.home).follow(QUICK_START)
        self.assertGreater(min(map(kinds.count, ("cpp", "sh", "text"))), 1)


if __name__ == "__main__":
    unittest.main()
