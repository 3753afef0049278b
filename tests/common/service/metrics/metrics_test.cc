#include "common/service/metrics/metrics.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/service/metrics/page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::metrics {
namespace {

using ::testing::HasSubstr;

int connected(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

std::string ask(int port, const std::string& request) {
  const int fd = connected(port);
  if (write(fd, request.data(), request.size()) < 0) return "";
  std::string page;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) page.append(buffer, static_cast<size_t>(n));
  close(fd);
  return page;
}

std::string get(int port) { return ask(port, "GET /metrics HTTP/1.0\r\n\r\n"); }

TEST(MetricsTest, ServesCountedValues) {
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

// Probes and load balancers send HEAD; any other request gets a response without a page.
TEST(MetricsTest, AnswersOtherRequestsWithoutAPage) {
  Metrics metrics;
  const absl::StatusOr<int> port = metrics.serve("127.0.0.1:0");
  ASSERT_TRUE(port.ok()) << port.status();
  const std::string head = ask(*port, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(head, ::testing::StartsWith("HTTP/1.1 200 OK\r\n"));
  int64_t length = 0;
  const std::vector<std::string> parts = absl::StrSplit(head, "Content-Length: ");
  ASSERT_EQ(parts.size(), 2u) << head;
  ASSERT_TRUE(absl::SimpleAtoi(parts[1].substr(0, parts[1].find('\r')), &length));
  EXPECT_NEAR(static_cast<double>(length), static_cast<double>(metrics.text().size()), 64)
      << "values grow between two scrapes";
  EXPECT_THAT(head, ::testing::EndsWith("\r\n\r\n"));
  EXPECT_THAT(ask(*port, "GET /metrics?x=1 HTTP/1.1\r\n\r\n"), HasSubstr("titan_build_info"));
  EXPECT_THAT(ask(*port, "GET / HTTP/1.1\r\n\r\n"), HasSubstr("404 Not Found"));
  for (const std::string& odd : {std::string("POST /metrics HTTP/1.1\r\n\r\n"), std::string("hello\r\n\r\n"),
                                 "GET /" + std::string(10'000, 'x') + " HTTP/1.1\r\n\r\n"}) {
    EXPECT_THAT(ask(*port, odd), ::testing::StartsWith("HTTP/1.1 4"));
  }
  EXPECT_EQ(Metrics().serve("nonsense").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Metrics().serve("127.0.0.1:70000").status().code(), absl::StatusCode::kInvalidArgument);
}

// A daemon ends by its destructors: connections do not delay them for long, and a silent one does not block the page.
TEST(MetricsTest, EndsPromptlyWithOpenConnections) {
  auto metrics = std::make_unique<Metrics>();
  const absl::StatusOr<int> port = metrics->serve("127.0.0.1:0");
  ASSERT_TRUE(port.ok()) << port.status();
  const int silent = connected(*port);
  EXPECT_THAT(get(*port), HasSubstr("titan_build_info"));
  const absl::Time start = absl::Now();
  metrics.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(10)) << "it waited for the silent client";
  close(silent);
}

// Incomplete requests must not delay a scrape by others, whether they stay silent or send one more byte now and then.
TEST(MetricsTest, IncompleteRequestsDoNotDelayOthers) {
  Metrics metrics;
  const absl::StatusOr<int> port = metrics.serve("127.0.0.1:0");
  ASSERT_TRUE(port.ok()) << port.status();
  std::vector<int> halves;
  for (int i = 0; i < 300; ++i) {
    halves.push_back(connected(*port));
    if (i % 2 == 0) {
      EXPECT_EQ(write(halves.back(), "GET /me", 7), 7);
    }
  }
  const absl::Time start = absl::Now();
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(get(*port), HasSubstr("titan_build_info"));
    for (const int half : halves) (void)!send(half, "x", 1, MSG_NOSIGNAL);
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(20)) << "with a thread each it took 75 s";
  for (const int half : halves) close(half);
}

// A slow client gets all of a page that exceeds any socket buffer, while others get theirs.
TEST(MetricsTest, ASlowReaderGetsAllOfALongPage) {
  const std::string text(32 << 20, 'x');
  const auto page = Page::open("127.0.0.1:0", [&text] { return text; });
  ASSERT_TRUE(page.ok()) << page.status();
  const int slow = connected((*page)->port());
  const std::string request = "GET /metrics HTTP/1.1\r\n\r\n";
  ASSERT_EQ(write(slow, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  EXPECT_EQ(read_page("127.0.0.1", (*page)->port(), absl::Seconds(20))->size(), text.size());
  size_t size = 0;
  std::vector<char> buffer(1 << 16);
  for (ssize_t n; (n = read(slow, buffer.data(), buffer.size())) > 0;) size += static_cast<size_t>(n);
  EXPECT_GT(size, text.size());
  close(slow);
}

// The metrics have the names that every Prometheus dashboard knows.
TEST(MetricsTest, DescribesItsProcess) {
  const std::string page = Metrics().text();
  const auto value = [&](const std::string& name) {
    const size_t at = page.find("\n" + name + " ");
    EXPECT_NE(at, std::string::npos) << name;
    return at == std::string::npos ? 0 : std::stod(page.substr(at + name.size() + 2));
  };
  EXPECT_THAT(page, HasSubstr("# TYPE process_cpu_seconds_total counter\n"));
  EXPECT_GE(value("process_cpu_seconds_total"), 0);
  EXPECT_GT(value("process_resident_memory_bytes"), 100'000);
  EXPECT_GE(value("process_virtual_memory_bytes"), value("process_resident_memory_bytes"));
  EXPECT_GE(value("process_threads"), 1);
  const double open = value("process_open_fds");
  EXPECT_GE(open, 3);
  EXPECT_GE(value("process_max_fds"), open);
  const auto now = static_cast<double>(absl::ToUnixSeconds(absl::Now()));
  EXPECT_LE(value("process_start_time_seconds"), now + 1);
  EXPECT_GT(value("process_start_time_seconds"), now - 86'400);
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

TEST(MetricsTest, CallbackGaugeExistsWhileItHasAValue) {
  Metrics metrics;
  std::optional<double> value;
  metrics.add(std::make_shared<CallbackGauge>("titan_asked", "Asked now.", Labels{{"x", "y"}}, [&] { return value; }));
  EXPECT_THAT(metrics.text(), Not(HasSubstr("titan_asked")));
  value = 7;
  EXPECT_THAT(metrics.text(), HasSubstr("titan_asked{x=\"y\"} 7"));
}

}  // namespace
}  // namespace titan::metrics
