"""Varied Unicode text, and runs of the program tokenize_file on it, for comparisons with Python's tokenizers."""

import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import unicodedata

PROGRAM = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests" / "tokenize_file"
ASSETS = pathlib.Path(os.environ["TITAN_DEPS"]) / "assets"


SPACES = [" ", "  ", "\t", "\n", "\r\n", "\r", "\n\n", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u1680", "\u180e", "\u2003",
          "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", "   \n", " \r\n\r\n ", "\t\t "]
CONTRACTIONS = ["'s", "'S", "'ſ", "'t", "'RE", "'ve", "'Ll", "'ll", "'d", "'m", "’s", "don't", "WE'LL", "''s", "'", "'sx", "x's"]
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "1️⃣", "❤️", "🫠", "🪿", "☃", "🫩"]
RUNS = ["a" * 70000, " " * 30000, "\n" * 20000, "7" * 20000, "!" * 20000, "あ" * 5000, "🙂" * 5000, "ab" * 20000, "\u0301" * 3000]
ADDED = ["<|begin_of_text|>", "<|end_of_text|>", "<|end_of_text", "<|tool|>", "<|tool|>x", "  <|pad|>  ", "<|PAD|>", "né<|né|>"]


def character_pools():
    """Returns assigned characters in blocks of 256, without surrogates, and some unassigned ones."""
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


def english_texts():
    return [json.loads(line)["text"] for line in open(ASSETS / "c4_test" / "data.json", encoding="utf-8")]


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
    """Returns texts for learning vocabularies, clipped because each merge scans a whole word again and a run is one word."""
    return [text[:2000] for text in RUNS + random.Random(3).sample(texts, 150)]


def titan_tokens(folder, texts_file, work, repeats=1, decoded=False):
    """Returns the tokens of each text, MB/s and, with `decoded`, the text of the tokens."""
    ids_file = work / "ids"
    command = [PROGRAM, folder, texts_file, ids_file, str(repeats)] + ([work / "decoded"] if decoded else [])
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{folder}: {done.stderr}")
    all_ids = [list(struct.unpack(f"<{len(record) // 4}i", record)) for record in read_records(ids_file, 4)]
    texts = [record.decode(errors="replace") for record in read_records(work / "decoded", 1)] if decoded else None
    return all_ids, float(done.stdout), texts


def read_records(path, size):
    data, at = path.read_bytes(), 0
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        yield data[at + 4 : at + 4 + size * count]
        at += 4 + size * count


def write_texts(path, texts):
    with open(path, "wb") as out:
        for text in texts:
            encoded = text.encode()
            out.write(struct.pack("<I", len(encoded)) + encoded)


def compare(name, spelling, texts, expected, got):
    """`spelling(token)` is the text of a token in the error message."""
    assert len(expected) == len(got), f"{name}: {len(got)} texts of {len(expected)}"
    for text, theirs, mine in zip(texts, expected, got):
        if theirs == mine:
            continue
        at = next((i for i, (a, b) in enumerate(zip(theirs, mine)) if a != b), min(len(theirs), len(mine)))
        tokens = [spelling(i) for i in theirs[max(0, at - 3) : at + 5]]
        wrong = [spelling(i) for i in mine[max(0, at - 3) : at + 5]]
        sys.exit(f"{name}: token {at} differs: Python {tokens}, Titan {wrong}, text starts {text[:60]!r}")


def compare_decoded(name, texts, decoded, expected):
    for text, mine, theirs in zip(texts, decoded, expected):
        if mine != theirs:
            at = next((i for i, (a, b) in enumerate(zip(theirs, mine)) if a != b), min(len(theirs), len(mine)))
            sys.exit(f"{name}: decoded differs: Python {theirs[at:at + 20]!r}, Titan {mine[at:at + 20]!r}, text starts {text[:60]!r}")
