#include "common/io/s3/xml_response.h"

#include <expat.h>

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status/status.h"

namespace titan::s3 {
namespace {

constexpr size_t kMaxDepth = 16;  // No answer has more than four levels.

struct Reading {
  XML_Parser parser;
  Element root;                // Holds the document's root element as its only child.
  std::vector<Element*> open;  // From `root` down. An open element is its parent's last child, so it does not move.
  const char* refused = nullptr;

  void refuse(const char* why) {
    if (refused == nullptr) refused = why;
    XML_StopParser(parser, XML_FALSE);
  }
};

void on_start(void* user, const XML_Char* name, const XML_Char**) {
  auto& reading = *static_cast<Reading*>(user);
  if (reading.open.size() > kMaxDepth) return reading.refuse("elements are nested too deep");
  Element* parent = reading.open.back();
  parent->children.push_back({name, "", {}});
  reading.open.push_back(&parent->children.back());
}

void on_end(void* user, const XML_Char*) {
  auto& reading = *static_cast<Reading*>(user);
  if (reading.refused == nullptr) reading.open.pop_back();
}

void on_text(void* user, const XML_Char* text, int size) {
  static_cast<Reading*>(user)->open.back()->text.append(text, static_cast<size_t>(size));
}

void on_entity(void* user, const XML_Char*, int, const XML_Char*, int, const XML_Char*, const XML_Char*,
               const XML_Char*, const XML_Char*) {
  static_cast<Reading*>(user)->refuse("it defines entities");
}

}  // namespace

const std::string& Element::value(std::string_view child) const {
  static const std::string kNone;
  for (const Element& one : children) {
    if (one.name == child) return one.text;
  }
  return kNone;
}

absl::StatusOr<Element> parse_xml(std::string_view text) {
  const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser(XML_ParserCreate(nullptr), XML_ParserFree);
  Reading reading{.parser = parser.get(), .root = {}, .open = {}};
  reading.open.push_back(&reading.root);
  XML_SetUserData(parser.get(), &reading);
  XML_SetElementHandler(parser.get(), on_start, on_end);
  XML_SetCharacterDataHandler(parser.get(), on_text);
  XML_SetEntityDeclHandler(parser.get(), on_entity);
  const bool parsed =
      XML_Parse(parser.get(), text.data(), static_cast<int>(text.size()), /*isFinal=*/XML_TRUE) == XML_STATUS_OK;
  if (reading.refused != nullptr) return absl::DataLossError(absl::StrCat("the answer is refused: ", reading.refused));
  if (!parsed || reading.root.children.size() != 1)
    return absl::DataLossError(
        absl::StrCat("the answer is not XML: ", XML_ErrorString(XML_GetErrorCode(parser.get()))));
  return std::move(reading.root.children.front());
}

std::string xml_escaped(std::string_view text) {
  return absl::StrReplaceAll(absl::string_view(text.data(), text.size()),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

namespace {

absl::Status check_key(const std::string& key, const std::string& prefix) {
  if (!key.empty() && absl::StartsWith(key, prefix)) return absl::OkStatus();
  return absl::DataLossError("it lists keys that were not requested");
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

absl::StatusOr<ListingPage> parse_page(const std::string& text, const std::string& prefix) {
  TITAN_ASSIGN_OR_RETURN(const Element root, parse_xml(text));
  ListingPage page;
  for (const Element& one : root.children) {
    if (one.name == "CommonPrefixes") {
      std::string folder = one.value("Prefix");
      if (folder.size() <= prefix.size()) return absl::DataLossError("it lists keys that were not requested");
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
