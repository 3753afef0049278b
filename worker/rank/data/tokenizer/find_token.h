#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// Returns the token that the vocabulary spells as `spelling`; the first of several. Looks at each token, so call it
// while loading.
std::optional<int32_t> find_token(const Tokenizer& tokenizer, std::string_view spelling);

}  // namespace titan::data
