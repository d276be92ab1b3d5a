"""A short run of tools/crash_resume, and the checkpoints of examples/gpt2 after a signal."""
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
GPT2 = ROOT / "build/examples/gpt2"


@unittest.skipUnless(GPT2.exists(), "tools/build examples/gpt2")
class CrashResume(unittest.TestCase):
    def train(self, *more, **options):
        line = [GPT2, "train", ROOT / "README.md", "--layers", "1", "--embed", "16", "--seq", "16",
                "--batch", "2", "--tokens", "0", "--curve", "", *more]
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                **options)

    def test_killed_runs_resume(self):
        done = subprocess.run([ROOT / "tools/crash_resume", "--kills", "4", "--steps", "60"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertIn("the same weights each time", done.stdout)

    @unittest.skipUnless((ROOT / "build/libhaliax_mpi.so").exists() and shutil.which("mpirun"),
                         "MPI is not installed")
    def test_killed_ranks_resume(self):
        done = subprocess.run(
            [ROOT / "tools/crash_resume", "--ranks", "2", "--kills", "2", "--steps", "30"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertIn("the same weights each time", done.stdout)

    def test_a_signal_saves_a_checkpoint_and_ends_the_run(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with tempfile.TemporaryDirectory() as folder:
                options = ["--checkpoint", folder + "/run", "--every", "5",
                           "--keep", "2", "--resume"]
                with self.train("--steps", "1000000", *options) as run:
                    while not list(pathlib.Path(folder).glob("run/step-*")):
                        self.assertIsNone(run.poll())
                    run.send_signal(number)
                    out, error = run.communicate(timeout=60)
                self.assertEqual(run.returncode, 128 + number, error)
                stopped = f"stopped by signal {int(number)} after step "
                step = int(out.split(stopped)[1].split(";")[0])
                self.assertTrue((pathlib.Path(folder) / f"run/step-{step:08}").is_dir())
                self.assertLessEqual(len(list(pathlib.Path(folder).glob("run/step-*"))), 2)
                with self.train("--steps", str(step + 3), *options) as run:
                    out, error = run.communicate(timeout=60)
                self.assertIn(f"resumed after step {step}", out)
                self.assertIn(f"(step {step})", out)
                with self.train("--steps", "3", "--checkpoint", folder + "/run") as run:
                    self.assertIn(
                        f"has a checkpoint of step {step + 3}; continue from it with --resume",
                        run.communicate()[1])
                with self.train("--steps", "9", "--untied", *options) as run:
                    self.assertIn("3 arrays do not match:\n  model.lm_head.weight is missing",
                                  run.communicate()[1])


if __name__ == "__main__":
    unittest.main()
