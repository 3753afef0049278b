#include "controller/cli/job_names.h"

#include "common/base/text/id.h"
#include "gtest/gtest.h"

namespace titan::cli {
namespace {

struct Project {
  explicit Project(const std::string& name) { set_project(name); }
  ~Project() { set_project(""); }
};

TEST(JobNamesTest, PlainIdsBelongToTheDefaultProject) {
  EXPECT_EQ(full_name("x"), "projects/default/jobs/x");
  EXPECT_EQ(full_name("vision/x"), "projects/vision/jobs/x");
  EXPECT_EQ(full_name("projects/vision/jobs/x"), "projects/vision/jobs/x");
  EXPECT_EQ(short_name("projects/default/jobs/x"), "x");
  EXPECT_EQ(short_name("projects/vision/jobs/x"), "vision/x");
}

TEST(JobNamesTest, ProjectSettingChangesTheDefault) {
  const Project vision("vision");
  EXPECT_EQ(full_name("x"), "projects/vision/jobs/x");
  EXPECT_EQ(full_name("default/x"), "projects/default/jobs/x");
  EXPECT_EQ(short_name("projects/vision/jobs/x"), "x");
  EXPECT_EQ(short_name("projects/default/jobs/x"), "default/x");
}

TEST(JobNamesTest, ShortNamesCanBeExpandedAgain) {
  for (const char* project : {"", "vision"}) {
    const Project given(project);
    for (const char* name : {"projects/default/jobs/a", "projects/vision/jobs/b"})
      EXPECT_EQ(full_name(short_name(name)), name);
  }
}

// Names of other forms are sent unchanged, so that the controller reports what is wrong with them.
TEST(JobNamesTest, OtherFormsStayUnchanged) {
  for (const char* odd : {"", "/", "a/", "/b", "a/b/c", "projects//jobs/x", "nodes/n1/x/y"})
    EXPECT_EQ(full_name(odd), odd);
  EXPECT_EQ(short_name("nodes/n1"), "nodes/n1");
}

TEST(JobNamesTest, ProjectNamesAreChecked) {
  for (const char* good : {"a", "team_1.x-y"}) EXPECT_TRUE(text::is_project_name(good)) << good;
  for (const std::string& bad : {std::string(), std::string("a b"), std::string("a/b"), std::string(64, 'a')})
    EXPECT_FALSE(text::is_project_name(bad)) << bad;
}

}  // namespace
}  // namespace titan::cli
