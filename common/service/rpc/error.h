#pragma once

// Errors with google.rpc details. Inside a program they are absl::Status with payloads; at the rim they become
// grpc::Status with google.rpc.Status in its details, and back.

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

// A status with google.rpc.ErrorInfo: an UPPER_SNAKE reason that programs may rely on, and what it is about.
absl::Status error(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                   const std::vector<std::pair<std::string, std::string>>& metadata = {});
// InvalidArgument with google.rpc.BadRequest; the message lists the violations when it is empty.
absl::Status bad_request(absl::string_view reason, const std::vector<FieldViolation>& violations,
                         std::string message = "");

// FailedPrecondition with google.rpc.PreconditionFailure.
struct PreconditionViolation {
  std::string type;     // UPPER_SNAKE.
  std::string subject;  // What fails it: "job".
  std::string description;
};
absl::Status precondition_failure(absl::string_view reason, absl::string_view message,
                                  const std::vector<PreconditionViolation>& violations);

// What error() and bad_request() put in; empty when nothing did.
std::string reason(const absl::Status& status);
std::vector<std::pair<std::string, std::string>> metadata(const absl::Status& status);
std::vector<FieldViolation> field_violations(const absl::Status& status);
std::vector<PreconditionViolation> precondition_violations(const absl::Status& status);
// How long to wait before asking again, of google.rpc.RetryInfo; zero when nothing is said.
absl::Duration retry_delay(const absl::Status& status);

// A status without a reason gets its code's name as one: every error on the wire has ErrorInfo. Unavailable and
// ResourceExhausted get a RetryInfo: what refuses now may be over soon.
grpc::Status to_grpc(const absl::Status& status);
absl::Status from_grpc(const grpc::Status& status);

}  // namespace titan::rpc
