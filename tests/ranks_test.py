"""Meshes of several processes, as mpirun starts them: the bits and bytes of threads, arrays in parts, and faults of one of them."""
import os
import pathlib
import re
import shutil
import subprocess
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / os.environ.get("HALIAX_BUILD", "build")
WITHOUT = None if (BUILD / "libhaliax_mpi.so").exists() and shutil.which("mpirun") else "MPI is not here"


def run(count, *words, program="tests/ranks", **variables):
    """The status of mpirun, what the ranks said, and how many seconds it took."""
    begin = time.time()
    done = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(count), str(BUILD / program), *words],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
                          env={**os.environ, "HALIAX_THREADS": "1", **variables})
    return done.returncode, done.stdout, time.time() - begin


@unittest.skipIf(WITHOUT, WITHOUT)
class Ranks(unittest.TestCase):
    def test_bits_and_bytes_are_those_of_threads(self):
        for count, devices in ((2, 1), (4, 1), (3, 1), (2, 2)):
            with self.subTest(ranks=count, devices=devices):
                status, said, _ = run(count, "traffic", HALIAX_DEVICES=str(devices), HALIAX_VERIFY="1")
                self.assertEqual(status, 0, said)
                self.assertEqual(said.count(": 0 wrong"), count, said)

    def test_gpt2_has_the_losses_of_haliax_and_the_bits_of_threads(self):
        status, said, _ = run(2, str(ROOT / "tests/golden"), "--ranks", program="tests/golden")
        self.assertEqual(status, 0, said)
        self.assertRegex(said, r"^[1-9]\d* passed, 0 failed, 0 skipped")

    def test_arrays_in_parts(self):
        status, said, _ = run(3, "arrays")
        self.assertEqual(status, 0, said)
        self.assertEqual(said.count("total"), 1, said)
        for k in range(3):
            self.assertIn(f"rank {k}: 7 of 7 right", said)
            self.assertRegex(said, rf"device {k} of rank {k}: .*batch={3 if k < 2 else 1}.* from \[{3 * k}\]")

    def faulty(self, how, *, names, within=30, **variables):
        """All ranks but the second end with an error that names it."""
        status, said, took = run(4, "fault", how, **variables)
        self.assertNotEqual(status, 0, said)
        self.assertNotIn("nothing went wrong", said)
        self.assertLess(took, within, said)
        for name in names:
            self.assertRegex(said, name)
        return said

    def test_a_rank_that_raises_ends_or_does_something_else(self):
        for how, says in (("raises", "rank 1 has ended, and rank 0 waits"), ("ends", "rank 1 has ended, and rank 0 waits"),
                          ("reads", "another call than rank|wait for each other"), ("calls", "another call than rank|wait for each other")):
            with self.subTest(how):
                said = self.faulty(how, names=[says])
                self.assertGreaterEqual(len(re.findall(r"^rank [0-3]: \[ranks\]", said, re.M)), 3, said)

    def test_a_rank_that_is_killed_or_stands_still(self):
        self.faulty("killed", names=["rank 1 with PID .* signal 9|rank 1 has said nothing"])
        self.faulty("stopped", names=["rank 0: .*rank 1 has said nothing for 4", "rank 2: .*rank 1 has said", "rank 3: .*rank 1 has said"],
                    HALIAX_PATIENCE="4")

    def test_ranks_that_do_not_mean_the_same(self):
        for what, says in (("mesh", "rank 1 has another mesh than rank 0: model=2, and not data=2"), ("mapping", "another arguments"),
                           ("dtype", "another arguments"), ("program", "another plan")):
            with self.subTest(what):
                status, said, took = run(2, "differs", what)
                self.assertNotEqual(status, 0, said)
                self.assertEqual(len(re.findall(rf"^rank [01]: \[ranks\] .*{says}", said, re.M)), 2, said)
                self.assertLess(took, 20)

    def test_what_is_asked_for_and_is_not_there(self):
        status, said, _ = run(2, "arrays", HALIAX_PLUGINS="/none", HALIAX_RANKS="pvm")
        self.assertIn("HALIAX_RANKS is pvm; it must be mpi or none", said)
        status, said, _ = run(3, "arrays", HALIAX_DEVICES="2", HALIAX_PATIENCE="soon")
        self.assertIn("HALIAX_PATIENCE is soon; it must be a number from 0 to 86400", said)
        status, said, _ = run(2, "arrays", HALIAX_RANKS="none", HALIAX_DEVICES="2")
        self.assertEqual((status, said.count("total 10")), (0, 2), said)   # each by itself


if __name__ == "__main__":
    unittest.main()
