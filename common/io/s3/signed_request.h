#pragma once

// Sends one signed request to an object store by libcurl, and returns its answer.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/io/http/ranges.h"
#include "common/io/s3/settings.h"

namespace titan::s3 {

struct Request {
  const char* method = "GET";
  std::string key;                                         // "": of the bucket itself.
  std::vector<std::pair<std::string, std::string>> query;  // Sorted by name.
  std::vector<std::string> headers = {};                   // "name: value".
  const std::string* body = nullptr;                       // Lives as long as the request.
  std::optional<http::Range> range = std::nullopt;
  char* into = nullptr;  // With `range`: as many bytes, for what comes of it.
};

struct Response {
  int code = 0;
  std::map<std::string, std::string> headers;  // By name in small letters.
  std::string body;                            // Where `into` does not take it.
  int64_t received = 0;                        // Bytes that `into` took, also when it ended too soon.

  const std::string& header(const std::string& name) const;
};

// One connection after another. For one thread.
class Exchange {
 public:
  Exchange(const Settings& settings, std::string bucket);
  ~Exchange();

  // OK for whatever the server answers. Errors: Unavailable (network, an answer that is no answer to this), and
  // FailedPrecondition where another try mends nothing.
  absl::Status perform(const Request& request, const Credentials& credentials, Response& response);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What the store said, as a status without a place. Unavailable: it may go well when it is tried again; NotFound: no
// such object or upload; AlreadyExists: a condition on the object as it is now does not hold; Unauthenticated: other
// credentials may do.
absl::Status answer_error(const Response& response, const Settings& settings, const std::string& bucket);

}  // namespace titan::s3
