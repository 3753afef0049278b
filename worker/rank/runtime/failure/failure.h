#pragma once

#include <stdexcept>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rank_protocol/launch.h"

namespace titan::runtime {

// Reasons of failures for which the other ranks' stacks are captured before they exit: a rank stalled or diverged.
inline constexpr char kCollectiveTimeout[] = "COLLECTIVE_TIMEOUT";
inline constexpr char kCollectiveMismatch[] = "COLLECTIVE_MISMATCH";
// A rank is gone or has closed its connections: a consequence of the attempt's first failure.
inline constexpr char kPeerLost[] = "PEER_LOST";

// Why a rank ends early: the contents of its exit code and its error event.
class Failure : public std::runtime_error {
 public:
  Failure(rank_protocol::ExitCode exit_code, std::string reason, const std::string& message)
      : std::runtime_error(message), exit_code_(exit_code), reason_(std::move(reason)) {}

  rank_protocol::ExitCode exit_code() const { return exit_code_; }
  const std::string& reason() const { return reason_; }  // UPPER_SNAKE
  const char* error_class() const;                       // user, infra, peer, fenced

  // Additional members of the error event: the holder of the dump folder that this rank is fenced from.
  const nlohmann::json& members() const { return members_; }
  Failure with_members(nlohmann::json members) && {
    members_ = std::move(members);
    return std::move(*this);
  }

  // C++ stack of an unexpected exception, for debugging. Otherwise empty.
  const std::string& details() const { return details_; }
  Failure with_details(std::string details) && {
    details_ = std::move(details);
    return std::move(*this);
  }

 private:
  rank_protocol::ExitCode exit_code_;
  std::string reason_;
  std::string details_;
  nlohmann::json members_ = nlohmann::json::object();
};

// Throws a Failure unless `status` is OK. Uses `exit_code` and `reason` unless the status is more specific: fenced,
// disk full, a lost rank.
void check(const absl::Status& status, rank_protocol::ExitCode exit_code, const char* reason);

template <typename T>
T value(absl::StatusOr<T> result, rank_protocol::ExitCode exit_code, const char* reason) {
  check(result.status(), exit_code, reason);
  return *std::move(result);
}

// Converts the exception being handled to a Failure. Call it inside a catch block.
Failure current_failure();

}  // namespace titan::runtime
