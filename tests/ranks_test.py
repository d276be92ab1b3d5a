"""Meshes of several processes that mpirun starts: results and communicated bytes equal those of
threads, arrays are read in parts, and a fault of one rank ends all of them."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / os.environ.get("HALIAX_BUILD", "build")
CACHE = os.environ.get("HALIAX_CACHE", str(BUILD / "kernels"))   # compiled kernels of cuda-sim
WITHOUT = (None if (BUILD / "libhaliax_mpi.so").exists() and shutil.which("mpirun")
           else "MPI is not installed")


def run(count, *words, program="tests/ranks", **variables):
    """Returns the exit status of mpirun, the output of the ranks, and the time in seconds."""
    began = time.time()
    done = subprocess.run(
        ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(count),
         str(BUILD / program), *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
        env={**os.environ, "HALIAX_THREADS": "1", "HALIAX_CACHE": CACHE, **variables})
    return done.returncode, done.stdout, time.time() - began


def faulty(test, how, *, names, within=30, **variables):
    """Runs a fault of rank 1. All other ranks must end with an error that names it."""
    status, output, seconds = run(4, "fault", how, **variables)
    test.assertNotEqual(status, 0, output)
    test.assertNotIn("nothing went wrong", output)
    test.assertLess(seconds, within, output)
    for name in names:
        test.assertRegex(output, name)
    return output


@unittest.skipIf(WITHOUT, WITHOUT)
class Ranks(unittest.TestCase):
    def none_wrong(self, what, *cases):
        """Runs a check of tests/ranks. Cases: backend, ranks, devices of a rank."""
        for backend, count, devices in cases:
            with self.subTest(backend=backend, ranks=count, devices=devices):
                status, output, _ = run(count, what, HALIAX_DEVICES=str(devices),
                                        HALIAX_VERIFY="1", HALIAX_BACKEND=backend)
                self.assertEqual(status, 0, output)
                self.assertEqual(output.count(": 0 wrong"), count, output)

    def test_results_and_bytes_equal_those_of_threads(self):
        self.none_wrong("traffic", ("cpu", 2, 1), ("cpu", 4, 1), ("cpu", 3, 1), ("cpu", 2, 2))

    def test_gpt2_has_the_losses_of_haliax_and_the_results_of_threads(self):
        status, output, _ = run(2, str(ROOT / "tests/golden"), "--ranks", program="tests/golden")
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"^[1-9]\d* passed, 0 failed, 0 skipped")

    def test_results_and_bytes_on_devices_with_separate_memory(self):
        self.none_wrong("traffic", ("cuda-sim", 2, 1), ("cuda-sim", 4, 1), ("cuda-sim", 2, 2),
                        ("separate-memory", 2, 1))

    def test_experts_receive_the_rows_of_threads(self):
        self.none_wrong("experts", ("cpu", 2, 1), ("cpu", 4, 1), ("cpu", 2, 2), ("cuda-sim", 2, 1))

    def test_arrays_in_parts(self):
        status, output, _ = run(3, "arrays")
        self.assertEqual(status, 0, output)
        self.assertEqual(output.count("total"), 1, output)
        for k in range(3):
            self.assertIn(f"rank {k}: 7 of 7 right", output)
            self.assertRegex(
                output, rf"device {k} of rank {k}: .*batch={3 if k < 2 else 1}.* from \[{3 * k}\]")

    def test_a_rank_holds_little_memory_beyond_the_plan(self):
        status, output, _ = run(4, "memory")
        self.assertEqual(status, 0, output)
        held = [(float(a), float(b))
                for a, b in re.findall(r"planned ([\d.]+) MiB, held ([\d.]+) MiB", output)]
        self.assertEqual(len(held), 4, output)
        for planned, most in held:
            self.assertGreater(planned, 48, output)
            self.assertLess(most, planned + 40, output)

    def test_a_llama_has_the_losses_of_one_device_in_every_mode(self):
        status, output, _ = run(4, "--modes", "--steps", "10", "--batch", "4", "--pos", "16",
                                "--embed", "32", program="examples/llama")
        self.assertEqual(status, 0, output)
        rows = re.findall(
            r"^(all-reduce|reduce-scatter), (again|kept)(, overlapped)? .* ([\d.e-]+)$", output,
            re.M)
        self.assertEqual(len(rows), 8, output)   # only one rank prints
        self.assertTrue(all(float(row[3]) <= 1e-5 for row in rows), output)

    def train(self, folder, steps, *words, ranks=2):
        text = folder / "text.txt"
        text.write_text("to be or not to be, that is the question. " * 400)
        return run(ranks, "train", str(text), "--steps", str(steps), "--layers", "1",
                   "--embed", "32", "--seq", "16", "--tokens", "0", "--curve", "", *words,
                   program="examples/gpt2")

    def test_a_resumed_training_run_is_bitwise_identical(self):
        with tempfile.TemporaryDirectory() as at:
            folder = pathlib.Path(at)
            saved = {}
            for name in "straight", "resumed":
                status, output, _ = self.train(folder, 12, "--mesh", "data=2",
                                               "--checkpoint", f"{folder}/{name}", "--every", "6",
                                               "--resume", "--save", f"{folder}/{name}.safetensors")
                self.assertEqual(status, 0, output)
                self.assertEqual(output.count("parameters"), 1, output)   # only one rank prints
                saved[name] = (folder / f"{name}.safetensors").read_bytes()
                if name == "straight":
                    shutil.copytree(folder / "straight/step-00000006",
                                    folder / "resumed/step-00000006")
            self.assertIn("resumed after step 6", output)
            self.assertTrue(saved["straight"] == saved["resumed"])
            files = sorted(f.name for f in (folder / "straight/step-00000012").iterdir())
            self.assertEqual(files, ["manifest.json", "state-00001-of-00002.safetensors",
                                     "state-00002-of-00002.safetensors"])
            status, output, _ = self.train(folder, 14, "--mesh", "data=2,model=2",
                                           "--checkpoint", f"{folder}/resumed", "--resume", ranks=4)
            self.assertEqual(status, 0, output)
            self.assertIn("resumed after step 12", output)
            self.assertGreater(float(re.search(r"losses: +([\d.]+)", output)[1]), 0)

    def test_two_checkpoints_are_written_concurrently(self):
        with tempfile.TemporaryDirectory() as folder:
            status, output, _ = run(3, "folders", folder, HALIAX_PATIENCE="10")
            self.assertEqual(status, 0, output)
            self.assertEqual(output.count("[10, 11, 12] and [10, 11, 12] are there"), 3, output)

    def check_termination(self, signals_mpirun):
        """Sends a signal to mpirun or to one rank. All ranks must save a checkpoint and end."""
        with tempfile.TemporaryDirectory() as at:
            folder = pathlib.Path(at)
            (folder / "text.txt").write_text("to be or not to be. " * 400)
            words = [str(BUILD / "examples/gpt2"), "train", str(folder / "text.txt"),
                     "--steps", "100000", "--layers", "1", "--embed", "32", "--seq", "16",
                     "--tokens", "0", "--curve", "", "--mesh", "data=2",
                     "--checkpoint", f"{folder}/run", "--every", "5"]
            job = subprocess.Popen(
                ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", *words],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**os.environ, "HALIAX_THREADS": "1"})
            while not list(folder.glob("run/step-*")) and job.poll() is None:
                time.sleep(0.05)
            if signals_mpirun:
                job.send_signal(signal.SIGUSR1)   # mpirun forwards it and waits
            else:
                ranks = subprocess.run(["pgrep", "-P", str(job.pid)], stdout=subprocess.PIPE,
                                       text=True).stdout.split()
                os.kill(int(ranks[-1]), signal.SIGTERM)
            output, _ = job.communicate(timeout=60)
            stopped = re.search(r"stopped by signal \d+ after step (\d+)", output)
            self.assertTrue(stopped, output)
            saved = folder / f"run/step-{int(stopped[1]):08}/manifest.json"
            self.assertTrue(saved.exists(), output)

    def test_all_ranks_save_if_one_is_terminated(self):
        self.check_termination(False)

    def test_all_ranks_save_at_a_signal_of_the_scheduler(self):
        self.check_termination(True)

    def test_a_rank_that_raises_exits_or_makes_another_call(self):
        for how, message in (("raises", "rank 1 has ended, but rank 0 waits"),
                             ("ends", "rank 1 has ended, but rank 0 waits"),
                             ("reads", "different call than rank|wait for each other"),
                             ("opens", "different call than rank|wait for each other"),
                             ("calls", "different call than rank|wait for each other")):
            with self.subTest(how):
                output = faulty(self, how, names=[message])
                self.assertGreaterEqual(len(re.findall(r"^rank [0-3]: \[ranks\]", output, re.M)), 3,
                                        output)

    def test_a_rank_that_is_killed_or_stopped(self):
        faulty(self, "killed", names=["rank 1 with PID .* signal 9|rank 1 has not responded"])
        faulty(self, "stopped", names=["rank 0: .*rank 1 has not responded for 4",
                                       "rank 2: .*rank 1 has not responded",
                                       "rank 3: .*rank 1 has not responded"], HALIAX_PATIENCE="4")

    def test_ranks_with_different_programs_or_environments(self):
        for difference, message in (
                ("mesh", "rank 1 differs in mesh from rank 0: model=2, not data=2"),
                ("mapping", "differs in arguments"), ("dtype", "differs in arguments"),
                ("program", "differs in plan"),
                ("environment", "differs in environment from rank 0: HALIAX_SCORES=1000 "
                                ".*, not HALIAX_VERIFY=0;")):
            with self.subTest(difference):
                status, output, seconds = run(2, "differs", difference, HALIAX_VERIFY="0")
                self.assertNotEqual(status, 0, output)
                reports = re.findall(rf"^rank [01]: \[ranks\] .*{message}", output, re.M)
                self.assertEqual(len(reports), 2, output)
                self.assertLess(seconds, 20)

    def test_invalid_environment_variables(self):
        status, output, _ = run(2, "arrays", HALIAX_PLUGINS="/none", HALIAX_RANKS="pvm")
        self.assertIn("HALIAX_RANKS is pvm; it must be mpi or none", output)
        status, output, _ = run(3, "arrays", HALIAX_DEVICES="2", HALIAX_PATIENCE="soon")
        self.assertIn("HALIAX_PATIENCE is soon; it must be a number from 0 to 86400", output)
        status, output, _ = run(2, "arrays", HALIAX_RANKS="none", HALIAX_DEVICES="2")
        # without ranks, each process computes alone
        self.assertEqual((status, output.count("total 10")), (0, 2), output)


if __name__ == "__main__":
    unittest.main()
