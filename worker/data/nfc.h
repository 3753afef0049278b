#pragma once

#include <string>
#include <string_view>

namespace titan::data {

// Normalization form C of valid UTF-8, as the `tokenizers` package computes it.
std::string to_nfc(std::string_view text);

}  // namespace titan::data
