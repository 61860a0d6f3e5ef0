"""Feed the program damaged files: mutate_inputs.py PROGRAM [--count N] [--seed S] [--jobs J].

Each case damages one input (safetensors, weight index, config.json, tokenizer.json, vocab.json or
merges.txt, TOML, manifest or shard of a checkpoint, a manifest that is sealed again, JSON lines
packed or not, token files, an answer of a model hub) and gives it to `convert`, `generate`, `train
--dry-run`, `train`, `download`, `tokenizer cache` or `eval`. A case fails where the program ends by a
signal or as a bug, takes over 10 s or 4 GiB, refuses in anything but one line, prints a control
character, accepts damage that a hash covers, or drops documents or tokens without a line. Case N of
seed S is always the same; a failed one is kept in FOLDER/failed-N with its command.
"""
import argparse
import array
import concurrent.futures
import ctypes
import gzip
import json
import os
import pathlib
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time

import hub_cases
import seal

MOST_SECONDS = 10
MOST_BYTES = 4 << 30
ORACLES = pathlib.Path(__file__).resolve().parent.parent / "tests" / "oracles"
NUMBERS = [b"0", b"-1", b"1", b"2", b"65537", b"100000", b"2147483647", b"4294967296",
           b"9223372036854775807", b"18446744073709551615", b"-9223372036854775808", b"1e308",
           b"1e-320", b"0.5", b"null", b"true", b'"x"', b"[]", b"{}", b"1e999", b"NaN"]
TOML = b"""[job]
description = "a run"
[model]
name = "llama3"
flavor = "debugmodel"
[optimizer]
name = "AdamW"
lr = 8e-4
eps = 1e-8
[lr_scheduler]
warmup_steps = 2
decay_ratio = 0.8
decay_type = "linear"
min_lr_factor = 0.0
[training]
local_batch_size = 8
seq_len = 256
max_norm = 1.0
steps = 10
dataset = "self"
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
pipeline_parallel_degree = 1
context_parallel_degree = 1
[checkpoint]
enable = false
folder = "checkpoint"
interval = 10
export_dtype = "float32"
async_mode = "disabled"
[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
"""


def tokenizer_json():
    letters = [chr(c) for c in range(ord("!"), ord("~") + 1)] + ["\u0120", "\u010a"]
    vocab = {token: i for i, token in enumerate(letters + ["he", "ll", "hell", "hello"])}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 110, "content": "<|end|>", "special": True, "single_word": False,
                          "lstrip": False, "rstrip": False, "normalized": False}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r"\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+"},
             "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False}]},
        "post_processor": None, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                  "byte_fallback": False, "vocab": vocab,
                  "merges": ["h e", "l l", "he ll", "hell o"]},
    }).encode()


def numbers_in(text):
    """The places of numbers: (begin, end) of each run of digits outside of words."""
    spans, begin = [], None
    for i, byte in enumerate(text + b" "):
        is_digit = chr(byte) in "0123456789.eE+-"
        if is_digit and begin is None and (i == 0 or chr(text[i - 1]) in " :[,=\n"):
            begin = i
        elif not is_digit and begin is not None:
            if any(chr(b).isdigit() for b in text[begin:i]):
                spans.append((begin, i))
            begin = None
    return spans


def mutated_bytes(data, draw):
    data = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 4, 16])):
        if not data:
            break
        at = draw.randrange(len(data))
        length = min(len(data) - at, draw.choice([1, 2, 8, 64, 4096]))
        what = draw.randrange(7)
        if what == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif what == 1:
            data[at] = draw.randrange(256)
        elif what == 2:
            del data[at:at + length]
        elif what == 3:
            data[at:at] = data[at:at + length]
        elif what == 4:
            data[at:at + length] = bytes(length)
        elif what == 5:
            other = draw.randrange(len(data))
            data[at], data[other] = data[other], data[at]
        else:
            del data[at:]
    return bytes(data)


def mutated_text(text, draw):
    """A text whose syntax mostly holds: a number, a name or a line changes."""
    kind = draw.randrange(6)
    if kind <= 2:
        spans = numbers_in(text)
        if spans:
            begin, end = draw.choice(spans)
            return text[:begin] + draw.choice(NUMBERS) + text[end:]
    if kind == 3:
        words = [i for i, byte in enumerate(text) if byte == ord('"')]
        if len(words) >= 2:
            at = draw.randrange(len(words) - 1)
            new = draw.choice([b"", b"..", b"/etc/passwd", b"x" * 5000, b"\xff\xfe", b"../x",
                               b"\\u001b[2J", b"\\u009b2J", b"\x7f",
                               text[words[at - 1] + 1:words[at]][:200]])
            return text[:words[at] + 1] + new + text[words[at + 1]:]
    if kind == 4:
        at, to = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        return text[:to] + text[at:to][:10000] * draw.choice([1, 2, 50]) + text[to:]
    return mutated_bytes(text, draw)


