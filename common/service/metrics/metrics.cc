#include "common/service/metrics/metrics.h"

#include <utility>

#include "common/base/status/status.h"
#include "common/service/metrics/process.h"
#include "prometheus/family.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace titan::metrics {

Metrics::Metrics() : registry_(std::make_shared<prometheus::Registry>()) {
  collectables_ = {registry_, std::make_shared<ProcessMetrics>()};
  gauge("titan_build_info", "Version of this program; the value is always 1.", {{"version", TITAN_VERSION}}).Set(1);
}

Metrics::~Metrics() = default;

prometheus::Counter& Metrics::counter(const std::string& name, const std::string& help, const Labels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry_).Add(labels);
}

prometheus::Gauge& Metrics::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry_).Add(labels);
}

prometheus::Histogram& Metrics::histogram(const std::string& name, const std::string& help, const Labels& labels) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry_).Add(labels, time_buckets());
}

void Metrics::add(std::shared_ptr<prometheus::Collectable> collectable) {
  const sync::Lock lock(mutex_);
  collectables_.push_back(std::move(collectable));
}

absl::StatusOr<int> Metrics::serve(const std::string& address) {
  TITAN_ASSIGN_OR_RETURN(page_, Page::open(address, [this] { return text(); }));
  return page_->port();
}

std::string Metrics::text() const {
  std::vector<std::shared_ptr<prometheus::Collectable>> collectables;
  {
    const sync::Lock lock(mutex_);
    collectables = collectables_;
  }
  std::vector<prometheus::MetricFamily> families;
  for (const auto& collectable : collectables) {
    for (prometheus::MetricFamily& family : collectable->Collect()) families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

const std::vector<double>& time_buckets() {
  static const std::vector<double> buckets = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
                                              0.5,    1,      2,      5,     10,    20,    50,   100,  200,  500, 1000};
  return buckets;
}

namespace {

prometheus::MetricFamily make_family(prometheus::MetricType type, const std::string& name, const std::string& help) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  return family;
}

prometheus::ClientMetric make_metric(const Labels& labels) {
  prometheus::ClientMetric metric;
  for (const auto& [name, label] : labels) metric.label.push_back({name, label});
  return metric;
}

}  // namespace

prometheus::MetricFamily gauge_family(const std::string& name, const std::string& help) {
  return make_family(prometheus::MetricType::Gauge, name, help);
}

prometheus::MetricFamily counter_family(const std::string& name, const std::string& help) {
  return make_family(prometheus::MetricType::Counter, name, help);
}

void add_gauge(prometheus::MetricFamily& family, double value, const Labels& labels) {
  prometheus::ClientMetric metric = make_metric(labels);
  metric.gauge.value = value;
  family.metric.push_back(std::move(metric));
}

void add_counter(prometheus::MetricFamily& family, double value, const Labels& labels) {
  prometheus::ClientMetric metric = make_metric(labels);
  metric.counter.value = value;
  family.metric.push_back(std::move(metric));
}

std::vector<prometheus::MetricFamily> AskedGauge::Collect() const {
  const std::optional<double> value = ask_();
  if (!value) return {};
  auto family = gauge_family(name_, help_);
  add_gauge(family, *value, labels_);
  return {std::move(family)};
}

}  // namespace titan::metrics
