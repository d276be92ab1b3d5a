#!/usr/bin/env python3
"""Compiles the kernels that runs on the simulated GPU have stored, for real GPU architectures.

  python3 tests/gpu_kernels.py [FOLDER]   FOLDER: the stored kernels; default: build/kernels

Runs with HALIAX_CUDA=keep store the source code of their kernels. Each kernel must compile with
NVRTC, and must use no stack, spill no registers and call no functions.

Up to 64 kernels are compiled together, which parses their common prelude once. A kernel with a
fault is compiled again alone, as on a machine with a GPU. The file compiled_for_gpus in FOLDER
lists hashes of the kernels that have passed, with their options, compiler and architecture. A
second run skips these kernels.
"""
import concurrent.futures
import ctypes
import functools
import hashlib
import os
import pathlib
import re
import sys
import typing
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
ARCHITECTURES = (80, 90, 100)
BATCH_SIZE = 64
# a function of the CUDA toolkit that is linked later (backends/cuda/nvidia/nvrtc.cpp)
CONDITIONAL = "cudaGraphSetConditional"
PASSED = " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
# the power of f64 in the CUDA toolkit, the only function that a kernel may call; it uses no stack
POW = "__internal_accurate_pow"
WITH_STACK = """struct kstack_words { Word w[2]; };
extern "C" __global__ void kstack(const kstack_words a) {
  double many[100] = {};
  for (int k = 0; k < 100; ++k) many[load<int>(a.w[0], k)] += 1;
  for (int k = 0; k < 100; ++k) store<double>(a.w[1], k, many[k]);
}
"""


class Kernel(typing.NamedTuple):
    name: str
    prelude: str
    body: str


def read(file):
    """Returns the kernel of a file. The prelude is the code before the struct of its arguments."""
    prelude, words, body = file.read_text().partition(f"struct {file.stem}_words ")
    return Kernel(file.stem, sys.intern(prelude), words + body.rstrip().removesuffix("}"))


@functools.cache
def library_options(sm):
    """Returns the compiler options of the library, which its source lists."""
    source = (ROOT / "backends/cuda/nvidia/nvrtc.cpp").read_text()
    listed = source.partition("nvrtc_options(")[2].partition("if (exact)")[0]
    return [option.replace("{}", str(sm)) for option in re.findall(r'"(--[^"]+)"', listed)]


def options(sm, code):
    return library_options(sm) + ["--relocatable-device-code=true"] * (CONDITIONAL in code)


@functools.cache
def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Nvrtc:
    """The library NVRTC. The version is 0 if it is not installed."""

    def __init__(self):
        self.version, self.library = 0, None
        for name in ("libnvrtc.so.13", "libnvrtc.so.12"):
            try:
                self.library = ctypes.CDLL(name)
            except OSError:
                continue
            major, minor = ctypes.c_int(), ctypes.c_int()
            self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
            self.version = 1000 * major.value + 10 * minor.value
            break

    def compile(self, code, sm):
        """Returns whether the code compiles, and the log."""
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        arguments = [option.encode() for option in options(sm, code)]
        self.library.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernels.cu", 0,
                                        None, None)
        status = self.library.nvrtcCompileProgram(
            program, len(arguments), (ctypes.c_char_p * len(arguments))(*arguments))
        self.library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self.library.nvrtcGetProgramLog(program, log)
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return status == 0, log.value.decode(errors="replace")


def faults_in(name, log):
    """Returns the faults of a kernel in the log of its compilation. Empty if there are none."""
    about = log.partition(f"Compiling entry function '{name}'")[2].partition(
        "Compiling entry function")[0]
    functions = re.findall(r"Function properties for (\S+)\n(.*)", about)
    if not functions:
        return "the log does not contain the kernel"
    bad = [f"{function}: {' '.join(usage.split())}" for function, usage in functions
           if function not in (name, POW) or PASSED not in usage]
    return "; ".join(bad)


def compile_kernels(kernels, sm):
    """Compiles kernels with one prelude together. Returns a dictionary from names to faults."""
    code = kernels[0].prelude + "".join(kernel.body for kernel in kernels) + "}\n"
    succeeded, log = Nvrtc().compile(code, sm)
    found = {kernel.name: faults_in(kernel.name, log) if succeeded else log.strip()
             for kernel in kernels}
    if len(kernels) > 1:
        for kernel in kernels:
            if found[kernel.name]:
                found.update(compile_kernels([kernel], sm))
    return found