def mutated_safetensors(data, draw):
    length = struct.unpack("<Q", data[:8])[0]
    what = draw.randrange(4)
    if what == 0:
        return mutated_bytes(data, draw)
    if what == 1:
        wrong = draw.choice([0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1, len(data)])
        return struct.pack("<Q", wrong) + data[8:]
    header = mutated_text(data[8:8 + length], draw)
    return struct.pack("<Q", len(header)) + header + data[8 + length:]


def zstd_frame(text):
    """A frame with a checksum."""
    lib = ctypes.CDLL("libzstd.so.1")
    lib.ZSTD_createCCtx.restype = ctypes.c_void_p
    lib.ZSTD_compressBound.restype = lib.ZSTD_compress2.restype = ctypes.c_size_t
    lib.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
    lib.ZSTD_CCtx_setParameter.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    lib.ZSTD_compress2.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p,
                                   ctypes.c_size_t]
    lib.ZSTD_freeCCtx.argtypes = [ctypes.c_void_p]
    context = lib.ZSTD_createCCtx()
    lib.ZSTD_CCtx_setParameter(context, 201, 1)
    room = lib.ZSTD_compressBound(len(text))
    packed = ctypes.create_string_buffer(room)
    size = lib.ZSTD_compress2(context, packed, room, text, len(text))
    lib.ZSTD_freeCCtx(context)
    return packed.raw[:size]


PARTS = [[f"document {part}.{i}" for i in range(1 + 3 * part)] for part in range(3)]


def json_lines(texts):
    return "".join(json.dumps({"text": text, "score": 0.5, "hash": 2**64 + i}) + "\n"
                   for i, text in enumerate(texts)).encode()


def packed_files():
    """Files of several members or frames, and what may lie between them."""
    parts = [json_lines(texts) for texts in PARTS]
    skipped = struct.pack("<II", 0x184D2A53, 3) + b"abc"
    return {"a.jsonl.gz": b"".join(gzip.compress(part, mtime=0) for part in parts) + bytes(20),
            "a.jsonl.zst": skipped + skipped.join(zstd_frame(part) for part in parts)}


