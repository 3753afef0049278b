#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace titan::tokenizer_files {

enum class FileKind { kJson, kSentencePiece, kTiktoken };

struct Found {
  FileKind kind = FileKind::kJson;
  std::string path;
  std::string bytes;
};

// The file that says what a folder's tokenizer is: tokenizer.json, else tokenizer.model, which is of either kind, else
// the only *.tiktoken. NotFound, says what a folder may hold; InvalidArgument for a tokenizer.model of no kind.
absl::StatusOr<Found> find_tokenizer(const std::string& folder);

}  // namespace titan::tokenizer_files
