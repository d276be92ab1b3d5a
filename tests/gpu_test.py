"""tools/gpu: what is packed starts from its folder alone, and says so where there is no GPU."""
import os
import pathlib
import subprocess
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


@unittest.skipUnless((ROOT / "build/tests/golden").exists(), "tools/build tests/golden")
class Gpu(unittest.TestCase):
    def test_a_pack_runs_without_a_gpu_and_says_so(self):
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            subprocess.run([ROOT / "tools/gpu", "--pack", folder / "pack", "--small"], check=True, stdout=subprocess.DEVNULL)
            size = sum(f.stat().st_size for f in (folder / "pack").iterdir())
            self.assertLess(size, 40 << 20)
            without = dict(os.environ, CUDA_VISIBLE_DEVICES="")
            done = subprocess.run([folder / "pack/gpu", "--run"], env=without, stdout=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 77)
            self.assertIn("nothing is run: ", done.stdout)
            self.assertFalse((folder / "pack/bench").exists())
            # What it would run there starts with the libraries of the pack alone, and finds its data.
            with tarfile.open(folder / "pack/all.tar.gz") as tar:
                tar.extractall(folder / "there")
            there = folder / "there"
            loader = next((there / "lib").glob("ld-linux*"))
            command = [loader, "--inhibit-cache", "--library-path", there / "lib", there / "bin/golden", there / "golden", "random"]
            said = subprocess.run([*command, "--backend", "cpu", "--case", "uniform"], env={}, stdout=subprocess.PIPE, text=True).stdout
            self.assertRegex(said, r"[1-9]\d* passed, 0 failed")


if __name__ == "__main__":
    unittest.main()
