"""Fail if a flag of the command line is in no test, or if a test sleeps instead of waiting for what it needs."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAGS = re.compile(r'"(--[a-z][a-z0-9-]+)[=,"]')
SLEEP = re.compile(r"sleep_for|sleep_until|\busleep\(|\bnanosleep\(")
TESTS = re.compile(r"_test\.cpp$|^test_")
# It polls for all others.
MAY_SLEEP = {"tests/fixtures/processes.h"}


def files(folder, *suffixes):
    return [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in suffixes]


def flags():
    """Each flag in a string of the command line's sources, with the file that has it."""
    return {name: path.relative_to(ROOT) for path in files("tokamak/cli", ".cpp") for name in FLAGS.findall(path.read_text())}


def main():
    beside = [path for path in files("tokamak", ".cpp", ".h") if TESTS.search(path.name)]
    tests = files("tests", ".cpp", ".h", ".sh", ".py") + beside
    text = "\n".join(path.read_text() for path in tests + files("fuzz", ".py"))
    words = set(re.findall(r"--[a-z][a-z0-9-]*", text))
    bad = [f"{path}: {flag} is in no test" for flag, path in sorted(flags().items()) if flag not in words]
    for path in tests:
        name = path.relative_to(ROOT).as_posix()
        if name not in MAY_SLEEP and SLEEP.search(path.read_text()):
            bad.append(f"{name}: a test sleeps: poll by await() of tests/fixtures/processes.h")
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
