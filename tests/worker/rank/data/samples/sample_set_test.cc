#include "worker/rank/data/samples/sample_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/worker/rank/data/samples/testing.h"
#include "tests/worker/rank/data/testing.h"
#include "worker/rank/data/samples/sample_files.h"

namespace titan::data {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::image;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing::small_tar;
using testing::tar_end;
using testing::tar_member;
using testing::text;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(SampleIndexTest, BytesAndBack) {
  SampleIndex index;
  for (int64_t i = 0; i < 1'000'000; ++i) index.samples.push_back({i << 20, i});
  index.warning = "truncated?";
  const std::string bytes = index.to_bytes();
  const auto again = SampleIndex::from_bytes(bytes);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->samples, index.samples);
  EXPECT_EQ(again->warning, index.warning);

  index.samples.resize(3);
  const std::string small = index.to_bytes();
  for (size_t i = 0; i < small.size(); ++i) {
    std::string damaged = small;
    damaged[i] ^= 4;
    EXPECT_EQ(SampleIndex::from_bytes(damaged).status().code(), absl::StatusCode::kDataLoss) << i;
    EXPECT_EQ(SampleIndex::from_bytes(small.substr(0, i)).status().code(), absl::StatusCode::kDataLoss) << i;
  }
  EXPECT_EQ(SampleIndex::from_bytes(small + "x").status().code(), absl::StatusCode::kDataLoss);
}

// A file is scanned once, by one of the ranks and jobs that share the folder, until it changes.
TEST(SampleSetTest, IndexesAreKept) {
  const testing::Folder folder;
  testing::MadeStore store;
  SampleSet::Options options{.kind = {.files = &store}, .index_folder = folder.path() + "/new/index", .ranks = 2};
  for (int i = 0; i < 5; ++i) {
    options.files.push_back(absl::StrCat("s3://b/", i, ".tar"));
    store.add(options.files.back(), small_tar(i, 10 * i));
  }
  auto set = SampleSet::open(options);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ((*set)->samples(), 10);
  EXPECT_THAT(names_in(options.index_folder), SizeIs(5));
  const std::string facts = (*set)->facts();
  store.bytes_read = 0;
  options.rank = 1;
  set = SampleSet::open(options);
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(store.bytes_read, 0);
  EXPECT_EQ((*set)->facts(), facts);
  EXPECT_EQ((*set)->read(9)->key, "0043");

  // A damaged index is made again.
  for (const std::string& name : names_in(options.index_folder)) {
    std::ofstream(options.index_folder + "/" + name, std::ios::binary | std::ios::in).seekp(20).put('x');
  }
  set = SampleSet::open(options);
  ASSERT_TRUE(set.ok());
  EXPECT_GT(store.bytes_read, 0);
  EXPECT_EQ((*set)->read(9)->key, "0043");

  // A file of another size has another index. Samples of one that changed under its index cannot be
  // used.
  store.add(options.files[4], small_tar(6, 40));
  EXPECT_EQ((*SampleSet::open(options))->samples(), 12);
  EXPECT_NE((*SampleSet::open(options))->facts(), facts);
  store.add(options.files[4], std::string(2048, 'x') + small_tar(5, 0));
  EXPECT_THAT((*SampleSet::open(options))->read(6)->problem, HasSubstr("checksum"));
  store.add(options.files[4], tar_member("z.jpg", "x") + small_tar(5, 0) + std::string(1024, '\0'));
  const Sample moved = *(*SampleSet::open(options))->read(6);
  EXPECT_THAT(moved.name, HasSubstr(options.files[4]));
  EXPECT_THAT(moved.problem, HasSubstr("changed"));

  // A folder that cannot be written, and none.
  const std::string file = folder.write("file", "");
  for (const std::string& nowhere : {file, std::string()}) {
    options.index_folder = nowhere;
    set = SampleSet::open(options);
    ASSERT_TRUE(set.ok()) << set.status();
    EXPECT_EQ((*set)->read(1)->key, "0020");
  }
}

