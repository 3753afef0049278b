#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock/clock.h"
#include "common/base/sync/sync.h"

namespace titan::systemd {

// Returns the exit code of a daemon that cannot start. 2: its settings are wrong (InvalidArgument), and systemd does
// not restart its unit. 1: another attempt may succeed.
int startup_exit_code(const absl::Status& status);

// Notifies systemd about this daemon by the protocol of sd_notify(3). Does nothing without a socket, as under another
// supervisor. Thread-safe, never blocks.
class Notifier {
 public:
  struct Options {
    std::string socket;                                  // NOTIFY_SOCKET; empty: nothing is sent.
    absl::Duration watchdog = absl::InfiniteDuration();  // WATCHDOG_USEC: systemd ends a daemon that is silent for this
                                                         // long.
  };
  // Reads the environment. A watchdog of another process (WATCHDOG_PID) is ignored.
  static Options from_environment();

  Notifier(Options options, const Clock& clock);

  // Reports that the daemon has started and serves.
  void ready();
  // Reports that the daemon is stopping on purpose, so that systemd stops the watchdog.
  void stopping();
  // Sets the text that `systemctl status` shows; sent only when it changes.
  void status(const std::string& text);
  // Feeds the watchdog. Only work that must not stall may call this. Sent at most four times per watchdog interval.
  void alive();
  // Returns the interval at which to call alive() and status(); infinite without a socket.
  absl::Duration pace() const;

 private:
  void send(const std::string& text) const;

  const Options options_;
  const Clock& clock_;
  sync::Mutex mutex_;
  std::string status_ TITAN_GUARDED_BY(mutex_);
  absl::Duration alive_at_ TITAN_GUARDED_BY(mutex_) = -absl::InfiniteDuration();  // Time of the last watchdog message.
};

}  // namespace titan::systemd
