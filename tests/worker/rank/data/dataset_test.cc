// Tests dataset files, the document reader and the row stream with malformed, damaged and changed datasets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "common/io/data_files/datasets.h"
#include "tests/worker/rank/data/compress.h"
#include "worker/rank/data/documents/document_reader.h"
#include "worker/rank/data/documents/sharding.h"

namespace titan::data {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using testing::gzip;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::zstd;

class DatasetTest : public ::testing::Test {
 protected:
  DatasetTest() {
    std::string pattern = (fs::temp_directory_path() / "titan-dataset-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~DatasetTest() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes) {
    const fs::path path = fs::path(folder_) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path.string();
  }

  std::string folder_;
};

std::string line(const std::string& text) { return "{\"text\": \"" + text + "\", \"url\": \"x\"}\n"; }

// Returns all texts until the end or the first error, which is appended.
std::vector<std::string> read_all(DocumentReader& reader) {
  std::vector<std::string> texts;
  while (true) {
    auto document = reader.next();
    if (!document.ok()) {
      texts.push_back("error: " + std::string(document.status().message()));
      EXPECT_NE(document.status().code(), absl::StatusCode::kInternal);
      return texts;
    }
    if (!document->has_value()) return texts;
    texts.push_back((*document)->text);
  }
}

std::vector<std::string> read_all(std::vector<std::string> files, int64_t max_bad_lines = 100) {
  DocumentReader reader({.files = std::move(files), .max_bad_lines = max_bad_lines});
  return read_all(reader);
}

TEST_F(DatasetTest, FindsFilesInNameOrder) {
  for (const char* name : {"b.json", "a.jsonl", "c.json.gz", "d.jsonl.zst", "notes.txt", "e.parquet", "sub/x.json"})
    write(name, "");
  const auto names = [&](const std::string& path) {
    std::vector<std::string> found;
    const std::vector<std::string> files = data_files::find_dataset_files(path).value().files;
    for (const std::string& file : files) found.push_back(fs::path(file).filename());
    return found;
  };
  EXPECT_THAT(names(folder_), ElementsAre("a.jsonl", "b.json", "c.json.gz", "d.jsonl.zst"));
  EXPECT_THAT(names(folder_ + "/*.json*"), ElementsAre("a.jsonl", "b.json", "c.json.gz", "d.jsonl.zst"));
  EXPECT_THAT(names(folder_ + "/[ab].*"), ElementsAre("a.jsonl", "b.json"));
  EXPECT_THAT(names(folder_ + "/b.json"), ElementsAre("b.json"));
}

// File names decide the format. If a folder has several formats, one is the default, and a key selects another.
TEST_F(DatasetTest, FileNamesDecideTheFormat) {
  for (const char* name : {"a.txt", "b.txt.gz", "c.parquet", "d.idx", "e.jsonl", "f.log", "set/titan-tokens.json"})
    write(name, "");
  const auto found = [&](const std::string& path, data_files::DatasetFormat format = data_files::DatasetFormat::kAuto) {
    const auto files = data_files::find_dataset_files(path, format);
    if (!files.ok()) return std::string(files.status().message());
    std::string text(name(files->format));
    for (const std::string& file : files->files) text += " " + fs::path(file).lexically_relative(folder_).string();
    return text;
  };
  EXPECT_EQ(found(folder_), "jsonl e.jsonl");
  EXPECT_EQ(found(folder_, data_files::DatasetFormat::kText), "text a.txt b.txt.gz");
  EXPECT_EQ(found(folder_, data_files::DatasetFormat::kParquet), "parquet c.parquet");
  EXPECT_EQ(found(folder_, data_files::DatasetFormat::kMegatron), "megatron d.idx");
  EXPECT_EQ(found(folder_ + "/d"), "megatron d.idx");
  EXPECT_EQ(found(folder_ + "/set"), "titan set/titan-tokens.json");
  EXPECT_EQ(found(folder_ + "/s*"), "titan set/titan-tokens.json");
  EXPECT_EQ(found(folder_ + "/*.txt*"), "text a.txt b.txt.gz");
  EXPECT_EQ(found(folder_ + "/f.log", data_files::DatasetFormat::kText), "text f.log");
  EXPECT_THAT(found(folder_ + "/f.log"), HasSubstr("holds no *.json"));
  EXPECT_THAT(found(folder_, data_files::DatasetFormat::kTitan), HasSubstr("titan-data tokenize makes it"));
}

TEST_F(DatasetTest, ErrorsNameThePath) {
  const auto missing = data_files::find_dataset_files(folder_ + "/nowhere");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), AllOf(HasSubstr("/nowhere"), HasSubstr("no such file or folder")));
  EXPECT_THAT(data_files::find_dataset_files(folder_ + "/*.json").status().message(), HasSubstr("no file matches"));
  write("readme.md", "");
  const auto none = data_files::find_dataset_files(folder_);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(none.status().message(), AllOf(HasSubstr(folder_), HasSubstr("holds no *.json")));
}

