// Which files a dataset path selects, and which errors report that the files are not data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/text/home.h"
#include "common/io/data_files/check_files.h"
#include "common/io/data_files/datasets.h"
#include "common/io/data_files/foreign_files.h"
#include "common/io/data_files/token_manifest.h"
#include "tests/common/io/data_files/folder.h"

namespace titan::data_files {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using DataFilesTest = testing::Folder;

std::vector<std::string> names(const absl::StatusOr<DatasetFiles>& found) {
  if (!found.ok()) return {std::string(found.status().message())};
  std::vector<std::string> names;
  for (const std::string& file : found->files) names.push_back(std::filesystem::path(file).filename().string());
  return names;
}

// A path that exists is taken literally even if it is also a pattern.
TEST_F(DataFilesTest, NamesThatLookLikePatterns) {
  for (const char* name :
       {"[D_DATA]/part[1].jsonl", "[D_DATA]/part1.jsonl", "back\\slash.jsonl", "star*.jsonl", "a b?.jsonl"})
    write(name, "{}");
  const auto found = [&](const std::string& path) { return names(find_dataset_files(folder_ + "/" + path)); };
  EXPECT_THAT(found("[D_DATA]/part[1].jsonl"), ElementsAre("part[1].jsonl"));
  EXPECT_THAT(found("[D_DATA]"), ElementsAre("part1.jsonl", "part[1].jsonl"));
  EXPECT_THAT(found("back\\slash.jsonl"), ElementsAre("back\\slash.jsonl"));
  EXPECT_THAT(found("star*.jsonl"), ElementsAre("star*.jsonl"));
  EXPECT_THAT(found("a b?.jsonl"), ElementsAre("a b?.jsonl"));
  EXPECT_THAT(found("\\[D_DATA\\]/part[12].jsonl"), ElementsAre("part1.jsonl"));
  EXPECT_THAT(found("[D_DATA]/*.jsonl")[0],
              AllOf(HasSubstr("no file matches this pattern"), HasSubstr("\\[ stands for a bracket")));
}

TEST_F(DataFilesTest, HomeFoldersAreExpanded) {
  write("data/a.jsonl", "{}");
  const char* home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  setenv("HOME", folder_.c_str(), 1);
  EXPECT_THAT(names(find_dataset_files("~/data/*.jsonl")), ElementsAre("a.jsonl"));
  EXPECT_EQ(text::expand_home("~"), folder_);
  EXPECT_EQ(text::expand_home("./~"), "./~");
  EXPECT_EQ(text::expand_home("a/~/b"), "a/~/b");
  EXPECT_EQ(text::expand_home("~root/x"), absl::StrCat(getpwnam("root")->pw_dir, "/x"));
  EXPECT_EQ(text::expand_home("~nobody-of-this-name/x"), "~nobody-of-this-name/x");
  setenv("HOME", before.c_str(), 1);
}

// Hub repositories and datasets.save_to_disk write these files.
TEST_F(DataFilesTest, DatasetDescriptionsAreNotData) {
  for (const char* name : {"dataset_infos.json", "dataset_info.json", "state.json", "dataset_dict.json"})
    write(std::string("hub/") + name, "{}");
  write("hub/train.parquet", "PAR1");
  const auto hub = find_dataset_files(folder_ + "/hub");
  EXPECT_THAT(names(hub), ElementsAre("train.parquet"));
  EXPECT_EQ(hub->format, DatasetFormat::kParquet);
  EXPECT_THAT(names(find_dataset_files(folder_ + "/hub/*.json"))[0], HasSubstr("holds no *.json"));
  EXPECT_THAT(names(find_dataset_files(folder_ + "/hub/state.json")), ElementsAre("state.json"));
}

TEST_F(DataFilesTest, ReportsFilesOfUnsupportedFormats) {
  write("saved/data-00000-of-00001.arrow", "");
  write("saved/dataset_info.json", "{}");
  write("dict/train/data-00000-of-00001.arrow", "");
  write("dict/dataset_dict.json", "{}");
  write("packed/texts.jsonl.xz", "");
  write("table/texts.csv", "");
  const auto error_for = [&](const std::string& path) { return names(find_dataset_files(folder_ + "/" + path))[0]; };
  EXPECT_THAT(error_for("saved"), AllOf(HasSubstr("data-00000-of-00001.arrow is Arrow's"), HasSubstr("to_parquet")));
  EXPECT_THAT(error_for("dict"), HasSubstr("name one of them: " + folder_ + "/dict/train"));
  EXPECT_THAT(error_for("packed"), HasSubstr("texts.jsonl.xz is compressed by xz (`unxz`"));
  EXPECT_THAT(error_for("packed/texts.jsonl.xz"), AllOf(HasSubstr("holds no *.json"), HasSubstr("unxz")));
  EXPECT_THAT(error_for("table"), HasSubstr("load_dataset(\"csv\""));
  write("empty/readme.md", "");
  EXPECT_THAT(error_for("empty"), Not(HasSubstr(";")));
}

// Hugging Face's datasets library would put these files into other splits.
TEST_F(DataFilesTest, WarnsAboutFilesNamedLikeOtherSplits) {
  const auto warning = [&](const std::string& path) {
    const auto found = dataset_files("c4_test", folder_ + "/" + path);
    return found.ok() ? found->warning : std::string(found.status().message());
  };
  for (const char* name : {"two/train-00000.jsonl", "two/train-00001.jsonl", "two/test.jsonl", "plain/latest.jsonl",
                           "plain/b.jsonl", "held/a-test.jsonl", "held/test.jsonl"})
    write(name, "{}");
  EXPECT_EQ(warning("two"), absl::StrCat("dataset_path ", folder_,
                                         "/two: 3 files are read as one dataset, including files that by name "
                                         "belong to another split (test.jsonl): set dataset_path to the glob ",
                                         folder_, "/two/train* to leave them out"));
  write("two/package.json", "{}");
  EXPECT_THAT(warning("two"), AllOf(HasSubstr("4 files"), HasSubstr("the glob " + folder_ + "/two/train* to leave")));
  for (const char* path : {"two/*.jsonl", "two/test.jsonl", "plain", "held"}) EXPECT_EQ(warning(path), "") << path;
  for (const char* name : {"more/a.jsonl", "more/a_dev.jsonl", "more/x.valid.json", "more/eval-1.jsonl",
                           "more/validation.jsonl", "more/my-test-set.jsonl"})
    write(name, "{}");
  EXPECT_THAT(warning("more"), AllOf(HasSubstr("6 files"),
                                     HasSubstr("a_dev.jsonl, eval-1.jsonl, my-test-set.jsonl, "
                                               "validation.jsonl and 1 more)"),
                                     HasSubstr("to a glob of the other files")));
}

// Errors that ranks would find in file headers are found before the job is queued (Parquet's columns:
// tests/integration/cli_test.py).
TEST_F(DataFilesTest, HeadersShowWhetherThereAreDocuments) {
  const auto error_for = [&](const std::string& path) {
    const auto found = find_dataset_files(folder_ + "/" + path);
    return std::string((found.ok() ? check_files(*found, {}) : found.status()).message());
  };
  write("index/titan-tokens.json", manifest_text({.shards = {{.name = "shard-00000", .tokens = 7, .documents = 2}}}));
  write("none/titan-tokens.json", manifest_text({.shards = {{.name = "shard-00000", .documents = 2}}}));
  write("damaged/titan-tokens.json", "{}");
  EXPECT_EQ(error_for("index"), "");
  EXPECT_EQ(error_for("none"), absl::StrCat("holds no document: ", folder_, "/none/titan-tokens.json has no token"));
  EXPECT_THAT(error_for("damaged"), HasSubstr("is not a manifest of a token index"));
  write("cut.idx", "MMIDIDX");
  EXPECT_THAT(error_for("cut.idx"), AllOf(HasSubstr("cut.bin"), HasSubstr("No such file")));
  write("cut.bin", "");
  EXPECT_EQ(error_for("cut.idx"), absl::StrCat(folder_, "/cut.idx: is truncated; preprocess the data again"));
  write("a.parquet", "PAR1" + std::string(20, '\0'));
  EXPECT_THAT(error_for("a.parquet"),
              AllOf(HasSubstr("a.parquet: cannot be read as Parquet"), HasSubstr("is truncated")));
  write("b.parquet", "{\"text\": \"a\"}\nPAR1");
  EXPECT_THAT(error_for("b.parquet"), HasSubstr("does not begin with PAR1, so it is another format"));
  write("c.parquet", "PAR");
  EXPECT_THAT(error_for("c.parquet"), HasSubstr("it has 3 bytes"));
  write("packed.txt", "\x1F\x8B\x08");
  EXPECT_THAT(error_for("packed.txt"), HasSubstr("is not text in UTF-8 but compressed by gzip"));
}

}  // namespace
}  // namespace titan::data_files
