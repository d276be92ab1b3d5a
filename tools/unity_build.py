#!/usr/bin/env python3
"""Compiles several files of a folder as one translation unit, so that headers and templates are
compiled once for all of them. meson.build runs two commands:

  unity_build.py list ROOT LINES STATE    print one line `FOLDER:NAME:FILES` for each unit;
                                          NAME is empty for a file that is compiled alone
  unity_build.py write ROOT OUTPUT FILES  write a unit: a source file that includes FILES

ROOT is the repository. LINES is the approximate length of a unit; 0 compiles each file alone. STATE
is a JSON file that records the units of the first configuration. Files that are newer than STATE
are compiled alone, so that a rebuild after an edit compiles one file. If many files are newer, as
after `git pull`, the units are chosen again.
"""
import argparse
import json
import pathlib
import re

MOST_ALONE = 40   # files compiled alone before units are chosen again
FOLDERS = ("src", "backends", "tests", "examples", "bench", "tools")
# Sources that meson.build lists by name: plugins, kernels that are compiled for several instruction
# sets, and files that several programs share.
LISTED_BY_MESON = re.compile(
    r"^backends/(cpu/kernels/(all|amx|bf16)"
    r"|cuda/(nvidia/(gpu_api|driver|nccl)|plugin|dry|sim/left_out)|mpi/plugin)\.cpp$"
    r"|^bench/(main|loss|numpy|checkpoint|gpu)\.cpp$"
    r"|^tests/((support|ranks|consumer)/|golden_runner/main\.cpp|ops/ops_entries)")
# A macro is visible to the files after it.
MACRO = re.compile(r"^#\s*define", re.MULTILINE)
# Each test of a unit is in a namespace of its own, which these lines do not allow.
GLOBAL_SCOPE = re.compile(r"^(#\s*(define|if)|namespace \w+( \{|::)|template <>)", re.MULTILINE)
INTERNAL_HEADER = re.compile(
    r'#include "((?:base|program|graph|ops|transforms|nn|compile|devices|io|runtime|report|backends'
    r'|examples|tests)/[^"]*)')
HEADER = re.compile(r'^#(if|endif)|^#include (<.*>|"(.*\.h)")', re.MULTILINE)


def test_sources(root, file):
    """Yields the text of a test and of the test headers that it includes."""
    text = file.read_text()
    yield text
    for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
        places = (root / "tests" / name, file.parent / name)
        if header := next((place for place in places if place.is_file()), None):
            yield from test_sources(root, header)


def unit_kind(root, file):
    """Returns the kind of units that may contain the file, or None if it must be compiled alone.

    Tests that include only public headers are in units of their own. So are tests of programs,
    because the namespaces `program` and `haliax` have types of the same name.
    """
    text = (root / file).read_text()
    if file.endswith("/main.cpp"):
        return None
    if not file.endswith("_test.cpp"):
        return None if MACRO.search(text) or file.startswith("tests/ops/") else ""
    if GLOBAL_SCOPE.search(text):
        return None
    text = "".join(test_sources(root, root / file))
    if re.search(r"using namespace (haliax::)?program;", text):
        return "_program"
    internal = any(not (root / "tests" / name).is_file() for name in INTERNAL_HEADER.findall(text))
    return "_inside" if internal else "_public"


def assign_units(root, folder, files, lines):
    """Returns {file: name of its unit}; the name is empty if the file is compiled alone."""
    kinds = {}
    for file in files:
        weight = 2 if file.endswith("_test.cpp") else 1   # compile time of a line
        length = (root / file).read_text().count("\n") * weight
        kinds.setdefault(unit_kind(root, file), []).append((file, length))
    units = {file: "" for file, _ in kinds.pop(None, [])}
    for kind, members in kinds.items():
        total, before = sum(length for _, length in members), 0
        count = max(1, round(total / lines))
        for file, length in members:
            number = int((before + length / 2) * count / total) + 1
            units[file] = f"{folder.replace('/', '_')}{kind}_{number}"
            before += length
    return units


def files_by_folder(root):
    """Returns {folder: sources}, without the sources that meson.build lists by name."""
    folders = {}
    for top in FOLDERS:
        for file in sorted((root / top).rglob("*.cpp")):
            name = file.relative_to(root).as_posix()
            if not LISTED_BY_MESON.search(name):
                folders.setdefault(name.rpartition("/")[0], []).append(name)
    return folders


def list_units(root, lines, state):
    root, lines, state = pathlib.Path(root), int(lines), pathlib.Path(state)
    folders = files_by_folder(root)
    recorded = json.loads(state.read_text()) if state.is_file() else {}

    def is_newer(file):
        return (root / file).stat().st_mtime > state.stat().st_mtime

    valid = recorded.get("lines") == lines and "units" in recorded
    if not valid or sum(is_newer(f) for files in folders.values() for f in files) > MOST_ALONE:
        recorded = {"lines": lines, "units": {}}
        for folder, files in folders.items():
            recorded["units"].update(assign_units(root, folder, files, lines) if lines else {})
        state.write_text(json.dumps(recorded, indent=1))
    for folder, files in sorted(folders.items()):
        units = {}
        for file in files:
            name = "" if is_newer(file) else recorded["units"].get(file, "")
            units.setdefault(name or file, []).append(file)
        for name, members in units.items():
            print(folder, name if len(members) > 1 else "", " ".join(members), sep=":")


def included_headers(root, file):
    """Yields the headers that a file includes unconditionally, as #include names them."""
    depth = 0
    for match in HEADER.finditer(file.read_text()):
        depth += {"if": 1, "endif": -1, None: 0}[match[1]]
        if match[2] and not depth:
            sibling = file.parent / match[3] if match[3] else None
            found = sibling and sibling.is_file()
            yield f'"{sibling.relative_to(root).as_posix()}"' if found else match[2]


def write_unit(root, output, *files):
    """Writes a unit. Headers come first, because a source may define a name that hides a name of
    another file's headers. Tests are wrapped in a namespace each: they share names."""
    root, files = pathlib.Path(root), [pathlib.Path(file).resolve() for file in files]
    names = dict.fromkeys(name for file in files for name in included_headers(root, file))
    lines = [f"#include {name}" for name in names]
    for file in files:
        include = f'#include "{file.relative_to(root).as_posix()}"'
        if file.name.endswith("_test.cpp"):
            lines += [f"namespace {file.stem} {{", include, "}"]
        else:
            lines.append(include)
    pathlib.Path(output).write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="print the units and the files of each")
    listing.add_argument("root", help="folder of the repository")
    listing.add_argument("lines", help="approximate number of lines of a unit; 0: compile each file"
                                       " alone")
    listing.add_argument("state", help="JSON file that records the units")
    writing = commands.add_parser("write", help="write a unit")
    writing.add_argument("root", help="folder of the repository")
    writing.add_argument("output", help="source file to write")
    writing.add_argument("files", nargs="+", help="source files to include")
    options = parser.parse_args()
    if options.command == "list":
        list_units(options.root, options.lines, options.state)
    else:
        write_unit(options.root, options.output, *options.files)


if __name__ == "__main__":
    main()
