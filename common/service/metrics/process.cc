#include "common/service/metrics/process.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/service/metrics/metrics.h"

namespace titan::metrics {
namespace {

// Of /proc/self/stat, after the name, which may hold anything: field i there is field i + 3 of proc(5).
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
    fields.push_back(absl::SimpleAtod(word, &value) ? value : 0);  // The state is a letter.
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
  if (failed) return std::nullopt;  // As when there are none left.
  double count = -1;                // The one that reads the folder.
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
    add(families, counter_family("process_cpu_seconds_total", "Processor time taken, of user and system."),
        (stat[kUserTicks] + stat[kSystemTicks]) / ticks);
    add(families, gauge_family("process_resident_memory_bytes", "Memory that is in RAM."), stat[kPages] * page);
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
    add(families, gauge_family("process_max_fds", "Most file descriptors that may be open."),
        static_cast<double>(limit.rlim_cur));
  }
  return families;
}

}  // namespace titan::metrics
