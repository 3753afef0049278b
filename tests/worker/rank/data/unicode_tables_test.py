"""The generated tables worker/rank/data/tokenizer/unicode_*.h are what the installed `tokenizers` package implies.

With --write they are made anew. Categories come from asking its regular expressions about every character, and are held against
Unicode 14 (what Debian 12's PCRE2 and Python 3.11 know); normal forms from asking its normalizers.
"""

import os
import pathlib
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

FOLDER = pathlib.Path(os.environ.get("TITAN_SOURCE", pathlib.Path(__file__).parents[4])) / "worker" / "rank" / "data" / "tokenizer"
CHARACTERS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# Mn and Mc are listed for M; nothing else may have lost a character.
CATEGORIES = ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
              "Sc", "Sk", "So", "Zs", "Zl", "Zp"]
MOVED = {("Mn", 0x1171E)}
nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str

NEWER_HEAD = r"""#pragma once

#include <cstdint>

// Made by tests/worker/rank/data/unicode_tables_test.py --write.
// Characters assigned in Unicode 15 and 16, with their general category. The `tokenizers` package matches with
// Oniguruma's Unicode 16 tables; Debian 12's PCRE2 10.42 knows Unicode 14. The split patterns add these ranges to each
// \p{..} (a newer PCRE2 has them already, which does no harm). Between 14 and 16 no character left its top-level
// category.
namespace titan::data {

struct CategoryRange {
  char category[3];
  uint32_t first, last;
};

// clang-format off
inline constexpr CategoryRange kNewerCharacters[] = {
"""

NFC_HEAD = """#pragma once

#include <cstdint>

// Made by tests/worker/rank/data/unicode_tables_test.py --write.
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

// clang-format off
"""

COMPATIBILITY_HEAD = """#pragma once

#include <cstdint>

// Made by tests/worker/rank/data/unicode_tables_test.py --write.
// Unicode's compatibility decompositions (full) where they differ from the canonical ones, as of Unicode 9: see
// unicode_nfc.h.
namespace titan::data {

struct Compatible {
  uint32_t character;
  uint16_t first;  // Of its parts in kCompatibleParts.
  uint16_t count;
};

// clang-format off
"""

CASE_HEAD = """#pragma once

#include <cstdint>

// Made by tests/worker/rank/data/unicode_tables_test.py --write.
// The lower case of characters, and the marks that stripping accents takes away. Sorted by first field.
namespace titan::data {

struct LowerCase {
  uint32_t character;
  uint32_t parts[2];  // The second may be 0.
};
struct MarkRange {
  uint32_t first, last;
};

// clang-format off
"""
TAIL = "// clang-format on\n\n}  // namespace titan::data\n"


def lines(items):
    """Items side by side, as wide as the project's lines."""
    out, line = [], " "
    for item in items:
        if len(line) + len(item) + 1 > 120:
            out.append(line)
            line = " "
        line += " " + item
    return "\n".join(out + [line]) + "\n"


def ranges(pairs):
    """(key, character) in character order as [key, first, last]."""
    rows = []
    for key, c in pairs:
        if rows and rows[-1][0] == key and rows[-1][2] == c - 1:
            rows[-1][2] = c
        else:
            rows.append([key, c, c])
    return rows


def matched(category):
    split, found = pre_tokenizers.Split(Regex(f"\\p{{{category}}}"), "removed"), set()
    for start in range(0, len(CHARACTERS), 4096):
        block = CHARACTERS[start : start + 4096]
        left = {ord(c) for piece, _ in split.pre_tokenize_str("".join(map(chr, block))) for c in piece}
        found |= set(block) - left
    return found


def newer():
    added = []
    for category in CATEGORIES:
        known = {c for c in CHARACTERS if unicodedata.category(chr(c)) == category}
        found = matched(category)
        lost = {(category, c) for c in known - found} - MOVED
        if lost:
            sys.exit(f"characters left their category, which the table cannot say: {sorted(lost)[:5]}")
        added += [(category, c) for c in found - known]
    rows = sorted(ranges(sorted(added)), key=lambda row: row[1])
    return NEWER_HEAD + lines(f'{{"{k}", 0x{a:x}, 0x{b:x}}},' for k, a, b in rows) + "};\n" + TAIL


