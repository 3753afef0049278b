"""Generates the Unicode tables that the tokenizer compiles in: make_unicode_tables.py FOLDER writes four headers unicode_*.h to FOLDER.

The tables reproduce the `tokenizers` package, which deploy/requirements pins. Its regular expressions know Unicode 16, its normal forms
Unicode 9, its lower case Unicode 17. No single version of Unicode's files has this content, so this script queries the package for every
character. tests/worker/rank/data/unicode_tables_test.py repeats the queries without the shortcuts taken here.
"""

import pathlib
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

# Unicode version of Debian 12's Python and PCRE2; the tables add what is newer.
BASE_VERSION = "14.0.0"
CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# Excludes unassigned (Cn) and private (Co), which are not reassigned.
CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
              "Sc", "Sk", "So", "Zs", "Zl", "Zp"]
# Mn and Mc are listed only for M, so a move between them is harmless. No other category may lose a character.
MOVED = {("Mn", 0x1171E)}
BLOCK = 1024  # Characters per call of the package.
nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str

NEWER = r"""
// Characters assigned in Unicode 15 and 16, with their general category. The `tokenizers` package matches with
// Oniguruma's Unicode 16 tables; Debian 12's PCRE2 10.42 knows Unicode 14. The split patterns add these ranges to each
// \p{..} (a newer PCRE2 has them already, which does no harm). Between 14 and 16 no character left its top-level
// category.
namespace titan::data {

struct CategoryRange {
  char category[3];
  uint32_t first, last;
};
"""

NFC = """
// Unicode's canonical decompositions (full), primary compositions and combining classes, as of Unicode 9: the version
// that the `tokenizers` package normalises with, so that newer marks stay where they are. Hangul is computed.
// Sorted by first field.
namespace titan::data {

struct Decomposition {
  uint32_t character;
  uint32_t parts[4];  // Ends with 0.
};
struct Composition {
  uint32_t first, second, character;
};
struct CombiningClass {
  uint32_t first, last;
  uint8_t combining_class;
};
"""

COMPATIBILITY = """
// Unicode's compatibility decompositions (full) where they differ from the canonical ones, as of Unicode 9: see
// unicode_nfc.h.
namespace titan::data {

struct Compatible {
  uint32_t character;
  uint16_t first;  // Index of its first part in kCompatibleParts.
  uint16_t count;
};
"""

CASE = """
// The lower case of characters, and the marks that stripping accents takes away. Sorted by first field.
namespace titan::data {

struct LowerCase {
  uint32_t character;
  uint32_t parts[2];  // The second may be 0.
};
struct MarkRange {
  uint32_t first, last;
};
"""


def lines(items):
    """Joins the items into lines of up to 120 columns."""
    out, line = [], " "
    for item in items:
        if len(line) + len(item) + 1 > 120:
            out.append(line)
            line = " "
        line += " " + item
    return "\n".join(out + [line]) + "\n"


def header(head, **arrays):
    """Returns the header with the arrays, given as name=(type, rows)."""
    text = "#pragma once\n\n#include <cstdint>\n\n// Made by worker/rank/data/tokenizer/make_unicode_tables.py." + head
    for name, (kind, rows) in arrays.items():
        text += f"\ninline constexpr {kind} {name}[] = {{\n{lines(rows)}}};\n"
    return text + "\n}  // namespace titan::data\n"


def joined(parts):
    return ", ".join(f"0x{part:x}" for part in parts)


def ranges(pairs):
    """Joins (key, character) pairs, in character order, to [key, first, last]."""
    rows = []
    for key, c in pairs:
        if rows and rows[-1][0] == key and rows[-1][2] == c - 1:
            rows[-1][2] = c
        else:
            rows.append([key, c, c])
    return rows


def unmatched(category, characters):
    """Returns the characters that the package's regular expressions do not find in the category."""
    split = pre_tokenizers.Split(Regex(f"\\p{{{category}}}+"), "removed")
    blocks = ("".join(map(chr, characters[i : i + BLOCK])) for i in range(0, len(characters), BLOCK))
    return [ord(c) for block in blocks for piece, _ in split.pre_tokenize_str(block) for c in piece]


