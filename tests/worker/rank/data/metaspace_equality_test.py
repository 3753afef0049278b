"""Tests that Titan's tokenizer gives the tokens and the decoded text of the Python `tokenizers` package for vocabularies of
characters: the kinds of Llama 2, Mistral, T5, XLM-R and ALBERT. The test trains each on varied Unicode text (two of them on more
than 10 MB).

Without TITAN_LONG=1 it runs some kinds on the smaller text. Arguments name kinds; --speed measures the speed on the English text
of the assets, with one thread each.
"""

import json
import os
import pathlib
import sys
import tempfile
import time

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from varied_texts import compare, compare_decoded, english_texts, make_texts, titan_tokens, training_texts, write_texts

SHORT = ["llama2", "mistral-first-whole", "t5"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>"]
LLAMA_DECODER = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def metaspace(scheme="always", split=True):
    return pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=split)


def edited(tokenizer, edit):
    file = json.loads(tokenizer.to_str())
    edit(file)
    return Tokenizer.from_str(json.dumps(file))


def assemble(tokenizer, normalizer=None, pre_tokenizer=None, decoder=None, special=()):
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def train_bpe(texts, fallback, fuse=True, split=True):
    """Trains SentencePiece's BPE in its converted form: special tokens, bytes, then the learnt tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse))
    tokenizer.pre_tokenizer = metaspace(split=split)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=2000, limit_alphabet=400, show_progress=False, special_tokens=SPECIAL, max_token_length=12))

    def with_bytes(file):
        learnt = [t for t in sorted(file["model"]["vocab"], key=file["model"]["vocab"].get) if t not in SPECIAL]
        file["model"]["vocab"] = {t: i for i, t in enumerate(SPECIAL + (BYTES if fallback else []) + learnt)}
        file["model"]["byte_fallback"] = fallback
    return edited(tokenizer, with_bytes)


def train_unigram(texts, fallback=False, normalizer=None):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = metaspace()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    # Its trainer adds every character, whatever the size.
    known = ["".join(c for c in text if ord(c) < 0x250 or 0x3040 <= ord(c) < 0x3100 or 0x300 <= ord(c) < 0x310) for text in texts]
    tokenizer.train_from_iterator(known, trainers.UnigramTrainer(
        vocab_size=1500, show_progress=False, special_tokens=SPECIAL, unk_token="<unk>"))

    def with_bytes(file):
        if fallback:
            vocab = file["model"]["vocab"]
            file["model"]["vocab"] = vocab[:3] + [[byte, 0.0] for byte in BYTES] + vocab[3:]
            file["model"]["byte_fallback"] = True
    return edited(tokenizer, with_bytes)


def fields(message, wanted):
    """Returns the values of a field of bytes in an encoded Protobuf message. (The package's own reader needs another Protobuf than
    LibTorch's.)"""
    at = 0

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value
    while at < len(message):
        tag = number()
        size = {1: 8, 5: 4}.get(tag & 7) or number()
        if tag & 7 == 2 and tag >> 3 == wanted:
            yield message[at : at + size]
        at += size if tag & 7 else 0


def precompiled(rules):
    """Returns SentencePiece's rules in the form that is compiled into its models."""
    with tempfile.TemporaryDirectory() as work:
        prefix = pathlib.Path(work) / "m"
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a b c d e f g"] * 20), model_prefix=str(prefix), vocab_size=12, hard_vocab_limit=False,
            normalization_rule_name=rules, minloglevel=2)
        (normalizer,) = fields(pathlib.Path(f"{prefix}.model").read_bytes(), 3)
    (charsmap,) = fields(normalizer, 2)
    return normalizers.Precompiled(charsmap)


