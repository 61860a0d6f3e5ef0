"""Keep files and functions small and code ASCII: warn, and fail where a hard limit is passed."""
import pathlib
import re
import sys

WARN_LINES = 400
MAX_LINES = 800
WARN_FUNCTION_LINES = 100
FOLDERS = ("tokamak", "tests", "bench", "fuzz", "tools", "cmake", ".ci")
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}

# clang-format puts a body's opening brace last on a line and its closing brace at the same indent.
OPENING = re.compile(r"^( *)(?!namespace|extern|struct|class|enum|union).*\)[^;=]*\{$")


def long_functions(lines):
    """(first line, length) of each brace block after a parenthesis that is too long."""
    found = []
    end = 0
    for start, line in enumerate(lines):
        match = OPENING.match(line) if start >= end else None
        if not match:
            continue
        closing = match.group(1) + "}"
        stop = next((i for i in range(start + 1, len(lines)) if lines[i].startswith(closing)), start)
        if stop - start + 1 > WARN_FUNCTION_LINES:
            found.append((start + 1, stop - start + 1))
            end = stop
    return found


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    bad = 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            name = path.relative_to(root)
            text = path.read_bytes()
            lines = text.decode().splitlines()
            if len(lines) > MAX_LINES:
                print(f"{name}: {len(lines)} lines, at most {MAX_LINES}")
                bad = 1
            elif len(lines) > WARN_LINES:
                print(f"{name}: warning: {len(lines)} lines, aim at {WARN_LINES}")
            for number, line in enumerate(text.splitlines(), 1):
                if not line.isascii():
                    print(f"{name}:{number}: not ASCII")
                    bad = 1
            if path.suffix in {".h", ".cpp", ".cu", ".cuh"}:
                for number, length in long_functions(lines):
                    print(f"{name}:{number}: warning: a function of {length} lines")
    return bad


if __name__ == "__main__":
    sys.exit(main())