def combining_class(c, decomposed):
    """Unicode's, when the normalizer reorders by it; 0 for marks that it does not know yet."""
    value, mark = unicodedata.combining(chr(c)), chr(c)
    if value > 1:
        return value if nfd(mark + "\u0334") == nfd("\u0334" + mark) else 0  # U+0334 has class 1.
    known = value == 1 and (decomposed or nfd("\u0345" + mark) == mark + "\u0345")  # U+0345 has class 240.
    return value if known else 0


def nfc_tables():
    decompositions = {c: [ord(part) for part in nfd(chr(c))] for c in CHARACTERS
                      if not 0xAC00 <= c < 0xD7A4 and nfd(chr(c)) != chr(c)}
    compositions = []
    for c in decompositions:
        if nfc(chr(c)) == chr(c):
            first, second = (int(part, 16) for part in unicodedata.decomposition(chr(c)).split())
            compositions.append((first, second, c))
    classes = ranges((value, c) for c in CHARACTERS if (value := combining_class(c, c in decompositions)))
    return (NFC_HEAD
            + "inline constexpr Decomposition kDecompositions[] = {\n"
            + lines(f"{{0x{c:x}, {{{', '.join(f'0x{p:x}' for p in parts)}}}}}," for c, parts in decompositions.items()) + "};\n\n"
            + "inline constexpr Composition kCompositions[] = {\n"
            + lines(f"{{0x{a:x}, 0x{b:x}, 0x{c:x}}}," for a, b, c in sorted(compositions)) + "};\n\n"
            + "inline constexpr CombiningClass kCombiningClasses[] = {\n"
            + lines(f"{{0x{a:x}, 0x{b:x}, {k}}}," for k, a, b in classes) + "};\n" + TAIL)


def each(normalizer):
    """What a normalizer makes of each character. Line ends keep them apart: no normalizer touches one, and no mark joins it."""
    made = {}
    for start in range(0, len(CHARACTERS), 4096):
        block = [c for c in CHARACTERS[start : start + 4096] if c != 0xA]
        lines_of = normalizer.normalize_str("\n".join(map(chr, block))).split("\n")
        assert len(lines_of) == len(block)
        made.update(zip(block, lines_of))
    return made


def compatibility_table():
    canonical, compatible = each(normalizers.NFD()), each(normalizers.NFKD())
    rows, parts = [], []
    for c, text in compatible.items():
        if text != canonical[c]:
            rows.append(f"{{0x{c:x}, {len(parts)}, {len(text)}}},")
            parts += [f"0x{ord(part):x}," for part in text]
    assert len(parts) < 1 << 16
    return (COMPATIBILITY_HEAD + "inline constexpr Compatible kCompatible[] = {\n" + lines(rows) + "};\n\n"
            + "inline constexpr uint32_t kCompatibleParts[] = {\n" + lines(parts) + "};\n" + TAIL)


def case_tables():
    lower = {c: text for c, text in each(normalizers.Lowercase()).items() if text != chr(c)}
    assert all(len(text) <= 2 for text in lower.values())
    rows = (f"{{0x{c:x}, {{{', '.join(f'0x{ord(part):x}' for part in text)}}}}}," for c, text in lower.items())
    marks = ranges((0, c) for c, text in each(normalizers.StripAccents()).items() if text == "")
    return (CASE_HEAD + "inline constexpr LowerCase kLowerCase[] = {\n" + lines(rows) + "};\n\n"
            + "inline constexpr MarkRange kMarks[] = {\n" + lines(f"{{0x{a:x}, 0x{b:x}}}," for _, a, b in marks) + "};\n" + TAIL)


def main():
    for name, text in (("unicode_newer.h", newer()), ("unicode_nfc.h", nfc_tables()),
                       ("unicode_compatibility.h", compatibility_table()), ("unicode_case.h", case_tables())):
        path = FOLDER / name
        if "--write" in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path} is not what the installed tokenizers implies: run this test with --write and look at the difference")
    print("the Unicode tables fit")


main()
