#include "common/service/rpc/error.h"

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/utf8.h"
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

// A whole status travels as HTTP/2 metadata, of which clients accept 8 KiB by default. The message travels twice:
// percent-encoded, and in the details as base64. A longer status would be replaced by another error. So long texts are
// shortened, and a long list of violations ends with a count of the rest.
constexpr size_t kMaxMessage = 2400;
constexpr size_t kMaxListed = 600;  // Limit of a message that the violations repeat.
constexpr size_t kMaxDetails = 5200;
constexpr size_t kMaxDescription = 600;
constexpr size_t kSpaceForCount = 100;

size_t encoded_size(char c) { return absl::ascii_isprint(c) && c != '%' ? 1 : 3; }

// Keeps whole lines, or part of the first line if that alone is too long.
std::string shortened(const std::string& message, size_t most) {
  constexpr absl::string_view kMore = " ...";
  size_t size = 0, fits = 0;
  for (const char c : message) {
    size += encoded_size(c);
    if (size + kMore.size() <= most) ++fits;
  }
  if (size <= most) return text::valid_utf8(message);
  const size_t line = message.rfind('\n', fits);
  if (line != std::string::npos && line > 0) fits = line;
  while (fits > 0 && (static_cast<unsigned char>(message[fits]) & 0xC0U) == 0x80U) --fits;
  return absl::StrCat(text::valid_utf8(message.substr(0, fits)), kMore);
}

std::string shortened(const google::rpc::BadRequest& all, size_t most) {
  google::rpc::BadRequest kept;
  for (const auto& violation : all.field_violations()) {
    auto* added = kept.add_field_violations();
    added->set_field(shortened(violation.field(), kMaxDescription));
    added->set_description(shortened(violation.description(), kMaxDescription));
    const bool last = kept.field_violations_size() == all.field_violations_size();
    if (kept.ByteSizeLong() + (last ? 0 : kSpaceForCount) <= most) continue;
    kept.mutable_field_violations()->RemoveLast();
    kept.add_field_violations()->set_description(
        absl::StrCat("and ", all.field_violations_size() - kept.field_violations_size() + 1, " more"));
    break;
  }
  return kept.SerializeAsString();
}

void add_detail(google::rpc::Status& details, absl::string_view url, std::string value) {
  auto* any = details.add_details();
  any->set_type_url(std::string(url));
  any->set_value(std::move(value));
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
    // Quoted input may contain any bytes.
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
  const bool listed = status.GetPayload(kBadRequest).has_value();
  const std::string message = shortened(std::string(status.message()), listed ? kMaxListed : kMaxMessage);
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    if (url != kBadRequest) add_detail(details, url, std::string(value));
  });
  if (listed) {
    const size_t taken = details.ByteSizeLong();
    const auto all = payload<google::rpc::BadRequest>(status, kBadRequest);
    add_detail(details, kBadRequest, shortened(all, kMaxDetails > taken ? kMaxDetails - taken : 0));
  }
  return {static_cast<grpc::StatusCode>(status.code()), message, details.SerializeAsString()};
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
