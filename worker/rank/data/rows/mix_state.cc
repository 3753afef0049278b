#include "worker/rank/data/rows/mix_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/data/rows/stream_state.h"

namespace titan::data {
namespace {

using nlohmann::json;

constexpr char kOr[] = ", or put \"dataloader\" into checkpoint.exclude_from_loading to start the data anew";
constexpr char kRemedy[] = "; put \"dataloader\" into checkpoint.exclude_from_loading to start the data anew";

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

// A number of an order says nothing in another.
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
  // Among other sources the shares are counted anew.
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
