#pragma once

// Asks a hub for revisions, listings and ranges of files, and checks that what arrives is what was asked for.

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

// What a file is by its first answer.
struct FileFacts {
  std::string etag;   // "" when the server says none.
  int64_t size = -1;  // -1: the server does not say.
};

// Whether the file is known to reach to a range's end.
enum class RangeEnd { kKnown, kOpen };

// A hub, asked by one thread. Every error names the repository and, where there is one, the file.
class Client {
 public:
  Client(const http::Settings& settings, const http::RetryPolicy& retry)
      : settings_(settings), retry_(retry), http_(settings) {}

  // The commit that a branch or tag is now. Unlike the tree of a branch, that of a commit does not change.
  absl::StatusOr<std::string> resolve(const Repo& repo, const std::string& revision, const std::stop_token& stop);
  // All files below a folder of the repository; "": of all of it.
  absl::StatusOr<std::vector<RemoteFile>> list(const Repo& repo, const std::string& commit, const std::stop_token& stop,
                                               const std::string& folder = "");

  // Bytes of a file as they come. `facts` is called before the first one of each answer, `bytes` with where they lie;
  // errors of either end the reading.
  struct Taker {
    std::function<absl::Status(const FileFacts&)> facts;
    std::function<absl::Status(int64_t offset, std::string_view bytes)> bytes;
    std::function<absl::Status()> idle = [] { return absl::OkStatus(); };
  };
  // After a failure it goes on behind what came already. With kOpen the file may end before the range does; OutOfRange
  // when it ends before the range begins.
  absl::Status read(const Repo& repo, const std::string& commit, const std::string& file, http::Range range,
                    RangeEnd end, const Taker& taker, const std::stop_token& stop);

 private:
  absl::StatusOr<std::string> text(const std::string& url, std::string& link, const std::stop_token& stop);

  http::Settings settings_;
  http::RetryPolicy retry_;
  http::Http http_;
};

// Looks at whether what comes is what was asked for, and hands it on. A server that knows no ranges sends the whole
// file: what is not asked for is left out, and nothing behind it is waited for. Errors: Unavailable for another range
// or commit, or too many bytes.
class RangeSink : public http::Sink {
 public:
  RangeSink(http::Range asked, RangeEnd end, std::string commit, const Client::Taker& taker)
      : asked_(asked), end_(end), commit_(std::move(commit)), taker_(taker) {}

  absl::Status begin(const http::Answer& answer) override;
  absl::Status take(std::string_view bytes) override;
  absl::Status idle() override { return taker_.idle(); }

  // Up to here nothing more has to be asked for; where the range began while nothing came.
  int64_t reached() const { return reached_; }
  // What the transfer's status means: OK once all came. Unavailable when it went well and not all came.
  absl::Status end(const absl::Status& transfer) const;

 private:
  absl::Status begin_whole(const http::Answer& answer);

  http::Range asked_;
  RangeEnd end_;
  std::string commit_;
  const Client::Taker& taker_;
  int64_t at_ = 0;  // Where the next byte of the answer lies.
  int64_t reached_ = asked_.begin;
  bool whole_ = false;  // The answer is the file.
  bool enough_ = false;
};

}  // namespace titan::hub
