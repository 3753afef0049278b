"""Tests that prompts become the ids that the package `transformers` gives: its classes CLIPTokenizer and T5Tokenizer where a folder has
their files, CLIPTokenizerFast and T5TokenizerFast where it has only a tokenizer.json. The test trains all vocabularies.

An argument is a list of CLIP's merges, as bpe_simple_vocab_16e6.txt.gz of the package open-clip-torch has it: then the comparison also runs
with that vocabulary, on more captions.
"""

import gzip
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unicodedata

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import numpy
import sentencepiece
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import CLIPTokenizer, CLIPTokenizerFast, T5Tokenizer, T5TokenizerFast, convert_slow_tokenizer
from transformers.models.t5 import tokenization_t5
from transformers.utils import sentencepiece_model_pb2_new

from varied_texts import PROGRAM, character_pools, compare, english_texts, pieces, titan_tokens, write_texts

# Its own reader of models runs with any Protobuf; that of sentencepiece needs another one than is installed here.
convert_slow_tokenizer.import_protobuf = tokenization_t5.import_protobuf = lambda *_: sentencepiece_model_pb2_new
PROMPTS = PROGRAM.with_name("tokenize_prompts")
START, END = "<|startoftext|>", "<|endoftext|>"
FIXED = ["", " ", "\n\t ", "a", "A photo of a cat", "a  photo\tof\na cat.", "don't WE'LL it's 'S ''s x's 'ſ", "12345 1st ½ ٣ Ⅷ",
         "café Café cafe\u0301 naïve Ångström ﬁne İstanbul ǅ", "ΟΔΥΣΣΕΥΣ ΑΣ. ΑΣ' ΣΑΣ Σ ΑΣ\u0301 ΑΣ\u0301Α 1Σ ʰΣ aʰΣ aΣ̈b Α\u00adΣ Σ中",
         "一只猫坐在桌子上", "猫cat猫2 \uf900\U0002f800豈x", "ねこ 고양이 ｶﾀｶﾅ 〇々", "😀👩‍👩‍👧‍👦🏳️‍🌈👍🏽🇩🇪1️⃣", "a\x00b\x1fc\x7fd\x85e\xade\u200bf\u2028g\ufeffh\ufffdi\ue000j\u0378",
         f"{START}a{END} b", f"{START.upper()} a!!{END.upper()} {END.upper()}b", "<|startoftext|", f"a {END}\u0338 !{END}! </w> x</w>y",
         "!" * 200, "word " * 200, "x" * 500, "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ｆｕｌｌ１２", "Ĳ ŉ Ω K Å \u0344 \u0958 각 \u1100\u1161\u11a8",
         "<extra_id_0> fills <extra_id_99>.", "  <extra_id_1>  x </s> y <pad><unk> z </s>", "ends </s>", "\u2581mark \u2581", "<extra_id_100>", "</s></s>"]


def known(text):
    """Returns the text without characters that are newer than Python's Unicode; CLIPTokenizer removes them as unassigned, but this
    depends on the Python. Of a text whose marks have another order in Unicode 9, which Titan composes by, it returns only ASCII."""
    text = "".join(c for c in text if unicodedata.category(c) != "Cn" or c in "\u0378\U00050000")
    same = unicodedata.normalize("NFC", text) == normalizers.NFC().normalize_str(text)
    return text if same else text.encode("ascii", "ignore").decode()


def captions(seed, count):
    rng, pools, english = random.Random(seed), character_pools(), english_texts()
    texts = list(FIXED)
    extra = [START, END, START.upper(), END.capitalize(), "<extra_id_7>", "</s>", "<pad>", "ΑΣ", "Σ", "猫", "İ", "'S", "\u0378", "!"]
    while len(texts) < count:
        if rng.random() < 0.4:
            text = rng.choice(english)
            at = rng.randrange(len(text))
            text = text[at : at + rng.randint(1, 400)]
            text = text.upper() if rng.random() < 0.2 else text
        else:
            text = "".join(rng.choice([" ", "", ""]) + (rng.choice(extra) if rng.random() < 0.1 else pieces(rng, pools))
                           for _ in range(rng.randint(1, 12)))
        texts.append(known(text))
    return texts


def printable_bytes():
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(b) for b in kept] + [chr(0x100 + i) for i in range(256 - len(kept))]


