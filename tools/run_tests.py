#!/usr/bin/env python3
"""Runs every test of a build folder: run_tests.py BUILD [--filter WORD]. The last line is `N passed, N failed`."""
import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
DOCTEST = re.compile(r"\[doctest\] test cases:\s*\d+ \|\s*(\d+) passed \|\s*(\d+) failed")
GOLDEN = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$")


def run(command, summary):
    """Runs a test program, showing what it prints; returns (passed, failed) of its summary line."""
    environment = dict(os.environ, UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1",
                       ASAN_OPTIONS="detect_stack_use_after_return=1:strict_init_order=1")
    counts = None
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        for line in process.stdout:
            found = summary.search(line.rstrip())
            if found:
                counts = int(found[1]), int(found[2])
            print("    " + line, end="", flush=True)   # indented, so that only our own summary is the last line's form
    name, code = pathlib.Path(command[0]).name, process.returncode
    if counts is None:
        print(f"{name} ended without a summary ({ending(code)})")
        return 0, 1
    if code and not counts[1]:
        print(f"{name} reported no failure but ended with {ending(code)}")
        return counts[0], 1
    return counts


def ending(code):
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def scripts(word):
    """The Python tests: the direction of includes and the house rules."""
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{word}*"] if word else None
    suite = loader.discover(str(TESTS), pattern="*_test.py")
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=1).run(suite)
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    return result.testsRun - failed - len(result.skipped), failed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--filter", default="", metavar="WORD")
    options = parser.parse_args()
    build, word = (ROOT / options.build).resolve(), options.filter

    totals = []
    print("scripts", flush=True)
    totals.append(scripts(word))

    print("unit", flush=True)
    totals.append(run([str(build / "tests/unit"), "-nv"] + ([f"-tc=*{word}*"] if word else []), DOCTEST))

    golden = build / "tests/golden"
    groups = sorted(f.stem for f in (TESTS / "golden").glob("*.json"))
    chosen = [g for g in groups if word in g or word == "golden"]
    if (TESTS / "golden_runner").is_dir() and chosen:
        print("golden", flush=True)
        totals.append(run([str(golden), str(TESTS / "golden")] + ([] if chosen == groups else chosen), GOLDEN))

    passed, failed = (sum(column) for column in zip(*totals))
    if word and not passed and not failed:
        print(f"no test has {word} in its name")
        failed = 1
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
