#pragma once

// Parses the answers of an object store, which are small XML documents, and checks their form.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace titan::s3 {

struct Element {
  std::string name;
  std::string text;
  std::vector<Element> children;

  // Returns the text of the first child of that name; "" without one.
  const std::string& value(std::string_view child) const;
};

// Returns the document's root element. Errors: DataLoss for text that is not XML, is nested too deeply or defines
// entities.
absl::StatusOr<Element> parse_xml(std::string_view text);

// Returns the text with the special characters of XML escaped.
std::string xml_escaped(std::string_view text);

// An object of a listing.
struct Object {
  std::string key;
  int64_t size = 0;
  std::string etag;  // Quoted, as in If-Match.
  absl::Time modified;
};

// A page of a listing.
struct ListingPage {
  std::vector<Object> objects;
  std::vector<std::string> folders;  // Common prefixes that end with a '/', without it.
  std::string next;                  // Token of the next page; "" for none.
};
// Parses a page. Errors: DataLoss, also for a key that does not begin with `prefix`.
absl::StatusOr<ListingPage> parse_page(const std::string& text, const std::string& prefix);

// An upload that was neither completed nor aborted.
struct Upload {
  std::string key, id;
  std::string writer = {};  // Random mark of the write, set by S3Client::create_upload().
};
struct UploadPage {
  std::vector<Upload> uploads;
  std::string next_key, next_id;  // Markers of the next page; "" for none.
};
// Parses a page of uploads. Errors: DataLoss, also for a key that does not begin with `prefix`.
absl::StatusOr<UploadPage> parse_uploads(const std::string& text, const std::string& prefix);

}  // namespace titan::s3