def variants(texts):
    prepend = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    nfkc, folded = precompiled("nmt_nfkc"), precompiled("nmt_nfkc_cf")
    plain = train_bpe(texts, fallback=True)
    yield "llama2", True, lambda: assemble(plain, prepend, None, LLAMA_DECODER, SPECIAL)
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            yield f"mistral-{scheme}-{'split' if split else 'whole'}", False, lambda: assemble(
                train_bpe(texts, fallback=True), None, metaspace(scheme, split),
                LLAMA_DECODER if split else decoders.Metaspace("▁", scheme, split), SPECIAL + ["<|tool|>"])
    yield "bpe-unknown-fused", False, lambda: assemble(train_bpe(texts, False), None, metaspace(), decoders.Metaspace(), SPECIAL)
    yield "bpe-unknown-each", False, lambda: assemble(train_bpe(texts, False, fuse=False), prepend, None, None, SPECIAL)
    yield "bpe-across-words", False, lambda: assemble(train_bpe(texts, True, split=False), prepend, None, LLAMA_DECODER, SPECIAL)
    yield "bpe-some-bytes", False, lambda: assemble(edited(plain, without_bytes), None, metaspace("first", False), LLAMA_DECODER, SPECIAL)
    yield "t5", True, lambda: assemble(train_unigram(texts, normalizer=nfkc), normalizers.Sequence(
        [nfkc, normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")]), metaspace(),
        decoders.Metaspace(), SPECIAL)
    yield "xlm-r", False, lambda: assemble(train_unigram(texts, normalizer=nfkc), nfkc,
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace()]), decoders.Metaspace(),
        SPECIAL + [AddedToken("<|pad|>", lstrip=True, rstrip=True)])
    yield "albert", False, lambda: assemble(train_unigram(texts, normalizer=folded), normalizers.Sequence(
        [normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents(),
         normalizers.Lowercase(), folded, normalizers.Replace(Regex(" {2,}"), " ")]), metaspace(), decoders.Metaspace(), SPECIAL)
    yield "t5-first", False, lambda: assemble(train_unigram(texts, normalizer=nfkc), nfkc, metaspace("first"), decoders.Metaspace("▁", "first"),
        SPECIAL + [AddedToken("<|tool|>", normalized=True, special=False)])
    yield "unigram-bytes", False, lambda: assemble(train_unigram(texts, True), None, metaspace("first", False), LLAMA_DECODER, SPECIAL)
    yield "unigram-steps", False, lambda: assemble(train_unigram(texts), normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]), metaspace("first"),
        decoders.Metaspace("▁", "first"), SPECIAL)
    yield "unigram-nfd", False, lambda: assemble(train_unigram(texts), normalizers.NFD(), metaspace("never"), None, SPECIAL)


def without_bytes(file):
    for byte in BYTES[0xC0::3]:
        del file["model"]["vocab"][byte]


def main():
    english = english_texts()
    small = make_texts(6, 400_000, english, last=0x12000)
    if os.environ.get("TITAN_LONG") or sys.argv[1:]:
        large = make_texts(5, 7_600_000, english)
        assert sum(len(text.encode()) for text in large) > 10_000_000
    else:
        large, sys.argv[1:] = small, SHORT
    learnt = training_texts(large) + english[:150]
    speed_alone, clock = "--speed" in sys.argv, time.monotonic
    if speed_alone:
        sys.argv.remove("--speed")
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        large = small = english
        clock = time.process_time  # CPU time, because other processes share the machine.
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        write_texts(work / "large", large)
        write_texts(work / "small", small)
        for name, is_large, make in variants(learnt):
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            tokenizer = make()
            (work / name).mkdir()
            tokenizer.save(str(work / name / "tokenizer.json"))
            texts = large if is_large else small
            start = clock()
            expected = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
            seconds = clock() - start
            got, speed, decoded = titan_tokens(work / name, work / ("large" if is_large else "small"), work, 3 if speed_alone else 1,
                                       decoded=True)
            compare(name, tokenizer.id_to_token, texts, expected, got)
            compare_decoded(name, texts, decoded, tokenizer.decode_batch(got, skip_special_tokens=False))
            size = sum(len(text.encode()) for text in texts) / 1e6
            print(f"{name}: {size:.1f} MB, {sum(map(len, got)):,} tokens equal; "
                  f"Titan {speed:.1f} MB/s, tokenizers {size / seconds:.1f} MB/s ({'one core' if speed_alone else 'all cores'})", flush=True)


main()