def trained_merges(texts):
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator((text.lower() for text in texts), trainers.BpeTrainer(
        vocab_size=2500, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), end_of_word_suffix="</w>", show_progress=False))
    return [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


def released_merges(path):
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [tuple(line.split()) for line in lines.read().split("\n")[1 : 49152 - 256 - 2 + 1]]


def write_clip(folder, merges, config, special=None):
    """Writes a vocabulary with the order of CLIP's: bytes, bytes at the end of a word, the merges' results, two special tokens."""
    folder.mkdir()
    tokens = printable_bytes()
    tokens += [token + "</w>" for token in tokens] + ["".join(merge) for merge in merges] + [START, END]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if special is not None:
        (folder / "special_tokens_map.json").write_text(json.dumps(special))


def titan_prompts(folder, texts_file, work, length, *test):
    """Returns the ids of the prompts, and what the program says about the tokenizer."""
    done = subprocess.run([PROMPTS, folder, str(length), texts_file, work / "ids", *test], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{folder}: {done.stderr}")
    kind, used, source = done.stdout.strip().split(" ", 2)
    return numpy.fromfile(work / "ids", numpy.int64).reshape(-1, int(used)).tolist(), (kind, int(used), source)


def check(name, folder, tokenizer, texts, work, length, kind):
    write_texts(work / "texts", texts)
    expected = [row.tolist() for row in numpy.asarray(
        tokenizer(texts, padding="max_length", truncation=True, max_length=length)["input_ids"], numpy.int64)]
    got, said = titan_prompts(folder, work / "texts", work, length)
    assert said[0] == kind and said[1] == length, said
    compare(name, tokenizer.convert_ids_to_tokens, texts, expected, got)
    print(f"{name}: {len(texts):,} prompts of {length} ids equal; kind from {said[2]}", flush=True)
    return got


def check_clip(name, work, merges, texts):
    folder = work / name
    write_clip(folder, merges, {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77})
    slow = CLIPTokenizer.from_pretrained(folder)
    bos, eos = len(slow) - 2, len(slow) - 1
    for length in (77, 8, 3):
        rows = check(f"{name} slow", folder, slow, texts if length == 77 else texts[:300], work, length, "CLIP")
        assert rows[0] == [bos, *[eos] * (length - 1)]
    # The folder of a released pipeline, and one whose padding is another token, which is then cut out of texts.
    slow.save_pretrained(work / f"{name}-saved")
    check(f"{name} saved", work / f"{name}-saved", slow, texts[:300], work, 77, "CLIP")
    write_clip(work / f"{name}-pad", merges, None, {"bos_token": {"content": START, "normalized": True}, "eos_token": END, "pad_token": "!"})
    check(f"{name} padded with !", work / f"{name}-pad", CLIPTokenizer.from_pretrained(work / f"{name}-pad"), texts[:300], work, 77, "CLIP")
    # With a tokenizer.json besides, a prompt's ids stay the slow class's; a document's are the fast one's.
    fast = CLIPTokenizerFast.from_pretrained(folder)
    fast.save_pretrained(work / f"{name}-fast")
    for file in ("vocab.json", "merges.txt"):
        assert (work / f"{name}-fast" / file).exists()
    check(f"{name} with a tokenizer.json", work / f"{name}-fast", slow, texts[:300], work, 77, "CLIP")
    expected = fast(texts, add_special_tokens=False)["input_ids"]
    got, _, decoded = titan_tokens(work / f"{name}-fast", write(work, texts), work, decoded=True)
    compare(f"{name} document", fast.convert_ids_to_tokens, texts, expected, got)
    differ = [text for text, text_ids, slow_ids in zip(texts, expected, slow(texts, add_special_tokens=False)["input_ids"]) if text_ids != slow_ids]
    assert differ
    for text, mine, ids in zip(texts, decoded, got):
        theirs = fast.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert mine == theirs or mine.strip() == theirs, (text, mine, theirs)
    for file in ("vocab.json", "merges.txt"):
        (work / f"{name}-fast" / file).unlink()
    check(f"{name} fast", work / f"{name}-fast", fast, texts, work, 77, "CLIP")
    print(f"{name}: slow and fast differ on {len(differ)} of {len(texts)} captions", flush=True)


def write(work, texts):
    write_texts(work / "texts", texts)
    return work / "texts"


def check_t5(work, texts):
    folder = work / "t5"
    folder.mkdir()
    sentences = [line[:2000] for text in english_texts()[:300] for line in text.split("\n") if line.strip()] + ["Ünïcödé größe naïve"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_prefix=str(folder / "spiece"), vocab_size=1200, minloglevel=2, num_threads=1,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "config.json").write_text(json.dumps({"model_type": "t5"}))
    slow = T5Tokenizer.from_pretrained(folder)
    for length in (256, 9, 2):
        rows = check("t5", folder, slow, texts if length == 256 else texts[:300], work, length, "T5")
        assert rows[0] == [1, *[0] * (length - 1)]
    got, _, _ = titan_tokens(folder, write(work, texts[:300]), work)
    compare("t5 document", slow.convert_ids_to_tokens, texts, slow(texts[:300], add_special_tokens=False)["input_ids"], got)
    slow.save_pretrained(work / "t5-saved")
    check("t5 saved", work / "t5-saved", slow, texts[:300], work, 64, "T5")
    newer = T5Tokenizer.from_pretrained(folder, legacy=False)
    newer.save_pretrained(work / "t5-newer")
    check("t5 not legacy", work / "t5-newer", newer, texts, work, 64, "T5")
    # The folder of a released pipeline has both files; without spiece.model, its tokenizer.json counts.
    fast = T5TokenizerFast.from_pretrained(folder)
    fast.save_pretrained(work / "t5-fast")
    check("t5 with a tokenizer.json", work / "t5-fast", slow, texts[:300], work, 64, "T5")
    (work / "t5-fast" / "spiece.model").unlink()
    check("t5 fast", work / "t5-fast", fast, texts, work, 64, "T5")
    pairs = zip(slow(texts)["input_ids"], fast(texts)["input_ids"])
    print(f"t5: slow and fast differ on {sum(a != b for a, b in pairs)} of {len(texts)} captions", flush=True)


def main():
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        texts = captions(1, 1500)
        check_clip("clip", work, trained_merges(texts + english_texts()[:200]), texts)
        for path in sys.argv[1:]:
            check_clip("released", work, released_merges(path), captions(2, 20000))
        check_t5(work, texts)


main()
