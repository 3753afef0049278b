#include "worker/rank/data/rows/stream_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/io/data_files/cursor_file.h"
#include "common/io/hub/names.h"

namespace titan::data {
namespace {

// Visits the numbers of a position. Writing and reading share this list.
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

// Visits the numbers that only positions in shuffled or packed data need.
template <typename Position, typename Visitor>
void visit_arrangement(Position& position, Visitor&& visit) {
  visit("shuffle_seed", position.arrangement.seed);
  visit("shuffled_of", position.arrangement.of);
  visit("packing_window", position.arrangement.window);
  visit("row_tokens", position.arrangement.row_tokens);
  visit("window_row", position.row);
}

// Reads numbers and keeps the first error.
class NumberReader {
 public:
  explicit NumberReader(const nlohmann::json& json) : json_(json) {}
  void read(const char* key, int64_t& value) {
    const absl::StatusOr<int64_t> number = state_number(json_, key);
    if (number.ok()) value = *number;
    status_.Update(number.status());
  }
  void read_if_there(const char* key, int64_t& value) {
    if (json_.contains(key)) read(key, value);
  }
  const absl::Status& status() const { return status_; }

 private:
  const nlohmann::json& json_;
  absl::Status status_;
};

absl::Status read_arrangement(const nlohmann::json& json, StreamPosition& position) {
  NumberReader reader(json);
  visit_arrangement(position, [&](const char* key, int64_t& value) { reader.read_if_there(key, value); });
  TITAN_RETURN_IF_ERROR(reader.status());
  const auto shuffle = json.find("shuffle");
  if (shuffle == json.end()) return absl::OkStatus();
  const auto known = shuffle->is_string() ? shuffle_from_name(shuffle->get<std::string>()) : std::nullopt;
  if (!known) return absl::InvalidArgumentError("dataloader state: \"shuffle\" is not one of none, rows, documents");
  position.arrangement.shuffle = *known;
  return absl::OkStatus();
}

// Returns the commit of a file on a hub; "" for any other file.
std::string commit(const StreamPosition& position, const std::vector<std::string>& files) {
  if (position.document.file >= static_cast<int64_t>(files.size())) return "";
  return hub::commit_of(files[position.document.file]);
}

absl::Status check_commit(const std::string& saved, const std::string& now) {
  // A copy on disk has no commit but the same files.
  if (saved.empty() || now.empty() || saved == now) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "dataloader state: saved with commit ", saved, " of the dataset, the job reads commit ", now, ": put @", saved,
      " after its name in dataset_path (hf://datasets/ORG/NAME@COMMIT/PLACE), or exclude dataloader "
      "from loading"));
}

}  // namespace

absl::StatusOr<int64_t> state_number(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  const bool right = found != object.end() && found->is_number_integer() && found->get<int64_t>() >= 0 &&
                     found->get<int64_t>() <= data_files::kMaxPlace;
  if (right) return found->get<int64_t>();
  return absl::InvalidArgumentError(absl::StrCat("dataloader state: \"", key, "\" is not a number of 0 or more"));
}

nlohmann::json to_json(const StreamPosition& position, const std::vector<std::string>& files) {
  nlohmann::json json = data_files::cursor_file(position.document.file, files);
  visit_numbers(position, [&](const char* key, int64_t value) { json[key] = value; });
  if (position.arrangement != Arrangement{}) {
    json["shuffle"] = name(position.arrangement.shuffle);
    visit_arrangement(position, [&](const char* key, int64_t value) { json[key] = value; });
  }
  if (const std::string of_hub = commit(position, files); !of_hub.empty()) json["commit"] = of_hub;
  return json;
}

absl::StatusOr<StreamPosition> position_from_json(const nlohmann::json& json, const std::vector<std::string>& files) {
  StreamPosition position;
  NumberReader reader(json);
  visit_numbers(position, [&](const char* key, int64_t& value) { reader.read(key, value); });
  TITAN_RETURN_IF_ERROR(reader.status());
  TITAN_RETURN_IF_ERROR(read_arrangement(json, position));
  TITAN_RETURN_IF_ERROR(data_files::check_cursor_file(json, position.document.file, files));
  TITAN_RETURN_IF_ERROR(check_commit(json.value("commit", ""), commit(position, files)));
  return position;
}

