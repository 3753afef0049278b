#include "worker/data/nfc.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "worker/data/unicode_nfc.h"
#include "worker/data/utf8.h"

namespace titan::data {
namespace {

// Hangul syllables are computed: 19 leading consonants x 21 vowels x 28 trailing ones (the first of which is none).
constexpr uint32_t kSyllables = 0xAC00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11A7;
constexpr uint32_t kLeadingCount = 19, kVowelCount = 21, kTrailingCount = 28, kSyllableCount = 19 * 21 * 28;

struct Mark {
  uint32_t character;
  uint8_t combining_class;
};

uint8_t combining_class(uint32_t character) {
  if (character < kCombiningClasses[0].first) return 0;
  const auto* found = std::upper_bound(std::begin(kCombiningClasses), std::end(kCombiningClasses), character,
                                       [](uint32_t c, const CombiningClass& range) { return c < range.first; });
  --found;
  return character <= found->last ? found->combining_class : 0;
}

void decompose(uint32_t character, std::vector<Mark>& out) {
  if (character - kSyllables < kSyllableCount) {
    const uint32_t index = character - kSyllables;
    out.push_back({kLeading + index / (kVowelCount * kTrailingCount), 0});
    out.push_back({kVowels + index / kTrailingCount % kVowelCount, 0});
    if (index % kTrailingCount != 0) out.push_back({kTrailing + index % kTrailingCount, 0});
    return;
  }
  const auto* found = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), character,
                                       [](const Decomposition& entry, uint32_t c) { return entry.character < c; });
  if (found == std::end(kDecompositions) || found->character != character) {
    out.push_back({character, combining_class(character)});
    return;
  }
  for (uint32_t part : found->parts) {
    if (part != 0) out.push_back({part, combining_class(part)});
  }
}

// The character that the two make, or 0.
uint32_t compose(uint32_t first, uint32_t second) {
  if (first - kLeading < kLeadingCount && second - kVowels < kVowelCount) {
    return kSyllables + ((first - kLeading) * kVowelCount + (second - kVowels)) * kTrailingCount;
  }
  if (first - kSyllables < kSyllableCount && (first - kSyllables) % kTrailingCount == 0 && second > kTrailing &&
      second - kTrailing < kTrailingCount) {
    return first + (second - kTrailing);
  }
  const auto* found = std::lower_bound(std::begin(kCompositions), std::end(kCompositions), std::pair(first, second),
                                       [](const Composition& entry, const std::pair<uint32_t, uint32_t>& key) {
                                         return std::pair(entry.first, entry.second) < key;
                                       });
  const bool hit = found != std::end(kCompositions) && found->first == first && found->second == second;
  return hit ? found->character : 0;
}

// Marks between two starters, by class; equal classes keep their order.
void order(std::vector<Mark>& marks) {
  for (auto begin = marks.begin(); begin != marks.end();) {
    if (begin->combining_class == 0) {
      ++begin;
      continue;
    }
    auto end = std::find_if(begin, marks.end(), [](const Mark& mark) { return mark.combining_class == 0; });
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
    begin = end;
  }
}

std::string compose_all(const std::vector<Mark>& marks) {
  std::vector<Mark> out;
  size_t starter = SIZE_MAX;
  for (const Mark& mark : marks) {
    if (starter != SIZE_MAX) {
      // Blocked when something of the same or a higher class (or a starter) stands between.
      const bool adjacent = out.size() == starter + 1;
      const bool free =
          adjacent || (out.back().combining_class != 0 && out.back().combining_class < mark.combining_class);
      const uint32_t composed = free ? compose(out[starter].character, mark.character) : 0;
      if (composed != 0) {
        out[starter].character = composed;
        continue;
      }
    }
    if (mark.combining_class == 0) starter = out.size();
    out.push_back(mark);
  }
  std::string text;
  for (const Mark& mark : out) append_utf8(text, mark.character);
  return text;
}

}  // namespace

std::string to_nfc(std::string_view text) {
  // Nothing below U+0300 changes or combines: the lead bytes of those are below 0xCC.
  const bool simple = std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0xCC;
  });
  if (simple) return std::string(text);
  std::vector<Mark> marks;
  marks.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Decoded next = decode_utf8(text, at);
    decompose(next.code_point, marks);
    at += next.length;
  }
  order(marks);
  return compose_all(marks);
}

}  // namespace titan::data
