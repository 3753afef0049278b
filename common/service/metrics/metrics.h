#pragma once

// Wraps Prometheus metrics: a registry, the usual metric types, the metrics of this process, and an HTTP page. Callers
// choose names and labels.

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
  Metrics();  // Starts with titan_build_info and the process metrics.
  ~Metrics();

  // The same name and labels return the same metric. References live as long as this object. Thread-safe.
  prometheus::Counter& counter(const std::string& name, const std::string& help, const Labels& labels = {});
  prometheus::Gauge& gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  prometheus::Histogram& histogram(const std::string& name, const std::string& help, const Labels& labels = {});

  // Adds metrics that are computed at each scrape, such as one gauge per active job.
  void add(std::shared_ptr<prometheus::Collectable> collectable);

  // Serves http://address/metrics; "127.0.0.1:0" selects a free port. Returns the port. Errors: those of Page::open.
  absl::StatusOr<int> serve(const std::string& address);
  // Stops the page at once. Call it before anything is destroyed that a collectable reads.
  void stop_serving() { page_.reset(); }

  // Returns the text of the page.
  std::string text() const;

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  mutable sync::Mutex mutex_;
  std::vector<std::shared_ptr<prometheus::Collectable>> collectables_ TITAN_GUARDED_BY(mutex_);
  std::unique_ptr<Page> page_;
};

// Returns bounds from 100 us to 1000 s, three per decade.
const std::vector<double>& time_buckets();

// A gauge that calls `ask` at each scrape. A scrape for which it returns nothing has no such series.
class CallbackGauge : public prometheus::Collectable {
 public:
  CallbackGauge(std::string name, std::string help, Labels labels, std::function<std::optional<double>()> ask)
      : name_(std::move(name)), help_(std::move(help)), labels_(std::move(labels)), ask_(std::move(ask)) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::string name_, help_;
  const Labels labels_;
  const std::function<std::optional<double>()> ask_;
};

// Helpers to implement a Collectable.
prometheus::MetricFamily gauge_family(const std::string& name, const std::string& help);
prometheus::MetricFamily counter_family(const std::string& name, const std::string& help);
void add_gauge(prometheus::MetricFamily& family, double value, const Labels& labels = {});
void add_counter(prometheus::MetricFamily& family, double value, const Labels& labels = {});

// Standard process metrics of Prometheus clients: processor time, memory, descriptors, start time. Metrics that /proc
// does not give are omitted.
class ProcessMetrics : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace titan::metrics
