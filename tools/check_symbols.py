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


def check_openmp(program, defined):
    """All of OpenMP that the program and its libraries call must be its own (cpu/openmp.cpp): libgomp's functions do not
    know its threads."""
    for user in [program, *libraries(program)]:
        if "libgomp" in user:
            continue
        lacking = sorted(name for name in symbols(user, "--undefined-only") - defined if re.match("GOMP_|omp_", name))
        if lacking:
            sys.exit(f"{user} wants {', '.join(lacking)} of OpenMP, which tokamak/cpu/openmp.cpp lacks")


def main():
    part, program = sys.argv[1:]
    defined = symbols(program, "--defined-only")
    check_openmp(program, defined)
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
