#include "worker/rank/runtime/options.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/base/text/home.h"
#include "common/base/text/quantities.h"
#include "common/plan/config/assets.h"
#include "common/plan/config/json.h"
#include "common/plan/config/load.h"
#include "common/plan/config/validate.h"
#include "common/rank_protocol/launch.h"

namespace titan::runtime {

const char kUsage[] =
    "titan-rank: trains as one rank of a job\n"
    "\n"
    "  titan-rank --config FILE [--rank R --world N --store HOST:PORT] [flags] [--section.key value ...]\n"
    "\n"
    "  --config FILE      a job configuration (.toml, .yaml, .json), or the launch file of an attempt\n"
    "  --rank R           this rank, from 0 (default 0)\n"
    "  --world N          number of ranks (default: the launch file's; with comm.mode local_tensor or\n"
    "                     fake_backend resources.ranks; otherwise 1)\n"
    "  --store HOST:PORT  the rendezvous store's address; rank 0 listens on it\n"
    "  --local-rank L     this rank among those of its node, from 0: its GPU (default LOCAL_RANK, or --rank)\n"
    "  --local-world M    number of ranks on this node (default LOCAL_WORLD_SIZE, or --world)\n"
    "  --host ADDRESS     this rank's address for ranks of other nodes (default 127.0.0.1)\n"
    "  --listen-fd FD     rank 0 only: listen on this inherited socket instead\n"
    "  --run-dir DIR      for events, beacon and ledger (default: the launch file's folder, or {dump_folder}/run)\n"
    "  --json             a dry run (comm.mode fake_backend) prints its result as JSON\n"
    "  --version          version and revision; followed by --verbose, also what the program was built with\n"
    "  --help             this text\n"
    "\n"
    "Without a launch file, any key of the configuration can be set: --training.steps 20 --checkpoint.enable\n";

namespace {

absl::StatusOr<int> number(const std::string& flag, const std::string& text, int least) {
  int parsed = 0;
  if (!absl::SimpleAtoi(text, &parsed) || parsed < least) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": \"", text, "\" is not an integer of ", least, " or more"));
  }
  return parsed;
}

// Returns a flag's value, or that of the variable that torchrun sets for its processes.
absl::StatusOr<std::optional<int>> flag_or_variable(std::optional<int> flag, const char* variable, int least) {
  const char* text = std::getenv(variable);
  if (flag || text == nullptr) return flag;
  TITAN_ASSIGN_OR_RETURN(const int value, number(variable, text, least));
  return std::optional(value);
}

// All ranks are on one node unless the user states this rank's place.
absl::Status place_by_hand(const CommandLineOptions& options, RankJob& job) {
  job.local_rank = job.rank;
  job.local_ranks = job.world;
  if (job.mode != CommMode::kProcesses) return absl::OkStatus();  // One process is all ranks, or the only rank.
  TITAN_ASSIGN_OR_RETURN(const std::optional<int> rank, flag_or_variable(options.local_rank, "LOCAL_RANK", 0));
  TITAN_ASSIGN_OR_RETURN(const std::optional<int> world, flag_or_variable(options.local_world, "LOCAL_WORLD_SIZE", 1));
  job.local_rank = rank.value_or(job.rank);
  job.local_ranks = world.value_or(rank ? std::max(*rank + 1, 1) : job.world);
  if (job.local_ranks > job.world) {
    return absl::InvalidArgumentError(absl::StrCat("--local-world ", job.local_ranks, ": the job has ",
                                                   counted(job.world, "rank"), " in all (--world)"));
  }
  if (job.local_rank >= job.local_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--local-rank ", job.local_rank, ": this node has ", counted(job.local_ranks, "rank"),
                     world ? " (--local-world)" : "; ranks of several nodes need --local-rank"));
  }
  if (!options.host.empty()) job.host = options.host;
  return absl::OkStatus();
}

absl::Status parse_store(const std::string& store, RankJob& job) {
  if (store.empty()) return absl::OkStatus();
  const size_t colon = store.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--store: \"", store, "\" is not HOST:PORT"));
  }
  job.store_host = store.substr(0, colon);
  TITAN_ASSIGN_OR_RETURN(job.store_port, number("--store", store.substr(colon + 1), 1));
  if (job.store_port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("--store: \"", store, "\": the largest port is 65535"));
  }
  return absl::OkStatus();
}

