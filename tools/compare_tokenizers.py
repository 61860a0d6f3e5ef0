"""Compare tokamak's tokenizers with Hugging Face's and SentencePiece's on drawn and real texts.

usage: compare_tokenizers.py PROGRAM [--count N] [--seed S] [--store FOLDER] [KIND ...]
(needs tokenizers, sentencepiece)

Trains a small tokenizer of each kind that the supported families publish, encodes and decodes N texts with its
library and with `tokamak tokenizer encode`, and prints how many differ. Half of the texts are lines of real files
(sources, documentation, translations below /usr/share), half are drawn over scripts, marks, spaces and special
tokens. --store keeps the tokenizers with 60 cases each, which the unit tests read (tests/oracles/tokenizers).
"""
import argparse
import io
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
VOCAB = 500
STORED = 60
MARK = "\u2581"
BYTES = [f"<0x{b:02X}>" for b in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>"]
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
          r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
FALLBACK = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
LLAMA = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                           decoders.Strip(" ", 1, 0)])


SAMPLE = ("\"Fix, hello\", Zo\u00eb's na\u00efve caf\u00e9 \u2014 \u6771\u4eac\u3078\u884c\u304d\u307e\u3059\u3002 "
          "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \uc548\ub155 \u05e9\u05dc\u05d5\u05dd "
          "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 \u09e7\u09e8\u09e9 \u00bd "
          "\ufb01ne \u2122 \u212b \u2126")


def real_lines():
    """Lines of text in many languages that a Debian machine has."""
    lines = []
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("tokamak/core/*.cpp"), *ROOT.glob("tools/*.py"),
             *pathlib.Path("/usr/share/perl5/Debconf").rglob("*.pm"), *pathlib.Path("/usr/share/i18n/locales").glob("*"),
             *pathlib.Path("/usr/share/doc").rglob("copyright"), *pathlib.Path("/usr/share/vim").rglob("*.utf-8")]
    for path in sorted(files)[:600]:
        try:
            lines += [line for line in path.read_text("utf-8").splitlines() if line.strip()][:400]
        except (UnicodeDecodeError, OSError):
            continue
    return lines + [SAMPLE] * 20


SCRIPTS = [(0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5FF), (0x600, 0x6FF),
           (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2100, 0x214F),
           (0x2460, 0x24FF), (0x3000, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xACFF), (0xF900, 0xFAFF), (0xFB00, 0xFB06),
           (0xFF00, 0xFFEF), (0x1D400, 0x1D4FF), (0x1F600, 0x1F64F)]
PIECES = ["<s>", "</s>", "<unk>", "<0x0A>", "<|x|>", "user", " ", "  ", "   ", "\n", "\r\n\n", "\t", "\u3000", "'s", "'LL",
          "12345", "e\u0301", "o\u0308\u0304", "\u1112\u1161\u11ab", "\ufb01", "\u212b", MARK, MARK * 2, "a" * 60]


def drawn_text(random_):
    parts = []
    for _ in range(random_.randint(0, 12)):
        if random_.random() < 0.4:
            parts.append(random_.choice(PIECES))
            continue
        low, high = random_.choice(SCRIPTS[:1] * 8 + SCRIPTS)
        parts.append("".join(chr(random_.randint(low, high)) for _ in range(random_.randint(1, 9))))
    return "".join(parts)


def with_bpe(model, **parts):
    tokenizer = Tokenizer(model)
    for name, value in parts.items():
        setattr(tokenizer, name, value)
    return tokenizer


def byte_level(normalizer=None, pattern=QWEN2, **split):
    rules = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), **{"behavior": "isolated", **split}),
                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    parts = dict(pre_tokenizer=rules, decoder=decoders.ByteLevel(), post_processor=processors.ByteLevel())
    if normalizer is not None:
        parts["normalizer"] = normalizer
    tokenizer = with_bpe(models.BPE(), **parts)
    return tokenizer, dict(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|x|>"])


def metaspace(scheme, split, decoder=LLAMA, fallback=True, normalizer=None):
    model = models.BPE(unk_token="<unk>", byte_fallback=fallback, fuse_unk=True)
    parts = dict(pre_tokenizer=pre_tokenizers.Metaspace(MARK, scheme, split), decoder=decoder)
    if normalizer is not None:
        parts["normalizer"] = normalizer
    return with_bpe(model, **parts), dict(special_tokens=SPECIAL + (BYTES if fallback else []), limit_alphabet=150)


def legacy(pieces):
    model = models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = with_bpe(model, normalizer=normalizers.Sequence(pieces), decoder=LLAMA)
    return tokenizer, dict(special_tokens=SPECIAL + BYTES, limit_alphabet=150)


def gemma():
    model = models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = with_bpe(model, normalizer=normalizers.Replace(" ", MARK),
                         pre_tokenizer=pre_tokenizers.Split(MARK, "merged_with_previous"), decoder=FALLBACK)
    return tokenizer, dict(special_tokens=SPECIAL + BYTES, limit_alphabet=150)


def falcon():
    """Falcon's, which Falcon 3 has beside Llama's model: rules after ByteLevel."""
    tokenizer, options = byte_level()
    three = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False),
                                                       pre_tokenizers.Digits(), three])
    return tokenizer, options


