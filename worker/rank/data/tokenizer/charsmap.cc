#include "worker/rank/data/tokenizer/charsmap.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "worker/rank/data/tokenizer/unicode_newer.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
namespace {

uint32_t little_endian(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])); };
  return byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
}

// A unit of the trie holds either the byte that leads to it and the offset of its children, or a value.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }

}  // namespace

absl::StatusOr<Charsmap> Charsmap::parse(std::string_view bytes) {
  Charsmap map;
  if (bytes.empty()) return map;
  const uint32_t size = bytes.size() < 4 ? 0 : little_endian(bytes, 0);
  if (size == 0 || size % 4 != 0 || size > bytes.size() - 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("precompiled_charsmap holds ", bytes.size(), " bytes, but its trie needs ", size));
  }
  for (size_t at = 4; at < 4 + size; at += 4) map.units_.push_back(little_endian(bytes, at));
  map.replacements_ = bytes.substr(4 + size);
  if (!is_utf8(map.replacements_))
    return absl::InvalidArgumentError("precompiled_charsmap has replacements that are not UTF-8");
  return map;
}

Charsmap::Match Charsmap::match(size_t length, uint32_t at) const {
  if (at >= replacements_.size() || is_continuation(replacements_[at])) return {};
  const char* text = replacements_.data() + at;
  return {length, {text, strnlen(text, replacements_.size() - at)}};
}

Charsmap::Match Charsmap::find(std::string_view text, bool first) const {
  Match found;
  if (units_.empty()) return found;
  size_t node = offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || label(units_[node]) != byte) break;
    const bool leaf = has_leaf(units_[node]);
    node ^= offset(units_[node]);
    if (!leaf || node >= units_.size()) continue;
    if (i + 1 < text.size() && is_continuation(text[i + 1])) continue;
    if (const Match longer = match(i + 1, value(units_[node])); longer.length > 0) found = longer;
    if (first) break;
  }
  return found;
}

namespace {

constexpr size_t kMaxClusterLength = 5;  // Bytes of the longest cluster that is replaced as a whole.

bool is_ascii(char byte) { return static_cast<unsigned char>(byte) < 0x80; }

// A cluster ends between any two ASCII characters, except inside "\r\n".
bool is_cluster_boundary(char left, char right) {
  return is_ascii(left) && is_ascii(right) && !(left == '\r' && right == '\n');
}

}  // namespace

CharsmapByCluster::CharsmapByCluster(Charsmap map, std::unique_ptr<SplitPattern> clusters)
    : map_(std::move(map)), clusters_(std::move(clusters)) {}

absl::StatusOr<std::unique_ptr<CharsmapByCluster>> CharsmapByCluster::create(Charsmap map) {
  // Extends PCRE2's clusters by the marks of newer Unicode versions.
  std::string newer;
  for (const CategoryRange& range : kNewerCharacters) {
    if (range.category[0] == 'M') absl::StrAppendFormat(&newer, "\\x{%x}-\\x{%x}", range.first, range.last);
  }
  const std::string pattern = absl::StrCat("\\X(?:(?<!\\p{Cc})(?=[", newer, "])\\X)*");
  TITAN_ASSIGN_OR_RETURN(auto clusters, SplitPattern::compile(pattern, {.pcre2 = true}));
  return std::unique_ptr<CharsmapByCluster>(new CharsmapByCluster(std::move(map), std::move(clusters)));
}

std::string CharsmapByCluster::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    while (end < text.size() && !is_cluster_boundary(text[end - 1], text[end])) ++end;
    const std::string_view stretch = text.substr(begin, end - begin);
    begin = end;
    if (stretch.size() == 1) {
      replace_characters(stretch, out);
      continue;
    }
    const absl::Status cut = clusters_->split(stretch, [&](std::string_view cluster) {
      if (cluster.size() > kMaxClusterLength || !replace(cluster, out)) replace_characters(cluster, out);
      return absl::OkStatus();
    });
    if (!cut.ok()) out += stretch;
  }
  return out;
}

bool CharsmapByCluster::replace(std::string_view part, std::string& out) const {
  const Charsmap::Match rule = map_.shortest(part);
  out += rule.replacement;
  return rule.length > 0;
}

void CharsmapByCluster::replace_characters(std::string_view text, std::string& out) const {
  for (size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, decode_utf8(text, at).length);
    if (!replace(character, out)) out += character;
    at += character.size();
  }
}

}  // namespace titan::data
