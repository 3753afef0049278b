// Published nodes show the core's decisions, and are read in pages.

#include "controller/reconcile/published_nodes.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace titan::reconcile {
namespace {

using ::testing::ElementsAre;

core::NodeViewPtr node(const std::string& name, int devices = 1, int64_t memory = 8, int used = 0) {
  auto view = std::make_shared<core::NodeView>();
  view->node.record.name = name;
  view->node.record.device = "cpu";
  view->node.record.devices = devices;
  view->node.record.memory_bytes = memory;
  view->devices_used = used;
  return view;
}

std::vector<std::string> names(const std::vector<core::NodeView>& views) {
  std::vector<std::string> names;
  for (const core::NodeView& view : views) names.push_back(view.node.record.name);
  return names;
}

TEST(PublishedNodesTest, PagesContinueAfterAName) {
  PublishedNodes nodes;
  for (const char* name : {"b", "a", "d", "c"}) nodes.show(node(name));
  EXPECT_THAT(names(nodes.page("", 3)), ElementsAre("a", "b", "c"));
  nodes.erase("c");
  EXPECT_THAT(names(nodes.page("c", 3)), ElementsAre("d")) << "the name that a page continues after may be gone";
  EXPECT_THAT(names(nodes.page("d", 3)), ElementsAre());
}

TEST(PublishedNodesTest, AllNodesAreReadInPages) {
  PublishedNodes nodes;
  std::vector<std::string> expected;
  for (int i = 0; i < 1200; ++i) {
    expected.push_back(absl::StrFormat("n%04d", i));
    nodes.show(node(expected.back()));
    if (i == 499 || i == 500 || i == 999) {
      EXPECT_EQ(names(nodes.all()), expected);
    }
  }
  EXPECT_EQ(names(nodes.all()), expected);
}

TEST(PublishedNodesTest, ShowsTheNewestViewAndBeat) {
  PublishedNodes nodes;
  nodes.beat("a", absl::FromUnixSeconds(1));
  EXPECT_TRUE(absl::IsNotFound(nodes.find("a").status()));
  nodes.show(node("a", 4));
  nodes.beat("a", absl::FromUnixSeconds(2));
  EXPECT_EQ(nodes.find("a")->node.last_beat_time, absl::FromUnixSeconds(2));
  nodes.show(node("a", 4, 8, /*used=*/3));
  EXPECT_EQ(nodes.find("a")->devices_used, 3);
}

TEST(PublishedNodesTest, NodeCapacitiesFollowTheDevices) {
  PublishedNodes nodes;
  nodes.show(node("a", 4, 100));
  nodes.show(node("b", 0));
  ASSERT_EQ(nodes.node_memory("cpu").size(), 1u);
  EXPECT_EQ(nodes.node_memory("cpu")[0].device_memory_bytes, 25);
  EXPECT_TRUE(nodes.node_memory("cuda").empty());
  nodes.show(node("a", 2, 100));
  EXPECT_EQ(nodes.node_memory("cpu")[0].devices, 2);
  nodes.show(node("c", 2, 100));
  EXPECT_EQ(nodes.node_memory("cpu").size(), 2u);
  nodes.erase("a");
  EXPECT_EQ(nodes.node_memory("cpu").size(), 1u);
}

}  // namespace
}  // namespace titan::reconcile
