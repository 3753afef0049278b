#include "gtest/gtest.h"
#include "worker/node/daemon/session.h"

namespace titan::daemon {
namespace {

// One address behaves as if there were no choice; who finds nobody becomes patient.
TEST(ControllersTest, OneIsTriedAgain) {
  Controllers one({"a"});
  EXPECT_FALSE(one.several());
  for (int tries = 1; tries < 5; ++tries) {
    one.ended(/*welcomed=*/false, "b");
    EXPECT_EQ(one.present(), "a");
    EXPECT_EQ(one.rounds(), tries);
  }
  one.ended(/*welcomed=*/true, "");
  EXPECT_EQ(one.rounds(), 0);
}

// All are tried before anybody becomes patient; the one that was followed comes first when its session breaks.
TEST(ControllersTest, EachInItsTurn) {
  Controllers three({"a", "b", "c"});
  for (const char* next : {"b", "c", "a", "b"}) {
    three.ended(false, "");
    EXPECT_EQ(three.present(), next);
    EXPECT_EQ(three.round_is_over(), three.present() == "a");
  }
  EXPECT_EQ(three.rounds(), 1);
  three.ended(true, "");
  EXPECT_EQ(three.present(), "b");
  EXPECT_EQ(three.rounds(), 0);
  three.ended(false, "");
  EXPECT_EQ(three.present(), "c");
}

TEST(ControllersTest, TheNamedLeaderIsNext) {
  Controllers three({"a", "b", "c"});
  three.ended(false, "c");
  EXPECT_EQ(three.present(), "c");
  Controllers stranger({"a", "b", "c"});
  stranger.ended(false, "elsewhere:7700");
  EXPECT_EQ(stranger.present(), "b") << "only what the operator gave is connected to";
  Controllers itself({"a", "b"});
  itself.ended(false, "a");
  EXPECT_EQ(itself.present(), "b");
}

// Two that name each other, or a leader that is dead, do not keep the third from being asked.
TEST(ControllersTest, WhatIsSaidMayBeOld) {
  Controllers three({"a", "b", "c"});
  std::string seen;
  for (int i = 0; i < 6; ++i) {
    seen += three.present();
    three.ended(false, three.present() == "a" ? "c" : three.present() == "c" ? "a" : "");
  }
  EXPECT_NE(seen.find('b'), std::string::npos) << seen;
}

}  // namespace
}  // namespace titan::daemon
