// GPU metrics: every figure that the driver has and no other. A driver that hangs makes figures old but blocks nothing.

#include "worker/node/daemon/gpu_watch.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "tests/worker/node/daemon/fake_nvml.h"

namespace titan::daemon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string fake_library() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libfake_nvml.so").string();
}

class GpuWatchTest : public ::testing::Test {
 protected:
  GpuWatchTest() : fake_(::dlopen(fake_library().c_str(), RTLD_NOW)) {
    ::unsetenv("FAKE_NVML");
    metrics_.add(series_);
  }
  ~GpuWatchTest() override {
    the<decltype(fake_nvml_lose)>("fake_nvml_lose")(false);
    ::unsetenv("FAKE_NVML");
    ::dlclose(fake_);
  }
  // Returns the library's function of that name.
  template <typename Function>
  Function* the(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(fake_, name));
  }
  void look() { show(reader_.read()); }
  void show(absl::StatusOr<std::vector<GpuStatus>> seen) {
    series_->begin();
    seen.ok() ? series_->show(*std::move(seen)) : series_->fail(std::string(seen.status().message()));
  }
  std::string page() { return metrics_.text(); }
  std::vector<std::string> news() {
    std::vector<std::string> lines;
    for (const journal::Line& line : series_->news()) lines.push_back(journal::format(line));
    return lines;
  }

  void* const fake_;
  FakeClock clock_;
  std::shared_ptr<GpuSeries> series_ = std::make_shared<GpuSeries>(metrics::Labels{{"node", "n1"}}, clock_);
  metrics::Metrics metrics_;
  GpuReader reader_{fake_library(), 2};
};

TEST_F(GpuWatchTest, PageHasEveryFigureOfTheDriver) {
  look();
  for (const char* line :
       {"utilization_ratio{gpu=\"0\",node=\"n1\"} 0.97", "utilization_ratio{gpu=\"1\",node=\"n1\"} 0.05",
        "memory_used_bytes{gpu=\"0\",node=\"n1\"} 3221225472", "memory_size_bytes{gpu=\"1\",node=\"n1\"} 42949672960",
        "temperature_celsius{gpu=\"1\",node=\"n1\"} 61", "power_watts{gpu=\"0\",node=\"n1\"} 612.5",
        "ecc_errors_total{gpu=\"0\",kind=\"corrected\",node=\"n1\"} 12",
        "ecc_errors_total{gpu=\"0\",kind=\"uncorrected\",node=\"n1\"} 1",
        "slowed{gpu=\"0\",node=\"n1\",reason=\"thermal\"} 1", "slowed{gpu=\"0\",node=\"n1\",reason=\"power_cap\"} 0",
        "slowed{gpu=\"1\",node=\"n1\",reason=\"thermal\"} 0", "nvlinks{gpu=\"0\",node=\"n1\"} 3",
        "nvlink_errors_total{gpu=\"0\",node=\"n1\"} 7", "lost{gpu=\"1\",node=\"n1\"} 0",
        "xid_errors_total{gpu=\"1\",node=\"n1\"} 0", "age_seconds{node=\"n1\"} 0"}) {
    EXPECT_THAT(page(), HasSubstr(std::string("\ntitan_worker_gpu_") + line + "\n"));
  }
  for (const char* unsupported :
       {"power_watts{gpu=\"1\"", "ecc_errors_total{gpu=\"1\"", "nvlinks{gpu=\"1\"", "last_xid{"}) {
    EXPECT_THAT(page(), Not(HasSubstr(unsupported)));
  }
  EXPECT_THAT(news(), IsEmpty());
}

