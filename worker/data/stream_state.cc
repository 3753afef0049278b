#include "worker/data/stream_state.h"

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace titan::data {
namespace {

// One list for both directions.
template <typename Position, typename Visitor>
void visit_numbers(Position& position, Visitor&& visit) {
  visit("file", position.document.file);
  visit("offset", position.document.offset);
  visit("line", position.document.line);
  visit("document", position.document.document);
  visit("token", position.token);
  visit("pass", position.pass);
  visit("bad_lines", position.bad_lines);
}

std::string file_name(const StreamPosition& position, const std::vector<std::string>& files) {
  if (position.document.file >= static_cast<int64_t>(files.size())) return "";  // Behind the last file.
  return std::filesystem::path(files[position.document.file]).filename().string();
}

}  // namespace

nlohmann::json to_json(const StreamPosition& position, const std::vector<std::string>& files) {
  nlohmann::json json = {{"file_name", file_name(position, files)}};
  visit_numbers(position, [&](const char* key, int64_t value) { json[key] = value; });
  return json;
}

absl::StatusOr<StreamPosition> position_from_json(const nlohmann::json& json, const std::vector<std::string>& files) {
  StreamPosition position;
  std::string missing;
  visit_numbers(position, [&](const char* key, int64_t& value) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer() || found->template get<int64_t>() < 0) {
      missing = key;
    } else {
      value = found->template get<int64_t>();
    }
  });
  if (!missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("dataloader state: \"", missing, "\" is not a number of 0 or more"));
  }
  const std::string saved = json.value("file_name", ""), now = file_name(position, files);
  if (saved != now) {
    return absl::InvalidArgumentError(
        absl::StrCat("dataloader state: file ", position.document.file, " of the dataset was \"", saved, "\" and is \"",
                     now, "\" now: resume with the same dataset, or exclude dataloader from loading"));
  }
  return position;
}

}  // namespace titan::data