def added_characters():
    """Returns the (category, character) pairs that the package knows and Python does not."""
    known = {}
    for c in CHARACTERS:
        known.setdefault(unicodedata.category(chr(c)), []).append(c)
    moved = {(category, c) for category in CATEGORIES for c in unmatched(category, known[category])}
    if moved - MOVED:
        sys.exit(f"characters left their category, which the table cannot express: {sorted(moved - MOVED)[:5]}")
    candidates = unmatched("Cn", known["Cn"]) + [c for _, c in moved]
    return [(category, c) for category in CATEGORIES for c in set(candidates) - set(unmatched(category, candidates))]


def newer_table(added):
    rows = sorted(ranges(sorted(added)), key=lambda row: row[1])
    return header(NEWER, kNewerCharacters=("CategoryRange", (f'{{"{k}", {joined((a, b))}}},' for k, a, b in rows)))


def forms(normalizer):
    """Returns {character: text} for the characters that a normalizer changes."""
    made = {}
    for start in range(0, len(CHARACTERS), BLOCK):
        block = [chr(c) for c in CHARACTERS[start : start + BLOCK] if c != 0xA]
        if (text := "".join(block)) == normalizer.normalize_str(text):
            continue
        # Line ends separate the characters: no normalizer changes one, and no mark combines with it.
        texts = normalizer.normalize_str("\n".join(block)).split("\n")
        assert len(texts) == len(block)
        made.update((ord(c), text) for c, text in zip(block, texts) if text != c)
    return made


def combining_class(c, decomposed):
    """Returns Unicode's class if the normalizer reorders by it; 0 for marks that it does not know yet."""
    value, mark = unicodedata.combining(chr(c)), chr(c)
    if value > 1:
        return value if nfd(mark + "\u0334") == nfd("\u0334" + mark) else 0  # U+0334 has class 1.
    known = value == 1 and (decomposed or nfd("\u0345" + mark) == mark + "\u0345")  # U+0345 has class 240.
    return value if known else 0


def nfc_table(canonical):
    split = {c: text for c, text in canonical.items() if not 0xAC00 <= c < 0xD7A4}
    pairs = [[*(int(part, 16) for part in unicodedata.decomposition(chr(c)).split()), c] for c in split if nfc(chr(c)) == chr(c)]
    classes = ranges((value, c) for c in CHARACTERS if (value := combining_class(c, c in split)))
    return header(NFC, kDecompositions=("Decomposition", (f"{{0x{c:x}, {{{joined(map(ord, text))}}}}}," for c, text in split.items())),
                  kCompositions=("Composition", (f"{{{joined(pair)}}}," for pair in sorted(pairs))),
                  kCombiningClasses=("CombiningClass", (f"{{{joined((a, b))}, {k}}}," for k, a, b in classes)))


def compatibility_table(canonical, compatible):
    rows, parts = [], []
    for c, text in compatible.items():
        if text != canonical.get(c):
            rows.append(f"{{0x{c:x}, {len(parts)}, {len(text)}}},")
            parts += [f"0x{ord(part):x}," for part in text]
    assert len(parts) < 1 << 16
    return header(COMPATIBILITY, kCompatible=("Compatible", rows), kCompatibleParts=("uint32_t", parts))


def case_table(lower, stripped):
    assert all(len(text) <= 2 for text in lower.values())
    marks = ranges((0, c) for c, text in stripped.items() if text == "")
    return header(CASE, kLowerCase=("LowerCase", (f"{{0x{c:x}, {{{joined(map(ord, text))}}}}}," for c, text in lower.items())),
                  kMarks=("MarkRange", (f"{{{joined((a, b))}}}," for _, a, b in marks)))


def tables(added, of):
    """Returns {name: text} of the headers. of(normalizer) returns {character: text} for the characters that it changes."""
    canonical = of(normalizers.NFD())
    return {"unicode_newer.h": newer_table(added), "unicode_nfc.h": nfc_table(canonical),
            "unicode_compatibility.h": compatibility_table(canonical, of(normalizers.NFKD())),
            "unicode_case.h": case_table(of(normalizers.Lowercase()), of(normalizers.StripAccents()))}


def main():
    if unicodedata.unidata_version != BASE_VERSION:
        sys.exit(f"{sys.executable} knows Unicode {unicodedata.unidata_version}, the tables start from {BASE_VERSION}: run "
                 "deploy/bootstrap.sh, which uses Debian 12's Python")
    for name, text in tables(added_characters(), forms).items():
        pathlib.Path(sys.argv[1], name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
