#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/data_files/datasets.h"
#include "worker/rank/data/documents/document_file.h"

namespace titan::tools {

struct TokenizeOptions {
  std::string tokenizer_folder;
  std::string out;
  data_files::DatasetFiles input;
  data::FileKind kind;
  int64_t shard_bytes = int64_t{256} << 20;
  int64_t max_bad = 100;  // A larger number of malformed documents is an error.
  int threads = 1;
};

// Progress, written by all threads.
struct TokenizeProgress {
  std::atomic<int64_t> total_bytes{0}, bytes{0}, tokens{0},
      kept_bytes{0};  // Bytes of input; kept_bytes: of shards that already existed.
};

struct TokenizeResult {
  int64_t tokens = 0, documents = 0, malformed = 0, shards = 0, kept_shards = 0;
};

// Makes a token index (common/io/data_files/token_manifest.h) in the folder `out`. Keeps complete shards of an earlier
// call, so the result is the same, byte for byte, after any number of interruptions. `report` is called with malformed
// documents and warnings. Errors: FailedPrecondition if `out` holds parts of another index, or if the input holds no
// document (then no index remains); InvalidArgument, NotFound and disk errors, which name the file.
absl::StatusOr<TokenizeResult> tokenize(const TokenizeOptions& options, TokenizeProgress& progress,
                                        const std::function<void(const std::string&)>& report);

}  // namespace titan::tools
