"""Checks the programs of tests/golden/comm, which build/tools/comm plans and runs on a mesh.

No program may communicate more bytes than the minimum of its sharding strategy, nor more bytes or
collectives than the same program compiled by XLA (tests/golden/comm/xla.jsonl). Training on the
mesh must yield the losses of one device.
"""
import functools
import json
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOL = ROOT / "build/tools/comm"
# Programs that may exceed their minimum: it does not count the gradients of replicated parameters,
# which these two programs reduce over the devices.
ABOVE_MINIMUM = {"gpt2_tp_seq", "gpt2_tp_seq_nofull"}
# Programs that issue more collectives than XLA to communicate fewer bytes: they reshard the ids,
# the table, its rows and their gradients. The values are the number of collectives that is allowed,
# and the share of XLA's bytes.
MORE_CALLS = {
    "embedding_vocab_sharded_batch_dp": (6, 0.39)}
# Programs that only move data. They communicate exactly the elements that a device lacks, also if
# sizes do not divide by the number of devices.
EXACT = {
    "reshard_axis_swap",
    "reshard_to_replicated",
    "reshard_mesh_axis_move_42",
    "reshard_tuple_to_single_42",
    "flatten_batch_pos_sharded_batch",
    "flatten_batch_pos_sharded_pos",
    "unflatten_heads_tp",
    "roll_sharded_axis",
    "shift_labels_concat",
    "pad_sharded_axis",
    "cumsum_sharded_axis",
}


@functools.cache   # two tests use the same sizes
def rows(*options):
    """Returns the rows that the tool prints with these options, as dictionaries."""
    done = subprocess.run([TOOL, *map(str, options)], stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@unittest.skipUnless(TOOL.exists(), "tools/build tools/comm")
class Comm(unittest.TestCase):
    def test_programs_communicate_the_minimum(self):
        found = rows()
        self.assertEqual(len(found), 70)
        xla = {}
        for line in (ROOT / "tests/golden/comm/xla.jsonl").read_text().splitlines():
            row = json.loads(line)
            xla.setdefault(row["program"], []).append(row)
        for row in found:
            with self.subTest(row["program"]):
                if row["program"] not in ABOVE_MINIMUM:
                    self.assertLessEqual(row["sent_bytes"], row["min_bytes"] * 1.01 + 64)
                best = min(xla[row["program"]], key=lambda r: (r["sent_bytes"], r["calls"]))
                calls, share = MORE_CALLS.get(row["program"], (best["calls"], 1))
                self.assertLessEqual(row["calls"], calls)
                self.assertLessEqual(row["sent_bytes"], best["sent_bytes"] * share)

    def test_regathered_weights_stay_within_their_minimum(self):
        for row in rows("--regather"):
            with self.subTest(row["program"]):
                self.assertLessEqual(row["sent_bytes"],
                                     row.get("min_regather_bytes", row["sent_bytes"]))

    def test_other_sizes_communicate_the_minimum(self):
        for sizes in (
            "--batch 8 --position 16",
            "--vocab 4096 --embed 64 --layers 5",
            "--batch 32 --heads 16 --vocab 512 --mlp 256",
            # Sizes that do not divide by the number of devices.
            "--batch 10 --vocab 64",
            "--batch 12 --position 20 --layers 1",
            "--batch 6 --embed 36 --vocab 101 --layers 1",
            "--batch 10 --position 12 --heads 3 --mlp 100 --layers 1",
            "--batch 6 --position 20 --embed 40 --heads 6 --vocab 50 --layers 3",
            # Tiny sizes: blocks of one row, and fewer examples than devices.
            "--batch 2 --position 4 --vocab 8",
            "--batch 8 --position 256 --embed 16 --mlp 64 --vocab 64 --layers 1 --head-size 8",
            "--batch 16 --position 4 --embed 8 --vocab 16 --mlp 20",
            "--batch 1024 --position 8 --embed 1 --mlp 8 --heads 4 --vocab 9 --head-size 3",
        ):
            found = rows(*sizes.split())
            self.assertEqual(len(found), 70)
            for row in found:
                with self.subTest(f"{row['program']} {sizes}"):
                    self.assertNotIn("error", row)
                    if row["program"] not in ABOVE_MINIMUM:
                        self.assertLessEqual(row["sent_bytes"], row["min_bytes"] * 1.01 + 64)
                    if row["program"] in EXACT:
                        self.assertEqual(row["sent_bytes"], row["min_bytes"])

    def test_retained_weights_communicate_no_more_than_regathered_ones(self):
        for sizes in ("--batch 2 --position 4 --vocab 8",
                      "--batch 4 --position 8 --embed 256 --layers 12 --mlp 1024"):
            regathered = {row["program"]: row for row in rows("--regather", *sizes.split())}
            for row in rows(*sizes.split()):
                with self.subTest(f"{row['program']} {sizes}"):
                    other = regathered[row["program"]]
                    self.assertLessEqual(row["sent_bytes"], other["sent_bytes"])

    def test_losses_match_one_device(self):
        even = "--batch 8 --position 8 --embed 16 --mlp 16 --heads 8 --head-size 2 --vocab 16"
        uneven = ("--batch 6 --position 10 --embed 12 --mlp 20 --heads 3 --head-size 2 "
                  "--vocab 21 --layers 1")
        for steps, sizes in ((20, even), (2, uneven)):
            found = rows("--losses", steps, *sizes.split())
            self.assertEqual(len(found), 24)
            for row in found:
                with self.subTest(f"{row['program']} {sizes}"):
                    self.assertEqual(len(row["losses"]), steps)
                    tolerance = 1e-2 if "bf16" in row["program"] else 1e-5
                    for got, want in zip(row["losses"], row["unsharded"]):
                        self.assertLessEqual(abs(got - want), tolerance * abs(want))


if __name__ == "__main__":
    unittest.main()