// A launch file is JSON with a rank table. A job configuration has none.
bool is_launch_file(const std::string& path) {
  if (!absl::EndsWith(path, ".json")) return false;
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("config") && (json.contains("ranks") || json.contains("nodes"));
}

int usable_cores() { return std::max(1U, std::thread::hardware_concurrency()); }

CommMode mode_of(const config::JobConfig& config) {
  if (config.comm.mode == "local_tensor") return CommMode::kLocalThreads;
  if (config.comm.mode == "fake_backend" || config.memory_estimation.enable) return CommMode::kDryRun;
  return CommMode::kProcesses;
}

// A job may have been submitted before seeds were drawn and before a whole validation pass by chunks was rejected. It
// continues with the settings with which it began.
void keep_older_meaning(config::JobConfig& config) {
  if (!config.debug.seed) config.debug.seed = 0;
  if (config.validation.steps < 0) config.validation.dataloader.order = "global";
}

absl::Status read_launch(const CommandLineOptions& options, RankJob& job) {
  if (!options.overrides.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.overrides[0], ": a launch file's configuration cannot be overridden"));
  }
  TITAN_ASSIGN_OR_RETURN(const rank_protocol::Launch launch, rank_protocol::read_launch(options.config_file));
  absl::StatusOr<config::JobConfig> config = config::from_json(launch.config);
  if (!config.ok()) return annotate(config.status(), options.config_file);
  job.config = *std::move(config);
  keep_older_meaning(job.config);
  job.job_uid = launch.job_uid;
  job.job = launch.job;
  job.attempt = launch.attempt;
  job.committed_step = launch.committed_step;
  job.folder_id = launch.folder_id;
  job.mode = mode_of(job.config);
  // If one process is all ranks of a job, one entry of the rank table stands for it.
  const bool one_process = job.mode != CommMode::kProcesses;
  job.world = one_process ? job.config.resources.ranks : static_cast<int>(launch.ranks.size());
  if (options.world && *options.world != static_cast<int>(launch.ranks.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--world ", *options.world, ": the launch file has ", counted(launch.ranks.size(), "rank")));
  }
  job.rank = options.rank.value_or(0);
  if (job.rank >= job.world) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank ", job.rank, ": the launch file has ", counted(job.world, "rank")));
  }
  const rank_protocol::RankPlacement& place = launch.ranks[one_process ? 0 : job.rank];
  job.local_rank = place.local_rank;
  job.local_ranks = static_cast<int>(std::count_if(launch.ranks.begin(), launch.ranks.end(),
                                                   [&](const auto& other) { return other.node == place.node; }));
  if (!place.host.empty()) job.host = place.host;
  job.threads = launch.threads_per_rank;
  if (one_process) {  // It has the threads of one rank of the table.
    const int wanted = job.config.resources.threads_per_rank;
    job.threads = wanted > 0 ? wanted : std::max(1, launch.threads_per_rank / job.world);
  }
  job.run_folder = std::filesystem::path(options.config_file).parent_path().string();
  if (job.run_folder.empty()) job.run_folder = std::string(1, '.');
  return annotate(config::validate(job.config), options.config_file);
}

