"""Meshes of several processes with a simulated GPU per device."""
import re
import unittest

from ranks_test import ROOT, WITHOUT, faulty, run

SIMULATED_GPUS = {"HALIAX_BACKEND": "cuda-sim"}


@unittest.skipIf(WITHOUT, WITHOUT)
class RanksWithGpus(unittest.TestCase):
    def test_gpt2_on_a_gpu_per_rank(self):
        for count in 2, 4:
            status, output, _ = run(count, str(ROOT / "tests/golden"), "--ranks",
                                    "--backend", "cuda-sim", "--case", "gpt2-untied",
                                    program="tests/golden")
            self.assertEqual(status, 0, output)
            self.assertRegex(output, r"^1 passed, 0 failed, 0 skipped")

    def test_each_rank_uses_gpus_of_its_own(self):
        for devices in "1", "2":
            status, output, _ = run(2, "cards", "own", HALIAX_DEVICES=devices, **SIMULATED_GPUS)
            self.assertEqual((status, output.count("nothing went wrong")), (0, 2), output)
        for layout, devices, message in (
                ("same", "1", "3 ranks, but 1 GPU:"),
                ("same", "2", "3 ranks with 2 devices each, but 2 GPUs:"),
                ("few", "2", "3 ranks with 2 devices each, but 3 GPUs:")):
            status, output, _ = run(3, "cards", layout, HALIAX_DEVICES=devices, **SIMULATED_GPUS)
            self.assertNotEqual(status, 0, output)
            # each rank reports this error, or that a faster rank has failed
            reports = re.findall(rf"^rank [0-2]: (?:\[ranks\] rank [0-2] .* has failed: .*)?"
                                 rf"\[cuda-sim\] host \S+ has {message} .*; start fewer "
                                 r"ranks .*CUDA_VISIBLE_DEVICES", output, re.M)
            self.assertEqual(len(reports), 3, output)

    def test_a_rank_that_fails_while_others_wait_for_their_gpus(self):
        """The other ranks wait for their GPUs, not for messages, and still receive the error."""
        others = [f"(?m)^rank {r}: .*rank 1 " for r in (0, 2, 3)]
        # mpirun does not stop the other ranks
        _, output, seconds = run(4, "fault", "killed", OMPI_MCA_orte_enable_recovery="1",
                                 **SIMULATED_GPUS)
        self.assertLess(seconds, 30, output)
        for other in others:
            self.assertRegex(output, other + "has exited")
        for how, message in (("stopped", "has not responded for 4"),
                             ("ends", "has ended, but rank")):
            with self.subTest(how):
                faulty(self, how, names=[other + message for other in others], HALIAX_PATIENCE="4",
                       **SIMULATED_GPUS)
        for how in "reads", "calls":
            with self.subTest(how):
                faulty(self, how, names=[
                    rf"(?m)^rank {r}: .*rank \d makes a different call than rank \d: one is at "
                    for r in range(4)], **SIMULATED_GPUS)

    def test_a_gpu_that_fails_stops_all_ranks(self):
        output = faulty(self, "card",
                        names=["(?m)^rank 1: .*device 1 has failed.*: a planted fault"],
                        HALIAX_PATIENCE="10", **SIMULATED_GPUS)
        self.assertEqual(len(re.findall(r"^rank [023]: .*rank 1 has failed: .*a planted fault",
                                        output, re.M)), 3, output)


if __name__ == "__main__":
    unittest.main()
