#!/usr/bin/env python3
"""Runs every test of a build folder: run_tests.py BUILD [--suite NAME ...] [--filter WORD] [--brief] [--sanitized PROGRAM].

The last line is `N passed, N failed`. The suites are the rooms (folders of *_test.cpp), golden, scripts, sanitized: a part of
the rooms in a program that was built with sanitizers, and cards: the texts of kernels that the others have left, compiled.
"""
import argparse
import concurrent.futures
import io
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import typing
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
DOCTEST = re.compile(r"\[doctest\] test cases:\s*\d+ \|\s*(\d+) passed \|\s*(\d+) failed \|\s*(\d+) skipped")
LEFT_OUT = re.compile(r"^left out: (.+)$", re.MULTILINE)   # support/left_out.h
GOLDEN = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$")


USED = threading.local()   # seconds of processors that a job took


class Outcome(typing.NamedTuple):
    passed: int
    failed: int
    skipped: int
    text: str   # what the job printed
    reasons: tuple = ()   # why tests were skipped, where that is known


def called(command, environment):
    """Runs a program: what it printed, and how it ended."""
    made = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, errors="replace")
    with made.stdout:
        text = made.stdout.read()
    _, status, used = os.wait4(made.pid, 0)
    made.returncode = os.waitstatus_to_exitcode(status)
    USED.seconds = used.ru_utime + used.ru_stime
    return text, made.returncode


def run(command, summary):
    """Runs a test program; what it did is in its summary line."""
    environment = dict(os.environ, HALIAX_VERIFY=os.environ.get("HALIAX_VERIFY", "1"),   # behind every pass
                       UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1",
                       ASAN_OPTIONS="detect_stack_use_after_return=1:strict_init_order=1")
    printed, code = called(command, environment)
    found = [match for match in map(summary.search, printed.splitlines()) if match]
    name = pathlib.Path(command[0]).name
    # Indented, so that only our own summary is the last line's form.
    text = "".join(f"    {line}\n" for line in printed.splitlines())
    if not found:
        return Outcome(0, 1, 0, text + f"{name} ended without a summary ({ending(code)})\n")
    passed, failed, skipped = (int(n or 0) for n in found[-1].groups())
    if code and not failed:
        failed, text = 1, text + f"{name} reported no failure but ended with {ending(code)}\n"
    reasons = tuple(sorted(set(LEFT_OUT.findall(printed))))
    return Outcome(max(0, passed - len(reasons)), failed, skipped + len(reasons), text, reasons)


def ending(code):
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def run_file(command, word):
    """The test cases of one file of a room; the others that the program holds do not count as skipped."""
    done = run(command, DOCTEST)
    if not word and not done.passed and not done.failed and not done.reasons:
        return Outcome(0, 1, 0, done.text + "the program holds no test case of this file\n")
    return done._replace(skipped=len(done.reasons))


def script(word, file):
    """The tests of a Python file, in a process of its own."""
    printed, code = called([sys.executable, __file__, "--script", str(file), "--filter", word], None)
    try:
        passed, failed, skipped, text, reasons = json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError):
        return Outcome(0, 1, 0, printed + f"{file.name} ended without a summary ({ending(code)})\n")
    return Outcome(passed, failed, skipped, text, tuple(reasons))


def run_script(word, file):
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{word}*"] if word else None
    suite = loader.discover(str(file.parent), pattern=file.name)
    text = io.StringIO()
    result = unittest.TextTestRunner(stream=text, verbosity=1).run(suite)
    failed, skipped = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses), len(result.skipped)
    reasons = sorted({why for _, why in result.skipped})
    print("\n" + json.dumps([result.testsRun - failed - skipped, failed, skipped, text.getvalue(), reasons]))


# Runs a program that leaves the texts of its kernels in HALIAX_CACHE; the job that compiles them, behind all others.
KEEPING, CARDS = ["env", "HALIAX_CUDA=keep"], "texts of kernels, for cards"


