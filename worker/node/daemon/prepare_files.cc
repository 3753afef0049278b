#include "worker/node/daemon/prepare_files.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/host/descriptor.h"
#include "common/base/host/file_io.h"
#include "common/base/host/file_mask.h"
#include "common/base/status/status.h"
#include "common/io/storage/fence.h"
#include "common/io/storage/folder_id.h"
#include "common/rank_protocol/launch.h"
#include "common/rank_protocol/rank_files.h"
#include "common/rank_protocol/spool.h"
#include "worker/node/daemon/attempt_json.h"
#include "worker/node/daemon/rank_user.h"
#include "worker/node/daemon/run_folder.h"
#include "worker/node/shim/process.h"
#include "worker/node/shim/sockets.h"

namespace titan::daemon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr absl::string_view kTokenPrefix = ".titan-token-";
constexpr absl::Duration kLockTimeout = absl::Seconds(30);  // The same as for publishing.
constexpr char kSpins[] = "1000";
constexpr char kLoopback[] = "127.0.0.1";
constexpr char kNcclInterface[] = "NCCL_SOCKET_IFNAME";
constexpr char kPluginFolders[] = "TITAN_RANK_PLUGIN_FOLDERS";  // worker/rank/model/plugin.cc
constexpr int64_t kLookAgainNanos = 50'000'000;

// Returns a name with job and attempt, so that two jobs that prepare in one folder do not overwrite each other's token.
std::string token_name(const AttemptKey& key) { return absl::StrCat(kTokenPrefix, key.job_uid, "-", key.number); }

std::string token_path(const AttemptRecord& record) {
  return absl::StrCat(record.dump_folder, "/", token_name(record.key));
}

// Reads at most one byte more than the token's length, because users can write to this file.
absl::StatusOr<std::string> read_token(const AttemptRecord& record, const std::optional<shim::RankUser>& user) {
  const AsUser as(user);
  return rank_protocol::read_rank_file(token_path(record), record.token.size() + 1);
}

Refusal refusal(const char* reason, const absl::Status& status) { return {reason, std::string(status.message())}; }

// Removes tokens of this job's older attempts, and of jobs that have lost the folder for good.
void remove_old_tokens(const AttemptRecord& record) {
  const auto holder = storage::Fence(record.dump_folder).holder();
  const auto is_old = [&](const std::string& name) {
    const size_t dash = name.rfind('-');
    const std::string job = name.substr(0, dash);
    if (job == absl::StrCat(kTokenPrefix, record.key.job_uid)) {
      // Keep a newer attempt's token: this attempt may have been given up while it waited for its storage.
      int number = 0;
      return dash != std::string::npos && absl::SimpleAtoi(name.substr(dash + 1), &number) &&
             number < record.key.number;
    }
    return holder.ok() && job.size() > kTokenPrefix.size() && holder->former.contains(job.substr(kTokenPrefix.size()));
  };
  std::error_code error;
  for (const auto& item : fs::directory_iterator(record.dump_folder, error)) {
    const std::string name = item.path().filename().string();
    std::error_code ignored;
    if (absl::StartsWith(name, kTokenPrefix) && is_old(name)) fs::remove(item.path(), ignored);
  }
}

// Compares the folder with the one of earlier attempts. If none is known, accepts an existing folder or creates one.
Refusal settle_folder(const AttemptRecord& record, int64_t committed_step, std::string& folder_id) {
  storage::Files& files = storage::posix_files();
  if (record.folder_id.empty()) {
    absl::StatusOr<std::string> settled = storage::ensure_folder_id(files, record.dump_folder, kLockTimeout);
    if (!settled.ok()) {
      return {"DUMP_FOLDER_UNUSABLE", absl::StrCat("the dump folder ", record.dump_folder,
                                                   " (job.dump_folder): ", std::string(settled.status().message()))};
    }
    folder_id = *std::move(settled);
    return {};
  }
  const absl::StatusOr<storage::FolderComparison> is =
      storage::compare_folder(files, record.dump_folder, record.folder_id);
  if (!is.ok()) return refusal("DUMP_FOLDER_UNUSABLE", is.status());
  if (*is != storage::FolderComparison::kSame) {
    return {storage::folder_mismatch_reason(*is),
            storage::folder_mismatch_message(*is, record.dump_folder, committed_step)};
  }
  folder_id = record.folder_id;
  return {};
}

Refusal make_dump_folder(const AttemptRecord& record, int64_t committed_step, std::string& folder_id) {
  if (Refusal lost = settle_folder(record, committed_step, folder_id)) return lost;
  remove_old_tokens(record);
  const absl::Status written = host::replace_file(token_path(record), record.token, /*durable=*/false, 0666);
  if (!written.ok()) {
    return {"DUMP_FOLDER_UNUSABLE",
            absl::StrCat("cannot write to the dump folder ", record.dump_folder, ": ", std::string(written.message()))};
  }
  return {};
}

