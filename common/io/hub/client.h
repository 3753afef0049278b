#pragma once

// Requests revisions, listings and file ranges from a hub, and checks that the answers fit the requests.

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/http/http.h"
#include "common/io/http/retry.h"
#include "common/io/hub/api.h"

namespace titan::hub {

// Facts about a file from an answer's headers.
struct FileFacts {
  std::string etag;   // "" when the server sends none.
  int64_t size = -1;  // -1: the server does not report it.
};

// Whether the file is known to reach the end of a range.
enum class RangeEnd { kKnown, kOpen };

// A client of a hub, for one thread. Every error names the repository and, where there is one, the file.
class HubClient {
 public:
  HubClient(const http::HttpSettings& settings, const http::RetryPolicy& retry)
      : settings_(settings), retry_(retry), http_(settings) {}

  // Returns the commit that a branch or tag names now. Unlike the tree of a branch, that of a commit does not change.
  absl::StatusOr<std::string> resolve(const Repo& repo, const std::string& revision, const std::stop_token& stop);
  // Returns all files below a folder of the repository; "" means all of it.
  absl::StatusOr<std::vector<RemoteFile>> list(const Repo& repo, const std::string& commit, const std::stop_token& stop,
                                               const std::string& folder = "");

  // Receives a file's bytes as they arrive. `facts` is called before the first byte of each answer, `bytes` with their
  // offset in the file, `idle` as http::Sink::idle(). An error from any of these ends the read, except Unavailable,
  // which is retried.
  struct Receiver {
    std::function<absl::Status(const FileFacts&)> facts;
    std::function<absl::Status(int64_t offset, std::string_view bytes)> bytes;
    std::function<absl::Status()> idle = [] { return absl::OkStatus(); };
  };
  // Reads a range. After a failure it resumes after the bytes that arrived. With kOpen the file may end before the
  // range does. Errors include OutOfRange when the file ends before the range begins.
  absl::Status read(const Repo& repo, const std::string& commit, const std::string& file, http::ByteRange range,
                    RangeEnd end, const Receiver& receiver, const std::stop_token& stop);

 private:
  absl::StatusOr<std::string> text(const std::string& url, std::string& link, const std::stop_token& stop);

  http::HttpSettings settings_;
  http::RetryPolicy retry_;
  http::Http http_;
};

// Checks that an answer fits the request, and passes the requested bytes on. A server without range support sends the
// whole file: other bytes are dropped, and the transfer ends after the range. Errors: Unavailable for another range or
// commit, or too many bytes.
class RangeSink : public http::Sink {
 public:
  RangeSink(http::ByteRange asked, RangeEnd end, std::string commit, const HubClient::Receiver& receiver)
      : asked_(asked), end_(end), commit_(std::move(commit)), receiver_(receiver) {}

  absl::Status begin(const http::Answer& answer) override;
  absl::Status take(std::string_view bytes) override;
  absl::Status idle() override { return receiver_.idle(); }

  // Returns where the next request has to begin: the start of the range while nothing arrived.
  int64_t reached() const { return reached_; }
  // Converts the transfer's status: OK once all bytes arrived, Unavailable when it succeeded without all of them.
  absl::Status end(const absl::Status& transfer) const;

 private:
  absl::Status begin_whole(const http::Answer& answer);

  http::ByteRange asked_;
  RangeEnd end_;
  std::string commit_;
  const HubClient::Receiver& receiver_;
  int64_t at_ = 0;  // Offset in the file of the answer's next byte.
  int64_t reached_ = asked_.begin;
  bool whole_ = false;  // The answer is the whole file.
  bool enough_ = false;
};

}  // namespace titan::hub
