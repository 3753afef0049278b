#pragma once

#include <string>

#include "common/io/storage/standard_paths.h"
#include "common/service/journal/journal.h"
#include "common/service/rpc/credentials.h"

namespace titan {

struct Flags {
  std::string listen = "127.0.0.1:7700";
  std::string advertise;
  std::string state = storage::default_state_folder("controller");
  std::string store;
  int metrics_port = 7701;
  std::string metrics_address = "127.0.0.1";
  int lease_ms = 5000;
  double keep_finished_days = 0;
  int kept_logs_mib = 256;
  int64_t default_time_limit_seconds = 0;
  std::string audit_log;  // Empty: next to the store; "none": no audit log.
  std::string port_file;
  bool reflection = true;
  std::string restore;
  rpc::Security security;
  std::string log_format = journal::kText;
  bool list_failpoints = false;
};

}  // namespace titan
