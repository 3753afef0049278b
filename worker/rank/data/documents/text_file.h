#pragma once

#include <string>

#include "worker/rank/data/documents/document_file.h"

namespace titan::data {

// The text of a paragraph's lines, or why there is none.
DocumentText paragraph_text(std::string lines);

}  // namespace titan::data
