#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/worker/rank/data/samples/testing.h"
#include "tests/worker/rank/data/testing.h"
#include "worker/rank/data/samples/sample_file.h"
#include "worker/rank/data/samples/sample_set.h"
#include "worker/rank/data/samples/tar_headers.h"

namespace titan::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::image;
using ::testing::IsEmpty;
using testing::kGnu;
using ::testing::Pair;
using testing::pax_header;
using ::testing::SizeIs;
using testing::small_tar;
using testing::tar_end;
using testing::tar_header;
using testing::tar_member;
using testing::text;

class TarSamplesTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SampleFile>> open(const std::string& tar, const SampleKind& kind = {}) {
    path_ = folder_.write(absl::StrCat(++files_, ".tar"), tar);
    IndexStore store("");
    return SampleFile::open(path_, kind, store);
  }

  std::vector<Sample> read(const std::string& tar, const SampleKind& kind = {}) {
    std::vector<Sample> samples;
    const auto file = open(tar, kind);
    EXPECT_TRUE(file.ok()) << file.status();
    for (int64_t i = 0; file.ok() && i < (*file)->samples(); ++i) {
      absl::StatusOr<Sample> sample = (*file)->read(i);
      EXPECT_TRUE(sample.ok()) << sample.status();
      samples.push_back(*std::move(sample));
    }
    return samples;
  }

  // Returns the only sample's problem.
  std::string problem(const std::string& members, const SampleKind& kind = {}) {
    const std::vector<Sample> samples = read(members + tar_end(), kind);
    EXPECT_THAT(samples, SizeIs(1));
    EXPECT_THAT(samples[0].parts, IsEmpty());
    return samples[0].problem;
  }

  testing::Folder folder_;
  std::string path_;
  int files_ = 0;
};

std::vector<std::pair<std::string, std::vector<SamplePart>>> parts_of(const std::vector<Sample>& samples) {
  std::vector<std::pair<std::string, std::vector<SamplePart>>> all;
  for (const Sample& sample : samples) all.emplace_back(sample.key, sample.parts);
  return all;
}

// A sample is the consecutive members with one name up to the first dot of the last part of their path.
TEST_F(TarSamplesTest, MembersAreGroupedByKey) {
  const std::string tar = tar_member("a/", "", {.type = '5'}) + tar_member("a/1.jpg", "one") +
                          tar_member("a/link.jpg", "", {.type = '2'}) + tar_member("a/1.txt", "first") +
                          tar_member("b.d/1.JPEG", "two") + tar_member("b.d/1.seg.png", "mask") +
                          tar_member("b.d/1.Txt", "second") + tar_member("README", "no dot") +
                          tar_member("a/._2.jpg", "hidden") + tar_member("__meta__.json", "{") +
                          tar_member("2.png", "three") + tar_member("2.txt", "") + tar_end() + "anything";
  const std::vector<Sample> samples = read(tar);
  EXPECT_THAT(parts_of(samples), ElementsAre(Pair("a/1", ElementsAre(image("one"), text("first"))),
                                             Pair("b.d/1", ElementsAre(image("two"), text("second"))),
                                             Pair("2", ElementsAre(image("three"), text("")))));
  EXPECT_EQ(samples[1].name, path_ + ": b.d/1");
  EXPECT_EQ(*samples[1].image(), "two");
  EXPECT_EQ(*samples[1].caption(), "second");
  EXPECT_TRUE(samples[1].fields.is_null());
  EXPECT_EQ(samples[2].stored_bytes, 3 * 512) << "two headers and a block";
}

TEST_F(TarSamplesTest, CaptionsComeFromThreePlaces) {
  const std::string json = R"({"caption": ["from json", "other"], "text": "no", "width": 3, "score": NaN})";
  std::vector<Sample> samples = read(tar_member("1.json", json) + tar_member("1.webp", "w") + tar_end());
  EXPECT_THAT(parts_of(samples), ElementsAre(Pair("1", ElementsAre(image("w"), text("from json")))));
  EXPECT_EQ(samples[0].fields["width"], 3);
  samples = read(tar_member("1.png", "p") + tar_member("1.json", json), {.caption_key = "text"});
  EXPECT_EQ(*samples[0].caption(), "no");
  samples = read(tar_member("1.png", "p") + tar_member("1.json", json) + tar_member("1.caption", "own"));
  EXPECT_EQ(*samples[0].caption(), "own");
}