// Creates empty spools before the ranks start, so that they can be watched from the beginning.
absl::Status make_spools(const AttemptRecord& record, const std::string& folder) {
  for (const int rank : record.ranks) {
    const std::string path = rank_protocol::spool_path(folder, rank);
    const host::Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!fd) return errno_status(errno, absl::StrCat("create ", path));
  }
  return absl::OkStatus();
}

// Chooses the addresses on which this node's ranks listen. An attempt on one node uses the loopback.
void choose_addresses(const AttemptRecord& record, rank_protocol::Launch& launch, shim::Spec& spec) {
  spec.alone = record.ranks.size() == launch.ranks.size();
  if (spec.alone && !shim::is_loopback(spec.address)) spec.address = kLoopback;
  if (spec.alone) {
    for (rank_protocol::RankPlacement& place : launch.ranks) place.host = spec.address;
  }
  if (std::getenv(kNcclInterface) != nullptr) return;
  const std::string interface = shim::interface_of(spec.alone ? kLoopback : spec.address);
  if (!interface.empty()) spec.environment[kNcclInterface] = "=" + interface;  // "=" requires an exact match.
}

// Refuses a leader address that is the loopback on this host, as Debian's /etc/hosts defines it for a machine's own
// name. On the other nodes it would mean themselves.
Refusal check_reachable(const AttemptRecord& record, const rank_protocol::Launch& launch, const shim::Spec& spec) {
  if (!record.leader || spec.alone || !shim::is_loopback(spec.address)) return {};
  for (const rank_protocol::RankPlacement& place : launch.ranks) {
    if (place.host == launch.ranks[0].host || shim::is_loopback(place.host)) continue;
    return {"ADDRESS_IS_LOOPBACK",
            absl::StrCat("ranks on node ", place.node, " (", place.host, ") could not reach the store on node ",
                         launch.ranks[0].node, ": its address, ", spec.address,
                         ", means the machine itself there. Start its titan-worker with --address and an IP address "
                         "that the others reach, or give the name one in /etc/hosts")};
  }
  return {};
}

absl::Status write_run_files(const AttemptRecord& record, const std::string& run_folder, const std::string& launch_json,
                             const shim::Spec& spec) {
  TITAN_RETURN_IF_ERROR(host::replace_file(run_folder + "/launch.json", launch_json));
  json text = shim::to_json(spec);
  text["record"] = daemon::to_json(record);  // For a daemon that finds attempt.json damaged.
  TITAN_RETURN_IF_ERROR(host::replace_file(run_folder + "/spec.json", text.dump(1)));
  if (!spec.user) return make_spools(record, run_folder);
  const AsUser as(spec.user);
  absl::Status status = host::replace_file(spec.rank_folder + "/launch.json", launch_json);
  if (status.ok()) status = make_spools(record, spec.rank_folder);
  if (!absl::IsPermissionDenied(status)) return status;
  return absl::PermissionDeniedError(absl::StrCat("user ", spec.user->name, " cannot reach their files (",
                                                  status.message(),
                                                  "): put --state below folders that all users may traverse"));
}

// Returns the launch as ranks read it, with only their own node's address. A newer worker reads this file, too.
json for_ranks(const AttemptRecord& record, const rank_protocol::Launch& launch) {
  return to_folded_json(launch, record.ranks.empty() ? "" : launch.ranks[record.ranks[0]].node);
}

// Returns an empty object for an invalid launch file; the complete parse reports what is wrong.
json config_of(const std::string& launch_json) {
  const json launch = json::parse(launch_json, nullptr, false);
  return launch.is_object() ? launch.value("config", json::object()) : json::object();
}

// Returns job.umask, which the ranks apply as well.
std::optional<mode_t> umask_of(const json& launch) {
  const json::json_pointer at("/config/job/umask");
  const json mask = launch.contains(at) ? launch.at(at) : json();
  return host::parse_umask(mask.is_string() ? mask.get<std::string>() : "");
}

Refusal name_submitting_user(Refusal refusal, const std::optional<shim::RankUser>& user) {
  if (refusal && user) absl::StrAppend(&refusal.message, " (as user ", user->name, ", the submitting user)");
  return refusal;
}

}  // namespace

