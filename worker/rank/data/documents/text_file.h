#pragma once

// Reads documents of text files: a line of JSON, a whole file of plain text, or a paragraph of it.

#include <string>
#include <string_view>

#include "worker/rank/data/documents/document_file.h"

namespace titan::data {

// Returns the text under `key` in a line of JSON, {"text": "..."}, or the reason why it has none.
DocumentText parse_json_line(std::string_view line, const std::string& key);

// Returns the text of a paragraph's lines, or the reason why it has none.
DocumentText paragraph_text(std::string lines);

}  // namespace titan::data
