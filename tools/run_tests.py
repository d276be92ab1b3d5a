#!/usr/bin/env python3
"""Runs the tests of a build folder, in parallel, and prints `N passed, N failed` as the last line.

The suites are the test directories (folders of *_test.cpp), `golden` (recorded results of Haliax),
`scripts` (tests in Python), `gpu-kernels` (compiles the kernel sources that other tests leave for
GPUs) and `sanitized` (some test directories in a program that is built with sanitizers).
"""
import argparse
import concurrent.futures
import fnmatch
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
DOCTEST = re.compile(r"\[doctest\] test cases:\s*\d+ \|\s*(\d+) passed \|\s*(\d+) failed"
                     r" \|\s*(\d+) skipped")
GOLDEN = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$")
# Printed by tests/support and by the golden runner.
SKIPPED_CASE = re.compile(r"^(?:left out|skipped): (.+)$", re.MULTILINE)

# Keeps the sources of simulated kernels in HALIAX_CACHE for the suite gpu-kernels.
KEEP_KERNELS = ["env", "HALIAX_CUDA=keep"]
GPU_KERNELS = "kernel sources for GPUs"
# Test cases that compile kernels for several GPU architectures.
COMPILE_KERNELS = ("*compile for *", "*compiles for *", "*compile to *",
                   "*GPT-2 124M*training step*")

# Unit tests that run again on another backend.
ON_CUDA_SIM = ("cpu_fused_test.cpp", "cpu_backend_test.cpp", "ops_test.cpp")
ON_DEVICES = {
    "separate-memory": ("debug_test.cpp", "fork_test.cpp", "mesh_run_test.cpp"),
    "cuda-sim": ("debug_test.cpp", "mesh_run_test.cpp"),   # a GPU context does not survive fork()
}
# Test cases about copies in host memory.
HOST_ONLY = "*is not cut again,*are read where they are"
WITHOUT_VERIFIER = ("scores_test.cpp", "masked_test.cpp")
# Scripts that compile or measure for a long time, gpu_test.py, which needs programs of bench/, and
# site_test.py, which installs packages.
EXTENDED_SCRIPTS = ("comm_test.py", "compile_cost_test.py", "contributing_test.py", "gpu_test.py",
                    "ranks_gpu_test.py", "site_test.py", "tutorial_test.py")

cpu_time = threading.local()   # seconds of processor time of the last job of a thread


class Outcome(typing.NamedTuple):
    passed: int
    failed: int
    skipped: int
    output: str
    reasons: tuple = ()   # why tests were skipped, where known


class Job(typing.NamedTuple):
    title: str
    function: typing.Callable
    arguments: tuple
    extended: bool = False   # runs with --all only


def call(command, environment):
    """Runs a program. Returns its output and its exit code."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace")
    with process.stdout:
        output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_time.seconds = usage.ru_utime + usage.ru_stime
    return output, process.returncode


def describe_exit(code):
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def run_program(command, summary):
    """Runs a test program; counts are read from its summary line."""
    environment = dict(os.environ, HALIAX_VERIFY=os.environ.get("HALIAX_VERIFY", "1"),
                       UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1",
                       ASAN_OPTIONS="detect_stack_use_after_return=1:strict_init_order=1")
    printed, code = call(command, environment)
    summaries = [match for match in map(summary.search, printed.splitlines()) if match]
    name = pathlib.Path(command[0]).name
    # Indented, so that no other line has the form of the closing line.
    output = "".join(f"    {line}\n" for line in printed.splitlines())
    if not summaries:
        message = f"{name} ended without a summary ({describe_exit(code)})\n"
        return Outcome(0, 1, 0, output + message)
    passed, failed, skipped = (int(count or 0) for count in summaries[-1].groups())
    if code and not failed:
        failed = 1
        output += f"{name} reported no failure but ended with {describe_exit(code)}\n"
    reasons = tuple(sorted(set(SKIPPED_CASE.findall(printed))))
    if summary is GOLDEN:   # the program counts skipped cases itself
        reasons = tuple(f"no counterpart of {reason}" for reason in reasons)
        return Outcome(passed, failed, skipped, output, reasons)
    return Outcome(max(0, passed - len(reasons)), failed, skipped + len(reasons), output, reasons)


def run_file(command, word):
    """Runs the test cases of one file. Those of the program's other files count as nothing."""
    done = run_program(command, DOCTEST)
    if not word and not done.passed and not done.failed and not done.reasons:
        return Outcome(0, 1, 0, done.output + "the program has no test case of this file\n")
    return done._replace(skipped=len(done.reasons))


