#pragma once

// Wraps row sources: one gives a warning before its rows, one falls back on reading everything where text is too dense
// to be counted.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/data/documents/row_source.h"

namespace titan::data {

// The same rows, with something to tell of them before all else, once.
std::unique_ptr<RowSource> warned_rows(std::unique_ptr<RowSource> rows, std::string warning);

using OpenRowSource = std::function<absl::StatusOr<std::unique_ptr<RowSource>>()>;

// Rows of text that is counted, until is_too_dense() is said of it; from there on those of `everything`, which is
// opened then and has the same rows and positions. A warning says so, with what is too dense.
std::unique_ptr<RowSource> fallback_rows(std::unique_ptr<RowSource> counted, OpenRowSource everything);

}  // namespace titan::data
