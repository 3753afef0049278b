#pragma once

// Wraps row sources: one adds a warning, one falls back to reading everything where text is too dense to be counted.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/data/documents/row_source.h"

namespace titan::data {

// Returns the same rows, with an additional warning once, before all others.
std::unique_ptr<RowSource> warned_rows(std::unique_ptr<RowSource> rows, std::string warning);

using OpenRowSource = std::function<absl::StatusOr<std::unique_ptr<RowSource>>()>;

// Returns the rows of `counted` until an error is_too_dense(). Then it opens `everything`, which has the same rows and
// positions, and continues with it. A warning reports this, with the text that is too dense.
std::unique_ptr<RowSource> fallback_rows(std::unique_ptr<RowSource> counted, OpenRowSource everything);

}  // namespace titan::data
