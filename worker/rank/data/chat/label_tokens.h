#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/rank/data/chat/chat.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// Among tokens one that is not to be foretold is written as its complement, a negative number, so that a row says of
// each of its tokens whether it is a label.
inline int32_t without_label(int32_t token) { return ~token; }
inline bool is_label(int32_t token) { return token >= 0; }
inline int32_t token_of(int32_t token) { return token >= 0 ? token : ~token; }

// Appends the tokens of a text of which only `labels` are to be foretold: tokens that no byte of them is in are marked.
// Nothing is put before or behind the text: a chat template says itself what begins and ends a conversation.
// InvalidArgument when the text is not UTF-8, or the tokenizer changes it across the bounds of a label.
absl::Status encode_labels(Tokenizer& tokenizer, const std::string& text, const std::vector<TextSpan>& labels,
                           std::vector<int32_t>& tokens);

}  // namespace titan::data
