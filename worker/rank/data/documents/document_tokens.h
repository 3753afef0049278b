#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/rank/data/documents/document_file.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// Appends the tokens of a document that a file gave; those that are no labels are marked (label_tokens.h). None of one
// that has a problem, and it has one behind this when nobody can say which of its tokens are labels. InvalidArgument
// for a text that the tokenizer does not take.
absl::Status encode_document_text(Tokenizer& tokenizer, DocumentText& document, std::vector<int32_t>& tokens);

}  // namespace titan::data