def golden_jobs(build, word, brief):
    """The golden groups, also on meshes; GPT-2 in its variants, the longest, in a process for each backend."""
    groups = sorted(f.stem for f in (TESTS / "golden").glob("*.json"))
    chosen = [g for g in groups if word in g or word == "golden"]
    program = [str(build / "tests/golden"), str(TESTS / "golden")]
    jobs = {}
    if "gpt2" in chosen:
        # Sanitizers make the interpreter too slow to train with it five ways.
        for b in ("reference", "cpu"):
            jobs[f"golden gpt2 on {b}"] = program + ["gpt2", "--backend", b] + ["--variants"] * (b == "cpu" or not brief)
        for budget in () if brief else (0, -1):            # its attention in tiles: of queries, and of keys too
            tiles = ["env", f"HALIAX_SCORES={budget}"] + program + ["gpt2", "--backend", "cpu", "--variants"]
            jobs[f"golden gpt2 on cpu, scores in tiles ({budget})"] = tiles
    if rest := [g for g in chosen if g != "gpt2"]:
        jobs["golden " + ", ".join(rest)] = program + rest
    if word in ("", "golden", "mesh"):
        for seed in range(1, 6):
            jobs[f"golden on meshes of seed {seed}"] = program + ["--mesh", str(seed)]
    if word in ("", "golden", "cuda") and not brief:   # CUDA's kernels, simulated
        on_cuda = ["--backend", "cuda-sim"]
        for group in groups:
            jobs[f"golden {group} on cuda-sim"] = KEEPING + program + [group] + on_cuda
        jobs["golden scan, chunked on meshes, on cuda-sim"] = KEEPING + program + ["scan", "chunked", "--mesh", "1"] + on_cuda
    if word in ("", "golden", "separate-memory") and not brief:
        on_separate_memory = ["--backend", "separate-memory"]
        jobs["golden on separate-memory"] = program + [g for g in groups if g != "gpt2"] + on_separate_memory
        jobs["golden scan, chunked on meshes, on separate-memory"] = program + ["scan", "chunked", "--mesh", "1"] + on_separate_memory
    return {title: (run, command, GOLDEN) for title, command in jobs.items()}


def rooms():
    return sorted({f.parent.name for f in TESTS.glob("*/*_test.cpp")})


# Files that run on backends too whose memory the host may not touch. (A card does not outlive a fork.)
ON_DEVICES = {"separate-memory": ("debug_test.cpp", "fork_test.cpp", "mesh_run_test.cpp"), "cuda-sim": ("debug_test.cpp", "mesh_run_test.cpp")}
NOT_ON_DEVICES = {   # test cases, and why
    "*is not cut again": "says what is copied in the host's memory",
    "*are read where they are": "says what is not copied in the host's memory",
}


def jobs(build, suites, word, brief, sanitized):
    """title -> (function, arguments). A process for each file, so that the cores stay busy to the end."""
    found = golden_jobs(build, word, brief) if "golden" in suites else {}
    if "sanitized" in suites and sanitized and not word:
        # What is compiled for cards, by another's library, it would only do again.
        found["sanitized"] = run, [str(pathlib.Path(sanitized).resolve()), "-nv", "-tce=*compile for cards*,*compile to*"], DOCTEST
    if "scripts" in suites:
        for file in sorted(TESTS.glob("*_test.py")):
            found[f"scripts/{file.name}"] = script, word, file
    if "mistakes" in suites and not brief:
        found["mistakes/README.md"] = script, word, TESTS / "mistakes/list.py"
    if "cards" in suites and not brief:
        found[CARDS] = script, word, TESTS / "gpu_kernels.py"
    for file in sorted(TESTS.glob("*/*_test.cpp")):
        room = file.parent.name
        if room in suites:
            command = [str(build / "tests" / room), "-nv", f"-sf=*/{room}/{file.name}"] + [f"-tc=*{word}*"] * bool(word)
            found[f"{room}/{file.name}"] = run_file, command, word
            if file.name in ("cpu_fused_test.cpp", "cpu_backend_test.cpp", "ops_test.cpp") and not brief:
                kept = KEEPING * (room == "ops")   # not those of random programs: cuda_source_test.cpp compiles some
                found[f"{room}/{file.name} on cuda-sim"] = run_file, [*kept, "env", "HALIAX_BACKEND=cuda-sim", *command], word
            if file.name in ("scores_test.cpp", "masked_test.cpp"):   # as a release call compiles: what is checked may hold more alive
                found[f"{room}/{file.name} without the verifier"] = run_file, ["env", "HALIAX_VERIFY=0", *command], word
            for backend, files in ON_DEVICES.items():
                if room == "runtime" and file.name in files and not brief:
                    skipped = "-tce=" + ",".join(NOT_ON_DEVICES)
                    there = [*KEEPING * (backend == "cuda-sim"), "env", f"HALIAX_BACKEND={backend}", *command, skipped]
                    found[f"{room}/{file.name} on {backend}"] = run_file, there, word
    return found


