"""The pages of Get started that a new user follows: their files are written, their commands run,
and their outputs compared."""
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


def alike(shown, printed):
    """True if the words are equal and each number differs by at most 30 %: losses depend on the
    machine and on the text."""
    def value(number):
        return float(number.replace(",", ""))
    numbers = zip(NUMBER.findall(shown), NUMBER.findall(printed))
    return (NUMBER.sub("#", shown) == NUMBER.sub("#", printed) and
            all(abs(value(a) - value(b)) <= 0.3 * value(a) for a, b in numbers))


class Walk:
    """One shell from the first block to the last: each block starts in the folder in which the one
    before it ended."""

    def __init__(self, home):
        self.home = self.folder = pathlib.Path(home)
        self.files, self.printed = {}, []

    def write(self, code):
        """Writes the file that the first line names, or appends to the file of the block before."""
        named = re.match(r"(?://|#) (\w+\.\w+)", code)
        if named:
            self.last = self.folder / named[1]
            self.last.write_text(code)
        else:
            self.last.write_text(self.last.read_text() + "\n" + code)

    def change(self, diff):
        name = re.match(r"--- (\w+\.\w+)\n", diff)[1]
        lines = diff.splitlines(keepends=True)[1:]
        was, now = ("".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        text = (self.folder / name).read_text()
        if text.count(was) != 1:
            raise AssertionError(f"{name} has {text.count(was)} of\n{was}")
        (self.folder / name).write_text(text.replace(was, now))

    def run(self, commands):
        if commands.startswith("tools/install "):
            return   # done once for all pages
        script = f"set -euo pipefail\n{commands}\npwd >{self.home}/here"
        done = subprocess.run(["bash", "-c", script], cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True,
                              # a model that has trained for seconds samples any byte
                              errors="replace", env=dict(os.environ, HOME=str(self.home)))
        if done.returncode:
            raise AssertionError(f"{commands}{done.stdout}")
        self.folder = pathlib.Path((self.home / "here").read_text().strip())
        self.printed = done.stdout.splitlines()

    def compare(self, shown):
        printed = iter(self.printed)
        for line in shown.splitlines():
            if not any(alike(line, p) for p in printed):
                raise AssertionError(f"the page shows\n{shown}\nand this is printed\n"
                                     + "\n".join(self.printed))

    def follow(self, page):
        """Does all that the page shows, in order; returns the kinds of its blocks."""
        found = re.findall(r"```(\w+)\n(.*?)```", page.read_text(), re.DOTALL)
        for kind, block in found:
            {"cpp": self.write, "cmake": self.write, "diff": self.change, "sh": self.run,
             "text": self.compare}[kind](block)
        return [kind for kind, _ in found]


@unittest.skipUnless(LIBRARY.exists(), "build/ has no shared library: tools/build")
@unittest.skipUnless(shutil.which("cmake"), "there is no cmake: tools/setup --tests installs it")
class GetStarted(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        home = tempfile.TemporaryDirectory()
        cls.addClassCleanup(home.cleanup)
        cls.home = home.name
        prefix, _ = install(home.name + "/made")
        prefix.rename(pathlib.Path(home.name) / "haliax")

    def test_the_tutorial_prints_the_outputs_of_the_page(self):
        walk = Walk(self.home)
        kinds = walk.follow(TUTORIAL)
        self.assertGreater(min(map(kinds.count, ("cpp", "sh", "text", "diff"))), 2)
        self.assertIn("<polyline", (walk.folder / "loss.svg").read_text())

    def test_the_quick_start_prints_the_outputs_of_the_page(self):
        kinds = Walk(self.home).follow(QUICK_START)
        self.assertGreater(min(map(kinds.count, ("cpp", "sh", "text"))), 1)


if __name__ == "__main__":
    unittest.main()
