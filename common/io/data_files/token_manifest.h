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

// What tells whether tokens are a tokenizer's: the checksum of the file that says what it is, and what surrounds
// documents.
struct TokenizerMark {
  uint32_t sum = 0;
  int64_t bos = -1, eos = -1, max_id = 0;

  bool operator==(const TokenizerMark&) const = default;
};

// As dataloader.train_on and --train-on have it: "all" or "assistant".
const char* train_on_name(bool all);

// What a token index consists of. An index without a manifest is not finished.
struct TokenManifest {
  struct Shard {
    std::string name;  // "shard-00000", of its two files.
    int64_t tokens = 0, documents = 0;
    int64_t malformed = 0;   // Documents of the source that were left out.
    uint32_t index_sum = 0;  // CRC-32C of its .index.
  };
  TokenizerMark tokenizer;
  bool marked = false;  // Which tokens are labels is said: the format's version 2, and that of its shards.
  std::optional<bool> train_on_all = {};  // Of a marked index whether all is a label; older ones do not say.
  std::vector<Shard> shards;
};

nlohmann::json to_json(const TokenManifest::Shard& shard);
// Errors: DataLoss, naming `path` and the key.
absl::StatusOr<TokenManifest::Shard> shard_from_json(const nlohmann::json& json, const std::string& path);

std::string manifest_text(const TokenManifest& manifest);
// Errors: DataLoss for anything but the text that was written (it carries its checksum).
absl::StatusOr<TokenManifest> read_manifest(storage::Files& files, const std::string& path);

}  // namespace titan::data_files
