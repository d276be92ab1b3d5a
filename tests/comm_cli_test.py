"""Invalid options of build/tools/comm: the exit status and the error message."""
import os
import pathlib
import subprocess
import unittest

TOOL = pathlib.Path(__file__).resolve().parent.parent / "build/tools/comm"


@unittest.skipUnless(TOOL.exists(), "tools/build tools/comm")
class CommandLine(unittest.TestCase):
    def check_rejected(self, options, *parts):
        done = subprocess.run([TOOL, *options.split()], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout), (2, ""), options)
        for part in parts:
            self.assertIn(part, done.stderr)

    def test_invalid_patterns(self):
        self.check_rejected("--only (", "--only '('", "not a regular expression")
        self.check_rejected("--only nosuch", "no program matches --only 'nosuch'")
        self.check_rejected("--losses 1 --only ^mlp_dp$", "no program that trains matches")

    def test_invalid_sizes(self):
        for option in ("--batch", "--position", "--embed", "--mlp", "--heads", "--head-size",
                       "--vocab", "--layers"):
            for size in ("0", "-3", "many", "1.5"):
                self.check_rejected(f"{option} {size}", option)
        self.check_rejected("--losses -1", "--losses")
        self.check_rejected("--nosuch", "--nosuch")

    def test_invalid_numbers_of_devices(self):
        for count in ("eight", "0", "-2", "8x", "99999999999"):
            options = "--only ^gpt2_dp$ --losses 1 --batch 8 --position 8 --embed 16 --mlp 16"
            done = subprocess.run([TOOL, *options.split()], stdout=subprocess.PIPE, text=True,
                                  env={**os.environ, "HALIAX_DEVICES": count})
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"HALIAX_DEVICES is {count}; it must be a number from 1", done.stdout)


if __name__ == "__main__":
    unittest.main()
