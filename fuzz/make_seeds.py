"""Write the seed inputs of every fuzz target: make_seeds.py FOLDER gives FOLDER/TARGET/NAME."""
import base64
import json
import pathlib
import struct
import sys


def safetensors(header, data=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tokenizer_json(pre_tokenizer):
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    vocab = {token: i for i, token in enumerate(letters + ["he", "ll", "hell", "hello"])}
    return json.dumps({
        "version": "1.0",
        "added_tokens": [{"id": 30, "content": "<|end|>", "special": True, "single_word": False,
                          "lstrip": False, "rstrip": False, "normalized": False}],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["h e", "l l", "he ll", "hell o"]},
    }).encode()


def shard(file, pieces, size=24):
    return {"file": file, "bytes": size, "chunk_bytes": 16, "hashes": ["0" * 16] * (-(-size // 16)),
            "pieces": pieces}


def manifest(tensors, shards):
    return json.dumps({"seal": "0" * 16, "format": "tokamak-checkpoint", "version": 1, "step": 7,
                       "resumable": True, "config_digest": "d", "sections": {"rng": "{}"},
                       "tensors": tensors, "shards": shards}).encode()


def megatron_index(sizes, documents, code=8, width=2):
    pointers = [width * sum(sizes[:i]) for i in range(len(sizes))]
    return (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sizes), len(documents))
            + struct.pack(f"<{len(sizes)}i", *sizes)
            + struct.pack(f"<{len(sizes)}q", *pointers)
            + struct.pack(f"<{len(documents)}q", *documents))


def llmc(magic, tokens, width):
    header = struct.pack("<3i", magic, 1, tokens).ljust(1024, b"\0")
    return header + bytes(tokens * width)


def sentencepiece(pieces):
    """A BPE model with byte fallback from (text, score, type)."""
    def message(tag, content):
        return bytes([tag, len(content)]) + content
    model = b"".join(message(0x0A, message(0x0A, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind]))
                     for text, score, kind in pieces)
    return model + message(0x12, b"\x18\x02\x98\x02\x01") + message(0x1A, b"\x18\x01\x20\x00")


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": True}
SPLIT = {"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": r"\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+"},
     "behavior": "Isolated", "invert": False},
    {**BYTE_LEVEL, "use_regex": False}]}
TENSORS = {"a": {"dtype": "F32", "shape": [2, 2]}, "b": {"dtype": "BF16", "shape": [4]}}
PIECES = [{"tensor": "a", "offset": 0}, {"tensor": "b", "offset": 16}]

