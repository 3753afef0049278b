#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer.h"
#include "worker/data/tokenizer_file.h"

namespace titan::data {

// The tokenizer that `file` describes. Errors: InvalidArgument.
absl::StatusOr<std::unique_ptr<Tokenizer>> make_pipeline_tokenizer(const TokenizerFile& file);

}  // namespace titan::data
