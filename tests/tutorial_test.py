"""docs/tutorial.md as a new user walks it: its files are written, its commands run, and what they print is what it shows."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from consumer_test import LIBRARY, ROOT, install

PAGE = ROOT / "docs/tutorial.md"
NUMBER = re.compile(r"\d[\d,]*\.?\d*")


def alike(shown, printed):
    """The same words; numbers may differ by three tenths, as losses do between machines and texts."""
    def value(number):
        return float(number.replace(",", ""))
    numbers = zip(NUMBER.findall(shown), NUMBER.findall(printed))
    return (NUMBER.sub("#", shown) == NUMBER.sub("#", printed) and
            all(abs(value(a) - value(b)) <= 0.3 * value(a) for a, b in numbers))


class Walk:
    """One shell from the first block to the last: what a block leaves, the next one finds."""

    def __init__(self, home):
        self.home = self.folder = pathlib.Path(home)
        self.files, self.printed = {}, []

    def write(self, code):
        """A file that begins here, or what is added to the last one."""
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
        script = f"set -euo pipefail\n{commands}\npwd >{self.home}/here"
        done = subprocess.run(["bash", "-c", script], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace",   # a model that has seen little draws any byte
                              env=dict(os.environ, HOME=str(self.home)))
        if done.returncode:
            raise AssertionError(f"{commands}{done.stdout}")
        self.folder = pathlib.Path((self.home / "here").read_text().strip())
        self.printed = done.stdout.splitlines()

    def compare(self, shown):
        printed = iter(self.printed)
        for line in shown.splitlines():
            if not any(alike(line, p) for p in printed):
                raise AssertionError(f"the page shows\n{shown}\nand this is printed\n" + "\n".join(self.printed))


@unittest.skipUnless(LIBRARY.exists(), "build/ has no shared library: tools/build")
@unittest.skipUnless(shutil.which("cmake"), "there is no cmake: tools/setup --tests installs it")
class Tutorial(unittest.TestCase):
    def test_the_page_is_what_happens(self):
        with tempfile.TemporaryDirectory() as home:
            prefix, _ = install(home + "/made")
            walk = Walk(home)
            blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
            kinds = [kind for kind, _ in blocks]
            self.assertGreater(min(map(kinds.count, ("cpp", "sh", "text", "diff"))), 2)
            for kind, block in blocks:
                if block.startswith("tools/install "):
                    prefix.rename(pathlib.Path(home) / "haliax")
                else:
                    {"cpp": walk.write, "cmake": walk.write, "diff": walk.change, "sh": walk.run, "text": walk.compare}[kind](block)
            self.assertIn("<polyline", (walk.folder / "loss.svg").read_text())


if __name__ == "__main__":
    unittest.main()
