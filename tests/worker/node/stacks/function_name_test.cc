#include "gtest/gtest.h"
#include "worker/node/stacks/elf_file.h"

namespace titan::stacks {
namespace {

TEST(FunctionNameTest, IsDemangled) {
  EXPECT_EQ(function_name("main"), "main");
  EXPECT_EQ(function_name("_ZNSt6vectorIiSaIiEE4sizeEv"), "std::vector<int, std::allocator<int> >::size()");
  EXPECT_EQ(function_name("_Znonsense"), "_Znonsense");
}

// Function names can contain any bytes: none may move a terminal's cursor.
TEST(FunctionNameTest, UnprintableBytesBecomeQuestionMarks) {
  EXPECT_EQ(function_name("a\x1b[31mb\n\xc3\xa9"), "a?[31mb???");
}

// Inner template arguments are the least informative.
TEST(FunctionNameTest, LongNamesFoldInnermostArgumentsFirst) {
  const std::string name = "ns::Map<std::pair<int, long>, ns::List<float> >::find(std::vector<int> const&)";
  EXPECT_EQ(shortened_name(name, name.size()), name);
  EXPECT_EQ(shortened_name(name, 70), "ns::Map<std::pair<...>, ns::List<...> >::find(std::vector<...> const&)");
  EXPECT_EQ(shortened_name(name, 40), "ns::Map<...>::find(...)");
  EXPECT_EQ(shortened_name(name, 20), "ns::Map<...>::fin...");
}

TEST(FunctionNameTest, OperatorsAreNotBrackets) {
  EXPECT_EQ(shortened_name("A<int>::operator<(B<C<int> >)", 25), "A<...>::operator<(B<...>)");
  EXPECT_EQ(shortened_name("A<int>::operator->() const + more of it", 35), "A<...>::operator->() const + mor...");
  EXPECT_EQ(shortened_name("F<void (int)>::operator()(B<int>)", 25), "F<...>::operator()(...)");
}

}  // namespace
}  // namespace titan::stacks
