#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/data/documents/document_reader.h"

namespace titan::data {

// What one data-parallel rank reads in order per_rank.
struct RankShare {
  std::vector<std::string> files;
  DocumentShare share;
  DocumentPosition start;  // Where to begin to look for the first document.
};

// The chunk of `documents` that a rank takes, contiguous; the first ranks take one more each when they do not divide
// evenly. Errors: InvalidArgument when there are fewer documents than ranks.
absl::StatusOr<DocumentShare> contiguous_share(int64_t documents, int dp_rank, int dp_size);

// torchtitan's split. `index_folder`: where the index of documents is kept (DocumentIndex::get). Plain files: a
// contiguous chunk. With a compressed or remote file (read as a stream, never counted): every dp_size-th file when the
// files divide evenly, else every dp_size-th document. Errors: InvalidArgument when there are fewer documents than
// ranks.
absl::StatusOr<RankShare> split_by_rank(const std::vector<std::string>& files, int dp_rank, int dp_size,
                                        const FileKind& kind = {}, const std::string& index_folder = "");

}  // namespace titan::data
