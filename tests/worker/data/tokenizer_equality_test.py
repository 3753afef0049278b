"""Titan's tokenizer gives the tokens of the Python `tokenizers` package, on more than 10 MB of varied Unicode text.

Tokenizers of the kinds that models ship (GPT-2, Llama 3, Qwen with NFC, DeepSeek, o200k, and rarer options) are trained on the
spot; the built program tokenize_file does our side.
"""

import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

PROGRAM = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests" / "tokenize_file"
ASSETS = pathlib.Path(os.environ["TITAN_DEPS"]) / "assets"

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
            r"\s*[\r\n]+|\s+(?!\S)|\s+"]

SPACES = [" ", "  ", "\t", "\n", "\r\n", "\r", "\n\n", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u1680", "\u180e", "\u2003",
          "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", "   \n", " \r\n\r\n ", "\t\t "]
CONTRACTIONS = ["'s", "'S", "'ſ", "'t", "'RE", "'ve", "'Ll", "'ll", "'d", "'m", "’s", "don't", "WE'LL", "''s", "'", "'sx", "x's"]
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "1️⃣", "❤️", "🫠", "🪿", "☃", "🫩"]
RUNS = ["a" * 70000, " " * 30000, "\n" * 20000, "7" * 20000, "!" * 20000, "あ" * 5000, "🙂" * 5000, "ab" * 20000, "\u0301" * 3000]
ADDED = ["<|begin_of_text|>", "<|end_of_text|>", "<|end_of_text", "<|tool|>", "<|tool|>x", "  <|pad|>  ", "<|PAD|>", "né<|né|>"]


def character_pools():
    """Assigned characters by block of 256, surrogates left out, and some unassigned ones."""
    pools = []
    for start in range(0, 0x110000, 0x100):
        if 0xD800 <= start < 0xE000 or 0xF0000 <= start < 0x10FF00:
            continue
        pool = [chr(c) for c in range(start, start + 0x100) if unicodedata.category(chr(c)) != "Cn" or c % 16 == 0]
        if len(pool) > 16:
            pools.append(pool)
    return pools


def pieces(rng, pools):
    marks = [chr(c) for c in range(0x300, 0x370)] + ["\u0591", "\u0e31", "\u093c", "\u3099", "\u0f71", "\u20d0", "\u1cf9", "\u08d3"]
    kind = rng.random()
    if kind < 0.30:
        pool = rng.choice(pools)
        return "".join(rng.choices(pool, k=rng.randint(1, 12)))
    if kind < 0.42:
        return rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 5])
    if kind < 0.52:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", k=rng.randint(1, 14)))
    if kind < 0.60:
        return rng.choice(CONTRACTIONS)
    if kind < 0.68:
        return "".join(rng.choices("0123456789", k=rng.randint(1, 12)))
    if kind < 0.74:
        return "".join(c + "".join(rng.choices(marks, k=rng.randint(0, 4))) for c in rng.choices("aeiouAEnsÅคकが가각", k=4))
    if kind < 0.79:
        return "".join(rng.choices(EMOJI, k=rng.randint(1, 4)))
    if kind < 0.85:
        return "".join(rng.choices("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", k=rng.randint(1, 8)))
    if kind < 0.88:
        return rng.choice(ADDED)
    if kind < 0.92:
        return "".join(rng.choices("٠١٢३४५６７８Ⅷ½²③𝟘𝟙", k=rng.randint(1, 5)))
    if kind < 0.96:
        return "".join(chr(rng.randrange(0xAC00, 0xD7A4)) for _ in range(4)) + "".join(rng.choices("ᄀᄒ가각ᅡᅵᆨᇂ", k=4))
    return "".join(chr(rng.choice([rng.randrange(0x20, 0xD800), rng.randrange(0xE000, 0x32000)])) for _ in range(8))


def make_texts(seed, size, english, last=0x110000):
    rng = random.Random(seed)
    pools = character_pools()
    texts, total = ["", " ", "\n", "a", "é", "\r\n", "\U0010ffff"], 0
    texts += [run + "x" for run in RUNS]
    everything = "".join(chr(c) for c in range(last) if not 0xD800 <= c < 0xE000 and not 0x40000 <= c < 0xE0000)
    texts += ["".join(c + rng.choice(" a1\n") for c in everything[i : i + 2000]) for i in range(0, len(everything), 2000)]
    while total < size:
        if rng.random() < 0.3:
            text = rng.choice(english)
        else:
            text = "".join(rng.choice([" ", ""]) + pieces(rng, pools) for _ in range(rng.randint(1, 400)))
        texts.append(text)
        total += len(text.encode())
    return texts


def training_texts(texts):
    """What vocabularies are learnt from. Clipped: each merge goes through the whole of a word again, and a run is one word."""
    return [text[:2000] for text in RUNS + random.Random(3).sample(texts, 150)]


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
    """The tokenizer with a third of its single-byte tokens, and all merges that need them, gone."""
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


def ours(folder, texts_file, work, repeats=1):
    ids_file = work / "ids"
    done = subprocess.run([PROGRAM, folder, texts_file, ids_file, str(repeats)], check=True, capture_output=True, text=True)
    data, at, all_ids = ids_file.read_bytes(), 0, []
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        all_ids.append(list(struct.unpack_from(f"<{count}i", data, at + 4)))
        at += 4 + 4 * count
    return all_ids, float(done.stdout)


def write_texts(path, texts):
    with open(path, "wb") as out:
        for text in texts:
            encoded = text.encode()
            out.write(struct.pack("<I", len(encoded)) + encoded)


def compare(name, tokenizer, texts, expected, got):
    assert len(expected) == len(got), f"{name}: {len(got)} texts of {len(expected)}"
    for text, theirs, mine in zip(texts, expected, got):
        if theirs == mine:
            continue
        at = next((i for i, (a, b) in enumerate(zip(theirs, mine)) if a != b), min(len(theirs), len(mine)))
        tokens = [tokenizer.id_to_token(i) for i in theirs[max(0, at - 3) : at + 5]]
        wrong = [tokenizer.id_to_token(i) for i in mine[max(0, at - 3) : at + 5]]
        sys.exit(f"{name}: token {at} differs: tokenizers {tokens}, Titan {wrong}, text starts {text[:60]!r}")


def main():
    english = [json.loads(line)["text"] for line in open(ASSETS / "c4_test" / "data.json", encoding="utf-8")]
    large, small = make_texts(1, 7_600_000, english), make_texts(2, 400_000, english, last=0x12000)
    assert sum(len(text.encode()) for text in large) > 10_000_000
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        write_texts(work / "large", large)
        write_texts(work / "small", small)
        for name, is_large, tokenizer in variants(training_texts(large)):
            save(tokenizer, work / name, old_merges=name == "gpt2")
            texts = large if is_large else small
            start = time.monotonic()
            expected = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
            seconds = time.monotonic() - start
            got, speed = ours(work / name, work / ("large" if is_large else "small"), work)
            compare(name, tokenizer, texts, expected, got)
            size = sum(len(text.encode()) for text in texts) / 1e6
            print(f"{name}: {size:.1f} MB, {sum(map(len, got)):,} tokens equal; "
                  f"Titan {speed:.1f} MB/s, tokenizers {size / seconds:.1f} MB/s (all cores)", flush=True)


main()
