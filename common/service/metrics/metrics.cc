#include "common/service/metrics/metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
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

std::vector<prometheus::MetricFamily> CallbackGauge::Collect() const {
  const std::optional<double> value = ask_();
  if (!value) return {};
  auto family = gauge_family(name_, help_);
  add_gauge(family, *value, labels_);
  return {std::move(family)};
}

namespace {

// Indices into the fields of /proc/self/stat after the program name, which may contain anything. Index i is field i + 3
// of proc(5).
enum Field : size_t {
  kUserTicks = 11,
  kSystemTicks = 12,
  kThreadCount = 17,
  kStartTicks = 19,
  kVirtual = 20,
  kPages = 21
};

std::vector<double> read_stat() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = text.rfind(')');
  std::vector<double> fields;
  if (name_end == std::string::npos) return fields;
  for (const absl::string_view word : absl::StrSplit(text.substr(name_end + 1), ' ', absl::SkipWhitespace())) {
    double value = 0;
    fields.push_back(absl::SimpleAtod(word, &value) ? value : 0);  // The process state is a letter.
  }
  return fields;
}

std::optional<double> boot_time() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    double seconds = 0;
    if (line.starts_with("btime ") && absl::SimpleAtod(line.substr(6), &seconds)) return seconds;
  }
  return std::nullopt;
}

std::optional<double> open_descriptors() {
  std::error_code failed;
  std::filesystem::directory_iterator entries("/proc/self/fd", failed);
  if (failed) return std::nullopt;  // Fails too when no descriptor is left.
  double count = -1;                // Excludes the descriptor that reads the folder.
  for (; entries != std::filesystem::directory_iterator(); entries.increment(failed)) ++count;
  return count;
}

void add(std::vector<prometheus::MetricFamily>& families, prometheus::MetricFamily family, double value) {
  family.type == prometheus::MetricType::Counter ? add_counter(family, value) : add_gauge(family, value);
  families.push_back(std::move(family));
}

}  // namespace

std::vector<prometheus::MetricFamily> ProcessMetrics::Collect() const {
  std::vector<prometheus::MetricFamily> families;
  const std::vector<double> stat = read_stat();
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK)), page = static_cast<double>(sysconf(_SC_PAGESIZE));
  if (stat.size() > kPages) {
    add(families, counter_family("process_cpu_seconds_total", "CPU time used, user and system."),
        (stat[kUserTicks] + stat[kSystemTicks]) / ticks);
    add(families, gauge_family("process_resident_memory_bytes", "Resident memory."), stat[kPages] * page);
    add(families, gauge_family("process_virtual_memory_bytes", "Address space that is mapped."), stat[kVirtual]);
    add(families, gauge_family("process_threads", "Threads."), stat[kThreadCount]);
    if (const std::optional<double> boot = boot_time()) {
      add(families, gauge_family("process_start_time_seconds", "When the process began, in Unix time."),
          *boot + stat[kStartTicks] / ticks);
    }
  }
  if (const std::optional<double> open = open_descriptors()) {
    add(families, gauge_family("process_open_fds", "Open file descriptors."), *open);
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    add(families, gauge_family("process_max_fds", "Limit of open file descriptors."),
        static_cast<double>(limit.rlim_cur));
  }
  return families;
}

}  // namespace titan::metrics