def run_script(word, file):
    """Runs the tests of a Python file in a process of its own."""
    command = [sys.executable, __file__, "--script", str(file), "--filter", word]
    printed, code = call(command, None)
    try:
        passed, failed, skipped, output, reasons = json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError):
        message = f"{file.name} ended without a summary ({describe_exit(code)})\n"
        return Outcome(0, 1, 0, printed + message)
    return Outcome(passed, failed, skipped, output, tuple(reasons))


def script_main(word, file):
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{word}*"] if word else None
    suite = loader.discover(str(file.parent), pattern=file.name)
    output = io.StringIO()
    result = unittest.TextTestRunner(stream=output, verbosity=1).run(suite)
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    skipped = len(result.skipped)
    reasons = sorted({reason for _, reason in result.skipped})
    passed = result.testsRun - failed - skipped
    print("\n" + json.dumps([passed, failed, skipped, output.getvalue(), reasons]))


def golden_jobs(build, word, brief):
    """Yields jobs for the golden groups: on the host backends; with --all on meshes, on other
    backends, and GPT-2 in all variants."""
    groups = sorted(file.stem for file in (TESTS / "golden").glob("*.json"))
    program = [str(build / "tests/golden"), str(TESTS / "golden"), "--list-skipped"]

    def job(title, *arguments, extended=True, prefix=()):
        return Job(f"golden {title}", run_program, ([*prefix, *program, *arguments], GOLDEN),
                   extended)

    chosen = [group for group in groups if word in group or word == "golden"]
    if "gpt2" in chosen:   # each variant is a training run
        yield job("gpt2 on cpu", "gpt2", "--backend", "cpu", "--variants", extended=False)
        reference = ["gpt2", "--backend", "reference"]
        yield job("gpt2 on reference", *reference, *["--variants"] * (not brief))
        for budget in () if brief else ("0", "-1"):   # attention in tiles of queries; of keys too
            yield job(f"gpt2 on cpu, scores in tiles ({budget})", "gpt2", "--backend", "cpu",
                      "--variants", prefix=["env", f"HALIAX_SCORES={budget}"])
    if rest := [group for group in chosen if group != "gpt2"]:
        yield job(", ".join(rest), *rest, extended=False)
    if word in ("", "golden", "mesh"):
        for seed in range(1, 6):
            yield job(f"on meshes of seed {seed}", "--mesh", str(seed))
    if brief:
        return
    if word in ("", "golden", "cuda"):
        backend = ["--backend", "cuda-sim"]
        for group in groups:
            yield job(f"{group} on cuda-sim", group, *backend, prefix=KEEP_KERNELS)
        yield job("scan, chunked on meshes, on cuda-sim", "scan", "chunked", "--mesh", "1",
                  *backend, prefix=KEEP_KERNELS)
    if word in ("", "golden", "separate-memory"):
        backend = ["--backend", "separate-memory"]
        yield job("on separate-memory", *[group for group in groups if group != "gpt2"], *backend)
        yield job("scan, chunked on meshes, on separate-memory", "scan", "chunked", "--mesh", "1",
                  *backend)


def test_cases(file):
    """Returns the names of the test cases of a file, whose string literals may be split."""
    literals = re.findall(r'TEST_CASE\(((?:\s*"(?:[^"\\]|\\.)*")+)', file.read_text())
    return [re.sub(r'"\s*"', "", literal).strip().strip('"') for literal in literals]


