"""Tests that the build's tables (worker/rank/data/tokenizer/make_unicode_tables.py) match the installed `tokenizers` package.

The test runs the package on every character alone and in every category, and compares the results with Unicode 14 (as in Debian
12's PCRE2 and Python 3.11).
"""

import os
import pathlib
import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

sys.path.insert(0, os.path.join(os.environ["TITAN_SOURCE"], "worker", "rank", "data", "tokenizer"))
import make_unicode_tables as maker

FOLDER = pathlib.Path(os.environ["TITAN_BIN"]).parent / "worker" / "rank" / "data" / "tokenizer"


def matched(category):
    split, found = pre_tokenizers.Split(Regex(f"\\p{{{category}}}"), "removed"), set()
    for start in range(0, len(maker.CHARACTERS), 4096):
        block = maker.CHARACTERS[start : start + 4096]
        left = {ord(c) for piece, _ in split.pre_tokenize_str("".join(map(chr, block))) for c in piece}
        found |= set(block) - left
    return found


def added_characters():
    added = []
    for category in maker.CATEGORIES:
        known = {c for c in maker.CHARACTERS if unicodedata.category(chr(c)) == category}
        found = matched(category)
        lost = {(category, c) for c in known - found} - maker.MOVED
        if lost:
            sys.exit(f"characters left their category, which the table cannot express: {sorted(lost)[:5]}")
        added += [(category, c) for c in found - known]
    return added


def each(normalizer):
    return {c: text for c in maker.CHARACTERS if (text := normalizer.normalize_str(chr(c))) != chr(c)}


def main():
    for name, text in maker.tables(added_characters(), each).items():
        if (FOLDER / name).read_text(encoding="utf-8") != text:
            sys.exit(f"{FOLDER / name} is not what the installed tokenizers implies: a shortcut of {maker.__file__} does not hold for it")
    print("the Unicode tables fit")


main()
