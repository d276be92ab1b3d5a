"""Meshes of several processes with a simulated GPU per device."""
import re
import unittest

from ranks_test import ROOT, WITHOUT, faulty, run

SIMULATED_GPUS = {"HALIAX_BACKEND": "cuda-sim"}


@unittest.skipIf(WITHOUT, WITHOUT)
class RanksWithGpus(unittest.TestCase):
    def test_gpt2_on_a_gpu_per_rank(self):
        for count in 2, 4:
            status, said, _ = run(count, str(ROOT / "tests/golden"), "--ranks",
                                  "--backend", "cuda-sim", "--case", "gpt2-untied",
                                  program="tests/golden")
            self.assertEqual(status, 0, said)
            self.assertRegex(said, r"^1 passed, 0 failed, 0 skipped")

    def test_each_rank_uses_gpus_of_its_own(self):
        for devices in "1", "2":
            status, said, _ = run(2, "cards", "own", HALIAX_DEVICES=devices, **SIMULATED_GPUS)
            self.assertEqual((status, said.count("nothing went wrong")), (0, 2), said)
        for cards, devices, says in (("same", "1", "3 ranks, but 1 GPU:"),
                                     ("same", "2", "3 ranks with 2 devices each, but 2 GPUs:"),
                                     ("few", "2", "3 ranks with 2 devices each, but 3 GPUs:")):
            status, said, _ = run(3, "cards", cards, HALIAX_DEVICES=devices, **SIMULATED_GPUS)
            self.assertNotEqual(status, 0, said)
            # each rank reports it, or that a faster rank has failed
            told = re.findall(rf"^rank [0-2]: (?:\[ranks\] rank [0-2] .* has failed: .*)?"
                              rf"\[cuda-sim\] host \S+ has {says} .*; start fewer "
                              r"ranks .*CUDA_VISIBLE_DEVICES", said, re.M)
            self.assertEqual(len(told), 3, said)

    def test_a_rank_with_a_gpu_that_fails(self):
        """The other ranks wait for their GPUs, not for messages, and still receive the error."""
        others = [f"(?m)^rank {r}: .*rank 1 " for r in (0, 2, 3)]
        # mpirun stops no rank
        _, said, took = run(4, "fault", "killed", OMPI_MCA_orte_enable_recovery="1",
                            **SIMULATED_GPUS)
        self.assertLess(took, 30, said)
        for other in others:
            self.assertRegex(said, other + "has exited")
        for how, says in (("stopped", "has not responded for 4"), ("ends", "has ended, but rank")):
            with self.subTest(how):
                faulty(self, how, names=[other + says for other in others], HALIAX_PATIENCE="4",
                            **SIMULATED_GPUS)
        for how in "reads", "calls":
            with self.subTest(how):
                faulty(self, how, names=[
                    rf"(?m)^rank {r}: .*rank \d makes a different call than rank \d: one is at "
                    for r in range(4)], **SIMULATED_GPUS)

    def test_a_gpu_that_fails_stops_all_ranks(self):
        said = faulty(self, "card",
                      names=["(?m)^rank 1: .*device 1 has failed.*: a planted fault"],
                      HALIAX_PATIENCE="10", **SIMULATED_GPUS)
        self.assertEqual(len(re.findall(r"^rank [023]: .*rank 1 has failed: .*a planted fault",
                                        said, re.M)), 3, said)


if __name__ == "__main__":
    unittest.main()
