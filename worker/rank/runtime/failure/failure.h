#pragma once

#include <stdexcept>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rank_protocol/launch.h"

namespace titan::runtime {

// Reasons of failures after which the other ranks are worth a look, before anybody leaves: one of them stood still, or
// did something else than the others.
inline constexpr char kCollectiveTimeout[] = "COLLECTIVE_TIMEOUT";
inline constexpr char kCollectiveMismatch[] = "COLLECTIVE_MISMATCH";
// A rank is gone, or has closed its connections: by itself no reason.
inline constexpr char kPeerLost[] = "PEER_LOST";

// Why a rank ends early: what its exit code and its error event say.
class Failure : public std::runtime_error {
 public:
  Failure(rank_protocol::ExitCode exit_code, std::string reason, const std::string& message)
      : std::runtime_error(message), exit_code_(exit_code), reason_(std::move(reason)) {}

  rank_protocol::ExitCode exit_code() const { return exit_code_; }
  const std::string& reason() const { return reason_; }  // UPPER_SNAKE
  const char* error_class() const;                       // user, infra, peer, fenced

  // What its error event says besides: who has the dump folder that this rank is fenced from.
  const nlohmann::json& members() const { return members_; }
  Failure with_members(nlohmann::json members) && {
    members_ = std::move(members);
    return std::move(*this);
  }

  // For whoever debugs: the C++ stack of an unexpected throw; empty otherwise.
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

// Throws unless OK. `exit_code` and `reason` hold where the status itself does not say more: fenced, disk full, a rank
// gone.
void check(const absl::Status& status, rank_protocol::ExitCode exit_code, const char* reason);

template <typename T>
T value(absl::StatusOr<T> result, rank_protocol::ExitCode exit_code, const char* reason) {
  check(result.status(), exit_code, reason);
  return *std::move(result);
}

// The exception being handled, as a Failure. Call inside a catch block.
Failure current_failure();

}  // namespace titan::runtime