class Compilation:
    """Compiles all kernels of a folder for all architectures. `faults` are those of each kernel."""

    def __init__(self, folder):
        self.folder, self.version = folder, Nvrtc().version
        self.passed_file = folder / "compiled_for_gpus"
        self.kernels = [read(file) for file in sorted(folder.glob("k" + "[0-9a-f]" * 16 + ".cu"))]
        self.faults = {sm: {} for sm in ARCHITECTURES}
        if self.version:
            self.run()

    def key(self, kernel, sm):
        return digest("\n".join([str(self.version), PASSED, *options(sm, kernel.body),
                                 digest(kernel.prelude), kernel.body]))

    def run(self):
        passed = set(self.passed_file.read_text().split()) if self.passed_file.exists() else set()
        todo = [(sm, kernel) for sm in ARCHITECTURES
                for kernel in self.kernels if self.key(kernel, sm) not in passed]
        groups = {}   # by architecture, prelude and options
        for sm, kernel in todo:
            groups.setdefault((sm, kernel.prelude, CONDITIONAL in kernel.body), []).append(kernel)
        batches = [(sm, kernels[at:at + BATCH_SIZE]) for (sm, *_), kernels in groups.items()
                   for at in range(0, len(kernels), BATCH_SIZE)]
        with concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            running = {pool.submit(compile_kernels, kernels, sm): (sm, kernels)
                       for sm, kernels in batches}
            for job in concurrent.futures.as_completed(running):
                sm, kernels = running[job]
                found = job.result()
                self.faults[sm].update((name, fault) for name, fault in found.items() if fault)
                # after each batch, so that a run that is terminated keeps its results
                with self.passed_file.open("a") as file:
                    file.write("".join(self.key(kernel, sm) + "\n" for kernel in kernels
                                       if not found[kernel.name]))


class Kernels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(os.environ.get("HALIAX_CACHE") or ROOT / "build/kernels")
        cls.compilation = Compilation(folder)

    def check(self, sm):
        one = self.compilation
        if not one.version:
            self.skipTest(f"NVRTC is not installed: {len(one.kernels)} kernels are not compiled "
                          f"for sm_{sm}")
        if not one.kernels:
            self.skipTest("no kernels: golden groups and ops on cuda-sim store them")
        faults = "".join(f"\n  {name}.cu, sm_{sm}: {fault}"
                         for name, fault in sorted(one.faults[sm].items()))
        self.assertFalse(faults, f"{len(one.faults[sm])} of {len(one.kernels)} kernels in "
                                 f"{one.folder} have faults:{faults}")

    def test_sm_80(self):
        self.check(80)

    def test_sm_90(self):
        self.check(90)

    def test_sm_100(self):
        self.check(100)

    def test_faults_of_other_kernels_are_reported(self):
        if not self.compilation.version or not self.compilation.kernels:
            self.skipTest("NVRTC is not installed, or there are no kernels")
        one = self.compilation.kernels[0]
        with_stack = Kernel("kstack", one.prelude, WITH_STACK)
        broken = Kernel("kbroken", one.prelude, "nonsense;\n")
        found = compile_kernels([one, with_stack], 90)
        self.assertEqual(found[one.name], "")
        self.assertIn(" 800 bytes stack frame", found["kstack"])
        found = compile_kernels([one, broken], 90)
        self.assertEqual(found[one.name], "")
        self.assertIn("nonsense", found["kbroken"])


def main():
    one = Compilation(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/kernels"))
    if not one.version:
        sys.exit("gpu_kernels.py: NVRTC is not installed")
    for sm in ARCHITECTURES:
        for name, fault in sorted(one.faults[sm].items()):
            print(f"{name}.cu, sm_{sm}: {fault}")
        print(f"sm_{sm}: {len(one.kernels)} kernels, {len(one.faults[sm])} with faults")
    return any(one.faults.values())


if __name__ == "__main__":
    sys.exit(main())
