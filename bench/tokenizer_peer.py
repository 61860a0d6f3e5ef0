#!/usr/bin/env python3
"""Encoding speed of Hugging Face tokenizers, one thread, CPU time: tokenizer_peer.py tokenizer.json FILE..."""
import os
import pathlib
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402

CHUNK = 100_000

tokenizer = Tokenizer.from_file(sys.argv[1])
text = "".join(pathlib.Path(name).read_text(errors="replace") for name in sys.argv[2:])
pieces = [text[i:i + CHUNK] for i in range(0, len(text), CHUNK)]
for _ in range(3):
    begin = time.process_time()
    ids = sum(len(tokenizer.encode(piece, add_special_tokens=False).ids) for piece in pieces)
    seconds = time.process_time() - begin
    print(f"{ids} ids, {len(text.encode()) / 1e6 / seconds:.2f} MB/s")
