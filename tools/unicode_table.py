#!/usr/bin/env python3
"""Write tokamak/tokenizer/unicode_ranges.def: which code points are letters, numbers, spaces, words.

Uses unicodedata2 (any Unicode version) if installed, else Python's own unicodedata.
"""
import pathlib
import sys

try:
    import unicodedata2 as unicode
except ImportError:
    import unicodedata as unicode

LETTER, NUMBER, SPACE, WORD = 1, 2, 4, 8
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
               0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
# Alphabetic or Join_Control although the category does not say so.
OTHER_WORD = {0x200C, 0x200D, *range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A),
              *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)}


def flags_of(code):
    category = unicode.category(chr(code))
    flags = SPACE if code in WHITE_SPACE else 0
    if category[0] == "L":
        flags |= LETTER | WORD
    if category[0] == "N":
        flags |= NUMBER
    if category in ("Nd", "Nl", "Pc") or category[0] == "M" or code in OTHER_WORD:
        flags |= WORD
    return flags


def ranges():
    begin, current = 0, 0
    for code in range(0x110001):
        flags = flags_of(code) if code < 0x110000 else 0
        if flags != current:
            if current:
                yield begin, code - 1, current
            begin, current = code, flags


def main():
    rows = [f"{{0x{a:X}, 0x{b:X}, {f}}}," for a, b, f in ranges()]
    lines = [f"// Written by tools/unicode_table.py from Unicode {unicode.unidata_version}: "
             "{first, last, flags}. Do not edit."]
    line = ""
    for row in rows:
        if len(line) + len(row) > 98:
            lines.append(line.rstrip())
            line = ""
        line += row + " "
    lines += [line.rstrip(), ""]
    out = pathlib.Path(__file__).parent.parent / "tokamak/tokenizer/unicode_ranges.def"
    out.write_text("\n".join(lines))
    print(f"{out}: {len(rows)} ranges", file=sys.stderr)


if __name__ == "__main__":
    main()
