#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/rank/data/documents/row_source.h"

namespace titan::data {

using OpenRowSource = std::function<absl::StatusOr<std::unique_ptr<RowSource>>()>;

// Rows of text that is counted, until is_too_dense() is said of it; from there on those of `everything`, which is
// opened then and has the same rows and positions. A warning says so, with what is too dense.
std::unique_ptr<RowSource> fallback_rows(std::unique_ptr<RowSource> counted, OpenRowSource everything);

}  // namespace titan::data
