#pragma once

// Sends GET requests with libcurl, which obeys https_proxy, http_proxy, all_proxy and no_proxy in the environment, and
// converts failed answers to statuses.

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

// Headers of an answer, collected over redirects: a hub describes a file and redirects to another server for its bytes.
struct Answer {
  int code = 0;
  std::string etag;           // X-Linked-Etag, else ETag of the hub, without quotes and W/.
  std::string commit;         // X-Repo-Commit.
  std::string content_range;  // From the last server.
  std::string link;
  std::string error_code;     // X-Error-Code.
  std::string error_message;  // X-Error-Message.
  std::optional<absl::Duration> retry_after;
};

// Receives the body of a 200 or 206 answer. An error ends the transfer with that status.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual absl::Status begin(const Answer& answer) = 0;  // Called before the first byte, also for an empty body.
  virtual absl::Status take(std::string_view bytes) = 0;
  virtual absl::Status idle() { return absl::OkStatus(); }  // Called at least once a second, even without data.
};

// Result of a request. Unavailable means that a retry may succeed.
struct Outcome {
  absl::Status status;
  std::optional<absl::Duration> retry_after;  // Wait that the server requests.
};

// Sends one request at a time and reuses connections. Use it from one thread only.
class Http {
 public:
  // Sends the token only to the origin of `settings.endpoint`, also after redirects.
  explicit Http(const HttpSettings& settings);
  ~Http();
  Http(Http&&) noexcept;

  // Gets the whole file or a range of it, and follows redirects. Errors: Unavailable (network, 408, 425, 429, 5xx, a
  // body that is too short), NotFound, Unauthenticated, PermissionDenied, OutOfRange (416), Cancelled,
  // FailedPrecondition, or those of the sink.
  Outcome get(const std::string& url, std::optional<ByteRange> range, Sink& sink, const std::stop_token& stop);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the error for an answer of 400 or above, with what to do about it. Unavailable for 408, 425, 429 and 5xx.
absl::Status answer_error(const Answer& answer, bool with_token);

// Parses "5" as seconds, or an HTTP date as the time from now. Returns nothing for other text.
std::optional<absl::Duration> parse_retry_after(const std::string& text);

}  // namespace titan::http
