#pragma once

// titan-data encode prints the tokens of texts with their byte offsets, and titan-data decode the text of tokens.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::tools {

// Adds "titan-data encode", which prints the tokens of texts.
void add_encode(CLI::App& program);

// Adds "titan-data decode", which prints the text of tokens.
void add_decode(CLI::App& program);

// Returns the first and end byte of each token in `text`; a space that the tokenizer added before a word has no bytes.
// Empty if the tokens do not spell the text, because the tokenizer changed it first.
std::optional<std::vector<std::pair<size_t, size_t>>> token_offsets(std::string_view text,
                                                                    const std::vector<int32_t>& tokens,
                                                                    const data::Tokenizer& tokenizer);

}  // namespace titan::tools