def unit_test_jobs(build, file, word, brief, backends_only):
    """Yields the jobs of one file of unit tests: a process of its own, and one for each other
    backend."""
    directory = file.parent.name
    title = f"{directory}/{file.name}"
    command = [str(build / "tests" / directory), "-nv", f"-sf=*/{directory}/{file.name}"]
    command += [f"-tc=*{word}*"] * bool(word)

    def job(name, *prefix, more=(), extended=True):
        return Job(name, run_file, ([*prefix, *command, *more], word), extended)

    # The CUDA backend on a simulated GPU.
    simulated = directory == "backends" and file.name.startswith("cuda_") and not backends_only
    compiling = [any(fnmatch.fnmatchcase(name, pattern) for pattern in COMPILE_KERNELS)
                 for name in test_cases(file)]
    patterns = ",".join(COMPILE_KERNELS)
    if not compiling or not all(compiling):
        yield job(title, more=[f"-tce={patterns}"] * any(compiling), extended=simulated)
    if any(compiling) and not word:
        yield job(f"{title}, compiled for GPUs", more=[f"-tc={patterns}"])
    if file.name in WITHOUT_VERIFIER:   # the verifier keeps arrays alive that a release run frees
        yield job(f"{title} without the verifier", "env", "HALIAX_VERIFY=0")
    if brief:
        return
    if file.name in ON_CUDA_SIM:
        # Kernels of random programs are omitted: a unit test compiles some of them for GPUs.
        keep = KEEP_KERNELS if directory == "ops" else []
        yield job(f"{title} on cuda-sim", *keep, "env", "HALIAX_BACKEND=cuda-sim")
    for backend, files in ON_DEVICES.items():
        if directory == "runtime" and file.name in files:
            keep = KEEP_KERNELS if backend == "cuda-sim" else []
            yield job(f"{title} on {backend}", *keep, "env", f"HALIAX_BACKEND={backend}",
                      more=[f"-tce={HOST_ONLY}"])


def test_directories():
    return sorted({file.parent.name for file in TESTS.glob("*/*_test.cpp")})


def list_jobs(build, suites, word, brief, sanitized):
    """Yields all jobs of the suites. Each is a process, so that all cores are busy to the end."""
    if "golden" in suites:
        yield from golden_jobs(build, word, brief)
    if "sanitized" in suites and sanitized and not word:
        program = str(pathlib.Path(sanitized).resolve())
        command = [program, "-nv", f"-tce={','.join(COMPILE_KERNELS)}"]
        yield Job("sanitized", run_program, (command, DOCTEST))
    if "scripts" in suites:
        for file in sorted(TESTS.glob("*_test.py")):
            yield Job(f"scripts/{file.name}", run_script, (word, file),
                      file.name in EXTENDED_SCRIPTS)
    if "mistakes" in suites and not brief:
        yield Job("mistakes/README.md", run_script, (word, TESTS / "mistakes/list.py"), True)
    if "gpu-kernels" in suites and not brief:
        yield Job(GPU_KERNELS, run_script, (word, TESTS / "gpu_kernels.py"), True)
    for file in sorted(TESTS.glob("*/*_test.cpp")):
        if file.parent.name in suites:
            yield from unit_test_jobs(build, file, word, brief, suites == ["backends"])


def run_job(job):
    began = time.monotonic()
    outcome = job.function(*job.arguments)
    return outcome, time.monotonic() - began, cpu_time.seconds


def run_jobs(jobs, waiting):
    """Runs jobs; yields (job, outcome, seconds, seconds of processor time) as each ends.

    Programs have several threads, so at most as many run at a time as there are cores, and one of
    the jobs in `waiting`, which are mostly idle. Kernels for GPUs are compiled after all others.
    """
    cores = len(os.sched_getaffinity(0))
    for last in (False, True):
        with (concurrent.futures.ThreadPoolExecutor(cores) as pool,
              concurrent.futures.ThreadPoolExecutor(1) as idle):
            running = {(idle if job.title in waiting else pool).submit(run_job, job): job
                       for job in jobs if (job.title == GPU_KERNELS) == last}
            for future in concurrent.futures.as_completed(running):
                yield running[future], *future.result()


