#include "common/plan/config/report.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/config/json.h"
#include "nlohmann/json.hpp"

namespace titan::config {

absl::Status report(const JobConfig& config) {
  if (!config.job.print_config && !config.job.save_config_file.has_value()) return absl::OkStatus();
  const std::string text = to_json(config).dump(2);
  if (config.job.print_config) std::cout << "Running with configs: " << text << std::endl;
  if (!config.job.save_config_file.has_value()) return absl::OkStatus();

  const std::filesystem::path path = std::filesystem::path(config.job.dump_folder) / *config.job.save_config_file;
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  std::ofstream file(path, std::ios::trunc);
  file << text << "\n";
  file.close();
  if (!file) return errno_status(errno, absl::StrCat("job.save_config_file: write ", path.string()));
  return absl::OkStatus();
}

}  // namespace titan::config