Prepared prepare_files(const AttemptRecord& record, const std::string& run_folder, const std::string& launch_json,
                       shim::Spec spec, const std::string& visible_devices, const std::string& host) {
  const json json_of_launch = json::parse(launch_json, nullptr, false);
  absl::StatusOr<rank_protocol::Launch> launch = rank_protocol::launch_from_json(json_of_launch);
  if (!launch.ok()) return {refusal("BAD_LAUNCH", launch.status()), "", {}};
  for (const int rank : record.ranks) {
    if (rank < 0 || rank >= static_cast<int>(launch->ranks.size())) {
      const std::string why =
          absl::StrCat("rank ", rank, " is not one of the launch's ", launch->ranks.size(), " ranks");
      return {{"BAD_LAUNCH", why}, "", {}};
    }
    rank_protocol::RankPlacement& place = launch->ranks[rank];
    if (place.host.empty()) place.host = host;
  }
  spec.world = static_cast<int>(launch->ranks.size());
  choose_addresses(record, *launch, spec);
  if (Refusal unreachable = check_reachable(record, *launch, spec)) return {std::move(unreachable), "", {}};
  const std::string threads = absl::StrCat(launch->threads_per_rank);
  spec.environment["OMP_NUM_THREADS"] = threads;
  spec.environment["MKL_NUM_THREADS"] = threads;
  // Long OpenMP spinning makes ranks 30 times slower when other processes share the cores.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr) {
    spec.environment["GOMP_SPINCOUNT"] = kSpins;
  }
  if (!visible_devices.empty()) spec.environment["CUDA_VISIBLE_DEVICES"] = visible_devices;
  const absl::Status written = write_run_files(record, run_folder, for_ranks(record, *launch).dump(), spec);
  if (!written.ok()) return {refusal("STATE_FOLDER_UNUSABLE", written), "", {}};
  Prepared prepared;
  prepared.facts = facts_of(*launch, run_folder + "/launch.json");
  if (record.leader && !record.dump_folder.empty()) {
    const AsUser as(spec.user);
    const host::FileMask mask(umask_of(json_of_launch));
    prepared.refusal =
        name_submitting_user(make_dump_folder(record, launch->committed_step, prepared.folder_id), spec.user);
  }
  return prepared;
}

Prepared prepare_as(const StateFolder& state, const AttemptRecord& record, const std::string& launch_json,
                    shim::Spec spec, const std::string& visible_devices, const std::string& everybody,
                    const Grants& grants, const std::string& host) {
  RanksAs as = ranks_as(record, everybody, ::geteuid());
  if (as.refusal) return {as.refusal, "", {}};
  if (as.user) {
    const absl::StatusOr<std::string> folder = state.make_rank_folder(record.key, as.user->uid, as.user->gid);
    if (!folder.ok()) return {refusal("STATE_FOLDER_UNUSABLE", folder.status()), "", {}};
    spec.rank_folder = *folder;
    spec.environment["HOME"] = as.user->home;
    spec.environment["USER"] = spec.environment["LOGNAME"] = as.user->name;
    spec.user = as.user;
  }
  const auto folders = plugin_folders(grants);
  if (folders) spec.environment[kPluginFolders] = absl::StrJoin(*folders, ":");
  const json config = folders ? config_of(launch_json) : json::object();  // Used only to look for a library.
  const auto allowed = [&] {
    const AsUser user(as.user);
    return name_submitting_user(check_folders(record, config, grants), as.user);
  };
  if (Refusal refused = allowed()) return {refused, "", {}};
  Prepared prepared =
      prepare_files(record, state.run_folder(record.key), launch_json, std::move(spec), visible_devices, host);
  // Check again: a component of the path may have been replaced meanwhile.
  if (!prepared.refusal) prepared.refusal = allowed();
  if (prepared.refusal.reason == kNotAllowed) discard_token(record, as.user);
  return prepared;
}

void discard_token(const AttemptRecord& record, const std::optional<shim::RankUser>& user) {
  if (!record.leader || record.dump_folder.empty()) return;
  const AsUser as(user);
  std::error_code ignored;
  fs::remove(token_path(record), ignored);
}

Refusal check_token(const AttemptRecord& record, const std::string& run_folder, double timeout_seconds,
                    const std::optional<shim::RankUser>& user) {
  if (record.dump_folder.empty() || record.token.empty()) return {};
  const int64_t deadline = shim::monotonic_nanos() + static_cast<int64_t>(timeout_seconds * 1e9);
  absl::StatusOr<std::string> seen;
  for (;;) {
    seen = read_token(record, user);
    if (seen.ok() && *seen == record.token) return {};
    if (shim::monotonic_nanos() >= deadline) break;
    // A network file system has no change notifications, so polling is the only way.
    const timespec pause{0, kLookAgainNanos};
    ::nanosleep(&pause, nullptr);
  }
  const absl::StatusOr<rank_protocol::Launch> launch = rank_protocol::read_launch(run_folder + "/launch.json");
  const std::string leader = launch.ok() ? launch->ranks[0].node : "the leader";
  return {"DUMP_FOLDER_NOT_SHARED",
          absl::StrCat("the dump folder ", record.dump_folder, " is not the same on all nodes: the token that node ",
                       leader, " wrote there is ", seen.ok() ? "different here" : "missing here",
                       ". Put job.dump_folder on storage that all nodes of the job share")};
}

}  // namespace titan::daemon
