#include "worker/rank/data/tokenizer/charsmap_by_cluster.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status/status.h"
#include "worker/rank/data/tokenizer/unicode_newer.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
namespace {

constexpr size_t kLongestCluster = 5;  // Bytes of one that is replaced as a whole.

bool is_ascii(char byte) { return static_cast<unsigned char>(byte) < 0x80; }

// Between two ASCII characters a cluster ends, but within the end of a line.
bool surely_ends(char left, char right) {
  return is_ascii(left) && is_ascii(right) && !(left == '\r' && right == '\n');
}

}  // namespace

CharsmapByCluster::CharsmapByCluster(Charsmap map, std::unique_ptr<SplitPattern> clusters)
    : map_(std::move(map)), clusters_(std::move(clusters)) {}

absl::StatusOr<std::unique_ptr<CharsmapByCluster>> CharsmapByCluster::create(Charsmap map) {
  // A cluster as PCRE2's Unicode has it goes on with the marks of newer versions.
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
    while (end < text.size() && !surely_ends(text[end - 1], text[end])) ++end;
    const std::string_view stretch = text.substr(begin, end - begin);
    begin = end;
    if (stretch.size() == 1) {
      replace_characters(stretch, out);
      continue;
    }
    const absl::Status cut = clusters_->split(stretch, [&](std::string_view cluster) {
      if (cluster.size() > kLongestCluster || !replace(cluster, out)) replace_characters(cluster, out);
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
