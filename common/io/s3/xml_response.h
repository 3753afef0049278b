#pragma once

// Parses the answers of an object store, which are small XML documents, and the listings among them. A server is not
// trusted with their form.

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

  // The text of the first child of that name; "" without one.
  const std::string& value(std::string_view child) const;
};

// The document's one element. Errors: DataLoss for what is not XML, is nested too deep or defines entities.
absl::StatusOr<Element> parse_xml(std::string_view text);

// The text with what XML would read as its own written otherwise.
std::string xml_escaped(std::string_view text);

// An object, as a listing has it.
struct Object {
  std::string key;
  int64_t size = 0;
  std::string etag;  // Quoted, as a condition takes it.
  absl::Time modified;
};

// A page of a listing.
struct Page {
  std::vector<Object> objects;
  std::vector<std::string> folders;  // Keys that continue after a '/', up to it and without it.
  std::string next;                  // What asks for the next page; "" for none.
};
// Every key begins with `prefix`. Errors: DataLoss.
absl::StatusOr<Page> parse_page(const std::string& text, const std::string& prefix);

// An upload that was begun and has not ended.
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
