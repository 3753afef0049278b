#include "worker/node/daemon/run_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "common/base/status/status.h"
#include "common/base/text/utf8.h"
#include "common/rank_protocol/failed_ranks.h"
#include "common/rank_protocol/spool.h"
#include "worker/node/core/launch_facts.h"
#include "worker/node/daemon/shim_link.h"
#include "worker/node/shim/log_file.h"
#include "worker/node/shim/process.h"
#include "worker/node/shim/spec.h"

namespace titan::daemon {
namespace {

using nlohmann::json;
using node::ShimLookup;
using rank_protocol::RankExit;

// Returns the last line that the shim printed, which says why it could not start.
std::string last_shim_log_line(const std::string& run_folder) {
  const absl::StatusOr<std::string> text = host::read_file(run_folder + "/shim.log");
  if (!text.ok()) return "no message";
  const size_t end = text->find_last_not_of('\n');
  if (end == std::string::npos) return "no message";
  const size_t before = text->rfind('\n', end);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  return text::valid_utf8(text->substr(begin, end + 1 - begin));
}

// Returns a member; 0 if it is missing, -1 if it is not an integer.
int64_t integer_of(const json& from, const char* member) {
  const auto found = from.find(member);
  if (found == from.end()) return 0;
  return found->is_number_integer() ? found->get<int64_t>() : -1;
}

}  // namespace

std::string text_of(const absl::Status& status) { return text::valid_utf8(std::string(status.message())); }

node::ShimStatus status_from_json(const json& from) {
  node::ShimStatus status;
  status.pid = from.value("pid", int64_t{0});
  status.start_ticks = from.value("start_ticks", int64_t{0});
  status.boot = from.value("boot_id", "");
  status.ended = from.value("state", "") == "ended";
  status.store_port = from.value("store_port", 0);
  for (const json& item : from.value("ranks", json::array())) {
    if (!item.is_object()) continue;
    node::ReportedRank& rank = status.ranks.emplace_back();
    rank.rank = item.value("rank", -1);
    rank.pid = item.value("pid", int64_t{0});
    rank.start_ticks = item.value("start_ticks", int64_t{0});
    rank.running = item.value("running", false);
    if (!item.contains("exit")) continue;
    absl::StatusOr<RankExit> exit = rank_protocol::exit_from_json(item["exit"]);
    if (exit.ok()) rank.exit = *std::move(exit);
  }
  return status;
}

absl::StatusOr<std::optional<node::ShimStatus>> last_status(const std::string& run_folder) {
  const absl::StatusOr<std::string> text = host::read_file(run_folder + "/shim.json");
  if (absl::IsNotFound(text.status())) return std::nullopt;
  if (!text.ok()) return text.status();
  const json state = json::parse(*text, nullptr, false);
  if (!state.is_object()) return std::nullopt;
  try {
    return status_from_json(state);
  } catch (const json::exception& error) {
    return absl::DataLossError(absl::StrCat(run_folder, "/shim.json: ", error.what()));
  }
}

absl::StatusOr<bool> shim_lives(const std::string& run_folder) {
  absl::Status unknown;
  const absl::StatusOr<std::optional<node::ShimStatus>> status = last_status(run_folder);
  if (!status.ok()) unknown = status.status();
  if (status.ok() && *status && (*status)->boot == shim::boot_id()) {
    const absl::StatusOr<char> state = shim::process_state(static_cast<pid_t>((*status)->pid), (*status)->start_ticks);
    if (state.ok() && *state != 0) return true;
    if (!state.ok()) unknown = state.status();
  }
  TITAN_ASSIGN_OR_RETURN(const bool held, shim_holds(run_folder));
  if (!held && !unknown.ok()) return unknown;
  return held;
}

node::ShimLookup find_shim(const std::string& run_folder) {
  ShimLookup found;
  const absl::StatusOr<bool> lives = shim_lives(run_folder);
  if (!lives.ok()) {
    found.why = text_of(lives.status());
    return found;
  }
  if (*lives) {
    found.state = ShimLookup::State::kSilent;
    return found;
  }
  absl::StatusOr<std::optional<node::ShimStatus>> status = last_status(run_folder);
  if (!status.ok()) {
    found.why = text_of(status.status());
    return found;
  }
  found.state = ShimLookup::State::kGone;
  found.why = last_shim_log_line(run_folder);
  found.status = *std::move(status);
  found.exits = shim::read_exits(run_folder).value_or(std::vector<RankExit>());
  return found;
}

std::string group_of(const std::string& run_folder) {
  const absl::StatusOr<std::string> text = host::read_file(run_folder + "/spec.json");
  const absl::StatusOr<shim::Spec> spec =
      text.ok() ? shim::spec_from_json(json::parse(*text, nullptr, false)) : text.status();
  return spec.ok() ? spec->group.folder : "";
}

node::RanksChecked check_ranks(const node::CheckRanks& look, const std::string& run_folder,
                               const std::string& rank_folder) {
  node::RanksChecked seen;
  seen.op = look.op;
  seen.same_boot = look.boot == shim::boot_id();
  if (seen.same_boot) {
    if (look.kill_left) {
      const auto killed = shim::kill_marked(absl::StrCat(shim::kRunFolderVariable, "=", run_folder));
      if (!killed.ok()) seen.unknown = text_of(killed.status());
      // Also kills processes that changed their environment.
      if (const std::string group = group_of(run_folder); !group.empty()) (void)shim::kill_group(group);
    }
    for (const node::ReportedRank& rank : look.ranks) {
      if (rank.pid <= 0) continue;
      const absl::StatusOr<char> state = shim::process_state(static_cast<pid_t>(rank.pid), rank.start_ticks);
      if (!state.ok()) seen.unknown = text_of(state.status());
      if (state.ok() && *state != 0) seen.alive.push_back({rank.rank, rank.pid, *state});
    }
  }
  if (!seen.alive.empty() || !seen.unknown.empty()) return seen;
  absl::StatusOr<std::vector<RankExit>> exits = shim::read_exits(run_folder, &seen.exits_damage);
  if (exits.ok()) {
    seen.exits = *std::move(exits);
  } else {
    seen.exits_unknown = text_of(exits.status());
  }
  for (const node::ReportedRank& rank : look.ranks) {
    const bool recorded = std::any_of(seen.exits.begin(), seen.exits.end(),
                                      [&rank](const RankExit& exit) { return exit.rank == rank.rank; });
    if (!recorded && !rank.exit) seen.last_words[rank.rank] = shim::last_error(rank_folder, rank.rank);
  }
  return seen;
}

node::LogTailRead log_tail(const std::string& run_folder, int rank) {
  node::LogTailRead tail;
  const absl::StatusOr<shim::LogChunk> end =
      shim::read_log(rank_protocol::log_path(run_folder, rank), /*offset=*/-1, rank_protocol::kFailedLogLines,
                     rank_protocol::kFailedLogBytes);
  if (!end.ok()) return tail;
  tail.text = rank_protocol::failed_log(end->data);
  tail.offset = end->offset + std::max<int64_t>(0, static_cast<int64_t>(end->data.size() - tail.text.size()));
  return tail;
}

node::LaunchFacts facts_of(const rank_protocol::Launch& launch, const std::string& launch_file) {
  node::LaunchFacts facts = node::facts_of(launch);
  struct stat file {};
  if (::stat(launch_file.c_str(), &file) == 0) {
    facts.start_unix_nanos = int64_t{file.st_mtim.tv_sec} * 1'000'000'000 + file.st_mtim.tv_nsec;
  }
  return facts;
}

node::LaunchFacts read_facts(const std::string& run_folder) {
  const std::string path = run_folder + "/launch.json";
  const absl::StatusOr<rank_protocol::Launch> launch = rank_protocol::read_launch(path);
  if (launch.ok()) return facts_of(*launch, path);
  return {};
}

absl::Status save_places(const std::string& run_folder, const std::map<int, node::SpoolTail::Place>& places) {
  json saved = json::object();
  for (const auto& [rank, place] : places) {
    saved[absl::StrCat(rank)] = {{"offset", place.offset}, {"sequence", place.sequence}};
  }
  return host::replace_file(run_folder + "/offsets.json", saved.dump());
}

std::map<int, node::SpoolTail::Place> load_places(const std::string& run_folder, std::string* damage) {
  std::map<int, node::SpoolTail::Place> places;
  const std::string path = run_folder + "/offsets.json";
  const absl::StatusOr<std::string> text = host::read_file(path);
  json saved = text.ok() ? json::parse(*text, nullptr, false) : json();
  bool is_whole = saved.is_object() || absl::IsNotFound(text.status());
  if (!saved.is_object()) saved = json::object();
  for (const auto& [rank, place] : saved.items()) {
    int number = 0;
    const bool is_place = place.is_object() && absl::SimpleAtoi(rank, &number);
    const int64_t offset = is_place ? integer_of(place, "offset") : -1;
    const int64_t sequence = is_place ? integer_of(place, "sequence") : -1;
    if (offset >= 0 && sequence >= 0) {
      places[number] = {offset, sequence};
    } else {
      is_whole = false;
    }
  }
  if (!is_whole && damage != nullptr) {
    *damage = absl::StrCat(path, " is damaged: events of ranks without a valid position in it are sent again");
  }
  return places;
}

// Returns a description if the file exists but does not contain a JSON object.
std::string damage_of(const std::string& path, absl::string_view then) {
  const absl::StatusOr<std::string> text = host::read_file(path);
  if (absl::IsNotFound(text.status()) || (text.ok() && json::parse(*text, nullptr, false).is_object())) return "";
  return absl::StrCat(path, " is damaged: ", then);
}

node::RecoveredAttempt look_at(const node::AttemptRecord& record, const std::string& run_folder) {
  node::RecoveredAttempt found;
  found.record = record;
  std::string places, exits;
  found.places = load_places(run_folder, &places);
  found.facts = read_facts(run_folder);
  found.exits = shim::read_exits(run_folder, &exits).value_or(std::vector<RankExit>());
  for (const std::string& damage :
       {places, damage_of(run_folder + "/shim.json", "the lock that its shim holds shows whether the shim is alive"),
        damage_of(run_folder + "/launch.json", "a controller that does not know the job cannot learn its name here")}) {
    if (!damage.empty()) found.damage.push_back(damage);
  }
  found.exits_damage = exits;
  const absl::StatusOr<bool> lives = shim_lives(run_folder);
  if (lives.ok()) found.shim = *lives ? node::RecoveredAttempt::Shim::kAlive : node::RecoveredAttempt::Shim::kGone;
  const absl::StatusOr<std::optional<node::ShimStatus>> status = last_status(run_folder);
  if (status.ok()) found.status = *status;
  if (!status.ok()) found.shim = node::RecoveredAttempt::Shim::kUnknown;
  return found;
}

}  // namespace titan::daemon
