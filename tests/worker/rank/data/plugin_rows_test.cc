// Tests that a library's dataset is read like files of Titan's own formats: the same rows in the same order, on any
// number of ranks, resumed at any row. Errors of a library are reported with its name, the file and the place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "common/io/data_files/datasets.h"
#include "tests/worker/rank/data/testing.h"
#include "worker/rank/data/chat/label_tokens.h"
#include "worker/rank/data/plugin/registry.h"
#include "worker/rank/data/rows/open_rows.h"
#include "worker/rank/data/rows/stream_state.h"

namespace titan::data {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 33;

// Reads a file whose lines are documents: a text, or the ids of tokens, with "-" before those that are not labels.
class Lines : public PluginReader {
 public:
  Lines(const std::string& file, const data_files::FilePlace& place, bool tokens)
      : place_(place), in_(file), tokens_(tokens) {
    in_.seekg(place.offset);
  }

  absl::StatusOr<bool> next(PluginDocument& document) override {
    std::string line;
    if (!std::getline(in_, line)) return false;
    place_ = {place_.offset + static_cast<int64_t>(line.size()) + 1, place_.line + 1};
    if (line == "{broken") {
      document.problem = "broken";
    } else if (!tokens_) {
      document.text = line;
    } else {
      read_tokens(line, document);
    }
    return true;
  }
  data_files::FilePlace place() const override { return place_; }

 protected:
  data_files::FilePlace place_;

 private:
  static void read_tokens(const std::string& line, PluginDocument& document) {
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      document.labels.push_back(word[0] != '-');
      document.tokens.push_back(std::stoi(word[0] == '-' ? word.substr(1) : word));
    }
  }

  std::ifstream in_;
  const bool tokens_;
};

using Opened = absl::StatusOr<std::unique_ptr<PluginReader>>;

Opened open_texts(const std::string& file, const data_files::FilePlace& place) {
  return std::make_unique<Lines>(file, place, false);
}
Opened open_tokens(const std::string& file, const data_files::FilePlace& place) {
  return std::make_unique<Lines>(file, place, true);
}

FileKind kind_of(Opened (*open)(const std::string&, const data_files::FilePlace&), Content content = Content::kTexts) {
  return {.format = data_files::DatasetFormat::kPlugin,
          .plugin = std::make_shared<LoadedDataset>(LoadedDataset{{"mine", content, ".lines", open}, "mine.so", 7})};
}

// Has the same documents in three forms: JSON lines, lines of texts, and lines of tokens, where every third is not a
// label.
class PluginRowsTest : public ::testing::Test {
 protected:
  PluginRowsTest() {
    folder_.write_tokenizer(testing::byte_tokenizer());
    std::mt19937 random(5);
    for (int file = 0; file < 3; ++file) {
      std::string json, texts, tokens;
      for (int i = 0; i < 50; ++i) {
        if (i == 20) {
          for (std::string* each : {&json, &texts, &tokens}) *each += "{broken\n";
          continue;
        }
        std::string text;
        for (size_t length = 1 + random() % (i == 7 ? 200 : 60); length > 0; --length) text += 'a' + random() % 26;
        json += nlohmann::json{{"text", text}}.dump() + "\n";
        texts += text + "\n";
        tokens += tokens_of(text) + "\n";
      }
      json_.push_back(folder_.write(absl::StrCat(file, ".json"), json));
      texts_.push_back(folder_.write(absl::StrCat(file, ".txt"), texts));
      tokens_.push_back(folder_.write(absl::StrCat(file, ".tokens"), tokens));
    }
  }

  std::string tokens_of(const std::string& text) const {
    std::vector<int32_t> ids;
    EXPECT_TRUE(tokenizer_of_bytes()->encode_document(text, ids).ok());
    std::string line;
    for (size_t i = 0; i < ids.size(); ++i) absl::StrAppend(&line, i % 3 == 2 ? "-" : "", ids[i], " ");
    return line;
  }
  std::shared_ptr<Tokenizer> tokenizer_of_bytes() const { return *Tokenizer::load(folder_.path()); }

  SourceWanted json() const { return {"", json_, {.format = data_files::DatasetFormat::kJsonLines}}; }
  SourceWanted texts() const { return {"", texts_, kind_of(open_texts)}; }
  SourceWanted tokens() const { return {"", tokens_, kind_of(open_tokens, Content::kTokens)}; }

  RowsWanted wanted(int rank, int ranks) const {
    return {.tokenizer_folder = folder_.path(),
            .row_tokens = kWidth,
            .dp_rank = rank,
            .dp_size = ranks,
            .counts_folder = folder_.path() + "/counts",
            .timeout = absl::ZeroDuration()};  // Ranks run one after the other.
  }

