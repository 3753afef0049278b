#include "common/metrics/metrics.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "prometheus/exposer.h"
#include "prometheus/family.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace titan::metrics {

Metrics::Metrics() : registry_(std::make_shared<prometheus::Registry>()) {
  collectables_.push_back(registry_);
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
  if (exposer_ != nullptr) exposer_->RegisterCollectable(collectable);
  collectables_.push_back(std::move(collectable));
}

absl::StatusOr<int> Metrics::serve(const std::string& address) {
  try {
    exposer_ = std::make_unique<prometheus::Exposer>(address, /*num_threads=*/2);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address, ": ", error.what(),
                                               "; is the port in use? Choose another with --metrics-port (0: any)"));
  }
  for (const auto& collectable : collectables_) exposer_->RegisterCollectable(collectable);
  return exposer_->GetListeningPorts().front();
}

std::string Metrics::text() const {
  std::vector<prometheus::MetricFamily> families;
  for (const auto& collectable : collectables_) {
    for (prometheus::MetricFamily& family : collectable->Collect()) families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

const std::vector<double>& time_buckets() {
  static const std::vector<double> buckets = {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1,
                                              0.2,    0.5,    1,      2,     5,     10,    20,   50,   100};
  return buckets;
}

prometheus::MetricFamily gauge_family(const std::string& name, const std::string& help) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = prometheus::MetricType::Gauge;
  return family;
}

void add_gauge(prometheus::MetricFamily& family, double value, const Labels& labels) {
  prometheus::ClientMetric metric;
  for (const auto& [name, label] : labels) metric.label.push_back({name, label});
  metric.gauge.value = value;
  family.metric.push_back(std::move(metric));
}

}  // namespace titan::metrics
