#include "gtest/gtest.h"
TEST(RandomTest, Placeholder) {}
