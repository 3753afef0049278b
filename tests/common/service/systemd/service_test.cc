#include "common/service/systemd/service.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::systemd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Stands in for systemd: a socket, and the messages that arrived.
class Manager {
 public:
  Manager() : path_(absl::StrCat(::testing::TempDir(), "/notify-", ::getpid())) {
    ::unlink(path_.c_str());
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~Manager() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }
  std::vector<std::string> received() {
    std::vector<std::string> all;
    char buffer[1024];
    for (ssize_t n = 0; (n = ::recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT)) >= 0;) all.emplace_back(buffer, n);
    return all;
  }

 private:
  const std::string path_;
  const int fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
};

TEST(ServiceTest, ReportsReadyAndStopping) {
  Manager manager;
  FakeClock clock;
  Notifier service({manager.path()}, clock);
  service.ready();
  service.stopping();
  EXPECT_THAT(manager.received(), ElementsAre("READY=1", "STOPPING=1"));
}

TEST(ServiceTest, AStatusIsOneLineAndSentOnce) {
  Manager manager;
  FakeClock clock;
  Notifier service({manager.path()}, clock);
  service.status("leads:\n2 nodes");
  service.status("leads:\n2 nodes");
  service.status("leads: 3 nodes");
  EXPECT_THAT(manager.received(), ElementsAre("STATUS=leads: 2 nodes", "STATUS=leads: 3 nodes"));
}

// A loop of a thousand rounds per second sends four messages within the watchdog's time.
TEST(ServiceTest, RunningLoopFeedsTheWatchdog) {
  Manager manager;
  FakeClock clock;
  Notifier service({manager.path(), absl::Seconds(20)}, clock);
  for (int i = 0; i < 20'000; ++i) {
    service.alive();
    clock.advance(absl::Milliseconds(1));
  }
  EXPECT_THAT(manager.received(), ElementsAre("WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"));
}

// No other call feeds the watchdog for a loop that hangs.
TEST(ServiceTest, HangingLoopDoesNotFeedTheWatchdog) {
  Manager manager;
  FakeClock clock;
  Notifier service({manager.path(), absl::Seconds(20)}, clock);
  service.alive();
  manager.received();
  clock.advance(absl::Hours(1));
  service.status("still here");
  service.ready();
  EXPECT_THAT(manager.received(), ElementsAre("STATUS=still here", "READY=1"));
}

TEST(ServiceTest, WithoutAWatchdogNothingIsSent) {
  Manager manager;
  FakeClock clock;
  Notifier service({manager.path()}, clock);
  service.alive();
  EXPECT_THAT(manager.received(), IsEmpty());
  EXPECT_EQ(service.pace(), absl::Seconds(1));
  EXPECT_EQ(Notifier({}, clock).pace(), absl::InfiniteDuration());
  EXPECT_EQ(Notifier({manager.path(), absl::Milliseconds(400)}, clock).pace(), absl::Milliseconds(100));
}

// A watchdog for another process, such as a daemon's parent, is ignored.
TEST(ServiceTest, IgnoresTheEnvironmentOfAnotherProcess) {
  ::setenv("NOTIFY_SOCKET", "/run/notify", 1);
  ::setenv("WATCHDOG_USEC", "3000000", 1);
  ::setenv("WATCHDOG_PID", absl::StrCat(::getpid()).c_str(), 1);
  EXPECT_EQ(Notifier::from_environment().socket, "/run/notify");
  EXPECT_EQ(Notifier::from_environment().watchdog, absl::Seconds(3));
  ::setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(Notifier::from_environment().watchdog, absl::InfiniteDuration());
  for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) ::unsetenv(name);
  EXPECT_EQ(Notifier::from_environment().socket, "");
}

}  // namespace
}  // namespace titan::systemd
