#pragma once

// Sends GET requests by libcurl, which also takes https_proxy, http_proxy, all_proxy and no_proxy from the environment,
// and turns failed answers into statuses.

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/io/http/ranges.h"
#include "common/io/http/settings.h"

namespace titan::http {

// What an answer says of itself, wherever on the way to it: a hub tells about a file and sends to another server for
// its bytes.
struct Answer {
  int code = 0;
  std::string etag;           // X-Linked-Etag, else ETag of the hub; without quotes and W/.
  std::string commit;         // X-Repo-Commit.
  std::string content_range;  // Of the last server.
  std::string link;
  std::string error_code;     // X-Error-Code.
  std::string error_message;  // X-Error-Message.
  std::optional<absl::Duration> retry_after;
};

// Takes the body of an answer of 200 or 206. An error ends the transfer with that status.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual absl::Status begin(const Answer& answer) = 0;  // Before the first byte, also of a body that is empty.
  virtual absl::Status take(std::string_view bytes) = 0;
  virtual absl::Status idle() { return absl::OkStatus(); }  // About once a second, also when nothing comes.
};

// Unavailable: it may go well when it is tried again.
struct Outcome {
  absl::Status status;
  std::optional<absl::Duration> retry_after;  // What the server asks to wait for.
};

// One connection after another. For one thread.
class Http {
 public:
  // The token goes to servers of the same origin as `settings.endpoint` alone, whatever redirects say.
  explicit Http(const Settings& settings);
  ~Http();
  Http(Http&&) noexcept;

  // The whole, or a range of it. Errors: Unavailable (network, 408, 429, 5xx, a body that is too short), NotFound,
  // Unauthenticated, PermissionDenied, Cancelled, FailedPrecondition, what the sink says.
  Outcome get(const std::string& url, std::optional<Range> range, Sink& sink, const std::stop_token& stop);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What an answer of 400 and above means, and what to do about it. Unavailable for 408, 425, 429 and 5xx.
absl::Status answer_error(const Answer& answer, bool with_token);

// "5", seconds; an HTTP date counts from now. Nothing for other text.
std::optional<absl::Duration> parse_retry_after(const std::string& text);

}  // namespace titan::http
