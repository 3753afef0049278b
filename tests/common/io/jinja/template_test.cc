#include "common/io/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace titan::jinja {
namespace {

using ::testing::HasSubstr;

std::string problem(std::string_view text) { return std::string(Template::parse(text).status().message()); }

TEST(TemplateTest, UnsupportedFeaturesAreNamedWithTheirPlace) {
  EXPECT_THAT(problem("a\n {{ x|pprint }}"), HasSubstr("line 2, column 7: the filter \"pprint\" is not supported"));
  EXPECT_THAT(problem("{% if x is escaped %}{% endif %}"), HasSubstr("column 12: the test \"escaped\""));
  EXPECT_THAT(problem("{% include 'x' %}"), HasSubstr("line 1, column 4: the tag \"include\""));
  EXPECT_THAT(problem("{{ messages.append(1) }}"), HasSubstr("the method \"append\" is not supported"));
  EXPECT_THAT(problem("{{ lipsum() }}"), HasSubstr("the function \"lipsum\" is not supported"));
  EXPECT_THAT(problem("{% for x in y recursive %}{% endfor %}"), HasSubstr("recursive loops are not supported"));
  EXPECT_THAT(problem("{% macro m() %}{% generation %}{% endgeneration %}{% endmacro %}"), HasSubstr("generation"));
}

TEST(TemplateTest, SyntaxErrorsNameTheirPlace) {
  EXPECT_THAT(problem("{{ 1 +"), HasSubstr("line 1, column 1: the tag does not end"));
  EXPECT_THAT(problem("{% if x %}\n{% for y in x %}"), HasSubstr("the block \"for\" does not end"));
  EXPECT_THAT(problem("{{ [1 }}"), HasSubstr("\"}\" closes nothing"));
  EXPECT_THAT(problem("{% endif %}"), HasSubstr("the tag \"endif\""));
  EXPECT_THAT(problem("{{ 'a }}"), HasSubstr("the string does not end"));
}

// A template comes from outside. Nothing in it can exceed the limits of steps and bytes.
TEST(TemplateTest, StepsAndBytesAreLimited) {
  const auto code = [](std::string_view text) {
    const auto parsed = Template::parse(text);
    if (!parsed.ok()) return parsed.status().code();
    return parsed->render({}, {.steps = 200'000, .bytes = 1 << 20}).status().code();
  };
  EXPECT_EQ(code("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("{{ 'abc' * 9999999999 }}"), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("{% set n = namespace(s='aaaaaaaa') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}"),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("{% set n = namespace(l=[]) %}{% for a in range(999) %}{% set n.l = [n.l, n.l] %}{% endfor %}"),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
            absl::StatusCode::kInvalidArgument);
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += " + 1";
  EXPECT_EQ(code(sum + " }}"), absl::StatusCode::kInvalidArgument);
}

TEST(TemplateTest, ReturnsRangesOfGenerationBlocks) {
  const auto parsed = Template::parse("a{% generation %}bc{% endgeneration %}\n{% generation %}{% endgeneration %}d");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->has_generations());
  const auto rendered = parsed->render({});
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(rendered->text, "abcd");
  EXPECT_EQ(rendered->generations, (std::vector<std::pair<size_t, size_t>>{{1, 3}, {3, 3}}));
}

// A job that resumes tomorrow must render the same text as today.
TEST(TemplateTest, TheDateIsAlwaysTheSame) {
  const auto parsed = Template::parse("{{ strftime_now('%d %B %Y, %H') }}");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->render({})->text, "26 July 2024, 00");
}

}  // namespace
}  // namespace titan::jinja
