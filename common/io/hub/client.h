#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/io/http/http.h"
#include "common/io/http/retry.h"
#include "common/io/hub/listing.h"

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

}  // namespace titan::hub
