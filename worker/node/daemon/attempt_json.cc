#include "worker/node/daemon/attempt_json.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "nlohmann/json.hpp"
#include "worker/node/daemon/run_folder.h"

namespace titan::daemon {
namespace {

using nlohmann::json;
using rank_protocol::RankExit;
using Phase = AttemptRecord::Phase;

constexpr const char* kPhaseNames[] = {"preparing", "live", "ended", "refused", "forgotten"};

// Key names of the state folder's files; the shim's files use different ones.
json to_json(const RankExit& exit) {
  return {{"rank", exit.rank},
          {"exit_code", exit.exit_code},
          {"signal", exit.signal},
          {"last_words", exit.message},
          {"time_unix_nanos", exit.time_ns},
          {"out_of_memory", exit.out_of_memory},
          {"memory_limit_bytes", exit.memory_limit_bytes},
          {"stop_reason", exit.stop_reason}};
}

RankExit exit_from_json(const json& from) {
  RankExit exit;
  exit.rank = from.at("rank").get<int>();
  exit.exit_code = from.at("exit_code").get<int>();
  exit.signal = from.at("signal").get<int>();
  exit.message = from.at("last_words").get<std::string>();
  exit.time_ns = from.at("time_unix_nanos").get<int64_t>();
  exit.out_of_memory = from.at("out_of_memory").get<bool>();
  exit.memory_limit_bytes = from.value("memory_limit_bytes", int64_t{0});
  exit.stop_reason = from.at("stop_reason").get<std::string>();
  return exit;
}

}  // namespace

json to_json(const AttemptRecord& record) {
  json exits = json::array();
  for (const RankExit& exit : record.exits) exits.push_back(to_json(exit));
  return {{"job_uid", record.key.job_uid},
          {"attempt", record.key.number},
          {"leader", record.leader},
          {"ranks", record.ranks},
          {"dump_folder", record.dump_folder},
          {"token", record.token},
          {"folder_id", record.folder_id},
          {"run_as", record.run_as},
          {"run_as_local", record.run_as_local},
          {"orphan_timeout_seconds", record.orphan_timeout_seconds},
          {"devices", record.devices},
          {"phase", kPhaseNames[static_cast<int>(record.phase)]},
          {"error_reason", record.error_reason},
          {"error_message", record.error_message},
          {"exits", std::move(exits)}};
}

absl::StatusOr<AttemptRecord> record_from_json(const json& from) {
  if (!from.is_object()) return absl::DataLossError("it is not a JSON object");
  try {
    AttemptRecord record;
    record.key = {from.at("job_uid").get<std::string>(), from.at("attempt").get<int>()};
    record.leader = from.at("leader").get<bool>();
    record.ranks = from.at("ranks").get<std::vector<int>>();
    record.dump_folder = from.at("dump_folder").get<std::string>();
    record.token = from.at("token").get<std::string>();
    record.folder_id = from.value("folder_id", "");  // Older records have none.
    record.run_as = from.value("run_as", "");
    record.run_as_local = from.value("run_as_local", false);
    record.orphan_timeout_seconds = from.at("orphan_timeout_seconds").get<double>();
    record.devices = from.at("devices").get<std::vector<int>>();
    const std::string phase = from.at("phase").get<std::string>();
    const auto* const found = std::find(std::begin(kPhaseNames), std::end(kPhaseNames), phase);
    if (found == std::end(kPhaseNames)) return absl::DataLossError(absl::StrCat("unknown phase ", phase));
    record.phase = static_cast<Phase>(found - std::begin(kPhaseNames));
    record.error_reason = from.at("error_reason").get<std::string>();
    record.error_message = from.at("error_message").get<std::string>();
    for (const json& exit : from.value("exits", json::array())) record.exits.push_back(exit_from_json(exit));
    return record;
  } catch (const json::exception& error) {
    return absl::DataLossError(error.what());
  }
}

namespace {

// Returns the record as it was when the run folder was prepared.
absl::StatusOr<AttemptRecord> record_in_spec(const node::AttemptKey& key, const std::string& run_folder) {
  const absl::StatusOr<std::string> text = host::read_file(run_folder + "/spec.json");
  if (!text.ok()) return text.status();
  const json spec = json::parse(*text, nullptr, false);
  if (!spec.is_object() || !spec.contains("record")) {
    return absl::DataLossError(absl::StrCat(run_folder, "/spec.json does not hold the record"));
  }
  absl::StatusOr<AttemptRecord> record = record_from_json(spec["record"]);
  if (record.ok() && record->key != key) return absl::DataLossError("spec.json belongs to another attempt");
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
    return {*std::move(record), damaged + "; the record was rebuilt from spec.json in that folder"};
  }
  RebuiltRecord lost;
  lost.record.key = key;
  lost.record.phase = Phase::kRefused;
  lost.record.error_reason = kRecordLost;
  lost.message = lost.record.error_message = absl::StrCat(
      damaged, " and cannot be rebuilt (", record.status().message(),
      "): only this attempt is given up. Its ranks are stopped; until they have ended they hold every device of "
      "this "
      "node that no other attempt has. If they do not end, find them with `pgrep -af titan-shim` and end them");
  return lost;
}

}  // namespace titan::daemon
