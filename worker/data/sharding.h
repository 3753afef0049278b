#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/document_reader.h"

namespace titan::data {

// What one data-parallel rank reads in order per_rank.
struct RankShare {
  std::vector<std::string> files;
  DocumentShare share;
};

// torchtitan's split. Plain files: a contiguous chunk of all documents, the first ranks taking one more each when they
// do not divide evenly. With a compressed file (read as a stream, never counted): every dp_size-th file when the files
// divide evenly, else every dp_size-th document. Errors: InvalidArgument when there are fewer documents than ranks.
absl::StatusOr<RankShare> split_by_rank(const std::vector<std::string>& files, int dp_rank, int dp_size);

}  // namespace titan::data
