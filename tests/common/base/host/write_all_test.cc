#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "common/base/host/descriptor.h"
#include "common/base/host/file_io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::host {
namespace {

// A pipe holds 64 KiB, so a longer text needs several calls of write().
TEST(WriteAllTest, TakesAsManyCallsAsNeeded) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Descriptor from(ends[0]);
  Descriptor to(ends[1]);
  const std::string sent(1 << 20, 'x');
  std::thread writer([&] {
    EXPECT_TRUE(write_all(to.get(), sent, "the pipe").ok());
    to.reset();
  });
  std::string got, part(1 << 16, '\0');
  for (ssize_t size; (size = ::read(from.get(), part.data(), part.size())) > 0;)
    got.append(part, 0, static_cast<size_t>(size));
  writer.join();
  EXPECT_EQ(got, sent);
}

TEST(WriteAllTest, NamesThePathOfAFullDisk) {
  const Descriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const absl::Status status = write_all(full.get(), "some bytes", "the file");
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("write the file"));
}

}  // namespace
}  // namespace titan::host
