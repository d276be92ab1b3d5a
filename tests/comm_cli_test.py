"""build/tools/comm: what is said about options that make no sense."""
import os
import pathlib
import subprocess
import unittest

TOOL = pathlib.Path(__file__).resolve().parent.parent / "build/tools/comm"


@unittest.skipUnless(TOOL.exists(), "tools/build tools/comm")
class CommandLine(unittest.TestCase):
    def refused(self, options, *words):
        done = subprocess.run([TOOL, *options.split()], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout), (2, ""), options)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_patterns(self):
        self.refused("--only (", "--only '('", "not a regular expression")
        self.refused("--only nosuch", "no program matches --only 'nosuch'")
        self.refused("--losses 1 --only ^mlp_dp$", "no program that trains matches")

    def test_sizes(self):
        for option in ("--batch", "--position", "--embed", "--mlp", "--heads", "--head-size",
                       "--vocab", "--layers"):
            for size in ("0", "-3", "many", "1.5"):
                self.refused(f"{option} {size}", option)
        self.refused("--losses -1", "--losses")
        self.refused("--nosuch", "--nosuch")

    def test_the_number_of_devices_is_a_number(self):
        for text in ("eight", "0", "-2", "8x", "99999999999"):
            options = "--only ^gpt2_dp$ --losses 1 --batch 8 --position 8 --embed 16 --mlp 16"
            done = subprocess.run([TOOL, *options.split()], stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "HALIAX_DEVICES": text})
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"HALIAX_DEVICES is {text}; it must be a number from 1", done.stdout)


if __name__ == "__main__":
    unittest.main()
