#!/usr/bin/env python3
"""What a plugin and the library compare before they speak to each other, as C++: plugin_abi.py OUT VERSION PLUGIN_FOLDER HEADER..."""
import hashlib
import pathlib
import sys


def main(out, version, folder, *headers):
    said = {"library_version": version, "plugin_folder": folder,
            "abi_hash": hashlib.sha256(b"".join(pathlib.Path(h).read_bytes() for h in headers)).hexdigest()[:16]}
    functions = "".join(f'const char* {name}() {{ return "{text}"; }}\n' for name, text in said.items())
    pathlib.Path(out).write_text(f'#include "program/plugin.h"\n\nnamespace haliax::program {{\n\n{functions}\n}}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
