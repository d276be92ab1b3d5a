"""Checks that `tools/compare --all` can run every op: tools/peers/ops_table.py has an expression or
a reason for each entry of tests/ops."""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools/peers"))
sys.dont_write_bytecode = True
import compare_ops   # noqa: E402
import ops_table   # noqa: E402


def entries():
    """Returns the names of the entries, without those of primitives that have no public op."""
    files = sorted((ROOT / "tests/ops").glob("ops_entries_*.cpp"))
    names = re.findall(r'^      \{"([^"]+)",', "".join(map(pathlib.Path.read_text, files)),
                       re.MULTILINE)
    return {name for name in names if not name.startswith("prim ")}


class Peers(unittest.TestCase):
    def test_every_entry_has_an_expression_or_a_reason(self):
        self.assertGreater(len(entries()), 200)
        listed = set(ops_table.OPS) | set(ops_table.EXCEPTIONS)
        self.assertEqual(entries() - listed, set(), "add a row to tools/peers/ops_table.py")
        self.assertEqual(listed - entries(), set(), "no entry has this name")
        self.assertEqual(set(ops_table.OPS) & set(ops_table.EXCEPTIONS), set())
        for name, reason in ops_table.EXCEPTIONS.items():
            self.assertGreater(len(reason), 10, name)

    def test_expressions_are_python_and_name_no_other_library(self):
        for name, spelling in ops_table.OPS.items():
            self.assertEqual(len(spelling), 2, name)
            for text, other in zip(spelling, (r"\b(torch|F)\.", r"\b(jnp|jax)\.")):
                if text is not None:
                    compile(text, name, "eval")
                    self.assertNotRegex(text, other, name)

    def test_a_ratio_is_the_time_of_the_faster_peer_over_ours(self):
        self.assertEqual(compare_ops.ratio({"ours": 2.0, "torch": 3.0, "jax": 4.0}), 1.5)
        self.assertEqual(compare_ops.ratio({"ours": 2.0, "jax": 1.0}), 0.5)
        self.assertIsNone(compare_ops.ratio({"ours": 2.0}))


if __name__ == "__main__":
    unittest.main()
