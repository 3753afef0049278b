#pragma once

#include <string>
#include <string_view>

#include "worker/rank/data/documents/document_file.h"

namespace titan::data {

// The text of a line of JSON, {"text": "..."}, or why there is none.
DocumentText parse_json_line(std::string_view line, const std::string& key);

}  // namespace titan::data
