#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"

namespace titan::runtime {

// titan-rank's command line.
struct CommandLineOptions {
  std::string config_file;
  std::optional<int> rank;
  std::optional<int> world;
  std::optional<int> local_rank;   // Among the ranks of this node, if the ranks are on several nodes.
  std::optional<int> local_world;  // Number of ranks on this node.
  std::string host;                // Address at which ranks of other nodes reach this one.
  std::string store;               // HOST:PORT
  std::string run_folder;
  std::optional<int> listen_fd;
  std::vector<std::string> overrides;  // --section.key words, only without a launch file.
  bool json = false;                   // A dry run prints its result as JSON.
  bool help = false;
  bool version = false;
};

extern const char kUsage[];

// Parses the words of the command line. InvalidArgument names the wrong word.
absl::StatusOr<CommandLineOptions> parse_options(const std::vector<std::string>& words);

// How the ranks of a job communicate: comm.mode.
enum class CommMode {
  kProcesses,     // "default": each rank is a process.
  kLocalThreads,  // "local_tensor": all ranks are threads of this process.
  kDryRun,        // "fake_backend": there is only one rank, and nothing is computed.
};

// The work of this rank, from a launch file, or from a job configuration if started by hand.
struct RankJob {
  config::JobConfig config;  // Valid and resolved for `world` ranks.
  std::vector<std::string> warnings;
  std::string job_uid;
  std::string job;  // Full name, for messages; empty without a control plane.
  CommMode mode = CommMode::kProcesses;
  int attempt = 0;  // 0: started by hand. Rank 0 then takes over the dump folder's fence with the next number.
  int rank = 0;
  int world = 1;
  int local_rank = 0;   // Index among the job's ranks on this node.
  int local_ranks = 1;  // Number of these ranks.
  std::string host = "127.0.0.1";
  int threads = 1;
  std::string run_folder;
  std::string store_host = "127.0.0.1";
  int store_port = 0;
  std::optional<int> listen_fd;
  int64_t committed_step = -1;  // Launch::committed_step.
  std::string folder_id;        // Launch::folder_id.
};

// Reads and checks the job. Errors: InvalidArgument, NotFound and others, each of which names the file and the key or
// flag.
absl::StatusOr<RankJob> read_job(const CommandLineOptions& options);

}  // namespace titan::runtime
