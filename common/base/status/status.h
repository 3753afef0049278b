#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

// Returns the status of `expression` from the calling function unless it is OK.
#define TITAN_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                        \
    if (absl::Status titan_status_ = (expression); !titan_status_.ok()) return titan_status_; \
  } while (false)

// Assigns the value of `expression` to `declaration`, or returns its error from the calling function:
// TITAN_ASSIGN_OR_RETURN(JobSpec spec, from_proto(job)).
// NOLINTBEGIN(bugprone-macro-parentheses): a declaration cannot stand in parentheses.
#define TITAN_ASSIGN_OR_RETURN(declaration, expression) \
  TITAN_ASSIGN_OR_RETURN_IMPL_(TITAN_STATUS_JOIN_(titan_statusor_, __LINE__), declaration, expression)
#define TITAN_STATUS_JOIN_(a, b) TITAN_STATUS_JOIN_IMPL_(a, b)
#define TITAN_STATUS_JOIN_IMPL_(a, b) a##b
#define TITAN_ASSIGN_OR_RETURN_IMPL_(result, declaration, expression) \
  auto result = (expression);                                         \
  if (!result.ok()) return std::move(result).status();                \
  declaration = *std::move(result)
// NOLINTEND(bugprone-macro-parentheses)

namespace titan {

// Returns the same code with `context` before the message: "read manifest.json: no such file". Drops payloads.
absl::Status annotate(const absl::Status& status, std::string_view context);

// Returns the status of a failed system call: the code that fits `error_number` and "context: strerror". ENOSPC and
// EDQUOT become ResourceExhausted.
absl::Status errno_status(int error_number, std::string_view context);

}  // namespace titan
