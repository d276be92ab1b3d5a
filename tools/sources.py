#!/usr/bin/env python3
"""What meson.build compiles: files one by one, or several of a folder as one, which shares what their headers cost.

sources.py ROOT LINES STATE   a line `FOLDER:NAME:FILES` for each thing to compile, without NAME where that is one file

Neighbours of a folder go together up to about so many LINES. What was decided first stays, in STATE: files that are new since, or
changed, are compiled alone, so that only they are compiled again.
"""
import json
import pathlib
import re
import sys

FOLDERS = ("src", "backends", "tests", "examples", "bench", "tools")
# What meson.build names itself: plugins, kernels for several instruction sets, what several programs take.
NAMED = re.compile(r"^backends/(cpu/kernels_(isa|amx)|cuda/(gpu_api|driver|nccl|plugin|dry|sim/left_out)|mpi/plugin)\.cpp$"
                   r"|^bench/(main|loss|numpy|checkpoint|gpu)\.cpp$|^tests/((support|ranks|consumer)/|golden_runner/main\.cpp)")
# What files behind it would see; and in a test, which is put into a namespace (together.py), what stands outside of one.
SEEN = re.compile(r"^#\s*define", re.MULTILINE)
OUTSIDE = re.compile(r"^(#\s*(define|if)|namespace \w+( \{|::)|template <>)", re.MULTILINE)


def texts(root, file):
    """Of a test and the headers of tests that it includes."""
    text = file.read_text()
    found = [text]
    for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
        if beside := next((f for f in (root / "tests" / name, file.parent / name) if f.is_file()), None):
            found += texts(root, beside)
    return found


def kind(root, file):
    """Files of a kind may be compiled as one; None: it is compiled alone. Tests that include public headers alone go on doing
    that; and programs and graphs have things of one name."""
    text = (root / file).read_text()
    if file.endswith("/main.cpp"):
        return None
    if not file.endswith("_test.cpp"):
        return None if SEEN.search(text) or file.startswith("tests/ops/") else ""
    if OUTSIDE.search(text):
        return None
    text = "".join(texts(root, root / file))
    if re.search(r"using namespace (haliax::)?program;", text):
        return "_program"
    inside = r'#include "(base|program|graph|ops|transforms|nn|compile|devices|io|runtime|report|backends|examples|tests)/'
    return "_inside" if re.search(inside, text) else "_public"


def together(root, folder, files, lines):
    """file -> the name of what it is compiled with, or nothing."""
    kinds = {}
    for file in files:
        dear = 2 if file.endswith("_test.cpp") else 1
        kinds.setdefault(kind(root, file), []).append((file, (root / file).read_text().count("\n") * dear))
    found = {file: "" for file, _ in kinds.pop(None, [])}
    for name, members in kinds.items():
        total, before = sum(size for _, size in members), 0
        units = max(1, round(total / lines))
        for file, size in members:
            found[file] = f"{folder.replace('/', '_')}{name}_{int((before + size / 2) * units / total) + 1}"
            before += size
    return found


def files_by_folder(root):
    found = {}
    for top in FOLDERS:
        for file in sorted((root / top).rglob("*.cpp")):
            name = file.relative_to(root).as_posix()
            if not NAMED.search(name):
                found.setdefault(name.rpartition("/")[0], []).append(name)
    return found


def main(root, lines, state):
    root, lines, state = pathlib.Path(root), int(lines), pathlib.Path(state)
    folders = files_by_folder(root)
    known = json.loads(state.read_text()) if state.is_file() else {}
    if known.get("lines") != lines:
        known = {"lines": lines, "with": {}}
        for folder, files in folders.items():
            known["with"].update(together(root, folder, files, lines) if lines else {})
        state.write_text(json.dumps(known, indent=1))
    born = state.stat().st_mtime
    for folder, files in sorted(folders.items()):
        units = {}
        for file in files:
            unit = known["with"].get(file, "") if (root / file).stat().st_mtime <= born else ""
            units.setdefault(unit or file, []).append(file)
        for name, members in units.items():
            print(folder, name if len(members) > 1 else "", " ".join(members), sep=":")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
