#pragma once

// titan-data encode shows the tokens of texts with their byte offsets, and titan-data decode the text of tokens.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::tools {

// titan-data encode: the tokens of texts.
void add_encode(CLI::App& program);

// titan-data decode: the text of tokens.
void add_decode(CLI::App& program);

// Where each token begins and ends in `text`, in bytes; a space that the tokenizer put before a word takes none.
// Nothing when the tokens do not spell the text, because the tokenizer changed it first.
std::optional<std::vector<std::pair<size_t, size_t>>> token_offsets(std::string_view text,
                                                                    const std::vector<int32_t>& tokens,
                                                                    const data::Tokenizer& tokenizer);

}  // namespace titan::tools
