"""Starts the program: run, price and plan."""
import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path

POLL_S = 0.1


class Error(RuntimeError):
    """The program's own line about what went wrong."""


def find_program():
    named = os.environ.get("TOKAMAK_PROGRAM")
    beside = Path(sysconfig.get_path("scripts")) / "tokamak"
    found = named or (str(beside) if beside.is_file() else shutil.which("tokamak"))
    if not found:
        raise Error(f"no program tokamak: wanted {beside}, one in PATH or TOKAMAK_PROGRAM")
    return found


def value_text(value):
    """A value as the command line writes it: lists by commas, lists of lists by semicolons."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        nested = any(isinstance(item, (list, tuple)) for item in value)
        return (";" if nested else ",").join(map(value_text, value))
    return str(value)


def override_words(overrides):
    words = []
    for name, value in overrides.items():
        if isinstance(value, dict):
            words += override_words({f"{name}.{key}": inner for key, inner in value.items()})
        elif "." not in name:
            raise Error(f"{name}={value!r}: wanted a section of keys, as training={{\"steps\": 10}}, or \"section.key\"")
        else:
            words.append(f"--{name}={value_text(value)}")
    return words


def config_words(config):
    return [] if config is None else [os.fspath(config)]


def error_line(text, code):
    """The last line that names an error; a run's log lines begin with the time."""
    lines = [line for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "tokamak: " in line]
    return (told or lines or [f"tokamak ended with {code} and said nothing"])[-1].removeprefix("tokamak: ")


def output_of(words):
    done = subprocess.run([find_program(), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Error(error_line(done.stderr or done.stdout, done.returncode))
    return done.stdout


def price(config=None, *, cluster, gpus, **overrides):
    """Predicts a step on `gpus` of a machine; returns what `tokamak price --json` prints, as a dict."""
    words = ["price", *config_words(config), f"--cluster={cluster}", f"--gpus={gpus}", "--json"]
    return json.loads(output_of(words + override_words(overrides)))


def plan(config=None, *, ranks=1, **overrides):
    """Makes the plan of one of `ranks` ranks without running it.

    Returns parameters, tasks, memory (bytes of the fullest rank by name; "peak (planned = allocated)" is their
    peak) and the program's text. Does not say whether this machine has the memory.
    """
    words = ["plan", *config_words(config), f"--world-size={ranks}", *override_words(overrides)]
    text = output_of(words)
    counts = {name: int(number) for name, number in
              (("parameters", re.search(r": (\d+) parameters", text)[1]), ("tasks", re.search(r"^(\d+) tasks", text, re.M)[1]))}
    memory = {name: int(number) for name, number in re.findall(r"^  (\S.*?) +(\d+) bytes", text, re.M)}
    return {**counts, "memory": memory, "text": text}


class Metrics:
    """The lines that a run adds to its metrics.jsonl. A file that was cut is another file, read from its start."""

    def __init__(self, path, first_step):
        self.path, self.last_step = path, first_step - 1
        self.file, self.torn = None, b""

    def read(self):
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return
        if self.file is None or os.fstat(self.file.fileno()).st_ino != now.st_ino:
            self.close()
            self.file, self.torn = open(self.path, "rb"), b""
        *lines, self.torn = (self.torn + self.file.read()).split(b"\n")
        for line in map(json.loads, lines):
            if line["step"] > self.last_step:
                self.last_step = line["step"]
                yield line

    def close(self):
        if self.file is not None:
            self.file.close()


def dump_folder_of(console):
    """The folder of a run by the resolved configuration that the program logs at its start."""
    written = re.search(r'^\s*"dump_folder": (".*"),?$', console, re.M)
    return Path(json.loads(written[1])) if written else None


def run(config=None, *, ranks=1, **overrides):
    """Trains, and iterates over the logged steps as they come, as dicts (docs/metrics.md).

    `config` is a TOML file or None. Each step comes once, also if the run goes back to an earlier one; a resumed run
    begins with the step after its checkpoint. If the iterator is closed or dropped, the program gets SIGTERM, with which
    it finishes its step and saves, and the call returns once it has. Raises Error if the program fails.
    """
    overrides = {**overrides, "job.print_config": True}
    words = ["train", *config_words(config), *override_words(overrides)]
    if ranks > 1:
        words = ["launch", "-n", str(ranks), "--", *words]
    return _steps([find_program(), *words])


def _steps(words):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        program = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

        def text_of(file):
            size = os.fstat(file.fileno()).st_size
            return os.pread(file.fileno(), size, 0).decode(errors="replace")

        metrics = None
        try:
            while True:
                ended = program.poll() is not None
                if metrics is None:
                    console = text_of(out)
                    first = re.search(r"Training starts at step (\d+)", console)
                    folder = dump_folder_of(console)
                    if first and folder:
                        metrics = Metrics(folder / "metrics.jsonl", int(first[1]))
                if metrics is not None:
                    yield from metrics.read()
                if ended:
                    break
                time.sleep(POLL_S)
            if program.returncode != 0:
                raise Error(error_line(text_of(err) or text_of(out), program.returncode))
        finally:
            if program.poll() is None:
                program.send_signal(signal.SIGTERM)
            program.wait()
            if metrics is not None:
                metrics.close()
