#include "common/rank_protocol/launch.h"

#include <cerrno>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/rank_protocol/name_list.h"

namespace titan::rank_protocol {
namespace {

using nlohmann::json;

// Far more ranks than any job has; keeps a small file from making the reader allocate all memory.
constexpr size_t kMaxRanks = 1 << 20;

absl::Status wrong(const std::string& member, const char* expected) {
  return absl::InvalidArgumentError(absl::StrCat("launch file: ", member, " is missing or not ", expected));
}

absl::Status read_int(const json& from, const char* member, const std::string& where, int64_t least, int& out) {
  const auto found = from.find(member);
  if (found == from.end() || !found->is_number_integer()) return wrong(absl::StrCat(where, member), "an integer");
  const int64_t value = found->get<int64_t>();
  if (value < least || value > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("launch file: ", where, member, " is ", value, ", expected ", least, " to 2147483647"));
  }
  out = static_cast<int>(value);
  return absl::OkStatus();
}

absl::Status read_text(const json& from, const char* member, const std::string& where, std::string& out) {
  const auto found = from.find(member);
  if (found == from.end() || !found->is_string()) return wrong(absl::StrCat(where, member), "a string");
  out = found->get<std::string>();
  return absl::OkStatus();
}

absl::Status add_node(RankPlacement place, int count, std::vector<RankPlacement>& ranks) {
  if (static_cast<size_t>(count) > kMaxRanks - ranks.size()) {
    return absl::InvalidArgumentError(absl::StrCat("launch file: more than ", kMaxRanks, " ranks"));
  }
  for (place.local_rank = 0; place.local_rank < count; ++place.local_rank) {
    place.rank = static_cast<int>(ranks.size());
    ranks.push_back(place);
  }
  return absl::OkStatus();
}

// Reads one row: a node with its address, or the names of several nodes.
absl::Status read_row(const json& row, const std::string& where, std::vector<RankPlacement>& ranks) {
  RankPlacement place;
  int count = 0;
  TITAN_RETURN_IF_ERROR(read_int(row, "ranks", where, 1, count));
  if (!row.contains("names")) {
    TITAN_RETURN_IF_ERROR(read_text(row, "node", where, place.node));
    TITAN_RETURN_IF_ERROR(read_text(row, "host", where, place.host));
    return add_node(std::move(place), count, ranks);
  }
  std::string text;
  TITAN_RETURN_IF_ERROR(read_text(row, "names", where, text));
  absl::StatusOr<std::vector<std::string>> names = unfold_names(text, kMaxRanks - ranks.size());
  if (!names.ok()) return annotate(names.status(), absl::StrCat("launch file: ", where, "names"));
  for (std::string& name : *names) {
    place.node = std::move(name);
    TITAN_RETURN_IF_ERROR(add_node(place, count, ranks));
  }
  return absl::OkStatus();
}

absl::Status read_nodes(const json& from, std::vector<RankPlacement>& ranks) {
  if (!from.is_array() || from.empty()) return wrong("nodes", "a list of at least one node");
  for (size_t i = 0; i < from.size(); ++i) {
    if (!from[i].is_object()) return wrong(absl::StrCat("nodes[", i, "]"), "an object");
    TITAN_RETURN_IF_ERROR(read_row(from[i], absl::StrCat("nodes[", i, "]."), ranks));
  }
  return absl::OkStatus();
}

json without_ranks(const Launch& launch) {
  return {{"version", launch.version},
          {"job", launch.job},
          {"job_uid", launch.job_uid},
          {"attempt", launch.attempt},
          {"config", launch.config},
          {"threads_per_rank", launch.threads_per_rank},
          {"committed_step", launch.committed_step},
          {"folder_id", launch.folder_id},
          {"previous_end_cause", launch.previous_end_cause},
          {"previous_end_message", launch.previous_end_message}};
}

}  // namespace

