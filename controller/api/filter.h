#pragma once

// Filters of lists (AIP-160): comparisons joined by AND, OR, NOT and parentheses. As in AIP-160, OR binds tighter than
// AND, and adjacent comparisons are joined by AND.

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controller/core/view.h"

namespace titan::api {

using Filter = std::function<bool(const core::JobView&)>;

// Parses comparisons `field = value` of the fields in job_fields.h, also with !=, <, <=, > and >= where the field's
// kind allows them. Text is compared by bytes, states ignore case. "field : text" tests whether the field contains the
// text, "field:*" whether it is set, "labels:KEY" whether the label exists. An unset field is unequal to every value,
// and neither less nor greater. Values with spaces, parentheses or quotes go in "" or ''. Times are RFC 3339, or "-2h",
// "-30m", "-7d" before `now`. "owner = me" (also !=) means `self`, the caller. An empty filter accepts every job.
// Errors: InvalidArgument (FILTER_INVALID) with the column, counted from 1.
absl::StatusOr<Filter> parse_filter(const std::string& text, absl::Time now, const std::string& self = "");

}  // namespace titan::api
