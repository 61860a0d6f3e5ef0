"""Keep files, functions and structs small, code ASCII, and the program within tools/budget.toml: warn, and fail where a limit is passed."""
import pathlib
import re
import sys
import tomllib

WARN_LINES = 400
MAX_LINES = 800
MAX_FUNCTION_LINES = 80
MAX_MEMBERS = 30
FOLDERS = ("tokamak", "tests", "bench", "fuzz", "tools", "cmake", ".ci")
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}

# clang-format puts a body's opening brace last on a line.
OPENING = re.compile(r"^ *(?!namespace|extern|struct|class|enum|union).*\)[^;=]*\{$")
RAW_TEXT = re.compile(r'R"(\w*)\(.*?\)\1"', re.S)
TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)\'')
STRUCT = re.compile(r"\b(?:struct|class|union)\b[^;(){}]*?\b(\w+)\b[^;(){}=]*$")
NO_MEMBER = re.compile(r"\s*(?:using|typedef|friend|static|enum|struct|class|union|template|public|private|protected|operator)\b")
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


def members_of(statement):
    """The number of data members that a statement at the top of a struct's body declares."""
    for inner in (r"\{[^{}]*\}", r"<[^<>]*>"):  # initial values, arguments of templates
        while re.search(inner, statement):
            statement = re.sub(inner, "", statement)
    statement = re.sub(r"^.*\}|^(?:\s*(?:public|private|protected)\s*:)+", "", statement, flags=re.S)
    if not statement.strip() or NO_MEMBER.match(statement):
        return 0
    declared = statement.split("=")[0]
    if "(*" in declared:
        return 1
    return 0 if "(" in declared else statement.count(",") + 1


def large_structs(source):
    """(first line, name, members) of each struct with too many data members."""
    text = "\n".join(without_texts(source))
    found = []
    open_braces = []  # [name of a struct or None, line, members]
    begin = 0  # of the statement
    for at in re.finditer(r"[{};]", text):
        statement = text[begin:at.start()]
        inside = open_braces[-1] if open_braces else None
        if at[0] == "{":
            struct = STRUCT.search(statement)
            is_value = inside is not None and inside[0] is not None and not struct and "(" not in statement
            open_braces.append(["" if is_value else struct[1] if struct else None, text.count("\n", 0, at.start()) + 1, 0])
            if is_value:
                continue  # a member with its initial value: the statement goes on
        elif at[0] == "}" and open_braces:
            name, line, members = open_braces.pop()
            if name == "":
                continue
            if name is not None and members > MAX_MEMBERS:
                found.append((line, name, members))
        elif inside is not None and inside[0]:
            inside[2] += members_of(statement)
        begin = at.end()
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
                if name.parts[0] == "tokamak":
                    for number, struct, members in large_structs(text.decode()):
                        print(f"{name}:{number}: {struct} has {members} members, at most {MAX_MEMBERS}")
                        bad = 1
                # Lists of test cases may be longer.
                fails = name.parts[0] == "tokamak" and not TESTS.search(path.stem)
                for number, length in long_functions(text.decode()):
                    if fails:
                        bad = 1
                    print(f"{name}:{number}: {'' if fails else 'warning: '}a function of {length} lines")
    return bad


if __name__ == "__main__":
    sys.exit(main())
