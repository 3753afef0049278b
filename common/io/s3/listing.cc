#include "common/io/s3/listing.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "common/base/status/status.h"
#include "common/io/s3/xml.h"

namespace titan::s3 {
namespace {

absl::Status check_key(const std::string& key, const std::string& prefix) {
  if (!key.empty() && absl::StartsWith(key, prefix)) return absl::OkStatus();
  return absl::DataLossError("it lists what was not asked for");
}

absl::StatusOr<Object> object_of(const Element& one, const std::string& prefix) {
  Object object{.key = one.value("Key"), .etag = one.value("ETag")};
  TITAN_RETURN_IF_ERROR(check_key(object.key, prefix));
  std::string ignored;
  if (!absl::SimpleAtoi(one.value("Size"), &object.size) || object.size < 0 ||
      !absl::ParseTime(absl::RFC3339_full, one.value("LastModified"), &object.modified, &ignored))
    return absl::DataLossError("an object has no size or no time");
  return object;
}

}  // namespace

absl::StatusOr<Page> parse_page(const std::string& text, const std::string& prefix) {
  TITAN_ASSIGN_OR_RETURN(const Element root, parse_xml(text));
  Page page;
  for (const Element& one : root.children) {
    if (one.name == "CommonPrefixes") {
      std::string folder = one.value("Prefix");
      if (folder.size() <= prefix.size()) return absl::DataLossError("it lists what was not asked for");
      TITAN_RETURN_IF_ERROR(check_key(folder, prefix));
      folder.pop_back();
      page.folders.push_back(std::move(folder));
    } else if (one.name == "Contents") {
      TITAN_ASSIGN_OR_RETURN(Object object, object_of(one, prefix));
      page.objects.push_back(std::move(object));
    }
  }
  if (root.value("IsTruncated") == "true") page.next = root.value("NextContinuationToken");
  return page;
}

absl::StatusOr<UploadPage> parse_uploads(const std::string& text, const std::string& prefix) {
  TITAN_ASSIGN_OR_RETURN(const Element root, parse_xml(text));
  UploadPage page;
  for (const Element& one : root.children) {
    if (one.name != "Upload") continue;
    TITAN_RETURN_IF_ERROR(check_key(one.value("Key"), prefix));
    page.uploads.push_back({one.value("Key"), one.value("UploadId")});
  }
  if (root.value("IsTruncated") == "true") {
    page.next_key = root.value("NextKeyMarker");
    page.next_id = root.value("NextUploadIdMarker");
  }
  return page;
}

}  // namespace titan::s3
