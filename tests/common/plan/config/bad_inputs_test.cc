// Every bad configuration of bad_inputs.json is rejected with its key, value and suggestion. The same table makes
// docs/generated/bad-inputs.md and drives the tests of `titanctl validate` and `titanctl submit`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/plan/config/load.h"
#include "common/plan/config/validate.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using ::testing::HasSubstr;

nlohmann::json read_table() {
  std::ifstream file(std::string(std::getenv("TITAN_SOURCE")) + "/tests/common/plan/config/bad_inputs.json");
  return nlohmann::json::parse(file);
}

absl::Status load_and_validate(const nlohmann::json& row) {
  std::ostringstream text;
  for (const auto& line : row["lines"]) text << line.get<std::string>() << "\n";
  const std::string format = row.value("format", "toml");
  const std::string name = "config." + format;
  const absl::StatusOr<LoadedConfig> loaded =
      load_text(text.str(), *format_of(name), name, row.value("args", std::vector<std::string>()));
  return loaded.ok() ? validate(*loaded) : loaded.status();
}

TEST(BadInputsTest, EveryRowIsRefusedWithKeyValueAndSuggestion) {
  const nlohmann::json table = read_table();
  ASSERT_GE(table.size(), 40u);
  for (const nlohmann::json& row : table) {
    SCOPED_TRACE(row["name"].get<std::string>());
    const absl::Status status = load_and_validate(row);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const std::string message(status.message());
    const std::string key = row["key"], value = row["value"];
    // Key, value and suggestion are in one line of the message.
    const std::string what = key.empty() || value.empty() ? key + value : absl::StrCat(key, " = ", value, ": ");
    bool found = false;
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(message, '\n'))) {
      found = found || (absl::StrContains(line, what) && absl::StrContains(line, row["suggestion"].get<std::string>()));
    }
    EXPECT_TRUE(found) << message;
    // One mistake gives one problem; "problems" has the count where several checks look at the same key.
    const auto problems = std::count(message.begin(), message.end(), '\n') + 1;
    EXPECT_EQ(problems, row.value("problems", problems)) << message;
    for (const auto& part : row["expect"]) EXPECT_THAT(message, HasSubstr(part.get<std::string>()));
  }
}

}  // namespace
}  // namespace titan::config
