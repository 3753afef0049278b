#pragma once

// Carries out `titanctl assets get`, and declares its flags.

#include <optional>
#include <string>
#include <vector>

#include "common/plan/config/assets.h"
#include "controller/cli/globals.h"

namespace titan::cli {

// Flags of `titanctl assets get`.
struct AssetsRequest {
  std::string repo;
  bool dataset = false;
  std::string revision = "main";
  bool all = false;
  std::vector<std::string> assets, include, exclude;
  std::string local_dir = config::kDownloads;  // The files go into a subfolder with the repository's name.
  std::string endpoint, token_file;            // Empty: the environment's.
  int parallel = 8;
  double piece_mib = 64;
  int retries = 8;
  double retry_seconds = 0.5;
  bool dry_run = false;
  bool token_on_command_line = false;
};

// Downloads a repository's files, or lists them for a dry run. Returns the exit code.
int get_assets(const Globals& globals, const AssetsRequest& request);

}  // namespace titan::cli