def words(rule, normalizer=None):
    """As in the documentation of `tokenizers`: words of characters, without their spaces."""
    parts = {} if normalizer is None else {"normalizer": normalizer}
    return with_bpe(models.BPE(unk_token="<unk>"), pre_tokenizer=rule, **parts), dict(special_tokens=SPECIAL,
                                                                                       limit_alphabet=150)


KINDS = {
    "qwen2": lambda: byte_level(normalizers.NFC()),
    "tekken": lambda: byte_level(pattern=TEKKEN),
    "nfkc_contiguous": lambda: byte_level(normalizers.NFKC(), pattern=r"\p{L}", behavior="contiguous"),
    "nfd_next": lambda: byte_level(normalizers.NFD(), pattern=r"\s", behavior="merged_with_next"),
    "nfkd_inverted": lambda: byte_level(normalizers.NFKD(), pattern=r"\p{N}+", behavior="merged_with_previous",
                                        invert=True),
    "llama2_legacy": lambda: legacy([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]),
    "llama2_first": lambda: metaspace("first", False),
    "metaspace_always": lambda: metaspace("always", True, decoders.Metaspace(MARK, "always", True), fallback=False),
    "metaspace_never": lambda: metaspace("never", True, decoders.Metaspace(MARK, "never", True),
                                         normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(),
                                                                          normalizers.Replace(Regex(" {2,}"), " ")])),
    "gemma": gemma,
    "falcon": falcon,
    "whitespace": lambda: words(pre_tokenizers.Whitespace()),
    "bert_words": lambda: words(pre_tokenizers.BertPreTokenizer(),
                                normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(),
                                                      normalizers.StripAccents()])),
    "camel_case": lambda: byte_level(pattern=r"(?=\p{Lu})|\b"),
    "unicode_words": lambda: byte_level(pattern=r"\w+|[^\w\s]+|\p{Han}|\s+"),
}
SENTENCEPIECE = {
    "spm_llama2": dict(byte_fallback=True, split_digits=True, normalization_rule_name="identity",
                       remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, character_coverage=0.99),
    "spm_squeezed": dict(byte_fallback=False, normalization_rule_name="identity", remove_extra_whitespaces=True,
                         user_defined_symbols=["user", "<|x|>", "use"], character_coverage=0.98),
    "spm_no_prefix": dict(byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
                          add_dummy_prefix=False, character_coverage=0.995, bos_id=-1),
}


def train_json(kind, folder, corpus):
    """Writes tokenizer.json and returns text -> (ids, decoded)."""
    tokenizer, options = KINDS[kind]()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=VOCAB, show_progress=False, **options))
    tokenizer.add_tokens([AddedToken("user", normalized=True, lstrip=True), AddedToken("<|y|>", single_word=True)])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    return lambda text: (ids := tokenizer.encode(text, add_special_tokens=False).ids,
                         tokenizer.decode(ids, skip_special_tokens=False))


def train_sentencepiece(kind, folder, corpus):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_writer=model, model_type="bpe",
                                             vocab_size=VOCAB, minloglevel=2, **SENTENCEPIECE[kind])
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return lambda text: (ids := processor.encode(text), processor.decode(ids))


def encode_with_tokamak(program, folder, texts):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    done = subprocess.run([program, "tokenizer", "encode", folder], input=lines, capture_output=True, text=True, check=True)
    return [(line["ids"], line["decoded"]) for line in map(json.loads, done.stdout.split("\n")[:-1])]


def compare(program, kind, texts, corpus, store):
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root)
        train = train_json if kind in KINDS else train_sentencepiece
        encode = train(kind, folder, corpus)
        want = [encode(text) for text in texts]
        got = encode_with_tokamak(program, folder, texts)
        wrong = [(t, w, g) for t, w, g in zip(texts, want, got, strict=True) if list(w[0]) != g[0] or w[1] != g[1]]
        print(f"{'ok ' if not wrong else 'BAD'} {kind:18} {len(texts) - len(wrong)} of {len(texts)}", flush=True)
        for text, (ids, decoded), mine in wrong[:3]:
            print(f"    {text!r}\n      want {list(ids)} {decoded!r}\n      got  {mine[0]} {mine[1]!r}")
        if store:
            target = store / kind
            target.mkdir(parents=True, exist_ok=True)
            for file in folder.iterdir():
                shutil.copy(file, target)
            step = max(1, len(texts) // STORED)
            cases = [{"text": t, "ids": list(i), "decoded": d} for t, (i, d) in list(zip(texts, want))[::step]]
            (target / "cases.jsonl").write_text("".join(json.dumps(c) + "\n" for c in cases))
    return not wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", type=pathlib.Path)
    a = parser.parse_args()
    random_ = random.Random(a.seed)
    lines = real_lines()
    ascii_lines = [line for line in lines if line.isascii()]
    lines = [line for line in lines if not line.isascii()] + random_.sample(ascii_lines, min(4000, len(ascii_lines)))
    random_.shuffle(lines)
    texts = [t for pair in zip(lines, (drawn_text(random_) for _ in range(a.count // 2))) for t in pair]
    corpus = lines[: 6000]
    program = str(pathlib.Path(a.program).resolve())
    kinds = a.kinds or [*KINDS, *SENTENCEPIECE]
    return 0 if all([compare(program, kind, texts, corpus, a.store) for kind in kinds]) else 1


if __name__ == "__main__":
    sys.exit(main())
