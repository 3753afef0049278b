#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock/clock.h"
#include "common/base/sync/sync.h"

namespace titan::systemd {

// With what a daemon ends that cannot start: 2, with which its unit is not started again, when its settings are wrong
// (InvalidArgument); 1 when another attempt may go better.
int exit_code_of_failed_start(const absl::Status& status);

// A daemon as systemd sees it, by the protocol of sd_notify(3); without a socket, as under another supervisor, it does
// nothing. Thread-safe, never blocks.
class Service {
 public:
  struct Options {
    std::string socket;                                  // NOTIFY_SOCKET; empty: nobody listens.
    absl::Duration watchdog = absl::InfiniteDuration();  // WATCHDOG_USEC: silent for so long, it is ended.
  };
  // What systemd put into the environment of this process, and of no other.
  static Options from_environment();

  Service(Options options, const Clock& clock);

  // It serves.
  void ready();
  // It ends by its own will, and is watched no more.
  void stopping();
  // What `systemctl status` shows; sent when it is another text than before.
  void status(const std::string& text);
  // To be called by whatever must not stand still, and by nothing else: sent a few times in the watchdog's time.
  void alive();
  // How often alive() and status() are due. Infinite: nobody listens.
  absl::Duration pace() const;

 private:
  void send(const std::string& text) const;

  const Options options_;
  const Clock& clock_;
  sync::Mutex mutex_;
  std::string status_ TITAN_GUARDED_BY(mutex_);
  absl::Duration alive_at_ TITAN_GUARDED_BY(mutex_) = -absl::InfiniteDuration();  // When it was sent last.
};

}  // namespace titan::systemd