  using Arrange = std::function<void(RowsWanted&)>;
  struct Read {
    std::vector<std::vector<int32_t>> rows;
    std::vector<std::vector<int64_t>> ends;
    std::vector<std::string> warnings;  // Warnings of the last rank.
    nlohmann::json cursor;
    absl::Status status;
  };

  // Reads `count` rows of all ranks, in the order of the stream.
  Read read(const std::vector<SourceWanted>& sources, int ranks, int count, const Arrange& arrange,
            const nlohmann::json& from = nullptr) const {
    Read all{.rows = std::vector<std::vector<int32_t>>(count), .ends = std::vector<std::vector<int64_t>>(count)};
    for (int rank = 0; rank < ranks && all.status.ok(); ++rank)
      all.status = read_rank(sources, rank, ranks, arrange, from, all);
    return all;
  }

  absl::Status read_rank(const std::vector<SourceWanted>& sources, int rank, int ranks, const Arrange& arrange,
                         const nlohmann::json& from, Read& all) const {
    RowsWanted wants = wanted(rank, ranks);
    arrange(wants);
    std::vector<WeightsFrom> weights;
    if (sources.size() == 2) weights.push_back({0, {3, 2}});
    absl::StatusOr<MixedRows> rows = open_mixed_rows(wants, sources, weights, tokenizer_of_bytes());
    if (!rows.ok()) return rows.status();
    if (!from.is_null()) {
      const absl::StatusOr<MixCursor> cursor = mix_from_json(from, *rows);
      if (!cursor.ok()) return cursor.status();
      if (absl::Status sought = rows->seek(*cursor); !sought.ok()) return sought;
    }
    for (size_t i = 0; i < all.rows.size(); i += ranks) {
      if (absl::StatusOr<int64_t> skipped = rows->skip(rank); !skipped.ok()) return skipped.status();
      const absl::StatusOr<const int32_t*> row = rows->next();
      if (!row.ok()) return row.status();
      all.rows[i + rank].assign(*row, *row + kWidth);
      all.ends[i + rank].assign(rows->piece_ends().begin(), rows->piece_ends().end());
      if (absl::StatusOr<int64_t> skipped = rows->skip(ranks - rank - 1); !skipped.ok()) return skipped.status();
    }
    const absl::StatusOr<const MixCursor*> cursor = rows->cursor();
    if (!cursor.ok()) return cursor.status();
    const nlohmann::json here = to_json(**cursor, *rows);
    EXPECT_TRUE(all.cursor.is_null() || all.cursor == here) << "the ranks are at different positions";
    all.cursor = here;
    all.warnings = rows->take_warnings();
    return absl::OkStatus();
  }

  // Returns the dataset's error when it is read in order.
  std::string error_of(
      const SourceWanted& source, int ranks = 1, const Arrange& arrange = [](RowsWanted&) {}) const {
    return std::string(read({source}, ranks, 120, arrange).status.message());
  }

  testing::Folder folder_;
  std::vector<std::string> json_, texts_, tokens_;
};

const std::map<std::string, std::function<void(RowsWanted&)>> kArrangements = {
    {"in order", [](RowsWanted&) {}},
    {"shuffled", [](RowsWanted& rows) { rows.shuffle = Shuffle::kDocuments, rows.shuffle_seed = 3; }},
    {"packed", [](RowsWanted& rows) { rows.packing_window = 16; }},
    {"both", [](RowsWanted& rows) { rows.shuffle = Shuffle::kDocuments, rows.packing_window = 16; }}};

TEST_F(PluginRowsTest, RowsEqualThoseOfJsonLines) {
  for (const auto& [name, arrange] : kArrangements) {
    const Read expected = read({json()}, 1, 240, arrange);  // More than a pass.
    ASSERT_TRUE(expected.status.ok()) << expected.status;
    ASSERT_GE(expected.cursor["pass"], 1);
    for (const int ranks : {1, 2, 4, 6}) {
      const Read mine = read({texts()}, ranks, 240, arrange);
      ASSERT_TRUE(mine.status.ok()) << name << ranks << ": " << mine.status;
      EXPECT_EQ(mine.rows, expected.rows) << name << ", " << ranks << " ranks";
      EXPECT_EQ(mine.ends, expected.ends) << name << ", " << ranks << " ranks";
      EXPECT_THAT(mine.warnings, Contains(AllOf(HasSubstr("0.txt at ("), HasSubstr("broken, skipped")))) << name;
    }
  }
}

