"""Checks tools/gpu: a pack runs from its own folder, reports a missing GPU, and runs all its steps
on the simulated GPU."""
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


CASES = {   # the unit of a case, and the start of the name of its baseline
    "copy": ("GB/s", None), "gemm": ("TFLOP/s", "the bare call"), "fused": ("GB/s", "a copy"),
    "softmax": ("GB/s", "a copy"), "softmax_grad": ("GB/s", "a copy"),
    "layer_norm": ("GB/s", "a copy"), "layer_norm_grad": ("GB/s", "a copy"),
    "adamw": ("GB/s", "a copy"), "graph": ("us", None), "head": ("ms", None),
    "attention": ("TFLOP/s", None), "attention_both": ("TFLOP/s", None), "gpt2": ("tokens/s", None)}


def pack(folder):
    """Writes a small pack into the folder."""
    subprocess.run([ROOT / "tools/gpu", "--pack", folder, "--small"], check=True,
                   stdout=subprocess.DEVNULL)


# A program with the interface of bench/gpt2_torch.py, which needs no PyTorch.
STEPS = """import json, sys
print(json.dumps({"ready": "torch of this test, B=2", "tokens": 32}), flush=True)
for line in sys.stdin:
    print(json.dumps({"seconds": 0.5 * int(line)}), flush=True)
"""


def tool():
    """Returns the globals of tools/gpu."""
    names = {"__name__": "tool", "__file__": str(ROOT / "tools/gpu")}
    # not an import, because the file has no suffix .py
    exec(compile((ROOT / "tools/gpu").read_text(), "tools/gpu", "exec"), names)
    return names


class WithoutBuild(unittest.TestCase):
    def test_a_pack_has_all_golden_files(self):
        names = tool()
        expected = {f.name for f in (ROOT / "tests/golden").iterdir()
                 if f.suffix in (".json", ".safetensors")} - {"errors.json"}
        self.assertEqual({f.name for f in names["golden_files"](names["GROUPS"])}, expected)
        self.assertEqual([f.name for f in names["golden_files"](["nn"])],
                         ["nn.json", "nn.safetensors"])

    def test_reports_contain_no_paths_of_the_machine(self):
        folder = pathlib.Path("/tmp/made")
        run = tool()["Run"](folder, folder, None, True)
        for text, plain in (
                (" ".join(map(str, ["/opt/cuda/bin/checker", "--tool", "memcheck",
                                    folder / "lib/ld-linux-x.so.2", "--library-path",
                                    "/tmp/made/lib:/opt/cuda/lib64", folder / "bin/gpu", "bits"])),
                 "checker --tool memcheck ./bin/gpu bits"),
                ("golden: /tmp/made/golden/a.json is not there; at 5 TFLOP/s",
                 "golden: ./golden/a.json is not there; at 5 TFLOP/s"),
                ("failed (/usr/bin/python3 ended)", "failed (python3 ended)")):
            self.assertEqual(run.plain(text), plain)


@unittest.skipUnless((ROOT / "build/tests/golden").exists() and (ROOT / "build/bench/gpu").exists(),
                     "tools/build")
class Gpu(unittest.TestCase):
    def test_a_pack_reports_that_there_is_no_gpu(self):
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            pack(folder / "pack")
            size = sum(f.stat().st_size for f in (folder / "pack").iterdir())
            self.assertLess(size, 40 << 20)
            without = dict(os.environ, CUDA_VISIBLE_DEVICES="")
            done = subprocess.run([folder / "pack/gpu", "--run"], env=without,
                                  stdout=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 77)
            self.assertIn("nothing is run: ", done.stdout)
            self.assertFalse((folder / "pack/bench").exists())
            # The programs of the pack need only the libraries and the data of the pack.
            with tarfile.open(folder / "pack/all.tar.gz") as tar:
                tar.extractall(folder / "extracted")
            extracted = folder / "extracted"
            loader = next((extracted / "lib").glob("ld-linux*"))
            command = [loader, "--inhibit-cache", "--library-path", extracted / "lib",
                       extracted / "bin/golden", extracted / "golden", "random"]
            output = subprocess.run([*command, "--backend", "cpu", "--case", "uniform"], env={},
                                    stdout=subprocess.PIPE, text=True).stdout
            self.assertRegex(output, r"[1-9]\d* passed, 0 failed")

    def test_all_steps_run_on_the_simulated_gpu(self):
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            pack(folder)
            command = [sys.executable, folder / "gpu", "--rehearse", "--out", folder / "out",
                       "--python", folder / "nothing"]
            code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
            written = json.loads(next((folder / "out").glob("simulated-*.json")).read_text())
            self.assertEqual(code, 0, written["steps"])
            self.assertEqual(sorted(written), ["card", "date", "steps", "table"])
            lines = {case: [line for line in written["table"] if line["case"] == case]
                     for case in CASES}
            for case, (unit, baseline) in CASES.items():
                # gemm: 6 shapes, with and without `tune`
                count = 6 * 2 if case == "gemm" else 1
                # each case is measured twice
                self.assertEqual(len(lines[case]), 2 * count, case)
                for line in lines[case]:
                    self.assertEqual((line["unit"], line["clock"]), (unit, "events"), line)
                    self.assertGreater(line["seconds"], 0, line)
                    self.assertGreaterEqual(line["spread"], 0, line)
                    self.assertEqual("ratio" in line, baseline is not None, line)
                    if baseline:
                        self.assertTrue(line["beside"]["what"].startswith(baseline), line)
                        self.assertGreater(line["beside"]["seconds"], 0, line)
            [losses] = [line for line in written["table"] if line["case"] == "losses"]
            self.assertLess(losses["furthest"], losses["limit"])
            self.assertLess(losses["last"], losses["first"])
            self.assertEqual([line["status"] for line in written["table"]
                              if line["case"] == "gpt2_torch"], ["not compared: no torch"])

    def test_steps_alternate_with_steps_of_another_program(self):
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            (folder / "gpt2_torch.py").write_text(STEPS)
            run = tool()["Run"](folder, folder, sys.executable, True)
            run.gpu = lambda *words: [ROOT / "build/bench/gpu", *words, "--backend", "cuda-sim"]
            status, lines = run.in_turns(sys.executable, 60)
            self.assertEqual((status, len(lines)), ("passed", 2))
            for line in lines:
                self.assertEqual(line["beside"]["seconds"], 0.5)
                self.assertAlmostEqual(line["ratio"], 0.5 / line["seconds"])   # both run 32 tokens
            (folder / "gpt2_torch.py").write_text("import time; time.sleep(100)")
            self.assertEqual(run.in_turns(sys.executable, 3), ("ended after 3 s", []))
            (folder / "gpt2_torch.py").write_text("raise SystemExit('it does not fit')")
            status, lines = run.in_turns(sys.executable, 60)
            self.assertRegex(status, r"^failed \(.* ended: it does not fit\)$")

    def test_a_missing_library_of_the_toolkit_is_named(self):
        loader = pathlib.Path("/lib64/ld-linux-x86-64.so.2")
        if not loader.exists():
            self.skipTest(f"{loader} does not exist")
        done = subprocess.run([loader, "--inhibit-cache", ROOT / "build/tests/backends", "-nv",
                               "-tc=*is missing is named"], capture_output=True, text=True)
        if "left out" in done.stdout:
            self.skipTest("the loader finds a toolkit without its cache")
        self.assertIn("1 passed | 0 failed", done.stdout, done.stdout + done.stderr)
        self.assertIn("assertions: 2", done.stdout)


if __name__ == "__main__":
    unittest.main()
