#include "controller/core/folders.h"
#include "gtest/gtest.h"

namespace titan::core {
namespace {

job::JobRecord job_with(const std::string& uid, const std::string& path, const std::string& real_path = "",
                        const std::string& claimed_id = "") {
  job::JobRecord job;
  job.uid = uid;
  job.spec.dump_folder = path;
  job.spec.real_folder = real_path;
  job.spec.folder_id = claimed_id;
  return job;
}

TEST(FoldersTest, EveryNameOfAFolderIsTaken) {
  Folders folders;
  folders.claim(job_with("a", "/link/x", "/disk/x", "id-x"));
  for (const char* path : {"/link/x", "/disk/x"}) {
    ASSERT_NE(folders.holder(job_with("b", path).spec), nullptr) << path;
    EXPECT_EQ(*folders.holder(job_with("b", path).spec), "a");
  }
  EXPECT_EQ(*folders.holder(job_with("b", "/elsewhere", "", "id-x").spec), "a");
  EXPECT_EQ(folders.holder(job_with("b", "/elsewhere").spec), nullptr);
}

// Two jobs claim one folder id, and the nodes of one have seen the folder: the job with the seen id holds it.
TEST(FoldersTest, SeenIdWinsOverAClaimedId) {
  Folders folders;
  folders.claim(job_with("a", "/a", "", "id"));
  job::JobRecord seen = job_with("b", "/b", "", "id");
  folders.claim(seen);
  EXPECT_EQ(*folders.holder_of_id("id"), "a");
  seen.folder_id = "id";
  folders.claim(seen);
  EXPECT_EQ(*folders.holder_of_id("id"), "b");
  EXPECT_EQ(*folders.holder(job_with("c", "/a").spec), "a");
}

TEST(FoldersTest, DropFreesAllNamesOfOneJob) {
  Folders folders;
  folders.claim(job_with("a", "/a", "/real/a", "id-a"));
  folders.claim(job_with("b", "/b"));
  folders.drop("a");
  EXPECT_EQ(folders.holder(job_with("c", "/a", "/real/a", "id-a").spec), nullptr);
  EXPECT_EQ(*folders.holder(job_with("c", "/b").spec), "b");
}

}  // namespace
}  // namespace titan::core
