#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/data_files/datasets.h"
#include "nlohmann/json.hpp"
#include "worker/rank/data/documents/document_file.h"
#include "worker/rank/data/tokens/token_set.h"

namespace titan::tools {

// The input of one shard: whole files, or the lines of one file that start in [begin, end).
struct WorkUnit {
  std::vector<std::string> files;
  int64_t begin = 0;
  int64_t end = -1;  // -1: to the end of the last file.
  int64_t bytes = 0;
};

// Returns the units in document order, with about `shard_bytes` of input each. Uncompressed JSON lines are split at
// lines; other files are grouped. The same input gives the same units.
absl::StatusOr<std::vector<WorkUnit>> plan_shards(const data_files::DatasetFiles& input, int64_t shard_bytes);

// Returns everything that the index depends on, as text for comparison: files by name, size and modification time, and
// for conversations (kind.chat) the template's checksum.
absl::StatusOr<std::string> plan_text(const data_files::DatasetFiles& input, const data::FileKind& kind,
                                      int64_t shard_bytes, const data_files::TokenizerFingerprint& tokenizer);

}  // namespace titan::tools
