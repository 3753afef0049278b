#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"

namespace titan::api {

// Checks that every enum in a request, at any depth, has a value that this controller knows. protobuf keeps other
// values as numbers, which the handlers would treat as a default or as a value that nothing has. Also checks that the
// request's own integers are in range and that its request_id is a UUID. Errors: InvalidArgument with the path of each
// field; ENUM_VALUE_UNKNOWN, FIELD_OUT_OF_RANGE (or the field's own reason), REQUEST_ID_INVALID.
absl::Status check_fields(const google::protobuf::Message& request);

// Return the InvalidArgument errors for a call whose request is not a message of `type`, and for one without a request.
absl::Status undecodable_request(absl::string_view type);
absl::Status missing_request(absl::string_view type);

}  // namespace titan::api
