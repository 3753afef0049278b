#pragma once

// Sends one signed request to an object store with libcurl, and returns its answer.

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
  std::string key;                                         // "": the bucket itself.
  std::vector<std::pair<std::string, std::string>> query;  // Sorted by name.
  std::vector<std::string> headers = {};                   // "name: value".
  const std::string* body = nullptr;                       // Must outlive the request.
  std::optional<http::ByteRange> range = std::nullopt;
  char* into = nullptr;  // With `range`: receives the body, as many bytes.
};

struct Response {
  int code = 0;
  std::map<std::string, std::string> headers;  // Names in lower case.
  std::string body;                            // Without the bytes that `into` receives.
  int64_t received = 0;                        // Bytes written to `into`, also when the answer ended too soon.

  const std::string& header(const std::string& name) const;
};

// Sends one request at a time and reuses connections. Use it from one thread only.
class S3Connection {
 public:
  S3Connection(const S3Settings& settings, std::string bucket);
  ~S3Connection();

  // Returns OK for every complete answer, also one with an error code. Errors: Unavailable (network, or an answer that
  // does not fit the request), and FailedPrecondition where a retry cannot help.
  absl::Status perform(const Request& request, const Credentials& credentials, Response& response);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Converts a failed answer to a status that names no object. Unavailable: a retry may succeed; NotFound: no such object
// or upload; AlreadyExists: a condition on the object's current state does not hold; Unauthenticated: other credentials
// may work.
absl::Status answer_error(const Response& response, const S3Settings& settings, const std::string& bucket);

}  // namespace titan::s3
