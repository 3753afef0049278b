#include "controller/core/keys.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace titan::core {

std::string job_key(const std::string& uid) { return absl::StrCat("job/", uid); }
std::string spec_key(const std::string& uid) { return absl::StrCat("spec/", uid); }
std::string deleted_key(const std::string& uid) { return absl::StrCat("deleted/", uid); }
std::string cancel_key(const std::string& uid) { return absl::StrCat("cancel/", uid); }
std::string update_key(const std::string& uid) { return absl::StrCat("update/", uid); }
std::string attempts_prefix(const std::string& uid) { return absl::StrCat("attempt/", uid, "/"); }
std::string attempt_key(const std::string& uid, int number) {
  return absl::StrFormat("%s%06d", attempts_prefix(uid), number);
}
std::string job_exits_prefix(const std::string& uid) { return absl::StrCat("exit/", uid, "/"); }
std::string exits_prefix(const std::string& uid, int attempt) {
  return absl::StrFormat("%s%06d/", job_exits_prefix(uid), attempt);
}
std::string exit_key(const std::string& uid, int attempt, int rank) {
  return absl::StrFormat("%s%06d", exits_prefix(uid, attempt), rank);
}
std::string job_errors_prefix(const std::string& uid) { return absl::StrCat("error/", uid, "/"); }
std::string errors_prefix(const std::string& uid, int attempt) {
  return absl::StrFormat("%s%06d/", job_errors_prefix(uid), attempt);
}
std::string error_key(const std::string& uid, int attempt, size_t index) {
  return absl::StrFormat("%s%06d", errors_prefix(uid, attempt), index);
}
std::string job_refusals_prefix(const std::string& uid) { return absl::StrCat("refusal/", uid, "/"); }
std::string refusals_prefix(const std::string& uid, int attempt) {
  return absl::StrFormat("%s%06d/", job_refusals_prefix(uid), attempt);
}
std::string refusal_key(const std::string& uid, int attempt, size_t index) {
  return absl::StrFormat("%s%06d", refusals_prefix(uid, attempt), index);
}
std::string diagnoses_prefix(const std::string& uid) { return absl::StrCat("diagnosis/", uid, "/"); }
std::string diagnosis_key(const std::string& uid, int attempt) {
  return absl::StrFormat("%s%06d", diagnoses_prefix(uid), attempt);
}
std::string job_failed_logs_prefix(const std::string& uid) { return absl::StrCat("failed_log/", uid, "/"); }
std::string failed_logs_prefix(const std::string& uid, int attempt) {
  return absl::StrFormat("%s%06d/", job_failed_logs_prefix(uid), attempt);
}
std::string failed_log_key(const std::string& uid, int attempt, int rank) {
  return absl::StrFormat("%s%06d", failed_logs_prefix(uid, attempt), rank);
}
std::string progress_key(const std::string& uid) { return absl::StrCat("progress/", uid); }
std::string cursors_prefix(const std::string& uid) { return absl::StrCat("cursor/", uid, "/"); }
std::string cursor_key(const std::string& uid, int attempt, int rank) {
  return absl::StrFormat("%s%06d/%06d", cursors_prefix(uid), attempt, rank);
}
std::string node_key(const std::string& node) { return absl::StrCat("node/", node); }
std::string job_events_prefix(const std::string& uid) { return absl::StrCat("event/job/", uid, "/"); }
std::string node_events_prefix(const std::string& node) { return absl::StrCat("event/node/", node, "/"); }
std::string event_key(const std::string& prefix, int64_t number) { return absl::StrFormat("%s%012d", prefix, number); }

}  // namespace titan::core
