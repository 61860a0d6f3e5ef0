#!/usr/bin/env python3
"""Checks that a part of the program finds all it uses: check_symbols.py PART.so PROGRAM.

A part is linked with undefined symbols, which the program or a library of one of them must define; the linker
does not look, and a user would see it only when the part is loaded.
"""
import re
import subprocess
import sys


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(path, *which):
    names = set()
    for line in run("nm", "-D", *which, path).splitlines():
        kind, name = line.split()[-2:]
        if kind not in "wv":  # weak ones may be missing
            names.add(name.split("@")[0])
    return names


def libraries(path):
    # The loader itself stands there without an arrow.
    return re.findall(r"^\s*(?:\S+ => )?(/\S+)", run("ldd", path), re.MULTILINE)


def main():
    part, program = sys.argv[1:]
    defined = symbols(program, "--defined-only")
    if "GOMP_parallel" in defined:
        sys.exit(f"{program} has an OpenMP of its own beside the one that oneDNN loads: neither knows the other's threads")
    missing = symbols(part, "--undefined-only") - defined
    for library in libraries(part) + libraries(program):
        if not missing:
            break
        missing -= symbols(library, "--defined-only")
    if missing:
        readable = subprocess.run(["c++filt"], input="\n".join(sorted(missing)), capture_output=True, text=True, check=True)
        sys.exit(f"{part} wants of {program} or a library, and none has it:\n{readable.stdout}")


if __name__ == "__main__":
    main()
