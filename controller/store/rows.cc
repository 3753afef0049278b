#include "controller/store/rows.h"

#include <zlib.h>

#include "absl/strings/str_cat.h"

namespace titan::store {

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