TEST_F(PluginRowsTest, ResumesAtAnyRowOnOtherRanks) {
  for (const auto& [name, arrange] : kArrangements) {
    const Read whole = read({texts()}, 1, 240, arrange);
    nlohmann::json cursor;
    for (int at = 0, i = 0; at < 240; at += 12, ++i) {
      const Read part = read({texts()}, std::vector{1, 4, 2, 6}[i % 4], 12, arrange, cursor);
      ASSERT_TRUE(part.status.ok()) << name << ", row " << at << ": " << part.status;
      EXPECT_EQ(part.rows, std::vector(whole.rows.begin() + at, whole.rows.begin() + at + 12))
          << name << ", row " << at;
      cursor = part.cursor;
    }
    EXPECT_EQ(cursor, whole.cursor) << name;
  }
}

// Deals chunks of documents, as torchtitan does.
TEST_F(PluginRowsTest, OrderPerRankDealsTheSameDocuments) {
  const auto rows_of = [&](const SourceWanted& source, int rank, int ranks) {
    RowsWanted wants = wanted(rank, ranks);
    wants.per_rank = true;
    absl::StatusOr<MixedRows> rows = open_mixed_rows(wants, {source}, {}, tokenizer_of_bytes());
    EXPECT_TRUE(rows.ok()) << rows.status();
    std::vector<std::vector<int32_t>> all;
    for (int i = 0; rows.ok() && i < 120; ++i) {
      const absl::StatusOr<const int32_t*> row = rows->next();
      EXPECT_TRUE(row.ok()) << row.status();
      if (row.ok()) all.emplace_back(*row, *row + kWidth);
    }
    return all;
  };
  for (const int ranks : {1, 2, 5}) {
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(rows_of(texts(), rank, ranks), rows_of(json(), rank, ranks));
  }
}

TEST_F(PluginRowsTest, MixesWithBuiltInDatasets) {
  std::vector<SourceWanted> with_json{json(), json()}, with_texts{json(), texts()};
  with_json[0].name = with_texts[0].name = "a";
  with_json[1].name = with_texts[1].name = "b";
  for (const auto& [name, arrange] : kArrangements) {
    const Read expected = read(with_json, 1, 240, arrange);
    for (const int ranks : {1, 4}) {
      const Read mine = read(with_texts, ranks, 240, arrange);
      ASSERT_TRUE(mine.status.ok()) << mine.status;
      EXPECT_EQ(mine.rows, expected.rows) << name << ", " << ranks << " ranks";
    }
  }
}

// The tokens are the same as those of the texts, tokens that are not labels stay marked, and each row holds the ends of
// its documents.
TEST_F(PluginRowsTest, TokensKeepTheLabelMask) {
  for (const auto& [name, arrange] : kArrangements) {
    const Read expected = read({texts()}, 1, 240, arrange);
    Read one = read({tokens()}, 1, 240, arrange);
    ASSERT_TRUE(one.status.ok()) << one.status;
    for (const int ranks : {2, 4}) {
      const Read more = read({tokens()}, ranks, 240, arrange);
      ASSERT_TRUE(more.status.ok()) << more.status;
      EXPECT_EQ(more.rows, one.rows) << name << ", " << ranks << " ranks";
      EXPECT_EQ(more.ends, one.ends) << name << ", " << ranks << " ranks";
    }
    int64_t unlabelled = 0, all = 0;
    for (std::vector<int32_t>& row : one.rows) {
      for (int32_t& token : row) unlabelled += is_label(token) ? 0 : 1, token = token_of(token), ++all;
    }
    EXPECT_EQ(one.rows, expected.rows) << name;
    EXPECT_NEAR(static_cast<double>(unlabelled) / static_cast<double>(all), 1.0 / 3, 0.06) << name;
    for (size_t row = 0; row < one.ends.size(); ++row) EXPECT_FALSE(one.ends[row].empty()) << name << ", row " << row;
  }
}

TEST_F(PluginRowsTest, ConversationsEqualThoseOfJsonLines) {
  folder_.write("chat_template.jinja",
                "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}|"
                "{% endgeneration %}{% else %}{{ m.content }}|{% endif %}{% endfor %}");
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    lines += nlohmann::json{{"turns",
                             {{{"role", "user"}, {"content", std::string(1 + i % 7, 'q')}},
                              {{"role", "assistant"}, {"content", absl::StrCat("answer ", i)}}}}}
                 .dump() +
             "\n";
  }
  SourceWanted mine = texts(), own = json();
  mine.files = own.files = {folder_.write("chat.json", lines)};
  mine.kind.messages_key = own.kind.messages_key = "turns";
  const auto unarranged = [](RowsWanted&) {};
  const Read expected = read({own}, 1, 24, unarranged), got = read({mine}, 4, 24, unarranged);
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.rows, expected.rows);
  EXPECT_EQ(got.ends, expected.ends);
}

