#pragma once

// Wraps Prometheus metrics thinly: a registry, the usual shapes, the series of this process, and an HTTP page. Names
// and labels are the caller's.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/sync/sync.h"
#include "common/service/metrics/page.h"
#include "prometheus/collectable.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/metric_family.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

namespace titan::metrics {

using Labels = std::map<std::string, std::string>;

class Metrics {
 public:
  Metrics();  // With titan_build_info and those of the process.
  ~Metrics();

  // The same name and labels give the same metric. References live as long as this object. Thread-safe.
  prometheus::Counter& counter(const std::string& name, const std::string& help, const Labels& labels = {});
  prometheus::Gauge& gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  prometheus::Histogram& histogram(const std::string& name, const std::string& help, const Labels& labels = {});

  // Metrics that are computed when somebody asks, such as one gauge per active job.
  void add(std::shared_ptr<prometheus::Collectable> collectable);

  // Serves http://address/metrics; "127.0.0.1:0" takes a free port. Returns the port. Errors: those of Page::open.
  absl::StatusOr<int> serve(const std::string& address);
  // Ends the page at once; before anything goes that a collectable reads.
  void stop_serving() { page_.reset(); }

  // What the page would say.
  std::string text() const;

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  mutable sync::Mutex mutex_;
  std::vector<std::shared_ptr<prometheus::Collectable>> collectables_ TITAN_GUARDED_BY(mutex_);
  std::unique_ptr<Page> page_;
};

// From 100 µs to 1000 s, three to a decade.
const std::vector<double>& time_buckets();

// A gauge that is asked for its value whenever somebody reads the page; without one it has no series.
class AskedGauge : public prometheus::Collectable {
 public:
  AskedGauge(std::string name, std::string help, Labels labels, std::function<std::optional<double>()> ask)
      : name_(std::move(name)), help_(std::move(help)), labels_(std::move(labels)), ask_(std::move(ask)) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::string name_, help_;
  const Labels labels_;
  const std::function<std::optional<double>()> ask_;
};

// Building blocks of a Collectable.
prometheus::MetricFamily gauge_family(const std::string& name, const std::string& help);
prometheus::MetricFamily counter_family(const std::string& name, const std::string& help);
void add_gauge(prometheus::MetricFamily& family, double value, const Labels& labels = {});
void add_counter(prometheus::MetricFamily& family, double value, const Labels& labels = {});

// This process as Prometheus' own clients describe theirs: processor time, memory, descriptors, when it began. What
// /proc does not say is left out.
class ProcessMetrics : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace titan::metrics