json to_json(const Launch& launch) {
  json nodes = json::array();
  for (const RankPlacement& place : launch.ranks) {
    if (place.local_rank == 0) {
      nodes.push_back({{"node", place.node}, {"host", place.host}, {"ranks", 1}});
    } else {
      nodes.back()["ranks"] = place.local_rank + 1;
    }
  }
  json whole = without_ranks(launch);
  whole["nodes"] = std::move(nodes);
  return whole;
}

std::vector<NodeRow> node_rows(const Launch& launch, const std::string& addressed) {
  std::vector<NodeRow> rows;
  std::vector<std::string> names;
  int of_row = 0;  // Ranks per node of the current row.
  const auto end_row = [&] {
    if (!names.empty()) rows.push_back({fold_names(names), of_row, ""});
    names.clear();
  };
  for (size_t i = 0; i < launch.ranks.size();) {
    const RankPlacement& first = launch.ranks[i];
    size_t end = i + 1;
    while (end < launch.ranks.size() && launch.ranks[end].local_rank != 0) ++end;
    const int count = static_cast<int>(end - i);
    i = end;
    const bool is_apart = !addressed.empty() && first.node == addressed;
    if (count != of_row || is_apart) end_row();
    of_row = count;
    if (is_apart) {
      rows.push_back({first.node, count, first.host});
    } else {
      names.push_back(first.node);
    }
  }
  end_row();
  return rows;
}

json to_folded_json(const Launch& launch, const std::string& addressed) {
  json rows = json::array();
  for (const NodeRow& row : node_rows(launch, addressed)) {
    json& entry = rows.emplace_back(json{{"ranks", row.ranks}});
    if (row.host.empty()) {
      entry["names"] = row.names;
    } else {
      entry["node"] = row.names;
      entry["host"] = row.host;
    }
  }
  json whole = without_ranks(launch);
  whole["nodes"] = std::move(rows);
  return whole;
}

absl::StatusOr<Launch> launch_from_json(const json& from) {
  if (!from.is_object()) return absl::InvalidArgumentError("launch file: not a JSON object");
  Launch launch;
  TITAN_RETURN_IF_ERROR(read_int(from, "version", "", 1, launch.version));
  if (launch.version > kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("launch file: version ", launch.version, " is newer than ", kVersion,
                                                   ", the newest that this program knows: update it"));
  }
  TITAN_RETURN_IF_ERROR(read_text(from, "job", "", launch.job));
  TITAN_RETURN_IF_ERROR(read_text(from, "job_uid", "", launch.job_uid));
  TITAN_RETURN_IF_ERROR(read_int(from, "attempt", "", 1, launch.attempt));
  TITAN_RETURN_IF_ERROR(read_int(from, "threads_per_rank", "", 1, launch.threads_per_rank));
  // These members are optional in a launch file written by hand.
  if (const auto step = from.find("committed_step"); step != from.end()) {
    if (!step->is_number_integer()) return wrong("committed_step", "an integer");
    launch.committed_step = step->get<int64_t>();
  }
  for (const auto& [key, text] :
       {std::pair("folder_id", &launch.folder_id), std::pair("previous_end_cause", &launch.previous_end_cause),
        std::pair("previous_end_message", &launch.previous_end_message)}) {
    if (from.contains(key)) TITAN_RETURN_IF_ERROR(read_text(from, key, "", *text));
  }
  const auto config = from.find("config");
  if (config == from.end() || !config->is_object()) return wrong("config", "an object");
  launch.config = *config;
  const auto nodes = from.find("nodes");
  TITAN_RETURN_IF_ERROR(read_nodes(nodes == from.end() ? json() : *nodes, launch.ranks));
  return launch;
}

absl::StatusOr<Launch> read_launch(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return errno_status(errno, absl::StrCat("open launch file ", path));
  std::stringstream text;
  text << file.rdbuf();
  if (file.bad()) return errno_status(EIO, absl::StrCat("read launch file ", path));
  const json parsed = json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return absl::InvalidArgumentError(absl::StrCat("launch file ", path, " is not JSON"));
  absl::StatusOr<Launch> launch = launch_from_json(parsed);
  if (!launch.ok()) return annotate(launch.status(), path);
  return launch;
}

}  // namespace titan::rank_protocol