TEST_F(PluginRowsTest, LibraryErrorsNameFileAndPlace) {
  struct Throws : Lines {
    using Lines::Lines;
    absl::StatusOr<bool> next(PluginDocument& document) override {
      if (place_.line == 30) throw std::runtime_error("no such record");
      return Lines::next(document);
    }
  };
  SourceWanted source = texts();
  source.kind = kind_of([](const std::string& file, const data_files::FilePlace& place) -> Opened {
    return std::make_unique<Throws>(file, place, false);
  });
  for (const int ranks : {1, 4}) {
    EXPECT_THAT(error_of(source, ranks), AllOf(HasSubstr("dataset \"mine\" of mine.so: "), HasSubstr("0.txt at ("),
                                               HasSubstr(", 30): next() threw: no such record")));
  }
  source.kind = kind_of([](const std::string&, const data_files::FilePlace&) -> Opened { throw 7; });
  EXPECT_THAT(error_of(source), HasSubstr("at (0, 0): open threw something that is not a std::exception"));
  source.kind =
      kind_of([](const std::string&, const data_files::FilePlace&) -> Opened { return absl::DataLossError("torn"); });
  EXPECT_THAT(error_of(source), HasSubstr("0.txt at (0, 0): torn"));
  source.kind = kind_of([](const std::string&, const data_files::FilePlace&) -> Opened { return nullptr; });
  EXPECT_THAT(error_of(source), HasSubstr("open() returned no reader"));
}

TEST_F(PluginRowsTest, RefusesInconsistentPlaces) {
  SourceWanted source = texts();
  source.kind = kind_of([](const std::string& file, const data_files::FilePlace&) -> Opened {
    return std::make_unique<Lines>(file, data_files::FilePlace{}, false);  // Ignores the place where it is opened.
  });
  EXPECT_THAT(error_of(source), AllOf(HasSubstr("a reader that was opened there reports the place (0, 0)"),
                                      HasSubstr("place() has to return the place that open() got")));
  struct Stays : Lines {
    using Lines::Lines;
    data_files::FilePlace place() const override { return {place_.offset / 1000, 0}; }
  };
  source.kind = kind_of([](const std::string& file, const data_files::FilePlace& place) -> Opened {
    return std::make_unique<Stays>(file, place, false);
  });
  EXPECT_THAT(error_of(source), HasSubstr("the place after the document is (0, 0); it has to be beyond (0, 0)"));
  struct Far : Lines {
    using Lines::Lines;
    data_files::FilePlace place() const override {
      return {place_.offset == 0 ? 0 : data_files::kMaxPlace + place_.line, 0};
    }
  };
  source.kind = kind_of([](const std::string& file, const data_files::FilePlace& place) -> Opened {
    return std::make_unique<Far>(file, place, false);
  });
  EXPECT_THAT(error_of(source),
              AllOf(HasSubstr("0.txt at (0, 0): the place after the document is (1152921504606846977"),
                    HasSubstr("beyond 2^60, the largest that a cursor holds")));
  struct Mismatched : Lines {  // Reports the place where it was opened, but returns the first document.
    Mismatched(const std::string& file, const data_files::FilePlace& place) : Lines(file, {}, false) { place_ = place; }
  };
  source.kind = kind_of([](const std::string& file, const data_files::FilePlace& place) -> Opened {
    return std::make_unique<Mismatched>(file, place);
  });
  EXPECT_THAT(error_of(source), HasSubstr("a reader that was opened there returns another document"));
}

// Documents that change with each opening are refused before the first row; documents that change later, under
// distributed row counting, are refused when they are read.
TEST_F(PluginRowsTest, RefusesChangingDocuments) {
  static int openings;
  struct Changes : Lines {
    Changes(const std::string& file, const data_files::FilePlace& place, int more)
        : Lines(file, place, false), more_(more) {}
    absl::StatusOr<bool> next(PluginDocument& document) override {
      absl::StatusOr<bool> found = Lines::next(document);
      document.text += std::string(more_, 'x');
      return found;
    }
    const int more_;
  };
  SourceWanted source = texts();
  openings = 0;
  source.kind = kind_of([](const std::string& file, const data_files::FilePlace& place) -> Opened {
    return std::make_unique<Changes>(file, place, ++openings);
  });
  EXPECT_THAT(error_of(source), HasSubstr("returns another document; reading from the beginning returned one there"));
  openings = 0;
  source.kind = kind_of([](const std::string& file, const data_files::FilePlace& place) -> Opened {
    return std::make_unique<Changes>(file, place, ++openings > 40 ? openings : 1);
  });
  EXPECT_THAT(error_of(source, 4), HasSubstr("the dataset has changed since; remove "));
}

