"""The CPU kernels for older processors, which the variable HALIAX_ISA selects."""
import os
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def golden(isa, *groups):
    return subprocess.run([ROOT / "build/tests/golden", ROOT / "tests/golden", *groups],
                          env={**os.environ, "HALIAX_ISA": isa}, capture_output=True, text=True)


class Isa(unittest.TestCase):
    def test_results_match_the_golden_files(self):
        for isa in ("avx2", "baseline"):
            with self.subTest(isa):
                done = golden(isa, "ops", "grads", "nn", "chunked")
                self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr)

    def test_an_invalid_value_is_rejected(self):
        done = golden("sse9", "nn")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("[environment] HALIAX_ISA is sse9; it must be amx, avx512, avx2 or baseline",
                      done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
