#include "worker/daemon/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <map>

#include "absl/strings/str_cat.h"

namespace titan::daemon {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::Counter;
using prometheus::Gauge;

}  // namespace

struct Metrics::Parts {
  explicit Parts(const std::string& node) : labels{{"node", node}} {
    BuildGauge()
        .Name("titan_build_info")
        .Help("Always 1; the version is a label.")
        .Register(*registry)
        .Add({{"component", "worker"}, {"node", node}, {"version", TITAN_VERSION}})
        .Set(1);
  }
  Gauge& gauge(const char* name, const char* help) {
    return BuildGauge().Name(name).Help(help).Register(*registry).Add(labels);
  }
  Counter& counter(const char* name, const char* help) {
    return BuildCounter().Name(name).Help(help).Register(*registry).Add(labels);
  }

  const std::map<std::string, std::string> labels;
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  Gauge& connected = gauge("titan_worker_connected", "1 while a session with the controller is up.");
  Gauge& ranks = gauge("titan_worker_ranks", "Rank processes that run on this node.");
  Gauge& attempts = gauge("titan_worker_attempts", "Attempts with a shim on this node.");
  Gauge& devices = gauge("titan_worker_devices", "Ranks that fit on this node.");
  Gauge& devices_used = gauge("titan_worker_devices_used", "Devices given to live attempts.");
  Counter& log_dropped =
      counter("titan_worker_log_dropped_bytes_total", "Rank log bytes dropped by size caps or a full disk.");
  Counter& beats = counter("titan_worker_beats_total", "Beats sent to the controller.");
  Counter& events =
      counter("titan_worker_events_forwarded_total", "Rank events sent to the controller, repetitions too.");
  Counter& sessions = counter("titan_worker_sessions_total", "Sessions opened with the controller.");
  Counter& shims_lost = counter("titan_worker_shims_lost_total", "Shims that ended unexpectedly.");
  std::unique_ptr<prometheus::Exposer> exposer;
};

Metrics::Metrics(const std::string& node) : parts_(std::make_unique<Parts>(node)) {}
Metrics::~Metrics() = default;

absl::StatusOr<int> Metrics::serve(const std::string& address, int port) {
  try {
    parts_->exposer = std::make_unique<prometheus::Exposer>(absl::StrCat(address, ":", port), 1);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ":", port, " (", error.what(),
                                               "): choose another --metrics-port"));
  }
  parts_->exposer->RegisterCollectable(parts_->registry);
  return parts_->exposer->GetListeningPorts().at(0);
}

void Metrics::set_connected(bool connected) { parts_->connected.Set(connected ? 1 : 0); }
void Metrics::set_ranks(int running) { parts_->ranks.Set(running); }
void Metrics::set_attempts(int live) { parts_->attempts.Set(live); }
void Metrics::set_devices(int all, int used) {
  parts_->devices.Set(all);
  parts_->devices_used.Set(used);
}
void Metrics::set_log_bytes_dropped(int64_t bytes) {
  const double more = static_cast<double>(bytes) - parts_->log_dropped.Value();
  if (more > 0) parts_->log_dropped.Increment(more);
}
void Metrics::count_beat() { parts_->beats.Increment(); }
void Metrics::count_events(int64_t events) { parts_->events.Increment(static_cast<double>(events)); }
void Metrics::count_session() { parts_->sessions.Increment(); }
void Metrics::count_shim_lost() { parts_->shims_lost.Increment(); }

}  // namespace titan::daemon
