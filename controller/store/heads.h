#pragma once

// The table "heads", made from the log when it is damaged.

#include <string>
#include <vector>

#include "controller/store/rows.h"
#include "controller/store/store.h"

namespace titan::store {

// Whether heads are in order, each matches its checksum, and together they are those that `meta` counted; else why not.
// Reads the table once: some 50 bytes a record.
absl::StatusOr<std::string> damage_of_heads(sqlite3* database, const Meta& meta);

// Makes the table anew from the log and counts it in `meta`, inside the caller's transaction. A record whose present
// row is damaged has none and goes to `lost`.
// Errors: DataLoss when heads and lost ones are not those that `meta` counted, no more and no fewer.
absl::Status rebuild_heads(sqlite3* database, Meta& meta, std::vector<Quarantined>& lost);

}  // namespace titan::store
