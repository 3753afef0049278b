#include "worker/rank/data/tokenizer/added_tokens.h"

#include <algorithm>

#include "common/base/status/status.h"
#include "worker/rank/data/tokenizer/utf8.h"

namespace titan::data {
AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens) : tokens_(tokens), nodes_(1) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    int32_t node = 0;
    for (char c : tokens_[i].content) {
      const auto [child, fresh] =
          nodes_[node].children.emplace(static_cast<unsigned char>(c), static_cast<int32_t>(nodes_.size()));
      node = child->second;
      if (fresh) nodes_.emplace_back();
    }
    if (node == 0) continue;  // An empty token matches nowhere.
    nodes_[node].token = static_cast<int32_t>(i);
    starts_[static_cast<unsigned char>(tokens_[i].content[0])] = true;
  }
}

int32_t AddedTokenMatcher::longest_at(std::string_view text, size_t at) const {
  int32_t node = 0, longest = -1;
  for (; at < text.size(); ++at) {
    const auto child = nodes_[node].children.find(static_cast<unsigned char>(text[at]));
    if (child == nodes_[node].children.end()) break;
    node = child->second;
    if (nodes_[node].token >= 0) longest = nodes_[node].token;
  }
  return longest;
}

size_t AddedTokenMatcher::length_at(std::string_view text, size_t at) const {
  const int32_t found = starts_[static_cast<unsigned char>(text[at])] ? longest_at(text, at) : -1;
  return found < 0 ? 0 : tokens_[found].content.size();
}

absl::Status AddedTokenMatcher::split(std::string_view text,
                                      const std::function<absl::Status(std::string_view)>& between,
                                      const std::function<void(int32_t)>& token) const {
  size_t done = 0, at = 0;
  while (at < text.size()) {
    const int32_t found = starts_[static_cast<unsigned char>(text[at])] ? longest_at(text, at) : -1;
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& match = tokens_[found];
    size_t begin = at, end = at + match.content.size();
    at = end;
    if (match.lstrip) begin = std::max(white_space_begin(text, begin), done);
    if (match.rstrip) end = white_space_end(text, end);
    if (begin > done) TITAN_RETURN_IF_ERROR(between(text.substr(done, begin - done)));
    token(match.id);
    done = end;
    at = std::max(at, done);
  }
  return done < text.size() ? between(text.substr(done)) : absl::OkStatus();
}

}  // namespace titan::data
