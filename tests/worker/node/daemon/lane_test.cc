#include <future>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "worker/node/daemon/serial_executor.h"

namespace titan::daemon {
namespace {

TEST(LaneTest, RunsAllTasksInOrderBeforeItEnds) {
  std::vector<int> done;
  {
    SerialExecutor lane(std::chrono::seconds(60));
    for (int i = 0; i < 100; ++i) lane.run([&done, i] { done.push_back(i); });
  }
  ASSERT_EQ(done.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[i], i);
}

// Hanging storage blocks only its own thread.
TEST(LaneTest, HangingTaskDoesNotBlockItsOwner) {
  auto answer = std::make_shared<std::promise<void>>();
  auto over = std::make_shared<std::promise<void>>();
  {
    SerialExecutor lane(std::chrono::milliseconds(10));
    lane.run([wait = answer->get_future().share(), over] {
      wait.wait();
      over->set_value();
    });
  }
  answer->set_value();
  over->get_future().wait();
}

}  // namespace
}  // namespace titan::daemon
