#pragma once

// Errors with google.rpc details. Inside a program they are absl::Status with payloads. At the gRPC boundary they
// become grpc::Status with google.rpc.Status in its details, and back.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/support/status.h"

namespace titan::rpc {

inline constexpr char kDomain[] = "titan";

struct FieldViolation {
  std::string field;
  std::string description;
};

// Makes a status with google.rpc.ErrorInfo: an UPPER_SNAKE reason that programs may rely on, and metadata that names
// the objects concerned.
absl::Status error(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                   const std::vector<std::pair<std::string, std::string>>& metadata = {});
// Makes InvalidArgument with google.rpc.BadRequest. An empty message is replaced by the list of violations.
absl::Status bad_request(absl::string_view reason, const std::vector<FieldViolation>& violations,
                         std::string message = "");

// An entry of precondition_failure(), which makes FailedPrecondition with google.rpc.PreconditionFailure.
struct PreconditionViolation {
  std::string type;     // In UPPER_SNAKE.
  std::string subject;  // Kind of object that fails the precondition: "job".
  std::string description;
};
absl::Status precondition_failure(absl::string_view reason, absl::string_view message,
                                  const std::vector<PreconditionViolation>& violations);

// Read what error(), bad_request() and precondition_failure() stored; empty when nothing is there.
std::string reason(const absl::Status& status);
std::vector<std::pair<std::string, std::string>> metadata(const absl::Status& status);
std::vector<FieldViolation> field_violations(const absl::Status& status);
std::vector<PreconditionViolation> precondition_violations(const absl::Status& status);
// Returns the time to wait before a retry, from google.rpc.RetryInfo; zero without one.
absl::Duration retry_delay(const absl::Status& status);

// Convert a status to and from gRPC. to_grpc() makes the code's name the reason of a status without one, so that every
// error on the wire has ErrorInfo. Unavailable and ResourceExhausted get a RetryInfo, since their causes may pass. Long
// messages and lists of violations are shortened.
grpc::Status to_grpc(const absl::Status& status);
absl::Status from_grpc(const grpc::Status& status);

}  // namespace titan::rpc
