#include "controller/store/rows.h"

#include <zlib.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"

namespace titan::store {
namespace {

uLong add(uLong crc, const std::string& bytes) {
  return crc32(crc, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size()));
}
uLong add(uLong crc, int64_t number) { return crc32(crc, reinterpret_cast<const Bytef*>(&number), sizeof number); }

absl::Status decode_state(const std::string& value, Meta& meta) {
  const size_t end = value.rfind(' ');
  const std::string body = value.substr(0, end);
  const std::vector<std::string> fields = absl::StrSplit(body, ' ');
  uint32_t crc = 0;
  if (end == std::string::npos || !absl::SimpleHexAtoi(value.substr(end + 1), &crc) || add(0, body) != crc ||
      fields.size() != 8) {
    return absl::DataLossError("its state does not match its checksum; restore the state folder from a backup");
  }
  meta.id = fields[0];
  size_t at = 1;
  for (int64_t* number : {&meta.epoch, &meta.last_row, &meta.last_revision, &meta.compacted_row,
                          &meta.compacted_revision, &meta.heads, &meta.heads_sum}) {
    if (!absl::SimpleAtoi(fields[at++], number)) return absl::DataLossError("its state cannot be read");
  }
  return absl::OkStatus();
}

}  // namespace

std::string encode_state(const Meta& meta) {
  const std::string body =
      absl::StrCat(meta.id, " ", meta.epoch, " ", meta.last_row, " ", meta.last_revision, " ", meta.compacted_row) +
      absl::StrCat(" ", meta.compacted_revision, " ", meta.heads, " ", meta.heads_sum);
  return absl::StrCat(body, " ", absl::Hex(static_cast<uint32_t>(add(0, body)), absl::kZeroPad8));
}

absl::StatusOr<Meta> read_meta(sqlite3* database) {
  TITAN_ASSIGN_OR_RETURN(Statement read, Statement::prepare(database, "SELECT key, value FROM meta"));
  Meta meta;
  std::optional<std::string> state;
  while (true) {
    TITAN_ASSIGN_OR_RETURN(const bool row, read.step());
    if (!row) break;
    const std::string key = read.text(0);
    if (key == "schema_version") meta.schema = read.integer(1);
    if (key == "state") state = read.text(1);
  }
  if (meta.schema > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat("has schema version ", meta.schema,
                                                      " and this titan-controller knows ", kSchemaVersion,
                                                      "; use the newer titan-controller"));
  }
  if (meta.schema != 0 && meta.schema < kSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("has schema version ", meta.schema,
                     ", which an unreleased titan-controller wrote, and this one knows ", kSchemaVersion, " alone"));
  }
  if (state.has_value() != (meta.schema == kSchemaVersion)) {
    return absl::DataLossError(
        absl::StrCat("its schema version ", meta.schema, " does not fit what it holds; restore it from a backup"));
  }
  if (state) TITAN_RETURN_IF_ERROR(decode_state(*state, meta));
  return meta;
}

int64_t checksum(const std::string& key, const std::optional<std::string>& value, int64_t revision) {
  uLong crc = add(add(0, key), revision);
  const char present = value ? 1 : 0;
  crc = crc32(crc, reinterpret_cast<const Bytef*>(&present), 1);
  if (value) crc = add(crc, *value);
  return static_cast<int64_t>(crc);
}

int64_t head_checksum(const std::string& key, int64_t row) { return static_cast<int64_t>(add(add(0, row), key)); }

int64_t mark_checksum(int64_t time_s, int64_t revision) { return static_cast<int64_t>(add(add(0, time_s), revision)); }

absl::StatusOr<Change> read_row(const Statement& row) {
  Change change{row.integer(0), row.text(1), std::nullopt};
  if (!row.is_null(2)) change.value = row.text(2);
  if (checksum(change.key, change.value, change.revision) != row.integer(3)) {
    return absl::DataLossError(absl::StrCat("store: record '", change.key, "' of revision ", change.revision,
                                            " does not match its checksum; restore the state folder from a backup"));
  }
  return change;
}

Head read_head(const Statement& row) {
  Head head{row.text(0), row.integer(1), row.integer(2)};
  head.whole = head_checksum(head.key, head.row) == head.crc;
  return head;
}

}  // namespace titan::store
