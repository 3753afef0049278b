#pragma once

#include <string>
#include <string_view>

// What the `tokenizers` package makes of valid UTF-8, character by character of the Unicode versions that it knows.
namespace titan::data {

// Unicode's four normalization forms.
std::string to_nfc(std::string_view text);
std::string to_nfd(std::string_view text);
std::string to_nfkc(std::string_view text);
std::string to_nfkd(std::string_view text);

std::string to_lower_case(std::string_view text);

// Without the marks that combine with other characters (accents, once the text is decomposed).
std::string without_marks(std::string_view text);

}  // namespace titan::data