def texts_in(data):
    """The texts of JSON lines, objects or an array of them, as Python reads them."""
    rest, texts, decoder = data.decode("utf-8-sig"), [], json.JSONDecoder()
    while rest := rest.strip(" \t\r\n\v\f\ufeff"):
        value, end = decoder.raw_decode(rest)
        rest = rest[end:]
        for each in value if isinstance(value, list) and not texts else [value]:
            text = each["text"] if isinstance(each, dict) else each
            texts.append(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return texts


def token_files():
    ids = array.array("H", [i % 50 for i in range(100)]).tobytes()
    lengths, pointers = [30, 50, 20], [0, 60, 160]
    return {"a.bin": struct.pack("<256i", 20240520, 1, 100, *[0] * 253) + ids,
            "m.bin": ids,
            "m.idx": b"MMIDIDX\0\0" + struct.pack("<QBQQ3i3q3q", 1, 8, 3, 3, *lengths, *pointers, 0, 2, 3)}


class Inputs:
    """The undamaged inputs, made once."""

    def __init__(self, program, folder):
        self.folder = folder
        self.models = {name: ORACLES / name for name in ("llama_tiny", "llama_tied", "gpt2_tiny", "gemma3_vision")}
        self.train = [program, "train", "--model.flavor=hf",
                      f"--model.hf_assets_path={ORACLES}/llama_tiny", "--training.dataset=synthetic",
                      "--training.seq_len=16", "--training.local_batch_size=2", "--checkpoint.enable",
                      "--checkpoint.last_save_model_only=false", "--job.device=cpu"]
        subprocess.run([*self.train, f"--job.dump_folder={folder}/run", "--training.steps=2"],
                       check=True, stdout=subprocess.DEVNULL)
        self.hub = hub_cases.Hub()
        self.checkpoint = folder / "run" / "checkpoint"
        self.exported = folder / "exported"
        subprocess.run([program, "convert", self.checkpoint / "step-2", self.exported], check=True,
                       stdout=subprocess.DEVNULL)
        self.sharded = folder / "sharded"
        self.make_sharded()

    def make_sharded(self):
        self.sharded.mkdir()
        data = (ORACLES / "llama_tiny" / "model.safetensors").read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        names = sorted(header)
        weight_map = {}
        for half in (0, 1):
            file = f"model-0000{half + 1}-of-00002.safetensors"
            entries, body = {}, b""
            for name in names[half::2]:
                begin, end = header[name]["data_offsets"]
                piece = data[8 + length + begin:8 + length + end]
                entries[name] = {**header[name], "data_offsets": [len(body), len(body) + len(piece)]}
                body += piece
                weight_map[name] = file
            text = json.dumps(entries).encode()
            (self.sharded / file).write_bytes(struct.pack("<Q", len(text)) + text + body)
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (self.sharded / "model.safetensors.index.json").write_text(json.dumps(index))
        shutil.copy(ORACLES / "llama_tiny" / "config.json", self.sharded)


def damage(path, mutate, draw):
    path.write_bytes(mutate(path.read_bytes(), draw))


def copy_of(folder, to):
    """A copy whose files are links, but for those that are damaged afterwards."""
    to.mkdir(parents=True)
    for file in folder.iterdir():
        if file.is_file():
            shutil.copy(file, to / file.name)
    return to


class Case:
    """One damaged input and the command that reads it."""

    def __init__(self, number, seed, program, inputs, folder):
        draw = random.Random(f"{seed}/{number}")
        self.folder = folder
        self.kind = draw.choice(["safetensors", "index", "config", "tokenizer", "vocab", "toml",
                                 "manifest", "shard", "packed", "lines", "tokens", "sealed", "sealed",
                                 "hub"])
        self.inputs = inputs
        self.is_finished = False
        self.out = folder / "out"
        model = folder / "model"
        if self.kind == "toml":
            file = folder / "run.toml"
            file.write_bytes(mutated_text(TOML, draw))
            self.command = [program, "train", str(file), "--dry-run", "--world-size=1", "--job.device=cpu"]
            return
        if self.kind in ("packed", "lines"):
            self.write_text(draw)
            self.command = [program, "tokenizer", "cache", "c4", str(self.data), "--tokenizer", "bytes",
                            "--cache", str(folder / "cache"), "--threads=1"]
            return
        if self.kind == "tokens":
            for name, data in token_files().items():
                (folder / name).write_bytes(data)
            damaged = draw.choice(sorted(token_files()))
            damage(folder / damaged, mutated_bytes, draw)
            self.data = folder / f"{damaged[0]}.bin"
            self.command = [program, "eval", str(inputs.models["llama_tiny"]), str(self.data), "--seq-len=16",
                            "--json", "--device=cpu"]
            return
        if self.kind == "hub":
            address = inputs.hub.add(number, mutated_text, draw)
            self.command = [program, "download", "o/n", "--endpoint", address, "--output",
                            str(self.out), "--token", "secret"]
            return
        if self.kind == "sealed":
            self.reseal(program, draw)
            return
        if self.kind in ("manifest", "shard"):
            copy_of(inputs.checkpoint, folder / "checkpoint")
            model = copy_of(inputs.checkpoint / "step-2", folder / "checkpoint" / "step-2")
            name = "manifest.json" if self.kind == "manifest" else "shard-00000.safetensors"
            damage(model / name, draw.choice([mutated_bytes, mutated_text])
                   if self.kind == "manifest" else mutated_bytes, draw)
            self.command = [program, "convert", str(model), str(self.out)]
            return
        source = inputs.sharded if self.kind == "index" else \
            inputs.models[draw.choice(sorted(inputs.models))]
        copy_of(source, model)
        if self.kind == "safetensors":
            damage(model / "model.safetensors", mutated_safetensors, draw)
        elif self.kind == "index":
            damage(model / "model.safetensors.index.json", mutated_text, draw)
        elif self.kind == "config":
            damage(model / "config.json", mutated_text, draw)
        tokenizer = "bytes"
        if self.kind == "tokenizer":
            (model / "tokenizer.json").write_bytes(
                draw.choice([mutated_text, mutated_text, mutated_bytes])(tokenizer_json(), draw))
            tokenizer = str(model)
        if self.kind == "vocab":
            self.write_vocab(model, draw)
            tokenizer = str(model)
        if self.kind == "config" and draw.randrange(2):
            self.command = [program, "train", "--dry-run", "--world-size=1", "--job.device=cpu", "--model.flavor=hf",
                            f"--model.hf_assets_path={model}", "--training.dataset=synthetic",
                            "--training.seq_len=32", "--training.local_batch_size=1"]
        elif self.kind in ("tokenizer", "vocab") or draw.randrange(2):
            self.command = [program, "generate", str(model), "--tokenizer", tokenizer, "-p",
                            "hello", "-n", "2", "--ids", "--device=cpu"]
        else:
            self.command = [program, "convert", str(model), str(self.out)]

    def write_text(self, draw):
        if self.kind == "packed":
            name, data = draw.choice(sorted(packed_files().items()))
            data = mutated_bytes(data, draw)
        else:
            name, lines = "a.jsonl", json_lines(PARTS[2])
            data = b"[" + lines.strip().replace(b"\n", b",\n") + b"]" if draw.randrange(3) == 0 else lines
            data = mutated_text(data, draw)
        self.data = self.folder / name
        self.data.write_bytes(data)

    def is_all_there(self):
        """Whether the program's output holds all documents or tokens of the damaged file."""
        if self.kind == "tokens":
            return json.loads((self.folder / "stdout").read_text())["tokens"] == 99
        tokens = array.array("H", next((self.folder / "cache").glob("*/tokens.u16")).read_bytes())
        texts, text = [], bytearray()
        for token in tokens:
            if token < 256:
                text.append(token)
            elif token == 257:
                texts.append(text.decode("utf-8", "replace"))
                text.clear()
        if self.kind == "lines":
            return texts == texts_in(self.data.read_bytes())
        while texts:
            part = next((part for part in PARTS if texts[:len(part)] == part), None)
            if part is None:
                return False
            texts = texts[len(part):]
        return bool(tokens)

    def reseal(self, program, draw):
        """A manifest that lies under a right seal, which anyone can make."""
        checkpoint = self.folder / "run" / "checkpoint"
        copy_of(self.inputs.checkpoint, checkpoint)
        model = copy_of(self.inputs.checkpoint / "step-2", checkpoint / "step-2")
        text = (model / "manifest.json").read_bytes()
        for _ in range(draw.choice([1, 1, 2, 4])):
            text = mutated_text(text, draw)
        (model / "manifest.json").write_bytes(seal.sealed(text))
        what = draw.randrange(4)
        if what == 0:
            steps = draw.choice([2, 4])
            self.is_finished = steps == 2
            self.command = [*self.inputs.train, f"--job.dump_folder={self.folder}/run",
                            f"--training.steps={steps}"]
        elif what == 1:
            self.command = [program, "generate", str(model), "--tokenizer", "bytes", "-p", "hello",
                            "-n", "2", "--ids", "--device=cpu"]
        else:
            self.command = [program, "convert", str(model), str(self.out)]

    def has_other_hashes(self):
        def hashes(folder):
            manifest = json.loads((folder / "manifest.json").read_bytes())
            return [shard["hashes"] for shard in manifest["shards"]]
        return hashes(self.folder / "run" / "checkpoint" / "step-2") != \
            hashes(self.inputs.checkpoint / "step-2")

    def write_vocab(self, model, draw):
        """The same tokenizer in the files of GPT-2, of which one is damaged."""
        parts = json.loads(tokenizer_json())["model"]
        files = {"vocab.json": json.dumps(parts["vocab"]).encode(),
                 "merges.txt": "\n".join(["#version: 0.2", *parts["merges"]]).encode(),
                 "added_tokens.json": b'{"<|end|>": 110}',
                 "tokenizer_config.json": b'{"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|end|>"}'}
        damaged = draw.choice(sorted(files))
        for name, text in files.items():
            (model / name).write_bytes(mutated_text(text, draw) if name == damaged else text)

    def run(self):
        """Returns what is wrong with the program's answer, or None, and what it took."""
        start = time.monotonic()
        with open(self.folder / "stdout", "wb") as out, open(self.folder / "stderr", "wb") as err:
            child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                     cwd=self.folder, env={**os.environ, "OMP_NUM_THREADS": "1"},
                                     preexec_fn=limit)
            killer = threading.Timer(6 * MOST_SECONDS, child.kill)
            killer.start()
            _, status, used = os.wait4(child.pid, 0)
            killer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = min(used.ru_utime + used.ru_stime, time.monotonic() - start)
        peak = used.ru_maxrss * 1024
        text = (self.folder / "stderr").read_bytes().decode(errors="replace")
        return self.verdict(child.returncode, text, seconds, peak), child.returncode, seconds, peak

    def verdict(self, code, text, seconds, peak):
        if code < 0:
            return f"signal {-code}"
        if code not in (0, 2, 75) and (code, self.kind) != (3, "sealed"):
            return f"exit {code}: {text[:300]}"
        if seconds > MOST_SECONDS:
            return f"{seconds:.1f} s"
        if peak > MOST_BYTES or "out of host memory" in text:
            return f"{peak / 2**30:.2f} GiB: {text[:300]}"
        lines = [line for line in text.split("\n")[:-1] if ": left out " not in line
                 and ": ignored, as in transformers" not in line]
        if self.kind in ("packed", "lines", "tokens"):
            progress = r"\r?[^\r\n]*: \d+ tokens, \d+ %(, complete\n)?"
            lines = re.sub(progress, "", text).split("\n")[:-1]
            if code != 0:
                lines = [line for line in lines if ": its index gives " not in line]
            if code != 0 and self.data.stem not in "".join(lines):
                return f"the file has no name: {text[:300]}"
            if code == 0 and not lines and not self.is_all_there():
                return "documents or tokens are missing without a line"
        if code != 0 and self.kind != "toml" and len(lines) != 1:
            return f"{len(lines)} lines: {text[:300]}"
        if any(byte < 32 and byte not in b"\t\n\r" or byte == 127 for byte in text.encode()):
            return f"a control character: {text[:300]!r}"
        if self.is_finished and code == 0 and self.has_other_hashes():
            return "a wrong hash passes"
        if self.kind == "hub":
            files = {str(f.relative_to(self.folder)) for f in self.folder.rglob("*") if f.is_file()}
            strange = [f for f in files if f not in ("stdout", "stderr") and not f.startswith("out/")]
            return f"files outside: {strange}" if strange else None
        if code != 0 and self.out.exists():
            return "a refusal left its output"
        if code == 0 and (self.kind in ("manifest", "shard") or
                          self.kind == "sealed" and self.command[1] == "convert"):
            got = (self.out / "model.safetensors").read_bytes()
            if got != (self.inputs.exported / "model.safetensors").read_bytes():
                return "damage was accepted"
        return None


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (4 * MOST_BYTES, 4 * MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main():
    words = argparse.ArgumentParser()
    words.add_argument("program", type=lambda path: str(pathlib.Path(path).resolve()))
    words.add_argument("--count", type=int, default=10000)
    words.add_argument("--first", type=int, default=0)
    words.add_argument("--seed", default="1")
    words.add_argument("--jobs", type=int, default=os.cpu_count())
    words.add_argument("--folder", type=pathlib.Path)
    args = words.parse_args()
    root = args.folder or pathlib.Path(tempfile.mkdtemp(prefix="tokamak-mutated-"))
    root.mkdir(parents=True, exist_ok=True)
    inputs = Inputs(args.program, root)
    counts, failed, slowest, largest = {}, [], 0.0, 0

    def one(number):
        folder = root / f"case-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        case = Case(number, args.seed, args.program, inputs, folder)
        wrong, code, seconds, peak = case.run()
        if wrong is None:
            shutil.rmtree(folder)
        else:
            shutil.rmtree(root / f"failed-{number}", ignore_errors=True)
            (folder / "command").write_text(" ".join(case.command) + "\n")
            folder.rename(root / f"failed-{number}")
        return number, case.kind, wrong, code, seconds, peak

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for number, kind, wrong, code, seconds, peak in pool.map(
                one, range(args.first, args.first + args.count)):
            counts[kind, code] = counts.get((kind, code), 0) + 1
            slowest, largest = max(slowest, seconds), max(largest, peak)
            if wrong is not None:
                failed.append(number)
                print(f"case {number} ({kind}): {wrong}", flush=True)
    for (kind, code), count in sorted(counts.items()):
        print(f"{kind:12} exit {code:3}: {count}")
    print(f"{args.count} cases, {len(failed)} failed; at most {slowest:.2f} s, "
          f"{largest / 2**20:.0f} MiB")
    if not args.folder and not failed:
        shutil.rmtree(root)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