TEST_F(PluginRowsTest, MalformedDocumentsAreNamedAndLimited) {
  const auto strict = [](RowsWanted& rows) { rows.max_bad_lines = 0; };
  for (const int ranks : {1, 4}) {
    EXPECT_THAT(error_of(texts(), ranks, strict),
                AllOf(HasSubstr("broken; that is malformed document 1, more than dataloader.max_bad_lines = 0"),
                      HasSubstr("the dataset \"mine\" of mine.so has to return UTF-8")));
  }
  SourceWanted source = texts();
  source.files = {folder_.write("latin.txt", "\xff\xfe\n")};
  EXPECT_THAT(error_of(source, 1, strict), HasSubstr("latin.txt at (0, 0): not UTF-8"));
  source = tokens();
  source.files = {folder_.write("other.tokens", "1 2 300\n")};
  EXPECT_THAT(error_of(source, 1, strict), HasSubstr("holds token 300, and the tokenizer's last is 257"));
  source.kind = kind_of(
      [](const std::string& file, const data_files::FilePlace& place) -> Opened {
        struct Unmatched : Lines {
          using Lines::Lines;
          absl::StatusOr<bool> next(PluginDocument& document) override {
            absl::StatusOr<bool> found = Lines::next(document);
            document.labels.resize(2);
            return found;
          }
        };
        return std::make_unique<Unmatched>(file, place, true);
      },
      Content::kTokens);
  EXPECT_THAT(error_of(source, 1, strict), HasSubstr("has 3 tokens and 2 labels"));
  source.kind = kind_of(open_tokens);
  EXPECT_THAT(error_of(source), HasSubstr("the document has tokens, and the dataset gives texts"));
  source = texts();
  source.kind = kind_of(open_texts, Content::kTokens);
  EXPECT_THAT(error_of(source), HasSubstr("the document has text, and the dataset gives tokens"));
}

// A rebuilt library may cut the same files differently, so counts of the earlier build are not used.
TEST_F(PluginRowsTest, RebuiltLibraryCountsAgain) {
  SourceWanted source = texts();
  const auto unarranged = [](RowsWanted&) {};
  ASSERT_TRUE(read({source}, 4, 24, unarranged).status.ok());
  auto other = std::make_shared<LoadedDataset>(*source.kind.plugin);
  other->sum = 8;
  other->open = [](const std::string& file, const data_files::FilePlace& place) -> Opened {
    struct Longer : Lines {
      using Lines::Lines;
      absl::StatusOr<bool> next(PluginDocument& document) override {
        absl::StatusOr<bool> found = Lines::next(document);
        if (document.problem.empty()) document.text += "!";
        return found;
      }
    };
    return std::make_unique<Longer>(file, place, false);
  };
  source.kind.plugin = other;
  const Read one = read({source}, 1, 24, unarranged), four = read({source}, 4, 24, unarranged);
  ASSERT_TRUE(four.status.ok()) << four.status;
  EXPECT_EQ(four.rows, one.rows);
}

TEST_F(PluginRowsTest, FindsFilesByTheDatasetsEnding) {
  std::filesystem::create_directory(folder_.path() + "/all");
  folder_.write("all/b.lines", "b\n");
  folder_.write("all/a.lines", "a\n");
  folder_.write("all/.hidden.lines", "no\n");
  folder_.write("all/readme.md", "no\n");
  const std::string all = folder_.path() + "/all";
  EXPECT_EQ(*data_files::find_files(all, ".lines"), (std::vector<std::string>{all + "/a.lines", all + "/b.lines"}));
  EXPECT_EQ(data_files::find_files(all, "")->size(), 3u);
  EXPECT_EQ(*data_files::find_files(all + "/*.md", ".lines"), std::vector<std::string>{all + "/readme.md"});
  std::filesystem::create_directory(all + "/c.lines");
  EXPECT_EQ(data_files::find_files(all + "/*.lines", ".lines")->size(), 2u);
  EXPECT_THAT(data_files::find_files(all, ".none").status().message(), HasSubstr("holds no *.none file"));
}

}  // namespace
}  // namespace titan::data
