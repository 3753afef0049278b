#include "gtest/gtest.h"
#include "worker/node/daemon/session.h"

namespace titan::daemon {
namespace {

// A single address is always tried again, with growing delays while no controller answers.
TEST(ControllersTest, SingleAddressIsRetriedWithBackoff) {
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

// Delays start only after all addresses were tried; after a broken session the last leader comes first.
TEST(ControllersTest, AddressesAreTriedInOrder) {
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
  EXPECT_EQ(stranger.present(), "b") << "it connects only to configured addresses";
  Controllers itself({"a", "b"});
  itself.ended(false, "a");
  EXPECT_EQ(itself.present(), "b");
}

// Two controllers that name each other, or a dead leader, do not keep the worker from the third one.
TEST(ControllersTest, OutdatedLeaderHintsDoNotHideAController) {
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
