#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/data/tokenizer/tokenizer.h"
#include "worker/rank/data/tokenizer/tokenizer_file.h"

namespace titan::data {

// Returns the tokenizer that `file` describes. Errors: InvalidArgument.
absl::StatusOr<std::unique_ptr<Tokenizer>> make_pipeline_tokenizer(const TokenizerFile& file);

}  // namespace titan::data
