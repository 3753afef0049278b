#include "worker/rank/device/host_waits.h"

#include <gtest/gtest.h>

#include "tests/worker/rank/comm/interposed_backend.h"
#include "worker/rank/comm/make_device.h"

namespace titan::device {
namespace {

// A CPU device that is notified whether its host may wait.
class WatchedDevice final : public testing::ForwardingDevice, public HostWaitDetector {
 public:
  WatchedDevice() : ForwardingDevice(comm::make_cpu_device()) {}
  c10::intrusive_ptr<c10d::Backend> make_backend(const BackendOptions& options) override {
    return inner_->make_backend(options);
  }
  void forbid_waits(bool forbidden) override { forbidden_ = forbidden; }
  bool forbidden() const { return forbidden_; }

 private:
  bool forbidden_ = false;
};

// Waits are forbidden while the guard lives, except during named reads, which may be nested.
TEST(HostWaitsTest, NamedReadsAreAllowed) {
  WatchedDevice device;
  check_host_wait("allowed by default");
  {
    const ForbidHostWaits forbidden(device);
    EXPECT_TRUE(device.forbidden());
    EXPECT_THROW(check_host_wait("a read"), c10::Error);
    {
      const AllowHostWaitGuard outer;
      EXPECT_FALSE(device.forbidden());
      { const AllowHostWaitGuard inner; }
      EXPECT_FALSE(device.forbidden());
      EXPECT_NO_THROW(check_host_wait("a named read"));
    }
    EXPECT_TRUE(device.forbidden());
    EXPECT_THROW(ForbidHostWaits{device}, c10::Error);
    EXPECT_TRUE(device.forbidden());
  }
  EXPECT_FALSE(device.forbidden());
  check_host_wait("allowed again");
}

// If a guard starts during a named read, waits are forbidden once the read ends.
TEST(HostWaitsTest, GuardInsideANamedReadHoldsAfterIt) {
  WatchedDevice device;
  auto named = std::make_unique<AllowHostWaitGuard>();
  const ForbidHostWaits forbidden(device);
  EXPECT_FALSE(device.forbidden());
  named.reset();
  EXPECT_TRUE(device.forbidden());
}

// A CPU is not a HostWaitDetector, so nothing is forbidden.
TEST(HostWaitsTest, NothingIsForbiddenOnTheCpu) {
  const auto cpu = comm::make_cpu_device();
  const ForbidHostWaits forbidden(*cpu);
  EXPECT_NO_THROW(check_host_wait("a read"));
}

}  // namespace
}  // namespace titan::device
