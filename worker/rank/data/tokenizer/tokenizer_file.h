#pragma once

// Reads tokenizer.json into a checked description of the tokenizer, with its vocabulary and added tokens.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/tokenizer/added_tokens.h"
#include "worker/rank/data/tokenizer/metaspace.h"
#include "worker/rank/data/tokenizer/normalizer.h"
#include "worker/rank/data/tokenizer/split_pattern.h"
#include "worker/rank/data/tokenizer/token_decoder.h"

namespace titan::data {

struct SplitStep {
  std::string pattern;
  SplitPattern::Options options;
};

// What a tokenizer's files say, checked: only what is reproduced exactly is accepted, so that nothing that changes
// tokens is overlooked.
struct TokenizerFile {
  enum class Model { kBytePairs, kUnigram };
  Model model = Model::kBytePairs;
  std::vector<std::pair<std::string, int32_t>> vocabulary;  // Text and id; bytes, not their alphabet, with byte_level.
  std::vector<double> scores;                               // Of the vocabulary's entries, for kUnigram.
  std::vector<std::pair<std::string, std::string>> merges;  // Bytes.
  bool merges_by_rank = false;                              // Ids are ranks, and there are no merges (tiktoken).
  bool byte_fallback = false;
  bool ignore_merges = false;
  bool fuse_unknown = false;
  std::optional<int32_t> unknown_id;

  Normalizer normalizer;
  std::vector<SplitStep> splits;
  bool byte_level = false;             // Words are bytes; otherwise characters.
  bool add_prefix_space = false;       // Of byte_level: each piece starts with a space.
  bool gpt2_split = false;             // Of byte_level: pieces are cut once more by GPT-2's pattern.
  std::optional<Metaspace> metaspace;  // Of characters.
  TokenDecoder decoder;                // Of characters; bytes are what they are.

  std::vector<AddedToken> added_tokens;
  std::vector<int32_t> prefix, suffix;  // The post-processor's tokens around a text.
  std::optional<int32_t> bos_id, eos_id;
  int64_t size = 0;  // Entries, added tokens included.
};

// The ids of vocabulary and added tokens, as the file spells the tokens.
struct TokenIds {
  absl::flat_hash_map<std::string, int32_t> by_token;
  absl::flat_hash_map<int32_t, std::string> by_id;
};

// Reads folder/tokenizer.json, whose text is `json`, and, when there, folder/tokenizer_config.json.
// Errors: InvalidArgument, names the file, the key and what it holds.
absl::StatusOr<TokenizerFile> read_tokenizer_file(const std::string& folder, const std::string& json);

// Reads "model" of a tokenizer.json, whose pipeline `file` holds already. Errors: InvalidArgument, names the key.
absl::Status read_model(const nlohmann::json& root, TokenizerFile& file, TokenIds& ids);

}  // namespace titan::data
