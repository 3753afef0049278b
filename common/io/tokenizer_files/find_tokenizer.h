#pragma once

// Finds the file that defines a folder's tokenizer, and inspects it without building the tokenizer.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::tokenizer_files {

enum class FileKind { kJson, kSentencePiece, kTiktoken };

struct Found {
  FileKind kind = FileKind::kJson;
  std::string path;
  std::string bytes;
};

// The file that says what a folder's tokenizer is: tokenizer.json, else tokenizer.model, which is of either kind, else
// the only *.tiktoken. NotFound, says what a folder may hold; InvalidArgument for a tokenizer.model of neither kind.
absl::StatusOr<Found> find_tokenizer(const std::string& folder);

// Parts of a tokenizer.json that are saved after a training and are not applied here: "truncation" and "padding", one
// sentence each, for a warning. Empty for other kinds of files.
std::vector<std::string> not_applied(const Found& found);

// The same of a folder; empty where it holds no tokenizer.
std::vector<std::string> not_applied(const std::string& folder);

// The largest number of a token that the file itself gives; tiktoken's names no special tokens, which follow its ranks.
// Faults that matter only when tokens are made are not looked for. InvalidArgument, names the file.
absl::StatusOr<int64_t> largest_id(const Found& found);

}  // namespace titan::tokenizer_files
