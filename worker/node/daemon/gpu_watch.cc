#include "worker/node/daemon/gpu_watch.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace titan::daemon {
namespace {

constexpr absl::Duration kOld = absl::Minutes(1);

using metrics::add_counter;
using metrics::add_gauge;
using metrics::counter_family;
using metrics::gauge_family;

// The metric families of the page. A family has one series per device that reports the value.
struct Families {
  prometheus::MetricFamily utilization =
      gauge_family("titan_worker_gpu_utilization_ratio", "Share of the time in which the GPU was busy.");
  prometheus::MetricFamily used = gauge_family("titan_worker_gpu_memory_used_bytes", "Memory of the GPU in use.");
  prometheus::MetricFamily size = gauge_family("titan_worker_gpu_memory_size_bytes", "Memory that the GPU has.");
  prometheus::MetricFamily temperature =
      gauge_family("titan_worker_gpu_temperature_celsius", "Temperature of the GPU.");
  prometheus::MetricFamily power = gauge_family("titan_worker_gpu_power_watts", "Power draw of the GPU.");
  prometheus::MetricFamily slowed =
      gauge_family("titan_worker_gpu_slowed", "1 while its clocks are lowered, by reason.");
  prometheus::MetricFamily lost = gauge_family("titan_worker_gpu_lost", "1 when the driver cannot reach the GPU.");
  prometheus::MetricFamily links = gauge_family("titan_worker_gpu_nvlinks", "Active NVLinks of the GPU.");
  prometheus::MetricFamily link_errors =
      counter_family("titan_worker_gpu_nvlink_errors_total", "Errors of the GPU's NVLinks.");
  prometheus::MetricFamily ecc =
      counter_family("titan_worker_gpu_ecc_errors_total", "Memory errors since the driver was loaded.");
  prometheus::MetricFamily xids = counter_family("titan_worker_gpu_xid_errors_total", "XIDs that the driver reported.");
  prometheus::MetricFamily last_xid = gauge_family("titan_worker_gpu_last_xid", "Number of the newest XID.");

  void add(const GpuStatus& gpu, const metrics::Labels& labels) {
    add_gauge(lost, gpu.lost ? 1 : 0, labels);
    if (gpu.utilization) add_gauge(utilization, *gpu.utilization, labels);
    if (gpu.memory) add_gauge(used, static_cast<double>(gpu.memory->used), labels);
    if (gpu.memory) add_gauge(size, static_cast<double>(gpu.memory->total), labels);
    if (gpu.celsius) add_gauge(temperature, *gpu.celsius, labels);
    if (gpu.watts) add_gauge(power, *gpu.watts, labels);
    if (gpu.links) add_gauge(links, *gpu.links, labels);
    if (gpu.link_errors) add_counter(link_errors, static_cast<double>(*gpu.link_errors), labels);
    for (const auto& [kind, errors] : gpu.ecc_errors) {
      add_counter(ecc, static_cast<double>(errors), with(labels, "kind", kind));
    }
    for (const auto& [reason, is_slowed] : gpu.slowed) {
      add_gauge(slowed, is_slowed ? 1 : 0, with(labels, "reason", reason));
    }
  }
  static metrics::Labels with(metrics::Labels labels, const char* name, const std::string& value) {
    labels[name] = value;
    return labels;
  }
  std::vector<prometheus::MetricFamily> take() {
    std::vector<prometheus::MetricFamily> all;
    for (prometheus::MetricFamily* family : {&utilization, &used, &size, &temperature, &power, &slowed, &lost, &links,
                                             &link_errors, &ecc, &xids, &last_xid}) {
      if (!family->metric.empty()) all.push_back(std::move(*family));
    }
    return all;
  }
};

}  // namespace

void GpuSeries::report(journal::Level level, const char* event, std::string message) {
  journal::Line line{level, event, {}};
  news_.push_back(line.add("message", std::move(message)));
}

void GpuSeries::begin() {
  const sync::Lock lock(mutex_);
  if (!since_) since_ = clock_.monotonic();
}

void GpuSeries::show(std::vector<GpuStatus> seen) {
  const sync::Lock lock(mutex_);
  since_ = clock_.monotonic();
  failure_.clear();
  for (GpuStatus& gpu : seen) {
    Xids& of = xids_[gpu.index];
    for (const unsigned long long xid : gpu.xids) {
      ++of.count;
      of.last = xid;
      report(journal::Level::kWarning, "GpuXid",
             absl::StrCat("the driver reports XID ", xid, " of GPU ", gpu.index, "; see NVIDIA's list of XIDs"));
    }
    gpu.xids.clear();
  }
  seen_ = std::move(seen);
}

void GpuSeries::fail(const std::string& why) {
  const sync::Lock lock(mutex_);
  if (std::exchange(failure_, why) != why) report(journal::Level::kWarning, "GpusNotSeen", why);
}

void GpuSeries::give_up(const std::string& why) {
  const sync::Lock lock(mutex_);
  since_.reset();
  seen_.clear();
  report(journal::Level::kInfo, "NoGpuMetrics", absl::StrCat("no GPU metrics: ", why));
}

std::vector<journal::Line> GpuSeries::news() {
  const sync::Lock lock(mutex_);
  return std::exchange(news_, {});
}

std::vector<prometheus::MetricFamily> GpuSeries::Collect() const {
  Families families;
  const sync::Lock lock(mutex_);
  if (!since_) return {};
  const absl::Duration age = clock_.monotonic() - *since_;
  for (const GpuStatus& gpu : seen_) {
    const metrics::Labels labels = Families::with(labels_, "gpu", absl::StrCat(gpu.index));
    const Xids& of = xids_.at(gpu.index);
    add_counter(families.xids, of.count, labels);
    if (of.last) add_gauge(families.last_xid, static_cast<double>(*of.last), labels);
    if (age <= kOld) families.add(gpu, labels);
  }
  std::vector<prometheus::MetricFamily> all = families.take();
  auto seconds =
      gauge_family("titan_worker_gpu_age_seconds", "Seconds since the driver last answered a query about the GPUs.");
  add_gauge(seconds, absl::ToDoubleSeconds(age), labels_);
  all.push_back(std::move(seconds));
  return all;
}

GpuWatch::GpuWatch(std::shared_ptr<GpuSeries> series, const std::string& library, int devices)
    : own_(new Own{std::move(series), GpuReader(library, devices)}) {}

void GpuWatch::look() {
  if (own_->busy.exchange(true)) return;
  lane_.run([own = own_] {
    own->look();
    own->busy = false;
  });
}

void GpuWatch::Own::look() {
  if (absent) return;
  series->begin();
  absl::StatusOr<std::vector<GpuStatus>> seen = reader.read();
  if (seen.ok()) return series->show(*std::move(seen));
  absent = absl::IsNotFound(seen.status());
  const std::string why(seen.status().message());
  return absent ? series->give_up(why) : series->fail(why);
}

}  // namespace titan::daemon
