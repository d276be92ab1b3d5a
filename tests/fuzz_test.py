"""A short run of build/tools/fuzz, and random command lines of two programs."""
import os
import pathlib
import random
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FUZZ = ROOT / "build/tools/fuzz"
PROGRAMS = {"tools/comm": ["--only", "--losses", "--batch", "--position", "--embed", "--layers",
                           "--vocab", "--nosuch", "--help"],
            "examples/gpt2": ["train", "sample", "--tokens", "--threads", "--seconds", "--vocab",
                              "--lr", "--nosuch", "--help"]}
WORDS = ["", "0", "-1", "99999999999999999999", "1e400", "nan", "(", "--", "-", "\u00e9", "a=b",
         "x" * 5000, "../..", "%s%n"]


class Fuzz(unittest.TestCase):
    @unittest.skipUnless(FUZZ.exists(), "tools/build tools/fuzz")
    def test_random_inputs_are_accepted_or_raise(self):
        with tempfile.TemporaryDirectory() as keep:
            done = subprocess.run([FUZZ, "--runs", "1500", "--seconds", "2", "--keep", keep],
                                  cwd=ROOT, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, env={**os.environ, "HALIAX_VERIFY": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        ran = {line.split(":")[0] for line in done.stdout.splitlines()}
        self.assertEqual(ran, {"safetensors", "state_dict", "einsum", "rearrange", "policy", "mesh",
                               "ops"})
        self.assertEqual({f.name for f in (ROOT / "tests/fuzz").iterdir()} - ran, set())

    def test_random_command_lines_do_not_crash(self):
        choose = random.Random(1)
        for program, options in PROGRAMS.items():
            if not (ROOT / "build" / program).exists():
                continue
            for _ in range(12):
                line = ([choose.choice(options + WORDS) for _ in range(choose.randint(1, 4))]
                        + ["--nosuch"])   # invalid, so that nothing runs
                done = subprocess.run([ROOT / "build" / program, *line], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, timeout=20)
                self.assertIn(done.returncode, range(0, 126), (program, line, done.stderr))


if __name__ == "__main__":
    unittest.main()
