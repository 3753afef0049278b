"""Tests that Titan gives the tokens and the decoded text of the Python packages `sentencepiece` and `tiktoken` for
tokenizer.model and *.tiktoken files, on varied Unicode text (one model of each kind on more than 10 MB). The test trains all of
them.

Without TITAN_LONG=1 it runs some kinds on the smaller text. Arguments name kinds; --speed measures the speed on the English text
of the assets, with one thread each.
"""

import base64
import os
import pathlib
import sys
import tempfile
import time

import sentencepiece
import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from varied_texts import compare, compare_decoded, english_texts, make_texts, titan_tokens, training_texts, write_texts

SHORT = ["tiktoken-llama3", "sentencepiece-llama2", "sentencepiece-unigram-user"]
CL100K = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = "|".join([
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""])


def llama3_special(first):
    names = ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_special_token_{i}|>" for i in range(4)), "<|start_header_id|>",
             "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"]
    names += [f"<|reserved_special_token_{i}|>" for i in range(5, 251)]
    assert len(names) == 256
    return {name: first + i for i, name in enumerate(names)}


def learnt_ranks(texts):
    """Returns single bytes, then the tokens that BPE learns: each token's rank is below those of tokens made from it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=2500, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = [b for b in range(256) if b not in printable]
    bytes_of = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    vocabulary = tokenizer.get_vocab()
    return {bytes(bytes_of[c] for c in token): rank for rank, token in enumerate(sorted(vocabulary, key=vocabulary.get))}


def write_ranks(path, ranks):
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()))


def tiktoken_variants(texts, work):
    ranks = learnt_ranks(texts)
    for name, file, pattern, special in [
            ("llama3", "tokenizer.model", LLAMA3, llama3_special(len(ranks))),
            ("cl100k", "cl100k_base.tiktoken", CL100K, {"<|endoftext|>": 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259,
                                                        "<|fim_suffix|>": 100260, "<|endofprompt|>": 100276}),
            ("o200k", "o200k_base.tiktoken", O200K, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018})]:
        (work / name).mkdir()
        write_ranks(work / name / file, ranks)
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
        yield (name, name == "llama3", lambda texts: [encoding.encode(text, allowed_special="all") for text in texts],
               lambda ids: [encoding.decode(tokens) for tokens in ids], repr)


def sentencepiece_variants(texts, work):
    known = ["".join(c for c in text if ord(c) < 0x250 or 0x3040 <= ord(c) < 0x3100) for text in texts]
    sentences = [line[:4000] for text in known for line in text.split("\n") if line.strip()]
    plain = {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    for name, options in [
            ("llama2", {"model_type": "bpe", **plain, "split_digits": True, "allow_whitespace_only_pieces": True}),
            ("unigram", {"model_type": "unigram"}),
            ("bpe-rules", {"model_type": "bpe", "normalization_rule_name": "nmt_nfkc_cf", "user_defined_symbols": ["<|tool|>", "né"]}),
            ("bpe-across-words", {"model_type": "bpe", **plain, "split_by_whitespace": False, "add_dummy_prefix": False}),
            ("unigram-bytes", {"model_type": "unigram", **plain}),
            # The end of one piece is the beginning of another, one is within another, two are words of the texts, one
            # has a character that is nowhere else.
            ("unigram-user", {"model_type": "unigram", "user_defined_symbols": ["<|tool|>", "<|tool|>x", "tion", "ion ", "on t", "the", "né", "🙂"]}),
            ("unigram-user-bytes", {"model_type": "unigram", **plain, "user_defined_symbols": ["<|end_of_text|>", "end", "nd_of", "\n\n"]}),
            ("unigram-kept", {"model_type": "unigram", "normalization_rule_name": "nfkc", "remove_extra_whitespaces": False,
                              "add_dummy_prefix": False, "unk_surface": "?", "bos_id": -1})]:
        (work / name).mkdir()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_prefix=str(work / name / "tokenizer"), vocab_size=1600, minloglevel=2,
            character_coverage=0.9995, num_threads=1, **options)
        model = sentencepiece.SentencePieceProcessor(model_file=str(work / name / "tokenizer.model"))
        yield (name, name in ("llama2", "unigram"), lambda texts: [model.encode(text) for text in texts],
               lambda ids: [model.decode(tokens) for tokens in ids], model.id_to_piece)


def main():
    english = english_texts()
    small = make_texts(9, 400_000, english, last=0x12000)
    if os.environ.get("TITAN_LONG") or sys.argv[1:]:
        large = make_texts(8, 7_600_000, english)
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
    # tiktoken's regular expressions fail on longer runs.
    large, small = [[text[:20000] for text in texts if "\0" not in text] for texts in (large, small)]
    # This text is so long that sums of scores restart in the middle.
    if not speed_alone:
        small = [*small, "\n".join(english)[:600_000]]
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        write_texts(work / "large", large)
        write_texts(work / "small", small)
        for kind, variants in (("tiktoken", tiktoken_variants), ("sentencepiece", sentencepiece_variants)):
            (work / kind).mkdir()
            for name, is_large, encode, decode, spelling in variants(learnt, work / kind):
                if sys.argv[1:] and f"{kind}-{name}" not in sys.argv[1:]:
                    continue
                texts = large if is_large else small
                start = clock()
                expected = encode(texts)
                seconds = clock() - start
                got, speed, decoded = titan_tokens(work / kind / name, work / ("large" if is_large else "small"), work,
                                           3 if speed_alone else 1, decoded=True)
                compare(f"{kind} {name}", spelling, texts, expected, got)
                compare_decoded(f"{kind} {name}", texts, decoded, decode(got))
                size = sum(len(text.encode()) for text in texts) / 1e6
                print(f"{kind} {name}: {size:.1f} MB, {sum(map(len, got)):,} tokens equal; "
                      f"Titan {speed:.1f} MB/s, {kind} {size / seconds:.1f} MB/s", flush=True)


main()