TEST(SampleSetTest, FewFilesStayOpen) {
  const testing::Folder folder;
  SampleSet::Options options{.open_files = 2};
  for (int i = 0; i < 6; ++i) options.files.push_back(folder.write(absl::StrCat(i, ".tar"), small_tar(3, 3 * i)));
  const auto set = SampleSet::open(options);
  ASSERT_TRUE(set.ok());
  for (const int64_t number : {17, 0, 9, 17, 3, 4, 5, 0, 12}) {
    const auto sample = (*set)->read(number);
    ASSERT_TRUE(sample.ok()) << sample.status();
    EXPECT_EQ(std::stoll(sample->key), number);
  }
  fs::resize_file(options.files[2], 600);
  EXPECT_EQ((*set)->read(8).status().code(), absl::StatusCode::kInvalidArgument)
      << "it was closed and is scanned again";
}

TEST(SampleSetTest, WarningsOfFilesComeOnce) {
  const testing::Folder folder;
  const std::string whole = small_tar(2);
  const SampleSet::Options options{.files = {folder.write("a.tar", whole.substr(0, whole.size() - 1024))},
                                   .index_folder = folder.path()};
  for (int i = 0; i < 2; ++i) {
    const auto set = SampleSet::open(options);
    ASSERT_TRUE((*set)->read(0).ok() && (*set)->read(1).ok());
    EXPECT_THAT((*set)->take_warnings(), ElementsAre(HasSubstr("may be truncated"))) << "also with a kept index";
    EXPECT_THAT((*set)->take_warnings(), IsEmpty());
  }
}

// Archives on a hub: headers are read from one stream, and so are consecutive samples.
TEST(SampleSetTest, HubsAreReadWithFewStreams) {
  const std::string tar = small_tar(300);
  const auto hub = std::make_shared<testing::MadeHub>(tar);
  const testing::Folder folder;
  const SampleSet::Options options{
      .files = {"hf://datasets/a/b@c/1.tar"}, .kind = {.remote = hub}, .index_folder = folder.path()};
  auto set = SampleSet::open(options);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(hub->streams, 1);
  EXPECT_LE(hub->bytes_sent, static_cast<int64_t>(2 * tar.size()));
  set = SampleSet::open(options);
  hub->bytes_sent = 0;
  for (int64_t i = 0; i < 300; ++i) {
    const auto sample = (*set)->read(i);
    ASSERT_TRUE(sample.ok()) << sample.status();
    EXPECT_EQ(*sample->caption(), absl::StrCat("caption ", i));
  }
  EXPECT_EQ(hub->streams, 2);
  EXPECT_LE(hub->bytes_sent, static_cast<int64_t>(tar.size()));
  EXPECT_EQ(*(*set)->read(7)->image(), "image 7");
  (*set)->stop();
  EXPECT_EQ((*set)->read(8).status().code(), absl::StatusCode::kCancelled);

  EXPECT_EQ(SampleSet::open({.files = {"unknown.tar"}, .kind = {.remote = hub}}).status().code(),
            absl::StatusCode::kUnimplemented);
  for (const SampleFormat format : {SampleFormat::kFolder, SampleFormat::kParquet}) {
    EXPECT_EQ(SampleSet::open({.files = {"x"}, .kind = {.format = format, .remote = hub}}).status().code(),
              absl::StatusCode::kUnimplemented);
  }
}

class FolderTest : public ::testing::Test {
 protected:
  std::vector<Sample> read(const std::string& path, SampleLayout layout = SampleLayout::kCaption) {
    const auto set = SampleSet::open({.files = {path}, .kind = {.format = SampleFormat::kFolder, .layout = layout}});
    EXPECT_TRUE(set.ok()) << set.status();
    std::vector<Sample> samples;
    for (int64_t i = 0; set.ok() && i < (*set)->samples(); ++i) samples.push_back(*(*set)->read(i));
    return samples;
  }

  testing::Folder folder_;
};

