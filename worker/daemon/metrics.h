#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace titan::daemon {

// What /metrics of this worker says.
class Metrics {
 public:
  explicit Metrics(const std::string& node);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Serves http://ADDRESS:PORT/metrics; returns the port, which the system chooses when 0 is asked for.
  absl::StatusOr<int> serve(const std::string& address, int port);

  void set_connected(bool connected);
  void set_ranks(int running);
  void set_attempts(int live);
  void set_devices(int all, int used);
  void set_log_bytes_dropped(int64_t bytes);  // Sum over the attempts of this daemon's life; never falls.
  void count_beat();
  void count_events(int64_t events);
  void count_session();
  void count_shim_lost();

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace titan::daemon