namespace {

using nlohmann::json;

constexpr char kOr[] =
    ", or put \"dataloader\" into checkpoint.exclude_from_loading to start at the beginning of the data";
constexpr char kRemedy[] =
    "; put \"dataloader\" into checkpoint.exclude_from_loading to start at the beginning of the data";

bool is_plain(const MixedRows& rows) { return rows.sources().size() == 1 && rows.sources()[0].name.empty(); }

const json* find_source(const json& saved, const std::string& name) {
  const auto found = std::find_if(saved.begin(), saved.end(), [&](const json& source) {
    return source.is_object() && source.contains("name") && source["name"] == name;
  });
  return found == saved.end() ? nullptr : &*found;
}

std::string described(const Arrangement& arrangement) {
  if (arrangement == Arrangement{}) return "without shuffling and packing";
  std::string text = absl::StrCat("with shuffle = \"", name(arrangement.shuffle), "\"");
  if (arrangement.shuffle != Shuffle::kNone) {
    absl::StrAppend(&text, " of ", arrangement.of, " by seed ", arrangement.seed);
  }
  if (arrangement.window > 0) absl::StrAppend(&text, ", packing_window = ", arrangement.window);
  if (arrangement.row_tokens > 0) absl::StrAppend(&text, ", seq_len = ", arrangement.row_tokens - 1);
  return text;
}

// Checks that the order of the data is the saved one: a position is valid only in its own order.
absl::Status check_arrangement(const Arrangement& saved, const Arrangement& now) {
  if (saved == now) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("dataloader state: saved ", described(saved), ", the job reads ",
                                                 described(now), ": set training.dataloader as it was", kOr));
}

absl::Status take_position(const json& saved, const MixSource& source, StreamPosition& position) {
  const Arrangement now = position.arrangement;
  TITAN_ASSIGN_OR_RETURN(position, position_from_json(saved, source.files));
  return check_arrangement(position.arrangement, now);
}

absl::Status take_source(const json& saved, const MixSource& source, size_t i, MixCursor& cursor) {
  TITAN_RETURN_IF_ERROR(take_position(saved, source, cursor.sources[i]));
  TITAN_ASSIGN_OR_RETURN(cursor.rows[i], state_number(saved, "rows"));
  TITAN_ASSIGN_OR_RETURN(cursor.mix.weights[i], state_number(saved, "weight"));
  TITAN_ASSIGN_OR_RETURN(cursor.mix.dealt[i], state_number(saved, "dealt"));
  cursor.mix.ended[i] = saved.value("ended", false) && !source.repeat;
  return absl::OkStatus();
}

absl::StatusOr<MixCursor> of_named(const json& state, const MixedRows& rows) {
  MixCursor cursor = rows.start();
  TITAN_ASSIGN_OR_RETURN(cursor.mix.row, state_number(state, "row"));
  const json& saved = state.at("sources");
  size_t found = 0;
  for (size_t i = 0; i < rows.sources().size(); ++i) {
    const MixSource& source = rows.sources()[i];
    const json* one = find_source(saved, source.name);
    if (one == nullptr) continue;
    ++found;
    const absl::Status taken = take_source(*one, source, i, cursor);
    if (!taken.ok()) return annotate(taken, absl::StrCat("source \"", source.name, "\""));
  }
  // When the sources have changed, shares are counted from zero.
  if (found < rows.sources().size() || found < saved.size()) cursor.mix.weights.assign(rows.sources().size(), -1);
  return cursor;
}

}  // namespace

json to_json(const MixCursor& cursor, const MixedRows& rows) {
  if (is_plain(rows)) return to_json(cursor.sources[0], rows.sources()[0].files);
  json sources = json::array();
  for (size_t i = 0; i < rows.sources().size(); ++i) {
    json one = to_json(cursor.sources[i], rows.sources()[i].files);
    one["name"] = rows.sources()[i].name;
    one["rows"] = cursor.rows[i];
    one["weight"] = cursor.mix.weights[i];
    one["dealt"] = cursor.mix.dealt[i];
    one["ended"] = static_cast<bool>(cursor.mix.ended[i]);
    sources.push_back(std::move(one));
  }
  return {{"row", cursor.mix.row}, {"sources", std::move(sources)}};
}

absl::StatusOr<MixCursor> mix_from_json(const json& state, const MixedRows& rows) {
  const bool named = state.contains("sources") && state["sources"].is_array();
  if (named == is_plain(rows)) {
    return absl::InvalidArgumentError(absl::StrCat("dataloader state: saved with", named ? "" : "out",
                                                   " training.dataloader.sources, the job has ",
                                                   named ? "none" : "some", kRemedy));
  }
  if (named) return of_named(state, rows);
  MixCursor cursor = rows.start();
  TITAN_RETURN_IF_ERROR(take_position(state, rows.sources()[0], cursor.sources[0]));
  return cursor;
}

}  // namespace titan::data
