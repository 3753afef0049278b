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

// Checked content of a tokenizer's files. Only what Titan reproduces exactly is accepted, so that nothing that changes
// tokens is overlooked.
struct TokenizerFile {
  enum class Model { kBytePairs, kUnigram };
  Model model = Model::kBytePairs;
  std::vector<std::pair<std::string, int32_t>> vocabulary;  // Text and id. With byte_level: bytes, not GPT-2's
                                                            // alphabet.
  std::vector<double> scores;                               // Scores of the vocabulary's entries, only for kUnigram.
  std::vector<std::pair<std::string, std::string>> merges;  // Pairs of byte strings.
  bool merges_by_rank = false;                              // Ids are ranks, without a list of merges (tiktoken).
  bool byte_fallback = false;
  bool ignore_merges = false;
  bool fuse_unknown = false;
  std::optional<int32_t> unknown_id;
  std::string end_of_word_suffix;  // With byte_level: spelled at the end of a word's last token ("</w>").
  std::vector<std::pair<std::string, int32_t>> whole_words;  // Words that are one token without any merge.

  Normalizer normalizer;
  std::vector<SplitStep> splits;
  bool byte_level = false;             // Words are bytes; otherwise characters.
  bool add_prefix_space = false;       // With byte_level: each piece starts with a space.
  bool gpt2_split = false;             // With byte_level: GPT-2's pattern splits the pieces once more.
  std::optional<Metaspace> metaspace;  // Only without byte_level.
  TokenDecoder decoder;                // Only without byte_level: bytes need no decoder.

  std::vector<AddedToken> added_tokens;
  std::vector<int32_t> prefix, suffix;  // Tokens that the post-processor puts around a text.
  std::optional<int32_t> bos_id, eos_id;
  int64_t size = 0;  // Number of tokens, added ones included.
};

// Ids of the vocabulary and the added tokens, keyed as the file spells the tokens.
struct TokenIds {
  absl::flat_hash_map<std::string, int32_t> by_token;
  absl::flat_hash_map<int32_t, std::string> by_id;
};

// Reads folder/tokenizer.json, with the content `json`, and folder/tokenizer_config.json if it exists. Errors:
// InvalidArgument, names the file, the key and its value.
absl::StatusOr<TokenizerFile> read_tokenizer_file(const std::string& folder, const std::string& json);

// Does the same for the parsed content of both files: `root` has the form of a tokenizer.json, wherever it comes from.
// `path` and `config_path` name their files in errors.
absl::StatusOr<TokenizerFile> read_tokenizer_json(const nlohmann::json& root, const std::string& path,
                                                  const nlohmann::json& config, const std::string& config_path);

// Reads "model" of a tokenizer.json, after read_pipeline() has filled `file`. Errors: InvalidArgument, names the key.
absl::Status read_model(const nlohmann::json& root, TokenizerFile& file, TokenIds& ids);

}  // namespace titan::data