absl::Status read_config(const CommandLineOptions& options, RankJob& job) {
  std::vector<std::string> overrides = options.overrides;
  if (options.world) overrides.insert(overrides.begin(), {"--resources.ranks", absl::StrCat(*options.world)});
  TITAN_ASSIGN_OR_RETURN(config::LoadedConfig loaded, config::load_file(options.config_file, overrides));
  // A rank started by hand is a single process unless --world is given, whatever resources the file requests.
  job.mode = mode_of(loaded.config);
  if (!options.world && job.mode == CommMode::kProcesses) loaded.config.resources.ranks = 1;
  loaded.config.resources.ranks_per_node = 0;  // No nodes are requested.
  config::visit_paths(loaded.config, [](const std::string&, std::string& path) { path = text::expand_home(path); });
  TITAN_RETURN_IF_ERROR(config::validate(loaded));
  config::resolve(loaded.config);
  job.config = std::move(loaded.config);
  job.warnings = std::move(loaded.warnings);
  job.world = job.config.resources.ranks;
  job.rank = options.rank.value_or(0);
  if (job.rank >= job.world) {
    return absl::InvalidArgumentError(absl::StrCat("--rank ", job.rank, job.world == 1 ? ": there is " : ": there are ",
                                                   counted(job.world, "rank"), " (--world)"));
  }
  TITAN_RETURN_IF_ERROR(place_by_hand(options, job));
  job.job_uid = job.config.scheduling.job_id.empty() ? "by-hand" : job.config.scheduling.job_id;
  job.threads = job.config.resources.threads_per_rank;
  if (job.threads <= 0) job.threads = std::max(1, usable_cores() / job.local_ranks);
  job.run_folder = (std::filesystem::path(job.config.job.dump_folder) / "run").string();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CommandLineOptions> parse_options(const std::vector<std::string>& words) {
  CommandLineOptions options;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string flag = words[i];
    if (flag == "--help" || flag == "-h") {
      options.help = true;
      return options;
    }
    if (flag == "--version") {
      options.version = true;
      return options;
    }
    if (flag == "--json") {
      options.json = true;
      continue;
    }
    const bool is_override = !absl::StartsWith(flag, "--") || absl::StrContains(flag.substr(0, flag.find('=')), '.');
    if (is_override) {
      options.overrides.push_back(flag);
      continue;
    }
    std::string argument;
    if (const size_t equals = flag.find('='); equals != std::string::npos) {
      argument = flag.substr(equals + 1);
      flag.resize(equals);
    } else if (i + 1 < words.size()) {
      argument = words[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat(flag, " needs a value"));
    }
    if (flag == "--config") {
      options.config_file = argument;
    } else if (flag == "--store") {
      options.store = argument;
    } else if (flag == "--run-dir") {
      options.run_folder = argument;
    } else if (flag == "--rank") {
      TITAN_ASSIGN_OR_RETURN(options.rank, number(flag, argument, 0));
    } else if (flag == "--world") {
      TITAN_ASSIGN_OR_RETURN(options.world, number(flag, argument, 1));
    } else if (flag == "--local-rank") {
      TITAN_ASSIGN_OR_RETURN(options.local_rank, number(flag, argument, 0));
    } else if (flag == "--local-world") {
      TITAN_ASSIGN_OR_RETURN(options.local_world, number(flag, argument, 1));
    } else if (flag == "--host") {
      options.host = argument;
    } else if (flag == "--listen-fd") {
      TITAN_ASSIGN_OR_RETURN(options.listen_fd, number(flag, argument, 0));
    } else {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": unknown flag"));
    }
  }
  if (options.config_file.empty()) return absl::InvalidArgumentError("--config FILE is missing");
  return options;
}

absl::StatusOr<RankJob> read_job(const CommandLineOptions& options) {
  RankJob job;
  TITAN_RETURN_IF_ERROR(is_launch_file(options.config_file) ? read_launch(options, job) : read_config(options, job));
  if (!options.run_folder.empty()) job.run_folder = options.run_folder;
  config::resolve_assets(job.config);
  job.listen_fd = options.listen_fd;
  TITAN_RETURN_IF_ERROR(parse_store(options.store, job));
  if (job.mode == CommMode::kLocalThreads && job.rank != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank ", job.rank, ": with comm.mode = \"local_tensor\" one process runs all ranks"));
  }
  if (options.json && job.mode != CommMode::kDryRun)
    return absl::InvalidArgumentError("--json: only a dry run (--comm.mode fake_backend) prints a result");
  if (job.mode != CommMode::kProcesses) return job;
  const bool reachable = job.store_port > 0 || (job.rank == 0 && job.listen_fd.has_value());
  if (job.world > 1 && !reachable) {
    return absl::InvalidArgumentError(
        absl::StrCat("--store HOST:PORT is missing: ", job.world, " ranks need a rendezvous store"));
  }
  return job;
}

}  // namespace titan::runtime
