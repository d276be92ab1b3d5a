#!/usr/bin/env python3
"""Every text of a kernel that the suite's simulated runs have left is compiled for cards: no stack,
no spills, nothing called.

gpu_kernels.py [FOLDER]   those in FOLDER, or else in build/kernels, where runs with
                          HALIAX_CUDA=keep leave them

Many texts are compiled as one, which spares most of the front end's work; one that does not come
out well is compiled again by itself, as a card's machine would. What came out well is remembered by
text, prelude, options, compiler and card, so a second run compiles nothing.
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
CARDS = (80, 90, 100)
TOGETHER = 64
# a function of the toolkit's, which is linked later (backends/cuda/nvrtc.cpp)
TELLS = "cudaGraphSetConditional"
FINE = " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
# the toolkit's, of f64: the one function that is called, and it has no stack either
POW = "__internal_accurate_pow"
PLANTED = """struct kplanted_words { Word w[2]; };
extern "C" __global__ void kplanted(const kplanted_words a) {
  double many[100] = {};
  for (int k = 0; k < 100; ++k) many[load<int>(a.w[0], k)] += 1;
  for (int k = 0; k < 100; ++k) store<double>(a.w[1], k, many[k]);
}
"""


class Text(typing.NamedTuple):
    name: str
    prelude: str
    body: str


def read(file):
    """Everything before the kernel's own words is the prelude, which all share."""
    prelude, words, body = file.read_text().partition(f"struct {file.stem}_words ")
    return Text(file.stem, sys.intern(prelude), words + body.rstrip().removesuffix("}"))


@functools.cache
def usual_options(sm):
    """Those of the library."""
    said = (ROOT / "backends/cuda/nvrtc.cpp").read_text().partition("nvrtc_options(")[2].partition(
        "if (exact)")[0]
    return [option.replace("{}", str(sm)) for option in re.findall(r'"(--[^"]+)"', said)]


def options(sm, text):
    return usual_options(sm) + ["--relocatable-device-code=true"] * (TELLS in text)


@functools.cache
def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Nvrtc:
    """None of it is there: version is 0."""

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

    def compile(self, text, sm):
        """Whether it was compiled, and the log."""
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        asked = [option.encode() for option in options(sm, text)]
        self.library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0,
                                        None, None)
        status = self.library.nvrtcCompileProgram(program, len(asked),
                                                  (ctypes.c_char_p * len(asked))(*asked))
        self.library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self.library.nvrtcGetProgramLog(program, log)
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return status == 0, log.value.decode(errors="replace")


def complaint(name, log):
    """What the log has against a kernel; empty: nothing."""
    about = log.partition(f"Compiling entry function '{name}'")[2].partition(
        "Compiling entry function")[0]
    functions = re.findall(r"Function properties for (\S+)\n(.*)", about)
    if not functions:
        return "the log does not have it"
    bad = [f"{function}: {' '.join(said.split())}" for function, said in functions
           if function not in (name, POW) or FINE not in said]
    return "; ".join(bad)


def compiled(texts, sm):
    """name -> complaint, of texts with one prelude."""
    nvrtc = Nvrtc()
    fine, log = nvrtc.compile(texts[0].prelude + "".join(text.body for text in texts) + "}\n", sm)
    found = {text.name: complaint(text.name, log) if fine else log.strip() for text in texts}
    if len(texts) > 1:
        for text in texts:
            if found[text.name]:
                found.update(compiled([text], sm))
    return found


class Work:
    """All texts of a folder, for all cards."""

    def __init__(self, folder):
        self.folder, self.version, self.known_file = (folder, Nvrtc().version,
                                                      folder / "fine_for_cards")
        self.texts = [read(file) for file in sorted(folder.glob("k" + "[0-9a-f]" * 16 + ".cu"))]
        self.bad = {sm: {} for sm in CARDS}
        if self.version:
            self.run()

    def key(self, text, sm):
        return digest("\n".join([str(self.version), FINE, *options(sm, text.body),
                                 digest(text.prelude), text.body]))

    def run(self):
        known = set(self.known_file.read_text().split()) if self.known_file.exists() else set()
        todo = [(sm, text) for sm in CARDS
                for text in self.texts if self.key(text, sm) not in known]
        alike = {}
        for sm, text in todo:
            alike.setdefault((sm, text.prelude, TELLS in text.body), []).append(text)
        parts = [(sm, texts[at:at + TOGETHER]) for (sm, *_), texts in alike.items()
                 for at in range(0, len(texts), TOGETHER)]
        with concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            running = {pool.submit(compiled, texts, sm): (sm, texts) for sm, texts in parts}
            for job in concurrent.futures.as_completed(running):
                sm, texts = running[job]
                found = job.result()
                self.bad[sm].update((name, why) for name, why in found.items() if why)
                # at once: what was made stays, if this is ended
                with self.known_file.open("a") as file:
                    file.write("".join(self.key(text, sm) + "\n" for text in texts
                                       if not found[text.name]))


class Cards(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Work(pathlib.Path(os.environ.get("HALIAX_CACHE") or ROOT / "build/kernels"))

    def check(self, sm):
        work = self.work
        if not work.version:
            self.skipTest(f"no NVRTC: {len(work.texts)} texts are not compiled for sm_{sm}")
        if not work.texts:
            self.skipTest("no texts: golden groups and ops on cuda-sim leave them")
        bad = "".join(f"\n  {name}.cu, sm_{sm}: {why}"
                      for name, why in sorted(work.bad[sm].items()))
        self.assertFalse(bad,
                         f"{len(work.bad[sm])} of {len(work.texts)} texts in {work.folder}:{bad}")

    def test_sm_80(self):
        self.check(80)

    def test_sm_90(self):
        self.check(90)

    def test_sm_100(self):
        self.check(100)

    def test_what_is_planted_is_found(self):
        if not self.work.version or not self.work.texts:
            self.skipTest("no NVRTC, or no texts")
        one = self.work.texts[0]
        planted, broken = (Text("kplanted", one.prelude, PLANTED),
                           Text("kbroken", one.prelude, "nonsense;\n"))
        found = compiled([one, planted], 90)
        self.assertEqual(found[one.name], "")
        self.assertIn(" 800 bytes stack frame", found["kplanted"])
        found = compiled([one, broken], 90)
        self.assertEqual(found[one.name], "")
        self.assertIn("nonsense", found["kbroken"])


def main():
    work = Work(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/kernels"))
    if not work.version:
        sys.exit("gpu_kernels.py: there is no NVRTC")
    for sm in CARDS:
        for name, why in sorted(work.bad[sm].items()):
            print(f"{name}.cu, sm_{sm}: {why}")
        print(f"sm_{sm}: {len(work.texts)} texts, {len(work.bad[sm])} bad")
    return any(work.bad.values())


if __name__ == "__main__":
    sys.exit(main())
