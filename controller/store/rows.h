#pragma once

// Rows of the log as they are on disk.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "controller/store/sqlite.h"
#include "controller/store/store.h"

namespace titan::store {

inline constexpr int kSchemaVersion = 1;

int64_t checksum(const std::string& key, const std::optional<std::string>& value, int64_t revision);

// Columns revision, key, value, crc, checked. Errors: DataLoss naming the record.
absl::StatusOr<Change> read_row(const Statement& row);

}  // namespace titan::store
