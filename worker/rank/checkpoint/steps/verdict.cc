#include "worker/rank/checkpoint/steps/verdict.h"

namespace titan::checkpoint {

nlohmann::json to_json(const absl::Status& status) {
  return {{"code", static_cast<int>(status.code())}, {"message", std::string(status.message())}};
}

absl::Status status_from_json(const nlohmann::json& from) {
  return absl::Status(static_cast<absl::StatusCode>(from.value("code", static_cast<int>(absl::StatusCode::kInternal))),
                      from.value("message", "unreadable report"));
}

bool lost_a_rank(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

absl::Status not_a_lost_rank(const absl::Status& status) {
  return lost_a_rank(status) ? absl::AbortedError(status.message()) : status;
}

}  // namespace titan::checkpoint
