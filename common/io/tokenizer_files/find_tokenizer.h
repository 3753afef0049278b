#pragma once

// Finds the file that defines a folder's tokenizer, and inspects it without building the tokenizer.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::tokenizer_files {

enum class TokenizerFileKind {
  kJson,           // tokenizer.json
  kSentencePiece,  // tokenizer.model
  kTiktoken,       // tokenizer.model or *.tiktoken
  kT5,             // spiece.model: the pieces of T5, without its sentinel tokens
  kClip,           // vocab.json, with merges.txt in the same folder
};

struct Found {
  TokenizerFileKind kind = TokenizerFileKind::kJson;
  std::string path;
  std::string bytes;
};

// Returns the file that defines a folder's tokenizer: tokenizer.json, else tokenizer.model, which is of either kind,
// else the only *.tiktoken, else a file of find_python_tokenizer. Errors: NotFound, which says what a folder may hold;
// InvalidArgument for a tokenizer.model of neither kind.
absl::StatusOr<Found> find_tokenizer(const std::string& folder);

// Returns the file from which transformers' classes in Python, T5Tokenizer and CLIPTokenizer, read a vocabulary, even
// if the folder also has a tokenizer.json: spiece.model, else vocab.json of CLIP if merges.txt is there as well.
// Errors: NotFound.
absl::StatusOr<Found> find_python_tokenizer(const std::string& folder);

// Returns the parts of a tokenizer.json that are saved after a training and are not applied here: "truncation" and
// "padding", one sentence each, for a warning. Empty for other kinds of files.
std::vector<std::string> not_applied(const Found& found);

// Does the same for a folder; empty when it holds no tokenizer.
std::vector<std::string> not_applied(const std::string& folder);

// Returns the largest token id that the file gives, with tokenizer_config.json for a tokenizer.json. tiktoken's files
// name no special tokens, which follow the ranks, and spiece.model no sentinel tokens, which follow the pieces. Does
// not look for faults that matter only when text is tokenized.
// Errors: InvalidArgument, which names the file.
absl::StatusOr<int64_t> largest_id(const Found& found);

}  // namespace titan::tokenizer_files