// The keys of a job name other members, also where the usual ones exist.
TEST_F(TarSamplesTest, KeysNameTheMembers) {
  const std::string tar = tar_member("1.jpg", "j") + tar_member("1.Mask.PNG", "m") + tar_member("1.txt", "t") +
                          tar_member("1.alt.txt", "a") + tar_member("1.json", R"({"txt": "no", "title": "from json"})");
  for (const char* key : {"mask.png", ".mask.png", "MASK.PNG"}) {
    EXPECT_THAT(parts_of(read(tar, {.image_key = key})), ElementsAre(Pair("1", ElementsAre(image("m"), text("t")))));
  }
  const SampleKind both{.image_key = "jpg", .caption_key = "alt.txt"};
  EXPECT_THAT(parts_of(read(tar, both)), ElementsAre(Pair("1", ElementsAre(image("j"), text("a")))));
  EXPECT_EQ(*read(tar, {.caption_key = "title"})[0].caption(), "from json");
  EXPECT_EQ(problem(tar, {.image_key = "png"}), "no image (a member .png, by image_key)");
  EXPECT_EQ(problem(tar, {.caption_key = "caption"}), "no caption");
}

// The beginning of an image is read without the rest of its sample.
TEST_F(TarSamplesTest, ReadsBeginningsOfImages) {
  testing::MadeStore store;
  const std::string large(100'000, 'L');
  store.add("s3://b/1.tar", tar_member("1.json", "{}") + tar_member("1.mask.png", "mask") + tar_member("1.jpg", large) +
                                tar_member("1.txt", "t") + tar_member("2.txt", "no image") + tar_end());
  const auto starts = [&](const std::string& key, int64_t bytes) {
    auto set = *SampleSet::open({.files = {"s3://b/1.tar"}, .kind = {.image_key = key, .files = &store}});
    store.bytes_read = 0;
    EXPECT_EQ(*set->image_start(1, bytes), "");
    return *set->image_start(0, bytes);
  };
  EXPECT_EQ(starts("mask.png", 2), "ma");
  EXPECT_EQ(starts("mask.png", 2048), "mask");
  EXPECT_EQ(starts("jpg", 2048), large.substr(0, 2048));
  EXPECT_LT(store.bytes_read, 13'000);
  EXPECT_EQ(starts("jpg", 1 << 20), large);
}

TEST_F(TarSamplesTest, UnusableSamplesAreNamedWithTheReason) {
  const std::string jpg = tar_member("1.jpg", "x");
  EXPECT_THAT(problem(jpg), "no caption");
  EXPECT_THAT(problem(tar_member("1.txt", "x")), HasSubstr("no image"));
  EXPECT_THAT(problem(jpg + jpg + tar_member("1.txt", "x")), "two members .jpg");
  EXPECT_THAT(problem(jpg + tar_member("1.txt", "\xff")), "its caption is not UTF-8");
  EXPECT_THAT(problem(jpg + tar_member("1.txt", "x") + tar_member("1.json", "{")), "its .json is not JSON");
  EXPECT_THAT(problem(jpg + tar_member("1.json", R"({"caption": null})")), "no caption");
  EXPECT_THAT(problem(jpg + tar_member("1.json", R"({"caption": []})")), "no caption");
  EXPECT_THAT(problem(jpg + tar_member("1.json", "3")), "no caption");
}

TEST_F(TarSamplesTest, ImagesAndTextsAreInterleaved) {
  const SampleKind kind{.layout = SampleLayout::kInterleaved};
  const std::string images = tar_member("d/7.0.jpg", "A") + tar_member("d/7.B.png", "B");
  const auto lists = [&](const std::string& json) { return images + tar_member("d/7.json", json); };
  const std::vector<Sample> samples =
      read(lists(R"({"images": ["7.0.jpg", null, "b.png", null], "texts": [null, "x", null, "y"], "url": "u"})"), kind);
  EXPECT_THAT(parts_of(samples), ElementsAre(Pair("d/7", ElementsAre(image("A"), text("x"), image("B"), text("y")))));
  EXPECT_EQ(samples[0].fields["url"], "u");

  EXPECT_THAT(problem(images, kind), HasSubstr("no member .json"));
  EXPECT_THAT(problem(lists(R"({"images": 3, "texts": []})"), kind), HasSubstr("no lists"));
  EXPECT_THAT(problem(lists(R"({"images": [], "texts": []})"), kind), HasSubstr("0 and 0 values"));
  EXPECT_THAT(problem(lists(R"({"images": [null], "texts": []})"), kind), HasSubstr("1 and 0 values"));
  EXPECT_THAT(problem(lists(R"({"images": [null], "texts": [null]})"), kind), HasSubstr("neither"));
  EXPECT_THAT(problem(lists(R"({"images": ["0.jpg"], "texts": ["x"]})"), kind), HasSubstr("an image and a text"));
  EXPECT_THAT(problem(lists(R"({"images": ["https://x/0.jpg"], "texts": [null]})"), kind), HasSubstr("address"));
  EXPECT_THAT(problem(lists(R"({"images": [null, "2.jpg"], "texts": ["x", null]})"), kind),
              AllOf(HasSubstr("place 1"), HasSubstr("2.jpg"), HasSubstr("not a member")));
  EXPECT_THAT(problem(lists(R"({"images": [null], "texts": [3]})"), kind), HasSubstr("not a string"));
}

TEST_F(TarSamplesTest, LongNamesOfAllFormats) {
  const std::string folder(150, 'f'), name = folder + "/" + std::string(120, 'n');
  const std::string pax = pax_header({{"mtime", "1.5"}, {"path", name + ".jpg"}}) + tar_member("short.jpg", "pax");
  const std::string gnu = tar_member("././@LongLink", name + ".txt" + std::string(1, '\0'), {'L', kGnu}) +
                          tar_member(name.substr(0, 100), "gnu", {'0', kGnu});
  EXPECT_THAT(parts_of(read(pax + gnu + tar_end())), ElementsAre(Pair(name, ElementsAre(image("pax"), text("gnu")))));

  const std::string prefixed =
      tar_member("1.jpg", "x", {.prefix = folder}) + tar_member("1.txt", "y", {.prefix = folder});
  EXPECT_THAT(parts_of(read(prefixed)), ElementsAre(Pair(folder + "/1", ElementsAre(image("x"), text("y")))));
  const std::string times =
      tar_member("1.jpg", "x", {.magic = kGnu, .prefix = "12345670123"}) + tar_member("1.txt", "y");
  EXPECT_THAT(parts_of(read(times)), ElementsAre(Pair("1", ElementsAre(image("x"), text("y")))))
      << "GNU tar stores times where POSIX has the prefix";
  const std::string old = tar_member("d/", "", {.type = '\0', .magic = ""}) +
                          tar_member("d/1.jpg", "x", {.type = '\0', .magic = ""}) + tar_member("d/1.txt", "y");
  EXPECT_THAT(parts_of(read(old)), ElementsAre(Pair("d/1", ElementsAre(image("x"), text("y")))));
}

TEST_F(TarSamplesTest, SizesOfAllFormats) {
  const std::string binary = std::string("\x80\0\0\0\0\0\0\0\0\0\0\1", 12);
  EXPECT_EQ(*read(tar_member("1.jpg", "x", {.size = binary}) + tar_member("1.txt", "y"))[0].image(), "x");
  const std::string pax = pax_header({{"size", "2"}}) + tar_header("1.jpg", 0) + testing::padded("xx");
  EXPECT_EQ(*read(pax + tar_member("1.txt", "y"))[0].image(), "xx");
  // A folder or link has no content, whatever its size says.
  EXPECT_EQ(*read(tar_header("d/", 900, {.type = '5'}) + small_tar(1))[0].image(), "image 0");
  EXPECT_EQ(*read(pax_header({{"comment", "x"}}, 'g') + small_tar(1))[0].image(), "image 0");

  const auto refused = [&](const std::string& tar) {
    const absl::Status status = open(tar + small_tar(1)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr(path_ + ": byte "));
    return std::string(status.message());
  };
  EXPECT_THAT(refused(tar_header("1.jpg", 0, {.size = "00000000009"})), HasSubstr("size"));
  EXPECT_THAT(refused(tar_header("1.jpg", 0, {.size = std::string(12, '\xff')})), HasSubstr("size"));
  EXPECT_THAT(refused(tar_header("1.jpg", 0, {.size = std::string("\x80") + std::string(11, '\x7f')})),
              HasSubstr("size"));
  EXPECT_THAT(refused(tar_header("1.jpg", 0, {.size = "777777777777"})), HasSubstr("truncated: 1.jpg has 68719476735"));
  EXPECT_THAT(refused(pax_header({{"size", "9223372036854775807"}}) + tar_header("1.jpg", 0)), HasSubstr("truncated"));
  EXPECT_THAT(refused(pax_header({{"size", "-1"}})), HasSubstr("malformed"));
  EXPECT_THAT(refused(pax_header({{"path", "x"}}, 'g')), HasSubstr("global"));
  EXPECT_THAT(refused(pax_header({{"GNU.sparse.major", "1"}})), HasSubstr("sparse"));
  EXPECT_THAT(refused(tar_member("1.jpg", "", {.type = 'S'})), HasSubstr("sparse"));
  for (const char* records : {"8 path=x\n", "5 x\n", "99 path=x\n", "path", "8 path x", "0 =\n", "-1 a=b\n"}) {
    EXPECT_THAT(refused(tar_member("x", records, {.type = 'x'})), HasSubstr("malformed")) << records;
  }
  EXPECT_THAT(refused(tar_header("x", 2 << 20, {.type = 'L'})), HasSubstr("2097152 bytes of names"));
}

// If an archive ends early, its whole samples can be used, and the one that it cuts cannot. A warning says so.
TEST_F(TarSamplesTest, TruncationCostsOneSample) {
  const std::string whole = pax_header({{"path", "0.jpg"}}) + tar_member("x", std::string(1500, 'x')) +
                            tar_member("0.txt", "zero") + small_tar(2, 1);
  const size_t end = whole.size() - 1024, first_member = 1024 + 512 + 1536, first_sample = first_member + 1024;
  std::mt19937 random(3);
  for (size_t block = 0; block <= end; block += 512) {
    for (const size_t size : {block, std::min<size_t>(end, block + 1 + random() % 511)}) {
      SCOPED_TRACE(size);
      const auto file = open(whole.substr(0, size));
      if (size < first_member) {  // Nothing to go by.
        EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << file.status();
        EXPECT_THAT(file.status().message(), AllOf(HasSubstr(path_), HasSubstr(size == 0 ? "is empty" : "truncated")));
        continue;
      }
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_THAT((*file)->warning(), AllOf(HasSubstr(path_), HasSubstr("truncated")));
      int64_t good = 0;
      for (int64_t i = 0; i < (*file)->samples(); ++i) {
        const Sample sample = *(*file)->read(i);
        EXPECT_EQ(sample.parts.size(), sample.problem.empty() ? 2 : 0);
        EXPECT_TRUE(sample.problem.empty() || i + 1 == (*file)->samples()) << sample.problem;
        good += sample.problem.empty() ? 1 : 0;
        EXPECT_TRUE((*file)->image_start(i, 10).ok());
      }
      EXPECT_EQ(good, size < first_sample ? 0 : static_cast<int64_t>(1 + (size - first_sample) / 2048));
    }
  }
  const auto file = open(whole);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->samples(), 3);
  EXPECT_EQ((*file)->warning(), "");
}

// An archive that is cut or written again while a job reads it costs the samples that are no longer there.
TEST_F(TarSamplesTest, ArchivesThatChangeCostTheirSamples) {
  const auto file = open(small_tar(4));
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path_, 2048 + 700);
  EXPECT_EQ((*file)->read(0)->problem, "");
  EXPECT_THAT((*file)->read(1)->problem, HasSubstr("ends at byte 2748"));
  EXPECT_THAT((*file)->read(3)->problem, HasSubstr("is needed up to 8192"));
  const auto set = SampleSet::open(
      {.files = {folder_.write("a.tar", small_tar(2)), folder_.write("b.tar", small_tar(2))}, .open_files = 1});
  ASSERT_TRUE(set.ok());
  (void)folder_.write("a.tar", small_tar(1));
  EXPECT_TRUE((*set)->read(2).ok());
  EXPECT_EQ((*set)->read(0)->problem, "");
  const Sample gone = *(*set)->read(1);
  EXPECT_THAT(gone.name, HasSubstr("a.tar: sample 1"));
  EXPECT_THAT(gone.problem, HasSubstr("had more when the job began"));
}

// A damaged header is an error, whichever of them it is, and never the end of the archive.
TEST_F(TarSamplesTest, DamagedHeadersAreNamedWithTheirByte) {
  const std::string whole = small_tar(3);
  std::mt19937 random(4);
  for (size_t header = 0; header < whole.size() - 1024; header += 1024) {
    for (const size_t at : {size_t{0}, size_t{124}, size_t{150}, size_t{511}, size_t{random() % 512}}) {
      std::string tar = whole;
      tar[header + at] = static_cast<char>(tar[header + at] ^ 0x11);
      const absl::Status status = open(tar).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(status.message(), AllOf(HasSubstr(absl::StrCat("byte ", header, ":")), HasSubstr("checksum")));
    }
  }
  EXPECT_THAT(open("<!DOCTYPE html>" + std::string(2000, ' ')).status().message(),
              AllOf(HasSubstr("not a tar archive"), HasSubstr("HTML")));
  EXPECT_THAT(open(std::string(1024, 'x')).status().message(), HasSubstr("not a tar archive"));
  EXPECT_EQ(open(pax_header({{"path", "x"}}) + tar_end()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TarSamplesTest, ArchivesWithoutSamples) {
  EXPECT_THAT(read(tar_end()), IsEmpty());
  EXPECT_THAT(read(tar_member("README", "x") + tar_end()), IsEmpty());
  const std::string empty = path_, full = folder_.write("full.tar", small_tar(2));
  const auto set = SampleSet::open({.files = {empty, full, empty}});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ((*set)->samples(), 2);
  EXPECT_EQ((*set)->read(1)->name, full + ": 0001");
  const absl::Status none = SampleSet::open({.files = {empty, empty}}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(none.message(), AllOf(HasSubstr("no samples"), HasSubstr(empty)));
  EXPECT_EQ(SampleSet::open({.files = {folder_.path() + "/missing.tar"}}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(SampleSet::open({.files = {folder_.write("a.tar.gz", "x")}}).status().message(), HasSubstr("decompress"));
}

// An archive of a million samples, whose bytes are made when they are read, is indexed in seconds: a slow algorithm
// exceeds the time of the test. Also covers positions beyond 4 GiB.
TEST_F(TarSamplesTest, AMillionSamples) {
  constexpr int64_t kSamples = 1'000'000, kImage = 8192, kSample = 512 + kImage + 1024;
  std::string jpg = tar_header("0000000.jpg", kImage), txt = tar_member("0000000.txt", "caption");
  const auto fill = [=](int64_t offset, int64_t bytes, char* out) {
    while (bytes > 0) {
      const int64_t number = offset / kSample, at = offset % kSample;
      std::string block(512, '\0');
      if (number < kSamples) {
        if (at < 512) block = jpg;
        if (at >= 512 + kImage) block = txt.substr(at < 1024 + kImage ? 0 : 512, 512);
        if (at < 512 || (at >= 512 + kImage && at < 1024 + kImage)) {
          char digits[8];
          std::snprintf(digits, sizeof digits, "%07d", static_cast<int>(number));
          block.replace(0, 7, digits, 7);
          testing::sign(block);
        }
      }
      const int64_t part = std::min<int64_t>(bytes, 512 - at % 512);
      block.copy(out, static_cast<size_t>(part), static_cast<size_t>(at % 512));
      out += part;
      offset += part;
      bytes -= part;
    }
  };
  testing::MadeStore store;
  store.objects["s3://b/big.tar"] = {kSamples * kSample + 1024, fill};
  const SampleSet::Options options{
      .files = {"s3://b/big.tar"}, .kind = {.files = &store}, .index_folder = folder_.path() + "/index"};
  auto set = SampleSet::open(options);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ((*set)->samples(), kSamples);
  store.bytes_read = 0;
  set = SampleSet::open(options);
  ASSERT_TRUE(set.ok());
  EXPECT_EQ(store.bytes_read, 0) << "the index is found again";
  for (const int64_t number : {int64_t{0}, int64_t{524288}, kSamples - 1}) {
    const auto sample = (*set)->read(number);
    ASSERT_TRUE(sample.ok()) << sample.status();
    EXPECT_EQ(std::stoll(sample->key), number);
    EXPECT_EQ(sample->image()->size(), kImage);
  }
  EXPECT_EQ(store.bytes_read, 3 * kSample);
}

}  // namespace
}  // namespace titan::data
