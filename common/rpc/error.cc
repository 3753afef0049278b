#include "common/rpc/error.h"

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/utf8.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace titan::rpc {
namespace {

constexpr char kErrorInfo[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kBadRequest[] = "type.googleapis.com/google.rpc.BadRequest";

constexpr char kPreconditionFailure[] = "type.googleapis.com/google.rpc.PreconditionFailure";
constexpr char kRetryInfo[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr absl::Duration kRetryDelay = absl::Seconds(1);

template <typename Message>
Message payload(const absl::Status& status, const char* url) {
  Message message;
  if (const auto cord = status.GetPayload(url)) message.ParseFromString(std::string(*cord));
  return message;
}

std::string code_name(absl::StatusCode code) { return absl::StatusCodeToString(code); }

}  // namespace

absl::Status error(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                   const std::vector<std::pair<std::string, std::string>>& metadata) {
  absl::Status status(code, message);
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain(kDomain);
  for (const auto& [key, value] : metadata) (*info.mutable_metadata())[key] = value;
  status.SetPayload(kErrorInfo, absl::Cord(info.SerializeAsString()));
  return status;
}

absl::Status bad_request(absl::string_view reason, const std::vector<FieldViolation>& violations, std::string message) {
  google::rpc::BadRequest details;
  for (const FieldViolation& violation : violations) {
    auto* added = details.add_field_violations();
    // What was sent may be quoted, whatever bytes it holds.
    added->set_field(text::valid_utf8(violation.field));
    added->set_description(text::valid_utf8(violation.description));
  }
  if (message.empty()) {
    message = absl::StrJoin(violations, "\n", [](std::string* out, const FieldViolation& violation) {
      absl::StrAppend(out, violation.field, ": ", violation.description);
    });
  }
  absl::Status status = error(absl::StatusCode::kInvalidArgument, reason, message);
  status.SetPayload(kBadRequest, absl::Cord(details.SerializeAsString()));
  return status;
}

absl::Status precondition_failure(absl::string_view reason, absl::string_view message,
                                  const std::vector<PreconditionViolation>& violations) {
  google::rpc::PreconditionFailure details;
  for (const PreconditionViolation& violation : violations) {
    auto* added = details.add_violations();
    added->set_type(violation.type);
    added->set_subject(violation.subject);
    added->set_description(violation.description);
  }
  absl::Status status = error(absl::StatusCode::kFailedPrecondition, reason, message);
  status.SetPayload(kPreconditionFailure, absl::Cord(details.SerializeAsString()));
  return status;
}

std::string reason(const absl::Status& status) { return payload<google::rpc::ErrorInfo>(status, kErrorInfo).reason(); }

std::vector<std::pair<std::string, std::string>> metadata(const absl::Status& status) {
  const auto info = payload<google::rpc::ErrorInfo>(status, kErrorInfo);
  return {info.metadata().begin(), info.metadata().end()};
}

std::vector<FieldViolation> field_violations(const absl::Status& status) {
  std::vector<FieldViolation> violations;
  const auto details = payload<google::rpc::BadRequest>(status, kBadRequest);
  for (const auto& violation : details.field_violations()) {
    violations.push_back({violation.field(), violation.description()});
  }
  return violations;
}

std::vector<PreconditionViolation> precondition_violations(const absl::Status& status) {
  std::vector<PreconditionViolation> violations;
  const auto details = payload<google::rpc::PreconditionFailure>(status, kPreconditionFailure);
  for (const auto& violation : details.violations()) {
    violations.push_back({violation.type(), violation.subject(), violation.description()});
  }
  return violations;
}

absl::Duration retry_delay(const absl::Status& status) {
  const auto info = payload<google::rpc::RetryInfo>(status, kRetryInfo);
  return absl::Seconds(info.retry_delay().seconds()) + absl::Nanoseconds(info.retry_delay().nanos());
}

grpc::Status to_grpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  if (reason(status).empty()) {
    absl::Status named = error(status.code(), code_name(status.code()), status.message());
    status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) { named.SetPayload(url, value); });
    return to_grpc(named);
  }
  const bool passes = status.code() == absl::StatusCode::kUnavailable || absl::IsResourceExhausted(status);
  if (passes && !status.GetPayload(kRetryInfo)) {
    google::rpc::RetryInfo info;
    info.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(kRetryDelay));
    absl::Status later = status;
    later.SetPayload(kRetryInfo, absl::Cord(info.SerializeAsString()));
    return to_grpc(later);
  }
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(text::valid_utf8(std::string(status.message())));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    auto* any = details.add_details();
    any->set_type_url(std::string(url));
    any->set_value(std::string(value));
  });
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message()), details.SerializeAsString()};
}

absl::Status from_grpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (details.ParseFromString(status.error_details())) {
    for (const auto& any : details.details()) result.SetPayload(any.type_url(), absl::Cord(any.value()));
  }
  return result;
}

}  // namespace titan::rpc
