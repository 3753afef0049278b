#include "worker/daemon/prepare_files.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/rank_protocol/launch.h"
#include "common/rank_protocol/spool.h"
#include "common/status/status.h"
#include "worker/shim/files.h"
#include "worker/shim/process.h"

namespace titan::daemon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kTokenPrefix[] = ".titan-token-";
constexpr char kSpins[] = "1000";
constexpr int64_t kLookAgainNanos = 50'000'000;

std::string token_path(const AttemptRecord& record) {
  return absl::StrCat(record.dump_folder, "/", kTokenPrefix, record.key.number);
}

Refusal refusal(const char* reason, const absl::Status& status) { return {reason, std::string(status.message())}; }

Refusal make_dump_folder(const AttemptRecord& record) {
  std::error_code error;
  fs::create_directories(record.dump_folder, error);
  if (error) {
    return {"DUMP_FOLDER_UNUSABLE", absl::StrCat("cannot create the dump folder ", record.dump_folder, ": ",
                                                 error.message(), " (job.dump_folder)")};
  }
  for (const auto& item : fs::directory_iterator(record.dump_folder, error)) {  // Tokens of older attempts.
    const std::string name = item.path().filename().string();
    std::error_code ignored;
    if (name.rfind(kTokenPrefix, 0) != 0) continue;
    if (std::atoi(name.c_str() + sizeof(kTokenPrefix) - 1) < record.key.number) fs::remove(item.path(), ignored);
  }
  const absl::Status written = shim::write_file(token_path(record), record.token);
  if (!written.ok()) {
    return {"DUMP_FOLDER_UNUSABLE",
            absl::StrCat("cannot write to the dump folder ", record.dump_folder, ": ", std::string(written.message()))};
  }
  return {};
}

// Empty spools exist before the ranks, so that they can be watched from the start.
absl::Status make_spools(const AttemptRecord& record, const std::string& run_folder) {
  for (const int rank : record.ranks) {
    const std::string path = rank_protocol::spool_path(run_folder, rank);
    const shim::Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!fd) return errno_status(errno, absl::StrCat("create ", path));
  }
  return absl::OkStatus();
}

absl::Status write_run_files(const AttemptRecord& record, const std::string& run_folder, const std::string& launch_json,
                             const shim::Spec& spec) {
  TITAN_RETURN_IF_ERROR(shim::write_file(run_folder + "/launch.json", launch_json));
  TITAN_RETURN_IF_ERROR(shim::write_file(run_folder + "/spec.json", to_json(spec).dump(1)));
  return make_spools(record, run_folder);
}

}  // namespace

Refusal prepare_files(const AttemptRecord& record, const std::string& run_folder, const std::string& launch_json,
                      shim::Spec spec, const std::string& visible_devices) {
  const absl::StatusOr<rank_protocol::Launch> launch =
      rank_protocol::launch_from_json(json::parse(launch_json, nullptr, false));
  if (!launch.ok()) return refusal("BAD_LAUNCH", launch.status());
  for (const int rank : record.ranks) {
    if (rank >= 0 && rank < static_cast<int>(launch->ranks.size())) continue;
    return {"BAD_LAUNCH", absl::StrCat("rank ", rank, " is not in the rank table of ", launch->ranks.size())};
  }
  spec.world = static_cast<int>(launch->ranks.size());
  const std::string threads = absl::StrCat(launch->threads_per_rank);
  spec.environment["OMP_NUM_THREADS"] = threads;
  spec.environment["MKL_NUM_THREADS"] = threads;
  // OpenMP threads that wait by spinning for long make ranks 30 times slower when other processes share the cores.
  if (std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr) {
    spec.environment["GOMP_SPINCOUNT"] = kSpins;
  }
  if (!visible_devices.empty()) spec.environment["CUDA_VISIBLE_DEVICES"] = visible_devices;
  const absl::Status written = write_run_files(record, run_folder, launch_json, spec);
  if (!written.ok()) return refusal("STATE_FOLDER_UNUSABLE", written);
  if (record.leader && !record.dump_folder.empty()) return make_dump_folder(record);
  return {};
}

Refusal check_token(const AttemptRecord& record, const std::string& run_folder, double patience_seconds) {
  if (record.dump_folder.empty() || record.token.empty()) return {};
  const int64_t deadline = shim::monotonic_nanos() + static_cast<int64_t>(patience_seconds * 1e9);
  absl::StatusOr<std::string> seen;
  for (;;) {
    seen = shim::read_file(token_path(record));
    if (seen.ok() && *seen == record.token) return {};
    if (shim::monotonic_nanos() >= deadline) break;
    // A network file system has no change notices: looking again is all one can do.
    const timespec pause{0, kLookAgainNanos};
    ::nanosleep(&pause, nullptr);
  }
  const absl::StatusOr<rank_protocol::Launch> launch = rank_protocol::read_launch(run_folder + "/launch.json");
  const std::string leader = launch.ok() ? launch->ranks[0].node : "the leader";
  return {"DUMP_FOLDER_NOT_SHARED",
          absl::StrCat("the dump folder ", record.dump_folder, " is not the same on all nodes: the token that node ",
                       leader, " wrote there is ", seen.ok() ? "another one here" : "not here",
                       ". Put job.dump_folder on storage that all nodes of the job share")};
}

}  // namespace titan::daemon
