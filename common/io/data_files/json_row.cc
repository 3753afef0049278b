#include "common/io/data_files/json_row.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/json/reader.h"
#include "common/base/json/string.h"
#include "common/base/text/is_utf8.h"
#include "common/base/text/utf8.h"
#include "common/io/data_files/signature.h"

namespace titan::data_files {
namespace {

using json::Event;

constexpr std::string_view kMark = "\xEF\xBB\xBF";
constexpr size_t kMostKeys = 6, kLongestKey = 40;

std::string not_a_whole_value(const json::Reader& reader) {
  switch (reader.open_bracket()) {
    case '{':
      return "not JSON: the line ends inside an object, and a row is an object on one line (`jq -c . FILE` writes them "
             "so)";
    case '[':
      return "not JSON: the line ends inside an array, and a row is an object on one line (`jq -c '.[]' FILE` writes "
             "the objects of an array so)";
    default:
      return "not JSON: the line ends early";
  }
}

std::string not_an_object(Event first) {
  if (first != Event::kBeginArray) return "not a JSON object";
  return "not a JSON object but an array, and a row is an object on one line (`jq -c '.[]' FILE` writes the objects of "
         "an array so)";
}

std::string error_text(const json::Reader& reader) {
  if (reader.ends_early()) return not_a_whole_value(reader);
  return "not JSON";
}

bool named(const json::Reader& reader, std::string_view key) {
  if (!reader.has_escapes()) return reader.token() == key;
  std::string name;
  json::unescape(reader.token(), name);
  return name == key;
}

// The value of `key`, if the row has it at its top.
struct Found {
  bool is_there = false;
  Event event = Event::kNull;
  std::string_view token;
  bool has_escapes = false;
  std::string problem;
};

Found find(std::string_view row, std::string_view key) {
  json::Reader reader(row);
  Found found;
  const Event first = reader.next();
  bool next_is_value = false;
  for (Event event = first; event != Event::kEnd; event = reader.next()) {
    if (event == Event::kError) {
      found.problem = error_text(reader);
      return found;
    }
    if (next_is_value) found = {true, event, reader.token(), reader.has_escapes(), ""};
    next_is_value = event == Event::kKey && reader.depth() == 1 && named(reader, key);
  }
  if (first != Event::kBeginObject) found.problem = not_an_object(first);
  return found;
}

Found checked(std::string_view row, std::string_view key) {
  Found found = text::is_utf8(row) ? find(row, key) : Found{.problem = "not JSON in UTF-8"};
  if (found.problem.empty()) return found;
  if (const std::string foreign = foreign_bytes(row); !foreign.empty()) {
    found.problem = absl::StrCat("not JSON but ", foreign);
  }
  return found;
}

std::vector<std::string> keys_of(std::string_view row) {
  std::vector<std::string> keys;
  json::Reader reader(row);
  for (Event event = reader.next(); event != Event::kEnd && event != Event::kError; event = reader.next()) {
    if (event != Event::kKey || reader.depth() != 1) continue;
    std::string key;
    json::unescape(reader.token(), key);
    keys.push_back(std::move(key));
  }
  return keys;
}

// How rows of datasets that are known by their keys have to be written instead.
std::string known_form(const std::vector<std::string>& keys) {
  constexpr char kWrite[] = "write \"messages\" with \"role\" and \"content\", and set dataloader.messages_key)";
  const auto has = [&](const char* key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); };
  if (has("messages")) return " (there are \"messages\": a job reads them with dataloader.messages_key = \"messages\")";
  if (has("conversations")) return absl::StrCat(" (there are \"conversations\", ShareGPT's form: ", kWrite);
  if (has("instruction") && has("output")) {
    return absl::StrCat(" (there are \"instruction\" and \"output\", Alpaca's form: ", kWrite);
  }
  const bool answered = has("prompt") && (has("completion") || has("response"));
  return answered ? absl::StrCat(" (there is a \"prompt\" with its answer: ", kWrite) : "";
}

}  // namespace

std::string keys_hint(std::string_view row, std::string_view naming_key) {
  std::vector<std::string> keys = keys_of(row);
  if (keys.empty()) return "";
  if (std::string form = naming_key.empty() ? "" : known_form(keys); !form.empty()) return form;
  const bool more = keys.size() > kMostKeys;
  keys.resize(std::min(keys.size(), kMostKeys));
  for (std::string& key : keys) key = absl::StrCat("\"", text::printable(text::shortened(key, kLongestKey)), "\"");
  return absl::StrCat(" (its keys: ", absl::StrJoin(keys, ", "), more ? ", ..." : "",
                      naming_key.empty() ? ")" : absl::StrCat("; ", std::string(naming_key), " names the right one)"));
}

bool opens_array(std::string_view row) {
  json::Reader reader(without_mark(row));
  Event event = reader.next();
  if (event != Event::kBeginArray) return false;
  while (event != Event::kEnd && event != Event::kError) event = reader.next();
  return event == Event::kEnd || reader.ends_early();
}

std::string_view without_mark(std::string_view row) {
  if (row.starts_with(kMark)) row.remove_prefix(kMark.size());
  return row;
}

RowText text_of_row(std::string_view row, const std::string& key, std::string_view naming_key) {
  row = without_mark(row);
  const Found found = checked(row, key);
  if (!found.problem.empty()) return {"", found.problem};
  if (!found.is_there) return {"", absl::StrCat("no \"", key, "\"", keys_hint(row, naming_key))};
  if (found.event != Event::kString) return {"", absl::StrCat("\"", key, "\" is not a string")};
  if (!found.has_escapes) return {std::string(found.token), ""};
  RowText text;
  if (json::unescape(found.token, text.text)) return text;
  return {"", absl::StrCat("\"", key, "\" has half of a surrogate pair, which no UTF-8 has")};
}

std::string json_problem(std::string_view row) { return checked(without_mark(row), "").problem; }

}  // namespace titan::data_files
