#pragma once

#include <string_view>

namespace titan::text {

// Whether `bytes` is UTF-8: no overlong forms, no surrogates, nothing beyond U+10FFFF.
bool is_utf8(std::string_view bytes);

}  // namespace titan::text
