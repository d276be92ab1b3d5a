#!/usr/bin/env python3
"""Writes a text that includes several files of a folder, which are compiled as one: together.py ROOT OUTPUT FILE ...

All their headers come first, as some files have names of their own for what headers of others declare. Tests, whose names may be
the same in several files, are put into a namespace each.
"""
import pathlib
import re
import sys

HEADER = re.compile(r'^#(if|endif)|^#include (<.*>|"(.*\.h)")', re.MULTILINE)


def headers(root, file):
    depth = 0
    for match in HEADER.finditer(file.read_text()):
        depth += {"if": 1, "endif": -1, None: 0}[match[1]]
        if match[2] and not depth:   # the file's own neighbours are found from the root
            beside = file.parent / match[3] if match[3] else None
            yield f'"{beside.relative_to(root).as_posix()}"' if beside and beside.is_file() else match[2]


def main(root, output, *files):
    root, files = pathlib.Path(root), [pathlib.Path(f).resolve() for f in files]
    lines = [f"#include {name}" for name in dict.fromkeys(name for file in files for name in headers(root, file))]
    for file in files:
        path = file.relative_to(root).as_posix()
        text = f'#include "{path}"'
        lines += [f"namespace {file.stem} {{", text, "}"] if path.endswith("_test.cpp") else [text]
    pathlib.Path(output).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
