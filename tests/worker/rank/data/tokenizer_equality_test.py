"""Tests that Titan's tokenizer gives the tokens of the Python `tokenizers` package, on more than 10 MB of varied Unicode text.

The test trains byte-level tokenizers of the kinds that models ship (GPT-2, Llama 3, Qwen with NFC, DeepSeek, o200k, and rarer
options); the program tokenize_file runs Titan's side. metaspace_equality_test.py tests tokenizers of characters.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import time

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from varied_texts import compare, english_texts, make_texts, titan_tokens, training_texts, write_texts

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
            r"\s*[\r\n]+|\s+(?!\S)|\s+"]


def train(texts, pre_tokenizer, vocabulary=2500, normalizer=None, special=(), **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False,
        special_tokens=["<|begin_of_text|>", "<|end_of_text|>"]))
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def split(pattern, use_regex=False, prefix=False, behavior="isolated", invert=False):
    patterns = pattern if isinstance(pattern, list) else [pattern]
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(p if len(p) == 1 else Regex(p), behavior, invert) for p in patterns]
        + [pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)])


def variants(texts):
    byte_level = pre_tokenizers.ByteLevel
    yield "gpt2", True, train(texts, byte_level(add_prefix_space=False), special=[AddedToken("<|tool|>", normalized=False)])
    yield "llama3", True, train(texts, split(LLAMA3), ignore_merges=True, special=["<|tool|>"])
    yield "qwen-nfc", False, train(texts, split(QWEN), normalizer=normalizers.NFC(),
                                   special=["<|tool|>", AddedToken("<|né|>", normalized=True, special=False)])
    yield "deepseek", False, train(texts, split(DEEPSEEK), normalizer=normalizers.Sequence([]))
    yield "o200k", False, train(texts, split(O200K), ignore_merges=True)
    yield "gpt2-prefix", False, train(texts, byte_level(add_prefix_space=True), special=[
        AddedToken("<|pad|>", lstrip=True, rstrip=True), AddedToken("<|tool|>x", normalized=True)])
    yield "removed-invert", False, train(texts, split(LLAMA3, behavior="removed", invert=True))
    yield "split-prefix", False, train(texts, split([" ", r"\d+|\S"], use_regex=True, prefix=True, behavior="removed"))
    yield "digits", False, train(texts, pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level(add_prefix_space=False)]))
    unknown = train(texts, byte_level(add_prefix_space=False), unk_token="<|end_of_text|>", fuse_unk=True)
    yield "unknown-fused", False, without_bytes(unknown)
    yield "unknown-dropped", False, without_bytes(train(texts, byte_level(add_prefix_space=False)))


def without_bytes(tokenizer):
    """Returns the tokenizer without a third of its single-byte tokens and all merges that need them."""
    file = json.loads(tokenizer.to_str())
    gone = {token for token in file["model"]["vocab"] if len(token) == 1 and ord(token) % 3 == 0 and not token.isascii()}
    keep = {token: i for token, i in file["model"]["vocab"].items() if not gone & set(token)}
    file["model"]["vocab"] = {token: n for n, token in enumerate(sorted(keep, key=keep.get))}
    file["model"]["merges"] = [merge for merge in file["model"]["merges"] if not gone & set("".join(merge))]
    return Tokenizer.from_str(json.dumps(file))


def save(tokenizer, folder, old_merges):
    folder.mkdir()
    file = json.loads(tokenizer.to_str())
    if old_merges:
        file["model"]["merges"] = [" ".join(merge) for merge in file["model"]["merges"]]
    (folder / "tokenizer.json").write_text(json.dumps(file, ensure_ascii=False), encoding="utf-8")


def check_truncation(work, tokenizer):
    """Truncation settings that a training left in the file cut texts in the Python package but not in Titan; titan-data names
    them in a warning."""
    whole = tokenizer.encode("Once upon a time there was a long text.", add_special_tokens=False).ids
    tokenizer.enable_truncation(max_length=4)
    tokenizer.enable_padding(length=6, pad_id=1)
    save(tokenizer, work / "cut", old_merges=False)
    cut = Tokenizer.from_file(str(work / "cut/tokenizer.json")).encode("Once upon a time there was a long text.", add_special_tokens=False).ids
    assert cut == whole[:4] + [1, 1] and len(whole) > 6, (cut, whole)
    done = subprocess.run([os.path.join(os.environ["TITAN_BIN"], "titan-data"), "encode", "--tokenizer", work / "cut",
                           "Once upon a time there was a long text."], check=True, capture_output=True, text=True)
    assert [int(word) for word in done.stdout.split()] == whole, done.stdout
    assert '"truncation" is not applied' in done.stderr and '"padding" is not applied' in done.stderr, done.stderr


def main():
    english = english_texts()
    large, small = make_texts(1, 7_600_000, english), make_texts(2, 400_000, english, last=0x12000)
    assert sum(len(text.encode()) for text in large) > 10_000_000
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        write_texts(work / "large", large)
        write_texts(work / "small", small)
        check_truncation(work, train(english[:50], pre_tokenizers.ByteLevel(add_prefix_space=False)))
        for name, is_large, tokenizer in variants(training_texts(large)):
            save(tokenizer, work / name, old_merges=name == "gpt2")
            texts = large if is_large else small
            start = time.monotonic()
            expected = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
            seconds = time.monotonic() - start
            got, speed, _ = titan_tokens(work / name, work / ("large" if is_large else "small"), work)
            compare(name, tokenizer.id_to_token, texts, expected, got)
            size = sum(len(text.encode()) for text in texts) / 1e6
            print(f"{name}: {size:.1f} MB, {sum(map(len, got)):,} tokens equal; "
                  f"Titan {speed:.1f} MB/s, tokenizers {size / seconds:.1f} MB/s (all cores)", flush=True)


main()