TEST_F(DatasetTest, NamedDatasets) {
  const auto unknown = data_files::dataset_files("c4_tset", folder_);
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(unknown.status().message(), AllOf(HasSubstr("\"c4_tset\""), HasSubstr("did you mean \"c4_test\"?"),
                                                HasSubstr("known: c4, c4_test, c4_validation")));
  EXPECT_THAT(data_files::dataset_files("c4", "").status().message(), HasSubstr("mirror of allenai/c4"));
  EXPECT_THAT(data_files::dataset_files("c4_test", "").status().message(), HasSubstr("bootstrap"));
  EXPECT_THAT(data_files::find_dataset_files("hf://datasets/a/b").status().message(), HasSubstr("titanctl assets get"));
}

// A local copy of allenai/c4 keeps both splits in en/.
TEST_F(DatasetTest, MirrorOfC4) {
  for (const char* name : {"en/c4-train.00001-of-00002.json.gz", "en/c4-train.00000-of-00002.json.gz",
                           "en/c4-validation.00000-of-00001.json.gz", "multilingual/c4-de.json.gz"}) {
    write(name, "");
  }
  EXPECT_THAT(data_files::dataset_files("c4", folder_)->files,
              ElementsAre(EndsWith("c4-train.00000-of-00002.json.gz"), EndsWith("c4-train.00001-of-00002.json.gz")));
  EXPECT_THAT(data_files::dataset_files("c4_validation", folder_)->files,
              ElementsAre(EndsWith("c4-validation.00000-of-00001.json.gz")));
}

TEST_F(DatasetTest, ReadsEveryKindOfFile) {
  const std::string plain =
      write("a.json", line("one") + "\n  \r\n" + line("two\\n\\u00e9") + "{\"text\": \"unended\"}");
  const std::string gz = write("b.json.gz", gzip(line("three")) + gzip(line("four")));  // Two members.
  const std::string zst = write("c.json.zst", zstd(line("five")) + zstd(line("six")));
  const std::string empty = write("d.json", "");
  EXPECT_THAT(read_all({plain, gz, empty, zst}),
              ElementsAre("one", "two\né", "unended", "three", "four", "five", "six"));
  EXPECT_EQ(DocumentIndex::make({plain, gz, empty, zst}, {})->documents(), 7);
}

TEST_F(DatasetTest, LinesMayBeLongerThanTheBuffer) {
  const std::string large(3'500'000, 'x');
  const std::string file = write("a.json", line("a") + line(large) + line("b"));
  EXPECT_THAT(read_all({file}), ElementsAre("a", large, "b"));
  EXPECT_EQ(DocumentIndex::make({file}, {})->documents(), 3);
}

