#pragma once

#include <string>
#include <string_view>

// Changes valid UTF-8 as the `tokenizers` package does, with the Unicode versions that it knows.
namespace titan::data {

// Unicode's four normalization forms.
std::string to_nfc(std::string_view text);
std::string to_nfd(std::string_view text);
std::string to_nfkc(std::string_view text);
std::string to_nfkd(std::string_view text);

std::string to_lower_case(std::string_view text);

// Removes marks that combine with other characters (accents, once the text is decomposed).
std::string without_marks(std::string_view text);

}  // namespace titan::data
