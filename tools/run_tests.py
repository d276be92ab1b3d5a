#!/usr/bin/env python3
"""Runs every test of a build folder: run_tests.py BUILD [--filter WORD] [--brief]. The last line is `N passed, N failed`."""
import argparse
import concurrent.futures
import io
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
    """Runs a test program; returns what it prints and (passed, failed) of its summary line."""
    environment = dict(os.environ, UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1",
                       ASAN_OPTIONS="detect_stack_use_after_return=1:strict_init_order=1")
    done = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    found = [match for match in map(summary.search, done.stdout.splitlines()) if match]
    name, code = pathlib.Path(command[0]).name, done.returncode
    # Indented, so that only our own summary is the last line's form.
    text = "".join(f"    {line}\n" for line in done.stdout.splitlines())
    if not found:
        return text + f"{name} ended without a summary ({ending(code)})\n", (0, 1)
    counts = int(found[-1][1]), int(found[-1][2])
    if code and not counts[1]:
        return text + f"{name} reported no failure but ended with {ending(code)}\n", (counts[0], 1)
    return text, counts


def ending(code):
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def scripts(word):
    """The Python tests: the direction of includes and the house rules."""
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{word}*"] if word else None
    suite = loader.discover(str(TESTS), pattern="*_test.py")
    text = io.StringIO()
    result = unittest.TextTestRunner(stream=text, verbosity=1).run(suite)
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    return text.getvalue(), (result.testsRun - failed - len(result.skipped), failed)


def golden_jobs(build, word, brief):
    """The golden groups, also on meshes; GPT-2 in its variants, the longest, in a process for each backend."""
    groups = sorted(f.stem for f in (TESTS / "golden").glob("*.json"))
    chosen = [g for g in groups if word in g or word == "golden"]
    program = [str(build / "tests/golden"), str(TESTS / "golden")]
    jobs = []
    if "gpt2" in chosen:
        # Sanitizers make the interpreter too slow to train with it five ways.
        jobs += [(f"golden gpt2 on {b}", program + ["gpt2", "--backend", b] + ["--variants"] * (b == "cpu" or not brief))
                 for b in ("reference", "cpu")]
    if rest := [g for g in chosen if g != "gpt2"]:
        jobs.append(("golden " + ", ".join(rest), program + rest))
    if word in ("", "golden", "mesh"):
        jobs += [(f"golden on meshes of seed {seed}", program + ["--mesh", str(seed)]) for seed in range(1, 6)]
    return [(title, run, command, GOLDEN) for title, command in jobs]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("--filter", default="", metavar="WORD")
    parser.add_argument("--brief", action="store_true", help="without what takes very long under sanitizers")
    options = parser.parse_args()
    build, word = (ROOT / options.build).resolve(), options.filter

    unit = [str(build / "tests/unit"), "-nv"] + ([f"-tc=*{word}*"] if word else [])
    jobs = [("scripts", scripts, word), *golden_jobs(build, word, options.brief), ("unit", run, unit, DOCTEST)]
    passed = failed = 0
    # Programs with a few threads each, so not more of them at a time than cores.
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = {pool.submit(job, *args): title for title, job, *args in jobs}
        for job in concurrent.futures.as_completed(running):
            text, counts = job.result()
            print(f"{running[job]}\n{text}", end="", flush=True)
            passed, failed = passed + counts[0], failed + counts[1]
    if word and not passed and not failed:
        print(f"no test has {word} in its name")
        failed = 1
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
