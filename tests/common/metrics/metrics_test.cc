#include "common/metrics/metrics.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::metrics {
namespace {

using ::testing::HasSubstr;

std::string get(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return "";
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  if (write(fd, request.data(), request.size()) < 0) return "";
  std::string page;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) page.append(buffer, static_cast<size_t>(n));
  close(fd);
  return page;
}

TEST(MetricsTest, ServesWhatWasCounted) {
  Metrics metrics;
  metrics.counter("titan_things_total", "Things.", {{"kind", "a"}}).Increment(2);
  metrics.counter("titan_things_total", "Things.", {{"kind", "a"}}).Increment();
  metrics.histogram("titan_wait_seconds", "Waiting.").Observe(0.03);
  const absl::StatusOr<int> port = metrics.serve("127.0.0.1:0");
  ASSERT_TRUE(port.ok()) << port.status();
  const std::string page = get(*port);
  EXPECT_THAT(page, HasSubstr("titan_things_total{kind=\"a\"} 3"));
  EXPECT_THAT(page, HasSubstr("titan_wait_seconds_bucket{le=\"0.05\"} 1"));
  EXPECT_THAT(page, HasSubstr("titan_build_info{version="));
  Metrics second;
  EXPECT_EQ(second.serve(absl::StrCat("127.0.0.1:", *port)).status().code(), absl::StatusCode::kUnavailable);
}

class Live : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override {
    auto family = gauge_family("titan_live", "Computed now.");
    add_gauge(family, value, {{"x", "y"}});
    return {family};
  }
  double value = 1;
};

TEST(MetricsTest, ComputesOnDemand) {
  Metrics metrics;
  auto live = std::make_shared<Live>();
  metrics.add(live);
  live->value = 7;
  EXPECT_THAT(metrics.text(), HasSubstr("titan_live{x=\"y\"} 7"));
}

}  // namespace
}  // namespace titan::metrics
