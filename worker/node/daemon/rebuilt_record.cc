#include "worker/node/daemon/rebuilt_record.h"

#include <unistd.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "nlohmann/json.hpp"
#include "worker/node/daemon/attempt_json.h"
#include "worker/node/daemon/run_folder.h"

namespace titan::daemon {
namespace {

using nlohmann::json;
using Phase = AttemptRecord::Phase;

// What was asked for, as it was when the run folder was prepared.
absl::StatusOr<AttemptRecord> record_in_spec(const node::AttemptKey& key, const std::string& run_folder) {
  const absl::StatusOr<std::string> text = host::read_file(run_folder + "/spec.json");
  if (!text.ok()) return text.status();
  const json spec = json::parse(*text, nullptr, false);
  if (!spec.is_object() || !spec.contains("record")) {
    return absl::DataLossError(absl::StrCat(run_folder, "/spec.json does not hold the record"));
  }
  absl::StatusOr<AttemptRecord> record = record_from_json(spec["record"]);
  if (record.ok() && record->key != key) return absl::DataLossError("spec.json is of another attempt");
  return record;
}

bool shim_began(const std::string& run_folder) {
  const auto status = last_status(run_folder);
  return !status.ok() || status->has_value() || ::access((run_folder + "/shim.lock").c_str(), F_OK) == 0;
}

}  // namespace

RebuiltRecord rebuild_record(const node::AttemptKey& key, const std::string& run_folder, const std::string& why) {
  const std::string damaged = absl::StrCat(run_folder, "/attempt.json is damaged (", why, ")");
  absl::StatusOr<AttemptRecord> record = record_in_spec(key, run_folder);
  if (record.ok()) {
    record->phase = shim_began(run_folder) ? Phase::kLive : Phase::kPreparing;
    return {*std::move(record), damaged + "; the record was rebuilt from spec.json beside it"};
  }
  RebuiltRecord lost;
  lost.record.key = key;
  lost.record.phase = Phase::kRefused;
  lost.record.error_reason = kRecordLost;
  lost.message = lost.record.error_message = absl::StrCat(
      damaged, " and cannot be rebuilt (", record.status().message(),
      "): this attempt alone is given up. Its ranks are stopped, and until they are gone they keep every device of "
      "this "
      "node that no other attempt has. If they do not end, find them with `pgrep -af titan-shim` and end them");
  return lost;
}

}  // namespace titan::daemon
