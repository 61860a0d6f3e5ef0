"""Fail if a comment, a string or a page of docs has a word that a native systems engineer would not write."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A pattern, and what to write instead.
BANNED = [
    (r"so many", "N, or this many"),
    (r"(?:so much|that many) at a time", "this much at a time"),
    (r"yields|yielded", "returns, gives"),
    (r"as many [a-z ]{0,40}\bas", "the same number of ... as, one ... for each"),
    (r"(?:is|are|was|were) made of", "is computed from, consists of"),
    (r"coded", "quantized"),
    (r"is none of", "is not one of"),
    (r"(?:is|are) of (?:no use|this machine|this host|one host)", "cannot help, is on this host"),
    (r"wish|wishes|wished", "wants, request, agreement"),
    (r"carriers?", "transport"),
    (r"beside (?:compute|computation|training|each other|the work)", "concurrently with, during, side by side"),
    (r"in vain", "without success"),
    (r"to be had", "available"),
    (r"for once", "once"),
    (r"whereof|thereof|nought|lest|hitherto", "a plain word"),
]
WORDS = re.compile(r"(?<![-\w])(?:" + "|".join(f"({pattern})" for pattern, _ in BANNED) + r")(?![-\w])", re.IGNORECASE)
TEXT = re.compile(r'//[/!<]* ?(.*)|"((?:[^"\\\n]|\\.)*)"')
CODE = {".h", ".cpp", ".cu", ".cuh"}


def texts(path):
    """The comments and strings of a source with their lines; every line of a page."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if path.suffix == ".md":
            yield number, line
        elif not line.startswith("#include"):
            for match in TEXT.finditer(line):
                yield number, match[1] or match[2] or ""


def main():
    paths = [path for folder in ("tokamak", "tests", "bench", "rows", "fuzz") for path in (ROOT / folder).rglob("*")
             if path.suffix in CODE]
    paths += [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    bad = []
    for path in sorted(paths):
        for number, text in texts(path):
            for match in WORDS.finditer(text):
                instead = BANNED[match.lastindex - 1][1]
                bad.append(f"{path.relative_to(ROOT)}:{number}: \"{match[0]}\": write: {instead}")
    print("\n".join(bad), end="\n" if bad else "")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
