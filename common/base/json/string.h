#pragma once

#include <string>
#include <string_view>

namespace titan::json {

// Appends what a string or key that a Reader gave stands for. False when an escape of it is a lone surrogate, which no
// UTF-8 has: it is written as the three bytes that would encode it, so that whatever checks for UTF-8 refuses the text.
bool unescape(std::string_view token, std::string& out);

}  // namespace titan::json