TEST_F(DatasetTest, MalformedLinesAreNamedAndSkipped) {
  const std::string file =
      write("a.json", line("one") + "{\"text\": \n" + "[1]\n" + "{\"txt\": \"x\"}\n" + "{\"text\": 5}\n" +
                          "{\"text\": \"\xff\"}\n" + "{\"text\": \"\\ud800\"}\n" + line("two"));
  DocumentReader reader({.files = {file}});
  EXPECT_THAT(read_all(reader), ElementsAre("one", "two"));
  EXPECT_EQ(reader.bad_lines(), 6);
  EXPECT_THAT(reader.take_warnings(), ElementsAre(HasSubstr("a.json:2: not JSON: the line ends inside an object"),
                                                  HasSubstr("a.json:3: not a JSON object but an array"),
                                                  HasSubstr("a.json:4: no \"text\" (its keys: \"txt\""),
                                                  EndsWith("a.json:5: \"text\" is not a string, skipped"),
                                                  EndsWith("a.json:6: not JSON in UTF-8, skipped"),
                                                  HasSubstr("a.json:7: \"text\" has half of a surrogate pair")));
  EXPECT_THAT(reader.take_warnings(), IsEmpty());
  reader.rewind();
  EXPECT_THAT(read_all(reader), ElementsAre("one", "two"));
  EXPECT_EQ(reader.bad_lines(), 6);
  EXPECT_THAT(reader.take_warnings(), IsEmpty()) << "a second pass meets the same lines";
}

TEST_F(DatasetTest, TooManyMalformedLinesFail) {
  const std::string file = write("a.json", line("one") + "x\ny\nz\n");
  const std::vector<std::string> read = read_all({file}, 2);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_THAT(read[1],
              AllOf(HasSubstr("a.json:4: not JSON"), HasSubstr("max_bad_lines = 2"), HasSubstr("malformed line 3")));
}

TEST_F(DatasetTest, DamagedCompressedFiles) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += line(std::to_string(i * 7919));
  for (const auto& [name, bytes] : {std::pair("a.json.gz", gzip(text)), std::pair("a.json.zst", zstd(text))}) {
    SCOPED_TRACE(name);
    const std::vector<std::string> cut = read_all({write(name, bytes.substr(0, bytes.size() / 2))});
    EXPECT_THAT(cut.back(), AllOf(HasSubstr(name), HasSubstr("cut short")));
    std::string flipped = bytes;
    for (size_t i = bytes.size() / 2; i < bytes.size() / 2 + 40; ++i) flipped[i] = static_cast<char>(~flipped[i]);
    EXPECT_THAT(read_all({write(name, flipped)}, 1 << 20).back(), AllOf(HasSubstr(name), HasSubstr("damaged")));
    EXPECT_THAT(read_all({write(name, line("plain text"))}).back(), AllOf(HasSubstr(name), HasSubstr("is not ")));
  }
  EXPECT_THAT(read_all({folder_ + "/gone.json"}), ElementsAre(HasSubstr("gone.json")));
}

// Every position leads to the same following documents, even across files.
TEST_F(DatasetTest, SeeksToEveryDocument) {
  const std::vector<std::string> files = {write("a.json", line("one") + "\nbad\n" + line("two")),
                                          write("b.json.gz", gzip(line("three"))), write("c.json", ""),
                                          write("d.json.zst", zstd(line("four") + line("five")))};
  DocumentReader reader({.files = files});
  std::vector<DocumentPosition> positions = {reader.position()};
  while (reader.next().value().has_value()) positions.push_back(reader.position());
  const std::vector<std::string> all = {"one", "two", "three", "four", "five"};
  ASSERT_EQ(positions.size(), all.size() + 1);
  for (size_t i = 0; i < positions.size(); ++i) {
    DocumentReader again({.files = files});
    ASSERT_TRUE(again.seek(positions[i], 0).ok());
    EXPECT_EQ(again.position(), positions[i]);
    EXPECT_EQ(read_all(again), std::vector<std::string>(all.begin() + static_cast<long>(i), all.end()));
  }
}

