"""Keep files and functions small, code ASCII, and the program within tools/budget.toml: warn, and fail where a limit is passed."""
import pathlib
import re
import sys
import tomllib

WARN_LINES = 400
MAX_LINES = 800
MAX_FUNCTION_LINES = 80
FOLDERS = ("tokamak", "tests", "bench", "fuzz", "tools", "cmake", ".ci")
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}

# clang-format puts a body's opening brace last on a line.
OPENING = re.compile(r"^ *(?!namespace|extern|struct|class|enum|union).*\)[^;=]*\{$")
RAW_TEXT = re.compile(r'R"(\w*)\(.*?\)\1"', re.S)
TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)\'')
TESTS = re.compile(r"_test$|_bench$|^test_")


def without_texts(source):
    """The source without string literals and comments, in the same lines."""
    source = RAW_TEXT.sub(lambda raw: "\n" * raw[0].count("\n"), source)
    return [TEXT.sub("", line).split("//")[0].rstrip() for line in source.splitlines()]


def long_functions(source):
    """(first line, length) of each brace block after a parenthesis that is too long."""
    lines = without_texts(source)
    found = []
    end = -1
    for start, line in enumerate(lines):
        if start <= end or not OPENING.match(line):
            continue
        depth = 1
        end = start
        while depth > 0 and end + 1 < len(lines):
            end += 1
            depth += lines[end].count("{") - lines[end].count("}")
        if end - start + 1 > MAX_FUNCTION_LINES:
            found.append((start + 1, end - start + 1))
    return found


def is_program(path):
    """Whether the file counts as the program: C++ and CUDA without tests."""
    return path.suffix in {".h", ".cpp", ".cu", ".cuh"} and not path.stem.endswith("_test") and not path.stem.startswith("test_")


def over_budget(root):
    """Yields a line for each number above its bound in tools/budget.toml, and for each without one."""
    budget = tomllib.loads((root / "tools/budget.toml").read_text())
    counts = {"program": {"lines": 0, "static_casts": 0}, "lines": {}, "files": {}, "pages": {}}
    for folder in sorted(p for p in (root / "tokamak").iterdir() if p.is_dir()):
        texts = [p.read_text() for p in folder.rglob("*") if p.is_file() and is_program(p)]
        counts["files"][folder.name] = len(texts)
        counts["lines"][folder.name] = sum(text.count("\n") for text in texts)
        counts["program"]["lines"] += counts["lines"][folder.name]
        counts["program"]["static_casts"] += sum(text.count("static_cast<") for text in texts)
    for page in budget["pages"]:
        counts["pages"][page] = (root / page).read_text().count("\n")
    for kind, of_kind in counts.items():
        for name, count in of_kind.items():
            bound = budget[kind].get(name)
            if bound is None or count > bound:
                yield f"tools/budget.toml: {kind} of {name}: {count}, {'no bound' if bound is None else f'at most {bound}'}"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    bad = 0
    for line in over_budget(root):
        print(line)
        bad = 1
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
                # Lists of test cases and kernels of GPUs may be longer.
                is_kernel = path.suffix in {".cu", ".cuh"}
                fails = name.parts[0] == "tokamak" and not is_kernel and not TESTS.search(path.stem)
                for number, length in long_functions(text.decode()):
                    if fails:
                        bad = 1
                    print(f"{name}:{number}: {'' if fails else 'warning: '}a function of {length} lines")
    return bad


if __name__ == "__main__":
    sys.exit(main())
