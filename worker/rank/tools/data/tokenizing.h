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
  int64_t max_bad = 100;  // More malformed documents than this are an error.
  int threads = 1;
};

// How far it is. Written by all threads.
struct TokenizeProgress {
  std::atomic<int64_t> total_bytes{0}, bytes{0}, tokens{0}, kept_bytes{0};  // kept: of shards that were there.
};

struct TokenizeResult {
  int64_t tokens = 0, documents = 0, malformed = 0, shards = 0, kept_shards = 0;
};

// Makes a token index (common/io/data_files/token_manifest.h) in the folder `out`. Shards that an earlier call finished
// and that are whole are kept; the result is the same, byte for byte, however often it was killed before. `tell` gets
// what is malformed. Errors: FailedPrecondition when `out` holds parts of another index, and when the input holds no
// document (then no index is left there); InvalidArgument, NotFound and what the disk says, naming the file.
absl::StatusOr<TokenizeResult> tokenize(const TokenizeOptions& options, TokenizeProgress& progress,
                                        const std::function<void(const std::string&)>& tell);

}  // namespace titan::tools
