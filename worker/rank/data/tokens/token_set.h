#pragma once

// Joins the token shards of a dataset into one sequence of tokens, and reports which tokenizer made them.

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

// The documents of one file as a sequence of tokens, with O(1) access to any place. Not thread safe.
class TokenShard {
 public:
  virtual ~TokenShard() = default;

  virtual int64_t tokens() const = 0;
  virtual int64_t documents() const = 0;
  virtual bool marked() const { return false; }  // Whether tokens that are not labels are marked (label_tokens.h).

  // Returns the index of a document's first token; tokens() for document documents(). Errors: DataLoss, names the file.
  virtual absl::StatusOr<int64_t> document_begin(int64_t document) = 0;
  // Writes tokens [begin, begin + count) to `out`.
  virtual absl::Status read(int64_t begin, int64_t count, int32_t* out) = 0;
  // Reads everything and checks all that can be checked. Errors: DataLoss, names the file.
  virtual absl::Status verify() = 0;
};

// Returns the document that holds a token: the last one that begins at or before it.
absl::StatusOr<int64_t> document_of(TokenShard& shard, int64_t token);

// Opens a shard of Titan's token index: `path` is shard-00000.tokens, with shard-00000.index next to it. Errors:
// DataLoss.
absl::StatusOr<std::unique_ptr<TokenShard>> open_titan_shard(const std::string& path);
// Opens an indexed dataset of Megatron-LM: `path` is the .idx, with the .bin next to it. Errors: DataLoss.
absl::StatusOr<std::unique_ptr<TokenShard>> open_megatron_shard(const std::string& path);

// Returns the fingerprint of a tokenizer that was loaded from `folder`.
absl::StatusOr<data_files::TokenizerFingerprint> tokenizer_fingerprint(const std::string& folder,
                                                                       const Tokenizer& tokenizer);

// All shards of a dataset as one sequence of tokens. Keeps a few of them open. Not thread safe.
class TokenSet {
 public:
  // `files` come from find_dataset_files(). Errors: NotFound, DataLoss; names the file.
  static absl::StatusOr<TokenSet> open(data_files::DatasetFormat format, const std::vector<std::string>& files);

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  bool marked() const { return marked_; }  // Whether some shards mark which tokens are labels (label_tokens.h).
  // Returns the paths of the shards, in order.
  std::vector<std::string> paths() const;
  // One for each token index; Megatron-LM's files do not name their tokenizer.
  struct Marked {
    std::string manifest;
    data_files::TokenizerFingerprint tokenizer;
    std::optional<bool> train_on_all;  // See TokenManifest.
  };
  const std::vector<Marked>& marks() const { return marks_; }

  // Writes tokens [begin, begin + count) of the sequence to `out`.
  absl::Status read(int64_t begin, int64_t count, int32_t* out);

  // A document: its shard, and its number and first token within the shard.
  struct Place {
    int64_t shard = 0, document = 0, begin = 0;
  };
  // Return the document that holds a token, and the first token of a document (tokens() for document documents()).
  absl::StatusOr<Place> find(int64_t token);
  absl::StatusOr<int64_t> document_begin(int64_t document);
  // The first token and length of a document.
  struct Extent {
    int64_t begin = 0, tokens = 0;
  };
  absl::StatusOr<Extent> extent(int64_t document);

  // Return the tokens and documents of all shards before `shard`, which may be the number of shards.
  int64_t tokens_before(int64_t shard) const { return shard < shards() ? parts_[shard].tokens_before : tokens_; }
  int64_t documents_before(int64_t shard) const {
    return shard < shards() ? parts_[shard].documents_before : documents_;
  }
  int64_t shards() const { return static_cast<int64_t>(parts_.size()); }
  // Returns the shard, which it opens if needed; valid until other shards are opened.
  absl::StatusOr<TokenShard*> shard(int64_t number);

 private:
  struct Part {
    std::string path;
    data_files::DatasetFormat format;
    bool marked;
    int64_t tokens, documents;
    int64_t tokens_before, documents_before;
  };
  absl::Status add_manifest(const std::string& path);
  absl::Status add_megatron(const std::string& path);
  void add(std::string path, data_files::DatasetFormat format, bool marked, int64_t tokens, int64_t documents);
  int64_t shard_of(int64_t token) const;
  int64_t shard_of_document(int64_t document) const;

  std::vector<Part> parts_;
  std::vector<Marked> marks_;
  int64_t tokens_ = 0, documents_ = 0;
  bool marked_ = false;
  std::vector<std::pair<int64_t, std::unique_ptr<TokenShard>>> open_;  // By shard number; the last is the most recently
                                                                       // used.
};

}  // namespace titan::data
