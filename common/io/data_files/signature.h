#pragma once

#include <string>
#include <string_view>

namespace titan::data_files {

// What the first bytes of a file that was taken for text say that it is instead, with what to do about it:
// "UTF-16 (`iconv -f UTF-16 -t UTF-8` makes UTF-8 of it)". Nothing for what may be text.
std::string foreign_bytes(std::string_view first_bytes);

// The same of a name whose ending says so, such as "a.jsonl.xz".
std::string foreign_name(std::string_view file);

}  // namespace titan::data_files
