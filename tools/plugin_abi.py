#!/usr/bin/env python3
"""Writes a C++ file with the versions that a plugin and the library compare when the plugin is
loaded. meson.build runs this script."""
import argparse
import hashlib
import pathlib


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=pathlib.Path, help="C++ file to write")
    parser.add_argument("version", help="version of the library")
    parser.add_argument("plugin_folder", help="folder where the library is installed and searches"
                                              " for plugins")
    parser.add_argument("header", nargs="+", type=pathlib.Path,
                        help="header of the plugin interface; a change invalidates plugins that"
                             " were built earlier")
    options = parser.parse_args()
    interface = b"".join(header.read_bytes() for header in options.header)
    strings = {"library_version": options.version, "plugin_folder": options.plugin_folder,
               "abi_hash": hashlib.sha256(interface).hexdigest()[:16]}
    functions = "".join(f'const char* {name}() {{ return "{string}"; }}\n'
                        for name, string in strings.items())
    options.output.write_text('#include "program/plugin.h"\n\nnamespace haliax::program {\n\n'
                                    f"{functions}\n}}\n")


if __name__ == "__main__":
    main()
