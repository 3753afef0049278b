#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"

namespace titan::runtime {

// titan-rank's command line.
struct Options {
  std::string config_file;
  std::optional<int> rank;
  std::optional<int> world;
  std::optional<int> local_rank;   // Among the ranks of this node, when they are on several.
  std::optional<int> local_world;  // How many these are.
  std::string host;                // Where ranks of other nodes reach this one.
  std::string store;               // HOST:PORT
  std::string run_folder;
  std::optional<int> listen_fd;
  std::vector<std::string> overrides;  // --section.key words, stand-alone only.
  bool json = false;                   // A dry run prints its result as JSON.
  bool help = false;
  bool version = false;
};

extern const char kUsage[];

// Errors: InvalidArgument naming the word.
absl::StatusOr<Options> parse_options(const std::vector<std::string>& words);

// How the ranks of a job reach each other: comm.mode.
enum class CommMode {
  kProcesses,     // "default": each is a process.
  kLocalThreads,  // "local_tensor": all are threads of this process.
  kDryRun,        // "fake_backend": there is one rank and no other; nothing is computed.
};

// What this rank is to do: from a launch file, or from a job configuration when started by hand.
struct RankJob {
  config::JobConfig config;  // Valid and resolved for `world` ranks.
  std::vector<std::string> warnings;
  std::string job_uid;
  std::string job;  // Full name, for messages; empty without a control plane.
  CommMode mode = CommMode::kProcesses;
  int attempt = 0;  // 0: by hand; rank 0 takes the dump folder's fence over with the next number.
  int rank = 0;
  int world = 1;
  int local_rank = 0;   // Among the job's ranks on this node:
  int local_ranks = 1;  // so many.
  std::string host = "127.0.0.1";
  int threads = 1;
  std::string run_folder;
  std::string store_host = "127.0.0.1";
  int store_port = 0;
  std::optional<int> listen_fd;
  int64_t committed_step = -1;  // See Launch.
  std::string folder_id;        // See Launch.
};

// Errors: InvalidArgument, NotFound and others, each naming the file and key or flag.
absl::StatusOr<RankJob> read_job(const Options& options);

}  // namespace titan::runtime
