#!/usr/bin/env python3
"""Shows what users see: screens.py PROGRAM writes docs/pictures/screens/NAME.txt and NAME.svg.

A run on a terminal is captured from tmux, with its colours; all else is what the program writes into a pipe. Each
picture is the text of its screen, with a prompt before what was typed; docs/screens.md shows them.
"""
import html
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OUT = Path(__file__).resolve().parent.parent / "docs/pictures/screens"
COLUMNS = 118
# SGR codes of the foreground, as colours that are readable on the dark ground of the pictures.
COLORS = {30: "#666", 31: "#f07178", 32: "#a5d67b", 33: "#f2c66d", 34: "#82aaff", 35: "#c792ea", 36: "#7fdbca", 37: "#ddd"}
CHARACTER, ROW, EDGE = 7.22, 17, 12

RUN = "train --training.dataset=shakespeare --training.seq_len=256 --metrics.log_freq=40"
SHORT = "train --training.dataset=synthetic --training.seq_len=64"
ERRORS = {
    "mistakes": [
        "trainn", "train --dryrun", "train --training.setps=3 --optimizer.lr=fast", "train --model.flavor=8b",
        "train no_such.toml", "train --dry-run --training.dataset=text --training.dataset_path=no/where",
        "generate no_such_folder -p Once", "launch -n 2 -- no_verb"],
    "diverged": [f"{SHORT} --training.steps=50 --optimizer.lr=1e30 --lr_scheduler.warmup_steps=0"],
    # A limit of file sizes stands for a full disk; both are the machine's.
    "machine": [f"{SHORT} --training.steps=3 --checkpoint.enable --checkpoint.max_failed_saves=1"],
}


def picture(text):
    """The SVG of `text`, whose only escapes are SGR colours."""
    lines = text.rstrip("\n").split("\n")
    width = max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines) * CHARACTER + 2 * EDGE
    height = len(lines) * ROW + 2 * EDGE
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
           f'height="{height}" font-family="ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="12" '
           f'fill="#ddd"><rect width="100%" height="100%" rx="6" fill="#16181c"/>']
    color = ""
    for row, line in enumerate(lines):
        spans = ""
        for part in re.split(r"(\x1b\[[0-9;]*m)", line):
            if part.startswith("\x1b"):
                for code in (int(c or 0) for c in part[2:-1].split(";")):
                    color = COLORS.get(code - 60 if 90 <= code <= 97 else code, "" if code in (0, 39) else color)
            elif part:
                words = html.escape(part, quote=False)
                spans += f'<tspan fill="{color}">{words}</tspan>' if color else words
        if line.startswith("$ "):
            spans = f'<tspan fill="#82aaff">{spans}</tspan>'
        if spans:
            out.append(f'<text x="{EDGE}" y="{EDGE + (row + 0.75) * ROW:.1f}" xml:space="preserve">{spans}</text>')
    return "\n".join(out) + "\n</svg>\n"


def write(name, text, as_picture=True):
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.txt").write_text(re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip("\n") + "\n")
    if as_picture:
        (OUT / f"{name}.svg").write_text(picture(folded(text)))
    print(f"{OUT}/{name}")


def folded(text):
    """Lines of at most COLUMNS columns, as a terminal breaks them; tmux has broken those with colours already."""
    if "\x1b" in text:
        return text
    return "\n".join(line[i:i + COLUMNS] for line in text.split("\n") for i in range(0, max(len(line), 1), COLUMNS))


def piped(program, words, folder, limit=""):
    ran = subprocess.run(["bash", "-c", f"{limit} exec {shlex.quote(str(program))} {words}"], cwd=folder, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    return ran.stdout.replace(str(folder), "."), ran.returncode


def on_terminal(program, folder):
    """The screen of a run after a few seconds, and after Ctrl-C."""
    tmux = ["tmux", "-L", "tokamak-screens"]
    session = [*tmux, "-f", "/dev/null", "new-session", "-d", "-x", str(COLUMNS), "-y", "18", "-s", "s",
               f"cd {shlex.quote(str(folder))}; exec {shlex.quote(str(program))} {RUN} --training.steps=300; sleep 9"]
    subprocess.run(session, check=True)
    try:
        capture = [*tmux, "capture-pane", "-e", "-p", "-t", "s"]
        for _ in range(240):
            time.sleep(0.5)
            screen = subprocess.run(capture, check=True, capture_output=True, text=True).stdout
            if re.search(r"step (\x1b\[[0-9;]*m)*[5-7][0-9]/300", screen):
                return screen
        sys.exit("no live line within two minutes:\n" + screen)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def main():
    program = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        write("terminal", f"$ tokamak {RUN} --training.steps=300\n" + on_terminal(program, folder))
    with tempfile.TemporaryDirectory() as folder:
        text, _ = piped(program, f"{SHORT} --training.steps=7", folder)
        write("pipe", f"$ tokamak {SHORT} --training.steps=7 | cat\n" + text)
        for name, commands in ERRORS.items():
            screen = ""
            for words in commands:
                text, code = piped(program, words, folder, "ulimit -f 20000;" if name == "machine" else "")
                screen += f"$ tokamak {words}\n{text}$ echo $?\n{code}\n"
            write(f"error_{name}", screen)
        usage, _ = piped(program, "--help", folder)
        write("help", f"$ tokamak --help\n{usage}")
        verbs = re.findall(r"^  (\S+) {2,}", usage, re.MULTILINE)
        for verb in verbs:
            text, _ = piped(program, f"help {verb}" if verb == "help" else f"{verb} --help", folder)
            write(f"help_{verb}", f"$ tokamak {verb} --help\n{text}", as_picture=verb in ("train", "launch"))


if __name__ == "__main__":
    main()
