#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/io/data_files/token_manifest.h"
#include "worker/rank/data/tokenizer/tokenizer.h"

namespace titan::data {

// Of a loaded tokenizer and the folder that it came from.
absl::StatusOr<data_files::TokenizerMark> mark_of(const std::string& folder, const Tokenizer& tokenizer);

}  // namespace titan::data