TEST_F(FolderTest, CaptionsAreNextToImages) {
  for (const char* name : {"b.jpg", "a.x.PNG", "c.webp", ".hidden.jpg", "d.jpeg", "other.gif"})
    folder_.write(name, name);
  folder_.write("b.txt", "of b");
  folder_.write("a.x.txt", "of a");
  folder_.write("c.txt", "\xff");
  const std::vector<Sample> samples = read(folder_.path());
  ASSERT_THAT(samples, SizeIs(4));
  EXPECT_THAT(samples[0].parts, ElementsAre(image("a.x.PNG"), text("of a")));
  EXPECT_THAT(samples[1].parts, ElementsAre(image("b.jpg"), text("of b")));
  EXPECT_EQ(samples[1].name, folder_.path() + ": b.jpg");
  EXPECT_EQ(samples[1].stored_bytes, 9);
  EXPECT_THAT(samples[2].problem, HasSubstr("UTF-8"));
  EXPECT_THAT(samples[3].problem, AllOf(HasSubstr("no caption"), HasSubstr("d.txt")));
  EXPECT_THAT(samples[3].parts, IsEmpty());
}

TEST_F(FolderTest, MetadataDescribesImages) {
  fs::create_directory(folder_.path() + "/sub");
  folder_.write("sub/1.jpg", "one");
  const std::string metadata = folder_.write(
      "metadata.jsonl",
      "\n{\"file_name\": \"sub/1.jpg\", \"text\": \"first\", \"n\": 7}\n  \n{\"file_name\": \"2.jpg\", \"text\": "
      "\"x\"}\n"
      "{broken\n{\"text\": \"x\"}\n{\"file_name\": \"../1.jpg\", \"text\": \"x\"}\n{\"file_name\": \"sub/1.jpg\"}");
  const std::vector<Sample> samples = read(metadata);
  ASSERT_THAT(samples, SizeIs(6));
  EXPECT_THAT(samples[0].parts, ElementsAre(image("one"), text("first")));
  EXPECT_EQ(samples[0].fields["n"], 7);
  EXPECT_EQ(samples[0].name, metadata + ": sub/1.jpg");
  EXPECT_EQ(samples[1].problem, "there is no 2.jpg");
  EXPECT_THAT(samples[2].problem, HasSubstr("not a JSON object"));
  EXPECT_EQ(samples[2].name, metadata + ": sample 2");
  EXPECT_THAT(samples[3].problem, HasSubstr("file_name"));
  EXPECT_THAT(samples[4].problem, HasSubstr("not in the folder"));
  EXPECT_EQ(samples[5].problem, "no caption");
}

