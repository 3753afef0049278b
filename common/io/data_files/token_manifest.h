#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/data_files/datasets.h"
#include "common/io/storage/file.h"
#include "nlohmann/json.hpp"

namespace titan::data_files {

// Identifies the tokenizer of tokens: the checksum of the file that defines it, and the tokens that surround documents.
struct TokenizerFingerprint {
  uint32_t sum = 0;  // CRC-32C of the defining file.
  int64_t bos = -1, eos = -1, max_id = 0;

  bool operator==(const TokenizerFingerprint&) const = default;
};

// Returns the value of dataloader.train_on and --train-on: "all" or "assistant".
const char* train_on_name(bool all);

// Contents of a token index. An index without a manifest is not finished.
struct TokenManifest {
  struct Shard {
    std::string name;  // "shard-00000", the name of its two files.
    int64_t tokens = 0, documents = 0;
    int64_t malformed = 0;   // Documents of the source that were left out.
    uint32_t index_sum = 0;  // CRC-32C of its .index file.
  };
  TokenizerFingerprint tokenizer;
  bool marked = false;                    // Whether the index marks labels: format version 2, here and in the shards.
  std::optional<bool> train_on_all = {};  // Whether all messages are labels; older marked indexes do not record it.
  std::vector<Shard> shards;
};

nlohmann::json to_json(const TokenManifest::Shard& shard);
// Parses a shard. Errors: DataLoss, naming `path` and the key.
absl::StatusOr<TokenManifest::Shard> shard_from_json(const nlohmann::json& json, const std::string& path);

std::string manifest_text(const TokenManifest& manifest);
// Reads a manifest. Errors: DataLoss when it is malformed or does not match its checksum; InvalidArgument for an
// unknown format version; those of `files`.
absl::StatusOr<TokenManifest> read_manifest(storage::Files& files, const std::string& path);

}  // namespace titan::data_files
