#pragma once

// Keys of the store's records. Jobs are identified by uid, since a name can be used again once its job was deleted.

#include <array>
#include <string>

#include "absl/strings/string_view.h"

namespace titan::core {

// Kinds of records: the first part of a key, up to the first '/'.
inline constexpr std::array<absl::string_view, 15> kRecordKinds = {
    "attempt",    "cancel", "cursor", "deleted",  "diagnosis", "error", "event", "exit",
    "failed_log", "job",    "node",   "progress", "refusal",   "spec",  "update"};

std::string job_key(const std::string& uid);
std::string spec_key(const std::string& uid);
std::string deleted_key(const std::string& uid);  // Outlives the job: a node may come back with its ranks.
std::string cancel_key(const std::string& uid);   // An accepted cancel whose effect is not written yet.
std::string update_key(const std::string& uid);   // The same for an update.
std::string attempt_key(const std::string& uid, int number);
std::string attempts_prefix(const std::string& uid);
std::string exit_key(const std::string& uid, int attempt, int rank);  // Erased when the attempt ends.
std::string exits_prefix(const std::string& uid, int attempt);
std::string job_exits_prefix(const std::string& uid);
// Errors of ranks and refusals of nodes, in the order of their arrival. Erased when the attempt ends, too.
std::string error_key(const std::string& uid, int attempt, size_t index);
std::string errors_prefix(const std::string& uid, int attempt);
std::string job_errors_prefix(const std::string& uid);
std::string refusal_key(const std::string& uid, int attempt, size_t index);
std::string refusals_prefix(const std::string& uid, int attempt);
std::string job_refusals_prefix(const std::string& uid);
// The end of a failed rank's log. Kept for the newest attempts, also after they have ended.
std::string failed_log_key(const std::string& uid, int attempt, int rank);
std::string failed_logs_prefix(const std::string& uid, int attempt);
std::string job_failed_logs_prefix(const std::string& uid);
// The core writes diagnoses and never reads them. Clients read them from the store.
std::string diagnosis_key(const std::string& uid, int attempt);
std::string diagnoses_prefix(const std::string& uid);
std::string progress_key(const std::string& uid);
std::string cursor_key(const std::string& uid, int attempt, int rank);
std::string cursors_prefix(const std::string& uid);
std::string node_key(const std::string& node);
std::string job_events_prefix(const std::string& uid);
std::string node_events_prefix(const std::string& node);
std::string event_key(const std::string& prefix, int64_t number);

}  // namespace titan::core
