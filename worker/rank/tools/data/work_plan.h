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

// What becomes one shard: some whole files, or the lines of one that start in [begin, end).
struct WorkUnit {
  std::vector<std::string> files;
  int64_t begin = 0;
  int64_t end = -1;  // -1: to the end of the last file.
  int64_t bytes = 0;
};

// The units, in the order of the documents, of about `shard_bytes` of input each: JSON lines that are not compressed
// are cut at lines, files of any kind are put together. The same input gives the same units.
absl::StatusOr<std::vector<WorkUnit>> plan_work(const data_files::DatasetFiles& input, int64_t shard_bytes);

// All that the index depends on, as text that is compared: files by name, size and time of change; of conversations
// (kind.chat) the template by its checksum.
absl::StatusOr<std::string> plan_text(const data_files::DatasetFiles& input, const data::FileKind& kind,
                                      int64_t shard_bytes, const data_files::TokenizerFingerprint& tokenizer);

}  // namespace titan::tools
