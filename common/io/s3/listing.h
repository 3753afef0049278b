#pragma once

// What a store answers about what there is.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::s3 {

struct Object {
  std::string key;
  int64_t size = 0;
  std::string etag;  // Quoted, as a condition takes it.
  absl::Time modified;
};

struct Page {
  std::vector<Object> objects;
  std::vector<std::string> folders;  // Keys that go on behind a '/', up to it and without it.
  std::string next;                  // What asks for the next page; "" for none.
};
// Every key begins with `prefix`. Errors: DataLoss.
absl::StatusOr<Page> parse_page(const std::string& text, const std::string& prefix);

struct Upload {
  std::string key, id;
  std::string writer = {};  // Of Client::create_upload().
};
struct UploadPage {
  std::vector<Upload> uploads;
  std::string next_key, next_id;  // What asks for the next page; "" for none.
};
absl::StatusOr<UploadPage> parse_uploads(const std::string& text, const std::string& prefix);

}  // namespace titan::s3
