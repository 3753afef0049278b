// Answers of an object store, and locations in one as users write them.

#include <string>

#include "absl/strings/match.h"
#include "common/io/s3/location.h"
#include "common/io/s3/settings.h"
#include "common/io/s3/signed_request.h"
#include "common/io/s3/xml_response.h"
#include "tests/fuzz/target.h"

namespace titan::fuzz {

TITAN_FUZZ(s3_answers, 3000) {
  const std::string text(bytes);
  const std::string prefix = "run/";
  if (const auto page = s3::parse_page(text, prefix); page.ok()) {
    for (const s3::Object& one : page->objects)
      require(absl::StartsWith(one.key, prefix) && one.size >= 0, "an object has the requested prefix");
    for (const std::string& one : page->folders)
      require(one.size() >= prefix.size(), "a folder has the requested prefix");
  }
  if (const auto page = s3::parse_uploads(text, prefix); page.ok()) {
    for (const s3::Upload& one : page->uploads)
      require(absl::StartsWith(one.key, prefix), "an upload has the requested prefix");
  }
  const s3::S3Settings settings{.endpoint = "https://store", .region = "r"};
  for (const int code : {200, 301, 403, 404, 412, 500}) {
    const absl::Status status = s3::answer_error({.code = code, .body = text}, settings, "bucket");
    require(!status.ok() && status.message().size() < 2000, "a failed answer gives a short error");
  }
  const auto again = s3::parse_xml("<a>" + s3::xml_escaped("<&>\"") + "</a>");
  require(again.ok() && again->text == "<&>\"", "escaped text is read back unchanged");
}

TITAN_FUZZ(s3_paths, 1000) {
  const std::string text(bytes);
  const auto place = s3::parse_location(text);
  if (place.ok()) {
    require(("/" + place->key + "/").find("/../") == std::string::npos && place->bucket.find('/') == std::string::npos,
            "a place lies in its bucket");
    const auto again = s3::parse_location(s3::to_text(*place));
    require(again.ok() && again->bucket == place->bucket && again->key == place->key,
            "a location round-trips to its text");
  }
  for (const auto& [title, values] : s3::parse_sections(text)) {
    for (const auto& [name, value] : values)
      require(name.find('\n') + 1 == 0 && value.find('\n') + 1 == 0, "a value is a line");
  }
}

}  // namespace titan::fuzz
