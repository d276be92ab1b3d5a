#!/usr/bin/env python3
"""The sources that meson.build compiles.

sources.py ROOT FOLDER      the *.cpp directly in ROOT/FOLDER, one a line, sorted, relative to ROOT
sources.py --folders ROOT   the folders of ROOT that hold any
"""
import pathlib
import sys


def sources(root, folder):
    return sorted(f.relative_to(root).as_posix() for f in (root / folder).glob("*.cpp"))


def main(args):
    if len(args) == 2 and args[0] == "--folders":
        root = pathlib.Path(args[1])
        found = sorted({f.parent.name for f in root.glob("*/*.cpp")})
    elif len(args) == 2:
        found = sources(pathlib.Path(args[0]), args[1])
    else:
        return __doc__
    print("\n".join(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
