#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace titan::api {

// Whether every enum in a request, however deep, has a value that this controller knows. protobuf keeps others as
// numbers, and what reads them would take them for a default, or for a value that nothing has. Errors: InvalidArgument
// with the path of each field, ENUM_VALUE_UNKNOWN. Likewise whether the request's own integers are in their ranges
// (FIELD_OUT_OF_RANGE, or the reason that the field has) and its request_id is a UUID (REQUEST_ID_INVALID).
absl::Status check_fields(const google::protobuf::Message& request);

// The error for a call whose request is not a message of its type, and for one without a request: InvalidArgument.
absl::Status undecodable_request(absl::string_view type);
absl::Status missing_request(absl::string_view type);

}  // namespace titan::api
