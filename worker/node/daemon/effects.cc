// Performs the effects that the core requests. Each effect is in the file of what it affects, *_effects.cc.

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/node/daemon/daemon.h"

namespace titan::daemon {

void Daemon::perform(node::Effect effect) {
  std::visit([this](auto& given) { perform(given); }, effect);
}

void Daemon::perform(node::Log& effect) { telemetry_.journal.write(effect.line); }

void Daemon::perform(node::Exit& /*effect*/) { loop_.stop(); }

void Daemon::log_about(const AttemptKey& key, journal::Level level, const std::string& event,
                       const std::string& message) {
  journal::Line line{level, event, {}};
  line.add("job_uid", key.job_uid).add("attempt", absl::StrCat(key.number)).add("message", message);
  telemetry_.journal.write(line);
}

}  // namespace titan::daemon