def timed(job, *arguments):
    began = time.monotonic()
    done = job(*arguments)
    return done, time.monotonic() - began, USED.seconds


def finished(todo, waiting):
    """Runs jobs; what came out of each as it ends. Programs have a few threads each, so not more of them at a time than cores, and
    beside them, one at a time, those that mostly wait."""
    for behind in (False, True):
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool, concurrent.futures.ThreadPoolExecutor(1) as beside:
            running = {(beside if title in waiting else pool).submit(timed, *job): title for title, job in todo
                       if (title == CARDS) == behind}
            for job in concurrent.futures.as_completed(running):
                yield running[job], *job.result()


def main():
    suites = [*rooms(), "golden", "scripts", "sanitized", "cards"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", nargs="?", default="build")
    parser.add_argument("--suite", action="append", choices=suites, help="may be given more than once; all without it")
    parser.add_argument("--filter", default="", metavar="WORD")
    parser.add_argument("--brief", action="store_true", help="without what takes very long under sanitizers")
    parser.add_argument("--sanitized", default="", metavar="PROGRAM", help="what the suite of that name runs")
    parser.add_argument("--script", type=pathlib.Path, help=argparse.SUPPRESS)   # run_tests.py itself, for a Python file
    options = parser.parse_args()
    if options.script:
        return run_script(options.filter, options.script)
    build, word = (ROOT / options.build).resolve(), options.filter
    os.environ.setdefault("HALIAX_CACHE", str(build / "kernels"))   # what was compiled for cuda-sim is compiled once

    for room in options.suite or suites:
        if room in rooms() and not (build / "tests" / room).exists():
            sys.exit(f"run_tests.py: tests/{room} is not built: tools/build rooms")

    # The longest first, as they took the last time; what is new comes before all others.
    times_file = build / "test_times.json"
    times = json.loads(times_file.read_text()) if times_file.is_file() else {}   # seconds, and those of processors
    times = {title: took for title, took in times.items() if isinstance(took, list)}
    todo = sorted(jobs(build, options.suite or suites, word, options.brief, options.sanitized).items(),
                  key=lambda job: -times.get(job[0], [math.inf])[0])
    waiting = {title for title, (seconds, used) in times.items() if used < 0.4 * seconds and seconds > 2}
    passed = failed = all_used = 0
    if not word and any(job[1][:2] == KEEPING for _, job in todo):
        for file in pathlib.Path(os.environ["HALIAX_CACHE"]).glob("k" + "[0-9a-f]" * 16 + ".cu"):
            file.unlink()   # a run before may have had other texts
    for title, done, seconds, used in finished(todo, waiting):
        passed, failed, all_used = passed + done.passed, failed + done.failed, all_used + used
        if not word:
            times[title] = round(seconds, 2), round(used, 2)
        if done.failed:
            print(f"{title}\n{done.text}", end="")
        elif done.passed or done.skipped:
            print(f"{title}: {done.passed} passed" + f", {done.skipped} skipped" * bool(done.skipped) + f", {seconds:.1f} s"
                  f" ({used:.1f} s of processors)")
            for why in done.reasons:
                print(f"    skipped: {why}")
        sys.stdout.flush()
    if not word:
        times_file.write_text(json.dumps(times, indent=1, sort_keys=True))
    if word and not passed and not failed:
        print(f"no test has {word} in its name")
        failed = 1
    print(f"{all_used:.0f} s of processors")
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
