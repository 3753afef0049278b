#pragma once

// The answers of an object store, which are small XML documents. A server is not trusted with their form.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace titan::s3 {

struct Element {
  std::string name;
  std::string text;
  std::vector<Element> children;

  // The text of the first child of that name; "" without one.
  const std::string& value(std::string_view child) const;
};

// The document's one element. Errors: DataLoss for what is no XML, is nested too deep or defines entities.
absl::StatusOr<Element> parse_xml(std::string_view text);

// The text with what XML would read as its own written otherwise.
std::string xml_escaped(std::string_view text);

}  // namespace titan::s3
