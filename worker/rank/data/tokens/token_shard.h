#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace titan::data {

// The documents of one file as tokens, one after the other; at any place in O(1). Not thread-safe.
class TokenShard {
 public:
  virtual ~TokenShard() = default;

  virtual int64_t tokens() const = 0;
  virtual int64_t documents() const = 0;
  virtual bool marked() const { return false; }  // Whether tokens that are no labels are read as label_tokens.h says.

  // The number of the first token of a document; of document documents(): tokens(). Errors: DataLoss, names the file.
  virtual absl::StatusOr<int64_t> document_begin(int64_t document) = 0;
  virtual absl::Status read(int64_t begin, int64_t count, int32_t* out) = 0;
  // Reads everything and checks whatever can be checked.
  virtual absl::Status verify() = 0;
};

// The document in which a token is: the last that begins there or before.
absl::StatusOr<int64_t> document_of(TokenShard& shard, int64_t token);

// `path` is shard-00000.tokens, with shard-00000.index beside it.
absl::StatusOr<std::unique_ptr<TokenShard>> open_titan_shard(const std::string& path);
// `path` is Megatron-LM's .idx, with the .bin beside it.
absl::StatusOr<std::unique_ptr<TokenShard>> open_megatron_shard(const std::string& path);

}  // namespace titan::data