TEST_F(DatasetTest, SeekDetectsAChangedFile) {
  const std::string file = write("a.json", line("one") + line("two"));
  DocumentReader reader({.files = {file}});
  ASSERT_TRUE(reader.next().ok());
  const DocumentPosition second = reader.position();
  for (const std::string& changed : {line("longer than before") + line("two"), std::string("x"), std::string()}) {
    write("a.json", changed);
    DocumentReader again({.files = {file}});
    const absl::Status status = again.seek(second, 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << changed;
    EXPECT_THAT(status.message(), HasSubstr("the dataset has changed"));
  }
  EXPECT_THAT(reader.seek({.file = 3}, 0).message(), HasSubstr("has 1 file"));
}

TEST_F(DatasetTest, ContiguousChunksWithTheRemainderFirst) {
  std::string text;
  for (int i = 0; i < 11; ++i) text += line(std::to_string(i));
  const std::vector<std::string> files = {write("a.json", text)};
  std::vector<std::vector<std::string>> read;
  for (int rank = 0; rank < 3; ++rank) {
    const auto share = split_by_rank(files, rank, 3);
    ASSERT_TRUE(share.ok());
    DocumentReader reader({.files = share->files, .share = share->share});
    read.push_back(read_all(reader));
    reader.rewind();
    EXPECT_EQ(read_all(reader), read.back());
  }
  EXPECT_THAT(read[0], ElementsAre("0", "1", "2", "3"));
  EXPECT_THAT(read[1], ElementsAre("4", "5", "6", "7"));
  EXPECT_THAT(read[2], ElementsAre("8", "9", "10"));
  const auto too_many = split_by_rank(files, 0, 12);
  EXPECT_EQ(too_many.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(too_many.status().message(), HasSubstr("11 documents for 12"));
}

// With a stored index of documents, a rank finds its chunk without reading the text before it. A damaged index, or one
// of changed data, is built again.
TEST_F(DatasetTest, FindsChunksByAStoredIndex) {
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += line(std::to_string(i)) + (i % 3 == 0 ? "\n" : "");
  const std::vector<std::string> files = {write("a.json", text), write("b.json", text)};
  const std::string index_folder = folder_ + "/index_folder";
  const auto share = split_by_rank(files, 2, 3, {}, index_folder);
  ASSERT_TRUE(share.ok()) << share.status();
  EXPECT_GT(share->start.offset, 0);
  EXPECT_LE(share->share.begin - share->start.document, 4096);
  DocumentReader near({.files = files, .share = share->share, .start = share->start});
  DocumentReader far({.files = files, .share = share->share});
  const std::vector<std::string> texts = read_all(far);
  EXPECT_EQ(read_all(near), texts);
  near.rewind();
  EXPECT_EQ(read_all(near), texts);

  std::string path;
  for (const auto& entry : fs::directory_iterator(index_folder)) {
    if (entry.path().extension() == ".json") path = entry.path();
  }
  std::ifstream stream(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(stream), {}};
  const std::string whole = DocumentIndex::from_text(good)->to_text();
  EXPECT_EQ(whole, good);
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    std::string bad = good;
    if (i % 2 == 0) {
      bad.resize(random() % bad.size());
    } else {
      char& changed = bad[random() % bad.size()];
      changed = static_cast<char>(changed ^ (1 + random() % 255));
    }
    EXPECT_EQ(DocumentIndex::from_text(bad).status().code(), absl::StatusCode::kDataLoss) << i;
  }
  std::ofstream(path, std::ios::binary) << good.substr(0, 100);
  EXPECT_EQ(split_by_rank(files, 2, 3, {}, index_folder)->start, share->start);
  write("b.json", text + text);
  EXPECT_EQ(split_by_rank(files, 0, 3, {}, index_folder)->share.end, 10'000);
  EXPECT_EQ(split_by_rank(files, 2, 3, {}, "/dev/null/no")->share.begin, 20'000);
}

TEST_F(DatasetTest, CompressedFilesAreSplitByFileOrDocument) {
  const std::vector<std::string> files = {"a.json.gz", "b.json.gz", "c.json.gz", "d.json.gz"};
  EXPECT_THAT(split_by_rank(files, 1, 2)->files, ElementsAre("b.json.gz", "d.json.gz"));
  const RankShare third = *split_by_rank(files, 1, 3);
  EXPECT_EQ(third.files, files);
  EXPECT_EQ(third.share.step, 3);
  EXPECT_EQ(third.share.remainder, 1);
}

}  // namespace
}  // namespace titan::data
