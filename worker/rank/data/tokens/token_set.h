#pragma once

// Joins the token shards of a dataset into one row of tokens, and says which tokenizer they are of.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/data_files/datasets.h"
#include "common/io/data_files/token_manifest.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

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

// The mark of a loaded tokenizer and the folder that it came from.
absl::StatusOr<data_files::TokenizerFingerprint> tokenizer_fingerprint(const std::string& folder,
                                                                       const Tokenizer& tokenizer);

// All shards of a dataset as one row of tokens. Of them a few are open at a time. Not thread-safe.
class TokenSet {
 public:
  // `files` as find_dataset_files gives them. Errors: NotFound, DataLoss; names the file.
  static absl::StatusOr<TokenSet> open(data_files::Format format, const std::vector<std::string>& files);

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  bool marked() const { return marked_; }  // Whether some shards say which tokens are labels, as label_tokens.h has it.
  std::vector<std::string> paths() const;
  // Of each token index; Megatron-LM's files do not say.
  struct Marked {
    std::string manifest;
    data_files::TokenizerFingerprint tokenizer;
    std::optional<bool> train_on_all;  // As TokenManifest has it.
  };
  const std::vector<Marked>& marks() const { return marks_; }

  absl::Status read(int64_t begin, int64_t count, int32_t* out);

  // A document: its shard, its number there, and the number of its first token there.
  struct Place {
    int64_t shard = 0, document = 0, begin = 0;
  };
  // The document of a token, and the first token of a document (of document documents(): tokens()).
  absl::StatusOr<Place> find(int64_t token);
  absl::StatusOr<int64_t> document_begin(int64_t document);
  // The tokens of a document.
  struct Extent {
    int64_t begin = 0, tokens = 0;
  };
  absl::StatusOr<Extent> extent(int64_t document);

  // The numbers, in the whole, of a shard's first token and document. `shard` may be the number of shards.
  int64_t tokens_before(int64_t shard) const { return shard < shards() ? parts_[shard].tokens_before : tokens_; }
  int64_t documents_before(int64_t shard) const {
    return shard < shards() ? parts_[shard].documents_before : documents_;
  }
  int64_t shards() const { return static_cast<int64_t>(parts_.size()); }
  absl::StatusOr<TokenShard*> shard(int64_t number);

 private:
  struct Part {
    std::string path;
    data_files::Format format;
    bool marked;
    int64_t tokens, documents;
    int64_t tokens_before, documents_before;
  };
  absl::Status add_manifest(const std::string& path);
  absl::Status add_megatron(const std::string& path);
  void add(std::string path, data_files::Format format, bool marked, int64_t tokens, int64_t documents);
  int64_t shard_of(int64_t token) const;
  int64_t shard_of_document(int64_t document) const;

  std::vector<Part> parts_;
  std::vector<Marked> marks_;
  int64_t tokens_ = 0, documents_ = 0;
  bool marked_ = false;
  std::vector<std::pair<int64_t, std::unique_ptr<TokenShard>>> open_;  // By number; the last is the newest.
};

}  // namespace titan::data
