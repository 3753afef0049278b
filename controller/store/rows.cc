#include "controller/store/rows.h"

#include <zlib.h>

#include "absl/strings/str_cat.h"
#include "common/status/status.h"

namespace titan::store {

absl::StatusOr<Meta> read_meta(sqlite3* database) {
  TITAN_ASSIGN_OR_RETURN(Statement read, Statement::prepare(database, "SELECT key, value FROM meta"));
  Meta meta;
  while (true) {
    TITAN_ASSIGN_OR_RETURN(const bool row, read.step());
    if (!row) break;
    const std::string key = read.text(0);
    if (key == "schema_version") meta.schema = read.integer(1);
    if (key == "id") meta.id = read.text(1);
    if (key == "compacted_row") meta.compacted_row = read.integer(1);
    if (key == "compacted_revision") meta.compacted_revision = read.integer(1);
  }
  if (meta.schema <= kSchemaVersion) return meta;
  return absl::FailedPreconditionError(absl::StrCat("has schema version ", meta.schema,
                                                    " and this titan-controller knows ", kSchemaVersion,
                                                    "; use the newer titan-controller"));
}

int64_t checksum(const std::string& key, const std::optional<std::string>& value, int64_t revision) {
  uLong crc = crc32(0, reinterpret_cast<const Bytef*>(key.data()), static_cast<uInt>(key.size()));
  crc = crc32(crc, reinterpret_cast<const Bytef*>(&revision), sizeof revision);
  const char present = value ? 1 : 0;
  crc = crc32(crc, reinterpret_cast<const Bytef*>(&present), 1);
  if (value) crc = crc32(crc, reinterpret_cast<const Bytef*>(value->data()), static_cast<uInt>(value->size()));
  return static_cast<int64_t>(crc);
}

absl::StatusOr<Change> read_row(const Statement& row) {
  Change change{row.integer(0), row.text(1), std::nullopt};
  if (!row.is_null(2)) change.value = row.text(2);
  if (checksum(change.key, change.value, change.revision) != row.integer(3)) {
    return absl::DataLossError(absl::StrCat("store: record '", change.key, "' of revision ", change.revision,
                                            " does not match its checksum; restore the state folder from a backup"));
  }
  return change;
}

}  // namespace titan::store
