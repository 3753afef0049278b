#pragma once

// Filters of lists (AIP-160): comparisons joined by AND, OR, NOT and parentheses. As there, OR binds tighter than AND,
// and comparisons that only stand side by side are joined by AND.

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controller/core/view.h"

namespace titan::api {

using Filter = std::function<bool(const core::JobView&)>;

// `field = value`, with !=, <, <=, > and >= as the field's kind allows, the fields of job_fields.h. Words are compared
// by their bytes, states without regard to case. "field : text" asks whether the text is in it, "field:*" whether it is
// set; "labels:KEY" whether there is such a label. What is not set is unequal to everything, and neither less nor
// greater. Values with spaces, parentheses or quotes stand in "" or ''; times are RFC 3339, or "-2h", "-30m", "-7d"
// before `now`. "owner = me" (also !=) means `self`, who asks. An empty filter takes everything.
// Errors: InvalidArgument (FILTER_INVALID) with the column, counted from 1.
absl::StatusOr<Filter> parse_filter(const std::string& text, absl::Time now, const std::string& self = "");

}  // namespace titan::api
