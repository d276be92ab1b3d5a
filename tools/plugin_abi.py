#!/usr/bin/env python3
"""Writes a C++ file with the versions that a plugin and the library compare when the plugin is
loaded: plugin_abi.py OUTPUT VERSION PLUGIN_FOLDER HEADER..."""
import hashlib
import pathlib
import sys


def main(output, version, folder, *headers):
    interface = b"".join(pathlib.Path(header).read_bytes() for header in headers)
    strings = {"library_version": version, "plugin_folder": folder,
               "abi_hash": hashlib.sha256(interface).hexdigest()[:16]}
    functions = "".join(f'const char* {name}() {{ return "{string}"; }}\n'
                        for name, string in strings.items())
    pathlib.Path(output).write_text('#include "program/plugin.h"\n\nnamespace haliax::program {\n\n'
                                    f"{functions}\n}}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
