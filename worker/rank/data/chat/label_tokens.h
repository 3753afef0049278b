#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/rank/data/chat/chat.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// A token that is not a label is stored as its bitwise complement, a negative number. So a row records for each token
// whether the loss counts it.
inline int32_t without_label(int32_t token) { return ~token; }
inline bool is_label(int32_t token) { return token >= 0; }
// Returns the token itself, label or not.
inline int32_t token_of(int32_t token) { return token >= 0 ? token : ~token; }

// Appends the tokens of `text`. A token without a byte of `labels` is marked as not a label. Adds nothing before or
// after the text: a chat template itself writes how a conversation begins and ends. InvalidArgument when the text is
// not UTF-8, or the tokenizer changes it across the bounds of a label.
absl::Status encode_labels(Tokenizer& tokenizer, const std::string& text, const std::vector<TextSpan>& labels,
                           std::vector<int32_t>& tokens);

}  // namespace titan::data
