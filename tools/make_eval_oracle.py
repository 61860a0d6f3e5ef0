"""Make the oracles of tests/oracles/eval_*: losses of texts by transformers, for `tokamak eval`.

usage: make_eval_oracle.py   (needs torch, transformers)

Each oracle is a folder: what save_pretrained writes; text.jsonl, documents as JSON lines; eval.json, for each way of
cutting the text the sum of -ln p over the predicted tokens and their number, in double precision. Ids are those of the
tokenizer "bytes": a document is BOS 256, its bytes, EOS 257.
"""
import json
import pathlib

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/oracles"
BOS, EOS = 256, 257
MODELS = {
    "eval_llama": LlamaConfig(vocab_size=258, hidden_size=12, intermediate_size=20, num_hidden_layers=2,
                              num_attention_heads=2, num_key_value_heads=1, head_dim=6, max_position_embeddings=64,
                              rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=BOS, eos_token_id=EOS),
    "eval_gpt2": GPT2Config(vocab_size=258, n_embd=12, n_layer=1, n_head=2, n_positions=40, embd_pdrop=0.0,
                            attn_pdrop=0.0, resid_pdrop=0.0, bos_token_id=BOS, eos_token_id=EOS),
}
DOCUMENTS = [
    "One short document.",
    "A document that is longer than any row: " + "so its tokens are predicted by several rows, " * 4 + "the end.",
    "x",
    "Gr\u00fc\u00dfe, \u6771\u4eac, and a line\nor two.\n",
    "Exactly thirty-two bytes, yes, so",
]
CASES = [{"by": by, "seq_len": seq_len, "stride": stride}
         for by in ("document", "window") for seq_len, stride in ((32, 32), (32, 7), (40, 40), (1, 1))]


def sequences(by):
    """Lists of ids; the first of each is context."""
    documents = [list(text.encode()) for text in DOCUMENTS]
    if by == "document":
        return [[BOS, *ids] for ids in documents]
    return [[i for ids in documents for i in (BOS, *ids, EOS)]]


def rows(ids, seq_len, stride):
    """(begin, end, first) of each row: inputs [begin, end), of whose next tokens those from `first` on are counted."""
    done, last = 0, len(ids) - 1
    while done < last:
        end = min(done + (seq_len if done == 0 else stride), last)
        yield max(0, end - seq_len), end, done
        done = end


def measure(model, by, seq_len, stride):
    nats, tokens = 0.0, 0
    for ids in sequences(by):
        for begin, end, first in rows(ids, seq_len, stride):
            with torch.no_grad():
                log_p = model(torch.tensor([ids[begin:end]])).logits[0].double().log_softmax(-1)
            for i in range(first, end):
                nats -= log_p[i - begin, ids[i + 1]].item()
                tokens += 1
    return nats, tokens


def main():
    torch.set_num_threads(1)
    for name, config in MODELS.items():
        torch.manual_seed(11)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p + 0.2 * torch.randn_like(p))
        model.save_pretrained(FOLDER / name)
        text = "".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in DOCUMENTS)
        (FOLDER / name / "text.jsonl").write_text(text)
        cases = []
        for case in CASES:
            nats, tokens = measure(model.double(), **case)
            cases.append({**case, "nats": nats, "tokens": tokens})
            print(name, cases[-1])
        facts = {"bytes": sum(len(t.encode()) for t in DOCUMENTS), "documents": len(DOCUMENTS), "cases": cases}
        (FOLDER / name / "eval.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
