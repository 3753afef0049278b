#include "common/io/http/answer_error.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/text/shown.h"

namespace titan::http {
namespace {

constexpr char kNameToken[] = "HF_TOKEN or --token-file names one";

std::string said(const Answer& answer) {
  return answer.error_message.empty() ? "" : absl::StrCat(" (\"", text::shown(answer.error_message), "\")");
}

absl::Status refused(const Answer& answer, bool with_token) {
  if (answer.error_code == "GatedRepo") {
    const std::string what = absl::StrCat("the repository is gated", said(answer), ": ask for access on its page");
    return with_token ? absl::PermissionDeniedError(what + ", with the account whose token is used here")
                      : absl::UnauthenticatedError(absl::StrCat(what, ", and give that account's token: ", kNameToken));
  }
  if (answer.code == 401 && !with_token)
    return absl::UnauthenticatedError(absl::StrCat("the hub shows nobody this repository without a token", said(answer),
                                                   ": it is private, or there is none of this name; ", kNameToken));
  if (answer.code == 401)
    return absl::UnauthenticatedError(
        absl::StrCat("the hub does not know this token", said(answer), ", or has no such repository that it may see"));
  return absl::PermissionDeniedError(
      absl::StrCat("the hub refuses this", said(answer), ": look at what the token may read"));
}

absl::Status not_there(const Answer& answer) {
  if (answer.error_code == "RevisionNotFound") return absl::NotFoundError("the repository has no such revision");
  if (answer.error_code == "EntryNotFound") return absl::NotFoundError("the revision has no such file");
  return absl::NotFoundError("there is no such repository; names are written with capitals as on its page");
}

}  // namespace

absl::Status answer_error(const Answer& answer, bool with_token) {
  if (answer.error_code == "RepoNotFound" && (with_token || answer.code == 404)) return not_there(answer);
  if (answer.code == 401 || answer.code == 403) return refused(answer, with_token);
  if (answer.code == 404) return not_there(answer);
  if (answer.code == 416) return absl::OutOfRangeError("the file ends before what is asked for");
  const std::string what = absl::StrCat("the server answers ", answer.code, said(answer));
  if (answer.code == 429) return absl::UnavailableError(what + ": too many requests");
  if (answer.code >= 500 || answer.code == 408 || answer.code == 425) return absl::UnavailableError(what);
  return absl::FailedPreconditionError(what);
}

std::optional<absl::Duration> parse_retry_after(const std::string& text) {
  int64_t seconds = 0;
  if (absl::SimpleAtoi(text, &seconds)) return absl::Seconds(std::clamp<int64_t>(seconds, 0, 86400));
  absl::Time until;
  std::string ignored;
  if (!absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", text, &until, &ignored)) return std::nullopt;
  return std::max(absl::ZeroDuration(), until - absl::Now());
}

}  // namespace titan::http
