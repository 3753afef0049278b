#include "worker/rank/data/tokenizer/normal_forms.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/text/utf8.h"
#include "worker/rank/data/tokenizer/unicode_case.h"
#include "worker/rank/data/tokenizer/unicode_compatibility.h"
#include "worker/rank/data/tokenizer/unicode_nfc.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
namespace {

// Hangul syllables are computed: 19 leading consonants x 21 vowels x 28 trailing consonants (the first of which is
// none).
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

// Returns the character that the two compose to, or 0.
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

// Sorts the marks between two starters by class; equal classes keep their order.
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

void decompose_compatible(uint32_t character, std::vector<Mark>& out) {
  const auto* found = std::lower_bound(std::begin(kCompatible), std::end(kCompatible), character,
                                       [](const Compatible& entry, uint32_t c) { return entry.character < c; });
  if (found == std::end(kCompatible) || found->character != character) return decompose(character, out);
  for (int i = 0; i < found->count; ++i) {
    const uint32_t part = kCompatibleParts[found->first + i];
    out.push_back({part, combining_class(part)});
  }
}

std::vector<Mark> compose_all(const std::vector<Mark>& marks) {
  std::vector<Mark> out;
  size_t starter = SIZE_MAX;
  for (const Mark& mark : marks) {
    if (starter != SIZE_MAX) {
      // A mark is blocked when a starter, or a mark of the same or a higher class, stands between.
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
  return out;
}

enum class Form { kComposed, kDecomposed };

std::string normalize(std::string_view text, void (*take_apart)(uint32_t, std::vector<Mark>&), Form form) {
  std::vector<Mark> marks;
  marks.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Decoded next = decode_utf8(text, at);
    take_apart(next.code_point, marks);
    at += next.length;
  }
  order(marks);
  if (form == Form::kComposed) marks = compose_all(marks);
  std::string result;
  for (const Mark& mark : marks) text::append_utf8(result, mark.character);
  return result;
}

// Returns whether all bytes are below `limit`. Continuation bytes are below 0xC0.
bool below(std::string_view text, unsigned char limit) {
  return std::all_of(text.begin(), text.end(), [=](char c) { return static_cast<unsigned char>(c) < limit; });
}

bool is_mark(uint32_t character) {
  const auto* found = std::upper_bound(std::begin(kMarks), std::end(kMarks), character,
                                       [](uint32_t c, const MarkRange& range) { return c < range.first; });
  return found != std::begin(kMarks) && character <= std::prev(found)->last;
}

}  // namespace

std::string to_nfc(std::string_view text) {
  // No character below U+0300 changes or combines, and their lead bytes are below 0xCC.
  return below(text, 0xCC) ? std::string(text) : normalize(text, decompose, Form::kComposed);
}
std::string to_nfd(std::string_view text) {
  return below(text, 0x80) ? std::string(text) : normalize(text, decompose, Form::kDecomposed);
}
std::string to_nfkc(std::string_view text) {
  return below(text, 0x80) ? std::string(text) : normalize(text, decompose_compatible, Form::kComposed);
}
std::string to_nfkd(std::string_view text) {
  return below(text, 0x80) ? std::string(text) : normalize(text, decompose_compatible, Form::kDecomposed);
}

std::string to_lower_case(std::string_view text) {
  std::string lower;
  for (size_t at = 0; at < text.size();) {
    const Decoded next = decode_utf8(text, at);
    at += next.length;
    const auto* found = std::lower_bound(std::begin(kLowerCase), std::end(kLowerCase), next.code_point,
                                         [](const LowerCase& entry, uint32_t c) { return entry.character < c; });
    const bool changes = found != std::end(kLowerCase) && found->character == next.code_point;
    text::append_utf8(lower, changes ? found->parts[0] : next.code_point);
    if (changes && found->parts[1] != 0) text::append_utf8(lower, found->parts[1]);
  }
  return lower;
}

std::string without_marks(std::string_view text) {
  std::string kept;
  for (size_t at = 0; at < text.size();) {
    const Decoded next = decode_utf8(text, at);
    if (!is_mark(next.code_point)) kept.append(text, at, next.length);
    at += next.length;
  }
  return kept;
}

}  // namespace titan::data