TEST_F(FolderTest, MetadataWithLists) {
  folder_.write("1.jpg", "one");
  const std::string metadata = folder_.write("metadata.jsonl",
                                             "{\"images\": [null, \"1.jpg\"], \"texts\": [\"before\", null]}\n"
                                             "{\"images\": [null, \"2.jpg\"], \"texts\": [\"before\", null]}\n"
                                             "{\"images\": [7], \"texts\": [null]}\n");
  const std::vector<Sample> samples = read(metadata, SampleLayout::kInterleaved);
  ASSERT_THAT(samples, SizeIs(3));
  EXPECT_THAT(samples[0].parts, ElementsAre(text("before"), image("one")));
  EXPECT_THAT(samples[1].problem, HasSubstr("there is no 2.jpg"));
  EXPECT_THAT(samples[2].problem, HasSubstr("not a file name"));
  EXPECT_EQ(SampleSet::open({.files = {folder_.path()},
                             .kind = {.format = SampleFormat::kFolder, .layout = SampleLayout::kInterleaved}})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

class SampleFilesTest : public ::testing::Test {
 protected:
  std::vector<std::string> names(const absl::StatusOr<SampleFiles>& found) {
    EXPECT_TRUE(found.ok()) << found.status();
    std::vector<std::string> names;
    if (found.ok()) {
      for (const std::string& file : found->files) names.push_back(fs::path(file).lexically_relative(folder_.path()));
    }
    return names;
  }
  testing::Folder folder_;
};

TEST_F(SampleFilesTest, FormatsAreFoundByName) {
  const std::string& path = folder_.path();
  EXPECT_EQ(find_sample_files(path).status().code(), absl::StatusCode::kNotFound);
  folder_.write("1.jpg", "");
  folder_.write("1.txt", "");
  EXPECT_THAT(names(find_sample_files(path)), ElementsAre("."));
  EXPECT_EQ(find_sample_files(path)->kind.format, SampleFormat::kFolder);
  folder_.write("metadata.jsonl", "");
  EXPECT_THAT(names(find_sample_files(path)), ElementsAre("metadata.jsonl"));
  folder_.write("b.parquet", "");
  EXPECT_THAT(names(find_sample_files(path)), ElementsAre("b.parquet"));
  folder_.write("b.tar", "");
  folder_.write("a.tar", "");
  EXPECT_THAT(names(find_sample_files(path)), ElementsAre("a.tar", "b.tar"));
  EXPECT_EQ(find_sample_files(path)->kind.format, SampleFormat::kWebDataset);
  EXPECT_THAT(names(find_sample_files(path, SampleFormat::kParquet)), ElementsAre("b.parquet"));
  EXPECT_THAT(names(find_sample_files(path, SampleFormat::kFolder)), ElementsAre("metadata.jsonl"));
  EXPECT_THAT(names(find_sample_files(path + "/b*")), ElementsAre("b.tar"));
  EXPECT_THAT(names(find_sample_files(folder_.write("data.bin", ""), SampleFormat::kWebDataset)),
              ElementsAre("data.bin"));
  EXPECT_EQ(find_sample_files(path + "/1.txt").status().code(), absl::StatusCode::kNotFound);
  folder_.write("c.tar.gz", "");
  EXPECT_EQ(find_sample_files(path).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sample_format_from_name("imagefolder"), SampleFormat::kFolder);
  EXPECT_EQ(sample_format_from_name("jsonl"), std::nullopt);
  EXPECT_STREQ(name(SampleFormat::kWebDataset), "webdataset");
}

TEST_F(SampleFilesTest, NamedDatasetsHaveTheirSplit) {
  for (const char* name : {"train-0-of-2.parquet", "train-1-of-2.parquet", "validation-0-of-1.parquet"}) {
    folder_.write(name, "");
  }
  EXPECT_THAT(names(sample_dataset_files("coco-validation", folder_.path())), ElementsAre("validation-0-of-1.parquet"));
  const auto obelics = sample_dataset_files("obelics", folder_.path());
  EXPECT_THAT(names(obelics), ElementsAre("train-0-of-2.parquet", "train-1-of-2.parquet"));
  EXPECT_EQ(obelics->kind.layout, SampleLayout::kInterleaved);
  const auto all = sample_dataset_files("cc12m-test", folder_.path());
  EXPECT_THAT(all->files, SizeIs(3));
  EXPECT_THAT(all->warning, HasSubstr("validation-0-of-1.parquet"));
  EXPECT_THAT(sample_dataset_files("cc12m-wd", folder_.path()).status().message(),
              AllOf(HasSubstr("did you mean 'cc12m-wds'?"), HasSubstr("obelics")));
  EXPECT_THAT(sample_dataset_files("cc12m", "").status().message(), HasSubstr("pixparse/cc12m-wds"));
}

TEST_F(SampleFilesTest, ObjectsOfAStore) {
  testing::MadeStore store;
  store.add("s3://b/data/cc12m-train-1.tar", small_tar(2));
  store.add("s3://b/data/cc12m-train-0.tar", small_tar(3));
  store.add("s3://b/images/1.jpg", "one");
  store.add("s3://b/images/1.txt", "first");
  auto found = sample_dataset_files("cc12m-wds", "s3://b/data", SampleFormat::kAuto, &store);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(found->files, ElementsAre("s3://b/data/cc12m-train-0.tar", "s3://b/data/cc12m-train-1.tar"));
  EXPECT_EQ((*SampleSet::open({.files = found->files, .kind = found->kind}))->samples(), 5);
  found = find_sample_files("s3://b/images", SampleFormat::kAuto, &store);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT((*SampleSet::open({.files = found->files, .kind = found->kind}))->read(0)->parts,
              ElementsAre(image("one"), text("first")));
  EXPECT_THAT(find_sample_files("s3://b/data/cc12m-train-1.tar", SampleFormat::kAuto, &store)->files, SizeIs(1));
}

}  // namespace
}  // namespace titan::data
