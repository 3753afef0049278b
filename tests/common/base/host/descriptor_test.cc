#include "common/base/host/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "gtest/gtest.h"

namespace titan::host {
namespace {

bool is_open(int number) { return ::fcntl(number, F_GETFD) >= 0; }

int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

// A descriptor is closed once, by its last holder.
TEST(DescriptorTest, IsClosedByItsLastHolder) {
  const int number = open_null();
  ASSERT_TRUE(is_open(number));
  {
    Descriptor first(number);
    Descriptor second(std::move(first));
    EXPECT_EQ(second.get(), number);
    Descriptor third;
    EXPECT_FALSE(third);
    third = std::move(second);
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(DescriptorTest, AssignmentClosesTheFormerDescriptor) {
  const int old = open_null();
  Descriptor held(old);
  held = Descriptor(open_null());
  EXPECT_FALSE(is_open(old));
  EXPECT_TRUE(is_open(held.get()));
  const int given_away = held.release();
  EXPECT_FALSE(held);
  EXPECT_TRUE(is_open(given_away));
  ::close(given_away);
}

}  // namespace
}  // namespace titan::host
