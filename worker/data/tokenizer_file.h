#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/added_tokens.h"
#include "worker/data/split_pattern.h"

namespace titan::data {

struct SplitStep {
  std::string pattern;
  SplitPattern::Options options;
};

// What tokenizer.json and tokenizer_config.json say, checked: only what byte-level BPE needs is accepted, so that
// nothing that changes tokens is overlooked.
struct TokenizerFile {
  std::vector<std::pair<std::string, int32_t>> vocabulary;  // Bytes (not the byte-level alphabet) and id.
  std::vector<std::pair<std::string, std::string>> merges;  // Bytes.
  bool ignore_merges = false;
  bool fuse_unknown = false;
  std::optional<int32_t> unknown_id;

  bool nfc = false;
  std::vector<SplitStep> splits;
  bool add_prefix_space = false;  // Each piece starts with a space.
  bool gpt2_split = false;        // Pieces are cut once more by GPT-2's pattern.

  std::vector<AddedToken> added_tokens;
  std::vector<int32_t> prefix, suffix;  // The post-processor's tokens around a text.
  std::optional<int32_t> bos_id, eos_id;
  int64_t size = 0;  // Entries, added tokens included.
};

// Reads folder/tokenizer.json and, when there, folder/tokenizer_config.json.
// Errors: NotFound; InvalidArgument, names the file, the key and what it holds.
absl::StatusOr<TokenizerFile> read_tokenizer_file(const std::string& folder);

}  // namespace titan::data
