#pragma once

#include <optional>
#include <string>

namespace titan::data {

// GPT-2's printable stand-ins for the 256 bytes, in which tokenizer files spell their tokens ("Ġthe" is " the").
// The bytes of such a spelling; nothing when a character is no stand-in.
std::optional<std::string> from_byte_alphabet(const std::string& spelling);

}  // namespace titan::data