TEST_F(GpuWatchTest, XidsAreCountedAndReportedOnce) {
  look();
  the<decltype(fake_nvml_xid)>("fake_nvml_xid")(1, 48);
  the<decltype(fake_nvml_xid)>("fake_nvml_xid")(1, 79);
  look();
  look();
  EXPECT_THAT(page(), HasSubstr("xid_errors_total{gpu=\"1\",node=\"n1\"} 2\n"));
  EXPECT_THAT(page(), HasSubstr("xid_errors_total{gpu=\"0\",node=\"n1\"} 0\n"));
  EXPECT_THAT(page(), HasSubstr("last_xid{gpu=\"1\",node=\"n1\"} 79\n"));
  EXPECT_THAT(news(), ElementsAre(HasSubstr("XID 48 of GPU 1"), HasSubstr("XID 79 of GPU 1")));
  EXPECT_THAT(news(), IsEmpty());
}

TEST_F(GpuWatchTest, LostDeviceIsReportedAndTheOtherContinues) {
  the<decltype(fake_nvml_lose)>("fake_nvml_lose")(true);
  look();
  EXPECT_THAT(page(), HasSubstr("gpu_lost{gpu=\"1\",node=\"n1\"} 1\n"));
  EXPECT_THAT(page(), HasSubstr("gpu_lost{gpu=\"0\",node=\"n1\"} 0\n"));
  EXPECT_THAT(page(), Not(HasSubstr("temperature_celsius{gpu=\"1\"")));
  EXPECT_THAT(page(), HasSubstr("temperature_celsius{gpu=\"0\",node=\"n1\"} 61\n"));
}

TEST_F(GpuWatchTest, FailingDriverIsReportedOnceAndRetried) {
  look();
  ::setenv("FAKE_NVML", "count", 1);
  look();
  look();
  EXPECT_THAT(news(), ElementsAre(HasSubstr("nvmlDeviceGetCount fails with 999")));
  clock_.advance(absl::Seconds(61));
  EXPECT_THAT(page(), HasSubstr("gpu_age_seconds{node=\"n1\"} 61\n"));
  ::unsetenv("FAKE_NVML");
  look();
  EXPECT_THAT(page(), HasSubstr("gpu_age_seconds{node=\"n1\"} 0\n"));
  EXPECT_THAT(page(), HasSubstr("temperature_celsius{gpu=\"0\""));
}

// While the driver hangs, the reported age of the figures grows, and neither a scrape nor another look() waits.
TEST_F(GpuWatchTest, HangingDriverOnlyAgesTheFigures) {
  GpuWatch watch(series_, fake_library(), 2);
  the<decltype(fake_nvml_hang)>("fake_nvml_hang")(true);
  watch.look();
  the<decltype(fake_nvml_wait_until_hung)>("fake_nvml_wait_until_hung")();
  clock_.advance(absl::Seconds(30));
  watch.look();
  EXPECT_THAT(page(), HasSubstr("gpu_age_seconds{node=\"n1\"} 30\n"));
  EXPECT_THAT(page(), Not(HasSubstr("temperature")));
  the<decltype(fake_nvml_hang)>("fake_nvml_hang")(false);
  while (page().find("gpu_age_seconds{node=\"n1\"} 0\n") == std::string::npos) std::this_thread::yield();
  EXPECT_THAT(page(), HasSubstr("temperature_celsius{gpu=\"0\",node=\"n1\"} 61\n"));
  clock_.advance(absl::Seconds(61));
  EXPECT_THAT(page(), HasSubstr("gpu_age_seconds{node=\"n1\"} 61\n"));
  EXPECT_THAT(page(), Not(HasSubstr("temperature"))) << "a temperature that is a minute old is not reported";
  EXPECT_THAT(page(), HasSubstr("xid_errors_total{gpu=\"0\"")) << "counters stay";
}

TEST_F(GpuWatchTest, MissingLibraryLogsOneLineAndNoSeries) {
  GpuWatch watch(series_, "/nonexistent/libnvidia-ml.so.1", 2);
  std::vector<std::string> lines;
  for (watch.look(); lines.empty(); lines = news()) std::this_thread::yield();
  EXPECT_THAT(lines, ElementsAre(HasSubstr("no GPU metrics")));
  EXPECT_THAT(page(), Not(HasSubstr("titan_worker_gpu")));
}

}  // namespace
}  // namespace titan::daemon