def parse_options():
    suites = [*test_directories(), "golden", "scripts", "gpu-kernels", "sanitized"]
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", default="build", help="build folder; default: build")
    parser.add_argument("--all", action="store_true",
                        help="also repeat tests on other backends, on more meshes and in other"
                        " variants, test the CUDA backend on simulated GPUs, run the tutorial,"
                        " build the site of the documentation, compile the list of mistakes and"
                        " kernels for GPUs, and measure communication and compile times")
    parser.add_argument("--suite", action="append", choices=suites, metavar="NAME",
                        help="run one suite, may be repeated; default: all; one of "
                        + ", ".join(suites))
    parser.add_argument("--filter", default="", metavar="WORD",
                        help="run the tests with WORD in their name")
    parser.add_argument("--brief", action="store_true",
                        help="omit tests that take very long under sanitizers")
    parser.add_argument("--sanitized", default="", metavar="PROGRAM",
                        help="program of the suite `sanitized`")
    parser.add_argument("--script", type=pathlib.Path, help=argparse.SUPPRESS)   # internal
    options = parser.parse_args()
    options.suites = options.suite or suites
    options.build = (ROOT / options.build).resolve()
    return options


def choose_jobs(options):
    """Returns the jobs to run, and the titles of those that run with --all only."""
    jobs = list(list_jobs(options.build, options.suites, options.filter, options.brief,
                          options.sanitized))
    if options.all or options.suites == ["gpu-kernels"]:
        return jobs, []
    return ([job for job in jobs if not job.extended],
            [job.title for job in jobs if job.extended])


def print_outcome(job, done, seconds, processor):
    if done.failed:
        print(f"{job.title}\n{done.output}", end="")
    elif done.passed or done.skipped:
        skipped = f", {done.skipped} skipped" if done.skipped else ""
        print(f"{job.title}: {done.passed} passed{skipped}, {seconds:.1f} s"
              f" ({processor:.1f} s of processor time)")
    sys.stdout.flush()


def main():
    options = parse_options()
    if options.script:
        return script_main(options.filter, options.script)
    build, word = options.build, options.filter
    # Kernels for cuda-sim are compiled once.
    os.environ.setdefault("HALIAX_CACHE", str(build / "kernels"))
    for directory in set(options.suites) & set(test_directories()):
        if not (build / "tests" / directory).exists():
            sys.exit(f"run_tests.py: tests/{directory} is not built; run tools/build unit-tests")
    jobs, omitted = choose_jobs(options)

    # The longest jobs of the last run start first, after new jobs.
    times_file = build / "test_times.json"   # title -> [seconds, seconds of processor time]
    times = json.loads(times_file.read_text()) if times_file.is_file() else {}
    jobs.sort(key=lambda job: -times.get(job.title, [math.inf])[0])
    waiting = {title for title, (seconds, processor) in times.items()
               if processor < 0.5 * seconds and seconds > 2}
    if not word and any(job.arguments[0][:2] == KEEP_KERNELS for job in jobs):
        for file in pathlib.Path(os.environ["HALIAX_CACHE"]).glob("k" + "[0-9a-f]" * 16 + ".cu"):
            file.unlink()   # left by an earlier run
    passed = failed = total = 0
    skipped = []
    for job, done, seconds, processor in run_jobs(jobs, waiting):
        passed, failed, total = passed + done.passed, failed + done.failed, total + processor
        if not word:
            times[job.title] = round(seconds, 2), round(processor, 2)
        if done.skipped:
            skipped.append((job.title, done))
        print_outcome(job, done, seconds, processor)
    if not word:
        times_file.write_text(json.dumps(times, indent=1, sort_keys=True))
    if word and not passed and not failed:
        print(f"no test has {word} in its name")
        failed = 1
    if skipped:
        print(f"\n{sum(done.skipped for _, done in skipped)} tests skipped:")
        for title, done in sorted(skipped):
            reasons = list(done.reasons[:4]) or ["no reason printed"]
            more = len(done.reasons) - len(reasons)
            reasons += [f"and {more} other reasons"] * (more > 0)
            print(f"  {title} ({done.skipped}): {'; '.join(reasons)}")
    if omitted:
        print(f"\n{len(omitted)} programs run with --all only: tests on other backends, on more"
              " meshes, in other variants, under sanitizers, and long compilations")
    print(f"\n{total:.0f} s of processor time")
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