SEEDS = {
    "json_lines": {
        "numbers": b'{"text": "a", "n": [NaN, -Infinity, 18446744073709551616, 1e999]}',
        "pretty": b'{\n  "text": "a \\ud83d \\" {",\n  "n": {"k": []}\n}\n{"text": "b"}',
        "string": b'"a", "b"]',
    },
    "json": {
        "object": b'{"a": [1, -2.5e3, true, null, "\\u00e9\\n"], "b": {"c": {}}}',
        "deep": b"[" * 80 + b"]" * 80,
        "twice": b'{"a": 1, "a": 2}',
    },
    "machine": {
        "own": b'name = "mine"\nbase = ["h100-sxm", "hgx-h100"]\nlevels = ["pod", "hall"]\n'
               b'pod.num_devices = { value = 64, source = "s" }\n'
               b'pod.bytes_per_s = { value = 50, unit = "GB/s", source = "s" }\n'
               b'[hall]\nbytes_per_s = { value = 1.5e9, unit = "B/s", source = "s" }\n',
        "tiles": b'base = "b200"\ndevice.tile_256x64 = { value = 70, unit = "%", source = "s" }\n',
        "set": b"nvlink.latency_s=2 us",
    },
    "manifest": {
        "whole": manifest(TENSORS, [shard("shard-0", PIECES)]),
        "range": manifest(TENSORS, [
            shard("shard-0", [{**PIECES[0], "range": [0, 2]}], 8),
            shard("shard-1", [{**PIECES[0], "range": [2, 4]}, {**PIECES[1], "offset": 8}], 16)]),
        "box": manifest(TENSORS, [
            shard("shard-0", [{**PIECES[0], "box": [[0, 0], [1, 2]]}], 8),
            shard("shard-1", [{**PIECES[0], "box": [[1, 0], [2, 2]]},
                              {**PIECES[1], "offset": 8}], 16)]),
        "summary": json.dumps({"tensors": TENSORS, "shard": shard("shard-0", PIECES)}).encode(),
    },
    "safetensors": {
        "two": safetensors({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
                            "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
                            "__metadata__": {"format": "pt"}}, bytes(22)),
        "huge": safetensors({"a": {"dtype": "F32", "shape": [2**62, 8],
                                   "data_offsets": [0, 2**63]}}),
        "length": struct.pack("<Q", 2**63) + b"{}",
        "empty": safetensors({}),
    },
    "sentencepiece": {
        "letters": sentencepiece([("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3)]
                                 + [(f"<0x{b:02X}>", 0, 6) for b in range(256)]
                                 + [("he", -1, 1), ("ll", -2, 1), ("hell", -2, 1), ("\u2581w", -3, 1)]
                                 + [(c, -9, 1) for c in "\u2581helowrd"] + [("123", 0, 4)]),
    },
    "tiktoken": {
        "letters": b"".join(base64.b64encode(token) + b" %d\n" % i for i, token in enumerate(
            [bytes([c]) for c in range(256)] + [b"he", b"ll", b"hell", b"hello"])),
        "gap": b"aA== 0\naQ== 7\n",
    },
    # Two rows of messages, of which one content is null.
    "parquet": {"messages": base64.b64decode(
        "UEFSMRUEFRAVIkwVAhUAEgAAKLUv/SAIQQAABAAAAFdoeT8VABUiFTQsFQYVEBUGFQYcAAAAKLUv/SARiQAAAgAAAAMCBAAAAANc"
        "AAABAgAVBBlcNQAYBnNjaGVtYRUCADUCGAhtZXNzYWdlcxUCFQZMPAAAADUEGARsaXN0FQIANQIYB2VsZW1lbnQVAgAVDCUCGAdj"
        "b250ZW50JQBMHAAAABYEGRwZHCYAHBUMGTUABhAZSAhtZXNzYWdlcwRsaXN0B2VsZW1lbnQHY29udGVudBUMFgYWdBaYASZGJggp"
        "LBUEFQAVAgAVABUQFQIAPBYIGSYEAhlWAAIAAgIAAAAWdBYEJggWmAEAKCBwYXJxdWV0LWNwcC1hcnJvdyB2ZXJzaW9uIDI2LjAu"
        "MRkcHAAAAOMAAABQQVIx")},
    "token_files": {
        "megatron": megatron_index([3, 0, 2], [0, 1, 3]),
        "megatron_int32": megatron_index([1], [0, 1], 4, 4),
        "gpt2": llmc(20240520, 8, 2),
        "llama3": llmc(20240801, 4, 4),
        "lying": struct.pack("<3i", 20240520, 1, 2**31 - 1).ljust(1026, b"\0"),
    },
    "tokenizer_json": {
        "byte_level": tokenizer_json(BYTE_LEVEL),
        "split": tokenizer_json(SPLIT),
        "characters": json.dumps({
            "added_tokens": [], "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first", "split": True},
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "NFKC"}, {"type": "Strip"}, {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"Regex": " +"}, "content": "\u2581"}]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "byte_fallback": True, "unk_token": "a", "vocab": {
                "a": 0, "b": 1, "ab": 2, "\u2581": 3, "<0xC3>": 4, "<0xB6>": 5}, "merges": ["a b"]}}).encode(),
    },
    "toml": {
        "live": b'[model]\nname = "llama3"\n[training]\nsteps = 10\ndataset = "c4"\n'
                b"[lr_scheduler]\ndecay_ratio = 0.5\n[quantize.linear.float8]\n"
                b'filter_fqns = ["output"]\n',
        "retired": b'[training]\nbatch_size = 8\nwarmup_steps = 2\n[metrics]\n'
                   b"rank_0_only = true\n",
        "deep": b"a = " + b"[" * 500 + b"]" * 500,
        "types": b'x = [1, 0x1F, 1e3, inf, 1979-05-27T07:32:00Z, {a.b = "\\u00e9"}]\n',
    },
    "hub": {
        "tree": json.dumps([
            {"type": "file", "oid": "0" * 40, "size": 2, "path": "config.json"},
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": "original"},
            {"type": "file", "oid": "0" * 40, "size": 9, "path": "model.safetensors",
             "lfs": {"oid": "0" * 64, "size": 9, "pointerSize": 130}}]).encode(),
        "link": b'<https://host/api/models/a/b/tree/main?cursor=x>; rel="next"',
    },
    "s3": {
        "list": b"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
                b"<NextContinuationToken>x</NextContinuationToken><Contents><Key>a%2Fb&amp;c</Key>"
                b"<Size>3</Size><ETag>&quot;e&quot;</ETag></Contents></ListBucketResult>",
        "profiles": b"[default]\naws_access_key_id = A\n[profile w]\ns3 =\n  x = 1\nregion=r\n",
    },
    "weight_index": {
        "two": json.dumps({"metadata": {"total_size": 4}, "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors"}}).encode(),
        "escape": b'{"weight_map": {"a": "../x.safetensors"}}',
    },
}


def main():
    root = pathlib.Path(sys.argv[1])
    for target, seeds in SEEDS.items():
        (root / target).mkdir(parents=True, exist_ok=True)
        for name, data in seeds.items():
            (root / target / name).write_bytes(data)


if __name__ == "__main__":
    main()
