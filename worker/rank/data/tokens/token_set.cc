#include "worker/rank/data/tokens/token_set.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/storage/crc32c.h"
#include "common/io/storage/file.h"
#include "common/io/tokenizer_files/find_tokenizer.h"
#include "worker/rank/data/tokens/titan_shard.h"

namespace titan::data {

absl::StatusOr<int64_t> document_of(TokenShard& shard, int64_t token) {
  int64_t low = 0, high = shard.documents();  // The answer is in [low, high).
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    TITAN_ASSIGN_OR_RETURN(const int64_t begin, shard.document_begin(middle));
    (begin <= token ? low : high) = middle;
  }
  return low;
}

absl::StatusOr<data_files::TokenizerFingerprint> tokenizer_fingerprint(const std::string& folder,
                                                                       const Tokenizer& tokenizer) {
  TITAN_ASSIGN_OR_RETURN(const tokenizer_files::Found found, tokenizer_files::find_tokenizer(folder));
  return data_files::TokenizerFingerprint{.sum = storage::crc32c(found.bytes.data(), found.bytes.size()),
                                          .bos = tokenizer.bos_id().value_or(-1),
                                          .eos = tokenizer.eos_id().value_or(-1),
                                          .max_id = tokenizer.max_id()};
}

namespace {

constexpr size_t kMaxOpen = 64;  // Shards open at once, of two files each. Shuffled documents come from all shards.

}  // namespace

absl::StatusOr<TokenSet> TokenSet::open(data_files::DatasetFormat format, const std::vector<std::string>& files) {
  TokenSet set;
  for (const std::string& file : files) {
    TITAN_RETURN_IF_ERROR(format == data_files::DatasetFormat::kTitan ? set.add_manifest(file)
                                                                      : set.add_megatron(file));
  }
  return set;
}

absl::Status TokenSet::add_manifest(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const data_files::TokenManifest manifest,
                         data_files::read_manifest(storage::posix_files(), path));
  const std::string folder = std::filesystem::path(path).parent_path().string();
  for (const data_files::TokenManifest::Shard& shard : manifest.shards) {
    add(storage::join_path(folder, absl::StrCat(shard.name, kTokensSuffix)), data_files::DatasetFormat::kTitan,
        manifest.marked, shard.tokens, shard.documents);
  }
  marks_.push_back({path, manifest.tokenizer, manifest.train_on_all});
  return absl::OkStatus();
}

absl::Status TokenSet::add_megatron(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<TokenShard> shard, open_megatron_shard(path));
  add(path, data_files::DatasetFormat::kMegatron, /*marked=*/false, shard->tokens(), shard->documents());
  return absl::OkStatus();
}

void TokenSet::add(std::string path, data_files::DatasetFormat format, bool marked, int64_t tokens, int64_t documents) {
  marked_ = marked_ || marked;
  parts_.push_back({std::move(path), format, marked, tokens, documents, tokens_, documents_});
  tokens_ += tokens;
  documents_ += documents;
}

std::vector<std::string> TokenSet::paths() const {
  std::vector<std::string> paths;
  for (const Part& part : parts_) paths.push_back(part.path);
  return paths;
}

absl::StatusOr<TokenShard*> TokenSet::shard(int64_t number) {
  const auto there = std::find_if(open_.begin(), open_.end(), [&](const auto& entry) { return entry.first == number; });
  if (there != open_.end()) {
    if (there + 1 != open_.end()) std::rotate(there, there + 1, open_.end());
    return open_.back().second.get();
  }
  const Part& part = parts_[number];
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<TokenShard> shard, part.format == data_files::DatasetFormat::kTitan
                                                                ? open_titan_shard(part.path)
                                                                : open_megatron_shard(part.path));
  if (shard->tokens() != part.tokens || shard->documents() != part.documents) {
    return absl::DataLossError(absl::StrCat(part.path, ": has ", shard->tokens(), " tokens in ", shard->documents(),
                                            " documents and should have ", part.tokens, " in ", part.documents,
                                            "; it belongs to another index; make the index again"));
  }
  if (shard->marked() != part.marked) {
    return absl::DataLossError(
        absl::StrCat(part.path, ": ", part.marked ? "does not say" : "says",
                     " which tokens are labels, contrary to its manifest; make the index again"));
  }
  if (open_.size() == kMaxOpen) open_.erase(open_.begin());
  open_.emplace_back(number, std::move(shard));
  return open_.back().second.get();
}

// Returns the last shard that begins at or before the token. Empty shards before it begin there too, but hold no token.
int64_t TokenSet::shard_of(int64_t token) const {
  const auto following = std::upper_bound(parts_.begin(), parts_.end(), token,
                                          [](int64_t value, const Part& part) { return value < part.tokens_before; });
  return following - parts_.begin() - 1;
}

absl::Status TokenSet::read(int64_t begin, int64_t count, int32_t* out) {
  while (count > 0) {
    const int64_t number = shard_of(begin);
    TITAN_ASSIGN_OR_RETURN(TokenShard * open, shard(number));
    const int64_t at = begin - parts_[number].tokens_before;
    const int64_t part = std::min(count, parts_[number].tokens - at);
    TITAN_RETURN_IF_ERROR(open->read(at, part, out));
    begin += part;
    out += part;
    count -= part;
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenSet::Place> TokenSet::find(int64_t token) {
  const int64_t number = shard_of(token);
  TITAN_ASSIGN_OR_RETURN(TokenShard * open, shard(number));
  TITAN_ASSIGN_OR_RETURN(const int64_t document, document_of(*open, token - parts_[number].tokens_before));
  TITAN_ASSIGN_OR_RETURN(const int64_t begin, open->document_begin(document));
  return Place{number, document, begin};
}

int64_t TokenSet::shard_of_document(int64_t document) const {
  const auto following = std::upper_bound(parts_.begin(), parts_.end(), document, [](int64_t value, const Part& part) {
    return value < part.documents_before;
  });
  return following - parts_.begin() - 1;
}

absl::StatusOr<int64_t> TokenSet::document_begin(int64_t document) {
  if (document >= documents_) return tokens_;
  const int64_t number = shard_of_document(document);
  TITAN_ASSIGN_OR_RETURN(TokenShard * open, shard(number));
  TITAN_ASSIGN_OR_RETURN(const int64_t begin, open->document_begin(document - parts_[number].documents_before));
  return parts_[number].tokens_before + begin;
}

absl::StatusOr<TokenSet::Extent> TokenSet::extent(int64_t document) {
  const int64_t number = shard_of_document(document);
  const int64_t inside = document - parts_[number].documents_before;
  TITAN_ASSIGN_OR_RETURN(TokenShard * open, shard(number));
  TITAN_ASSIGN_OR_RETURN(const int64_t begin, open->document_begin(inside));
  TITAN_ASSIGN_OR_RETURN(const int64_t end, open->document_begin(inside + 1));
  if (end < begin) {
    return absl::DataLossError(absl::StrCat(parts_[number].path, ": document ", inside, " ends before it begins"));
  }
  return Extent{parts_[number].tokens_before + begin, end - begin};
}

}  // namespace titan::data
