#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/text/message_text.h"
#include "common/io/http/http.h"
#include "common/io/http/ranges.h"
#include "common/io/http/retry.h"
#include "common/io/http/urls.h"
#include "common/io/hub/api.h"
#include "common/io/hub/client.h"
#include "common/io/hub/get.h"
#include "common/io/hub/names.h"
#include "common/io/hub/settings.h"

namespace titan::hub {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

// A file name from a server must stay inside the folder.
TEST(NamesTest, FilesStayInTheirFolder) {
  for (const char* good : {"config.json", "original/params.json", "a b", "...", "..a/b..", "\xc3\xa9"})
    EXPECT_TRUE(check_file_name(good).ok()) << good;
  for (const std::string bad : {"", "/", "/etc/x", "../x", "a/../x", "a/..", ".", "./a", "a//b", "a/", "a\nb", "a\x7f"})
    EXPECT_EQ(check_file_name(bad).code(), absl::StatusCode::kInvalidArgument) << bad;
  EXPECT_FALSE(check_file_name(std::string("a\0b", 3)).ok());
  EXPECT_FALSE(check_file_name(std::string(256, 'a')).ok());
  EXPECT_FALSE(check_file_name("a/" + std::string(2000, 'a')).ok());
}

TEST(NamesTest, RepositoriesAndRevisions) {
  EXPECT_EQ(parse_repo(RepoKind::kModel, "Qwen/Qwen3-0.6B")->name(), "Qwen3-0.6B");
  EXPECT_EQ(parse_repo(RepoKind::kModel, "gpt2")->name(), "gpt2");
  for (const char* bad : {"", "/", "a/", "/a", "a/b/c", "../b", "a/..", "a b/c", "-a/b", "https://a/b", "a/b?c"})
    EXPECT_FALSE(parse_repo(RepoKind::kModel, bad).ok()) << bad;
  EXPECT_TRUE(check_revision("refs/pr/1").ok());
  EXPECT_FALSE(check_revision("a\nb").ok());
  EXPECT_FALSE(check_revision("").ok());
  EXPECT_TRUE(is_commit(kCommit));
  EXPECT_FALSE(is_commit("main"));
  EXPECT_EQ(text::printable_name("a\x1b[1m\n"), "a?[1m?");
}

TEST(NamesTest, PathsOfDatasets) {
  const std::string at_commit = std::string("hf://datasets/allenai/c4@") + kCommit;
  const auto parsed = parse_dataset_path(at_commit + "/en/c4-train.00000-of-01024.json.gz");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->repo.kind, RepoKind::kDataset);
  EXPECT_EQ(parsed->repo.id, "allenai/c4");
  EXPECT_EQ(parsed->place, "en/c4-train.00000-of-01024.json.gz");
  EXPECT_EQ(to_text(*parsed), at_commit + "/en/c4-train.00000-of-01024.json.gz");
  EXPECT_EQ(to_text(*parse_dataset_path("hf://datasets/a/b")), "hf://datasets/a/b@main");
  EXPECT_EQ(parse_dataset_path("hf://datasets/a/b@v1/c@d/*.json")->place, "c@d/*.json");
  EXPECT_EQ(commit_of(at_commit), kCommit);
  EXPECT_EQ(commit_of("hf://datasets/a/b@main/x") + commit_of("/data/x"), "");
  EXPECT_EQ(folder_of("en/v1/c4-*/x.json"), "en/v1");
  EXPECT_EQ(folder_of("*.json"), "");
  for (const char* bad :
       {"", "/data", "hf://", "hf://a/b", "hf://datasets/a", "hf://datasets/a/b@", "hf://datasets/a b/c",
        "hf://datasets/a/b/../c", "hf://datasets/a/b//c", "hf://datasets/a/b@..", "hf://datasets//b"})
    EXPECT_EQ(parse_dataset_path(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
}

TEST(UrlsTest, BuildsApiUrls) {
  const Repo model{RepoKind::kModel, "org/name"}, dataset{RepoKind::kDataset, "org/name"};
  EXPECT_EQ(info_url("https://h", model, "refs/pr/1"), "https://h/api/models/org/name/revision/refs%2Fpr%2F1");
  EXPECT_EQ(tree_url("https://h", dataset, kCommit, ""),
            std::string("https://h/api/datasets/org/name/tree/") + kCommit + "?recursive=true");
  EXPECT_EQ(tree_url("https://h", dataset, kCommit, "a%3D", "en/a b"),
            std::string("https://h/api/datasets/org/name/tree/") + kCommit + "/en/a%20b?recursive=true&cursor=a%3D");
  EXPECT_EQ(file_url("https://h", model, "main", "a/b c#?.json"), "https://h/org/name/resolve/main/a/b%20c%23%3F.json");
  EXPECT_EQ(file_url("https://h", dataset, "main", "x"), "https://h/datasets/org/name/resolve/main/x");
}

// The token is sent only to the hub's origin, so two servers must never have equal origins.
TEST(UrlsTest, OriginsDistinguishServers) {
  EXPECT_EQ(http::origin("HTTPS://Hub.example/a"), http::origin("https://hub.example:443?b"));
  for (const char* other :
       {"http://hub.example", "https://hub.example:444", "https://hub.example.evil", "https://evil/hub.example",
        "https://evil#@hub.example", "https://evil\\@hub.example", "https://hub.example\\@evil",
        "https://hub.example@evil", "https://hub.example:443@evil", "https://hub.example:pw@evil/",
        "https://hub.example%40evil", "https://hub.example\t.evil", "https://hub.example:0443x"})
    EXPECT_NE(http::origin(other), http::origin("https://hub.example")) << other;
  for (const char* none :
       {"ftp://a", "https://", "https://:80", "https://u@hub.example", "https://u:p@hub.example", "https://u@", "a"})
    EXPECT_EQ(http::origin(none), "") << none;
  EXPECT_EQ(http::origin("http://[::1]:80/x"), http::origin("http://[::1]"));
  for (const char* near : {"http://127.0.0.1:1", "http://localhost", "http://[::1]:5"})
    EXPECT_TRUE(http::is_loopback(near)) << near;
  for (const char* far : {"http://127.0.0.1.evil", "http://128.0.0.1", "http://127.evil.0.1", "http://localhost.evil"})
    EXPECT_FALSE(http::is_loopback(far)) << far;
}

TEST(UrlsTest, RedirectsAndPages) {
  EXPECT_EQ(http::redirected("https://a/b/c?d", "/e"), "https://a/e");
  EXPECT_EQ(http::redirected("https://a", "/e"), "https://a/e");
  EXPECT_EQ(http::redirected("https://a/b", "//c/d"), "https://c/d");
  EXPECT_EQ(http::redirected("https://a/b", "http://c/d"), "http://c/d");
  EXPECT_EQ(http::redirected("https://a/b", "http://c/d e?f=\xc3\xa9"), "http://c/d%20e?f=%C3%A9");
  for (const char* bad : {"", "file:///etc/passwd", "e", "https://u:p@c/"})
    EXPECT_EQ(http::redirected("https://a/b", bad), "") << bad;
  EXPECT_EQ(next_cursor(R"(<https://x/y?limit=2&cursor=ab%3D&z=1>; rel="next")"), "ab%3D");
  EXPECT_EQ(next_cursor(R"(<https://x/y?cursor=p>; rel="prev", <https://x/y?cursor=n>; rel="next")"), "n");
  EXPECT_EQ(next_cursor(R"(<https://x/y?cursor=p>; rel="prev")"), "");
}

TEST(RangesTest, AreJoinedAndCut) {
  http::Ranges ranges;
  EXPECT_THAT(ranges.missing(10), ElementsAre(http::ByteRange{0, 10}));
  for (const http::ByteRange range :
       {http::ByteRange{4, 6}, http::ByteRange{0, 2}, http::ByteRange{6, 7}, http::ByteRange{5, 5}})
    ranges.add(range);
  EXPECT_THAT(ranges.all(), ElementsAre(http::ByteRange{0, 2}, http::ByteRange{4, 7}));
  EXPECT_THAT(ranges.missing(10), ElementsAre(http::ByteRange{2, 4}, http::ByteRange{7, 10}));
  EXPECT_EQ(ranges.total(), 5);
  ranges.add({1, 9});
  EXPECT_THAT(ranges.all(), ElementsAre(http::ByteRange{0, 9}));
  EXPECT_TRUE(ranges.missing(9).empty());
  EXPECT_TRUE(http::Ranges().missing(0).empty());
  EXPECT_THAT(http::cut({{0, 5}, {7, 9}}, 2),
              ElementsAre(http::ByteRange{0, 2}, http::ByteRange{2, 4}, http::ByteRange{4, 5}, http::ByteRange{7, 9}));
}

TEST(ListingTest, FilesWithTheirDigests) {
  const std::string sha(64, 'a');
  const auto files =
      parse_tree(R"([{"type": "directory", "path": "d", "oid": "x", "size": 0},
      {"type": "file", "path": "d/a", "oid": ")" +
                 std::string(kCommit) + R"(", "size": 5},
      {"type": "file", "path": "w", "oid": ")" +
                 kCommit + R"(", "size": 130, "lfs": {"oid": ")" + sha + R"(", "size": 7, "pointerSize": 130}}])");
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->size(), 2u);
  EXPECT_EQ((*files)[0].digest(), kCommit);
  EXPECT_EQ((*files)[1].digest(), sha);
  EXPECT_EQ((*files)[1].size, 7);
  EXPECT_EQ(*parse_info(R"({"sha": ")" + std::string(kCommit) + R"("})"), kCommit);
}

TEST(ListingTest, RefusesInvalidListings) {
  for (const char* bad :
       {"", "{}", "[1]", "[{}]", R"([{"path": "a"}])", R"([{"path": "a", "size": 1, "oid": "z"}])",
        R"([{"path": "a", "size": -1, "oid": "0123456789abcdef0123456789abcdef01234567"}])",
        R"([{"path": "a", "size": 18446744073709551615, "oid": "0123456789abcdef0123456789abcdef01234567"}])",
        R"([{"path": "a", "size": 1, "oid": "0123456789abcdef0123456789abcdef01234567", "lfs": {}}])",
        R"([{"path": "../a", "size": 1, "oid": "0123456789abcdef0123456789abcdef01234567"}])"})
    EXPECT_FALSE(parse_tree(bad).ok()) << bad;
  for (const char* bad : {"", "[]", R"({"sha": 5})", R"({"sha": "main"})"})
    EXPECT_TRUE(absl::IsDataLoss(parse_info(bad).status())) << bad;
}

TEST(SelectionTest, KindsAndGlobs) {
  std::vector<RemoteFile> files;
  for (const char* name : {"README.md", "config.json", "tokenizer.json", "original/tokenizer.model",
                           "model-1.safetensors", "model.safetensors.index.json", "original/params.json"})
    files.push_back({name, 1, "", ""});
  const auto names = [&](const FileSelection& selection) {
    std::vector<std::string> out;
    for (const RemoteFile& file : select(selection, files)) out.push_back(file.name);
    return out;
  };
  EXPECT_EQ(names({}).size(), 5u);
  EXPECT_EQ(names({.all = true}).size(), 7u);
  EXPECT_THAT(names({.assets = {"tokenizer"}}), ElementsAre("tokenizer.json", "original/tokenizer.model"));
  EXPECT_THAT(names({.assets = {"index"}}), ElementsAre("model.safetensors.index.json"));
  EXPECT_THAT(names({.include = {"*.md", "original/*"}, .exclude = {"*.model"}}),
              ElementsAre("README.md", "original/params.json"));
  EXPECT_THAT(names({.all = true, .exclude = {"*o*"}}), ElementsAre("README.md"));
  EXPECT_THAT(unmatched({.assets = {"config"}, .include = {"*.bin"}}, files), ElementsAre("--include *.bin"));
  EXPECT_THAT(check_selection({.assets = {"tokeniser"}}).message(), HasSubstr("did you mean 'tokenizer'"));
}

TEST(AnswersTest, RangesAreReadExactly) {
  const auto range = http::parse_content_range("bytes 5-9/100");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->range, (http::ByteRange{5, 10}));
  EXPECT_EQ(range->size, 100);
  for (const char* bad : {"", "bytes */5", "bytes 5-9/*", "bytes 9-5/100", "bytes 5-100/100", "bytes -1-5/9",
                          "items 0-1/2", "bytes 0-1/2/3"})
    EXPECT_FALSE(http::parse_content_range(bad)) << bad;
}

TEST(AnswersTest, ResponsesMapToStatusCodes) {
  const auto code = [](int number, const char* word, bool token) {
    return http::answer_error({.code = number, .error_code = word}, token).code();
  };
  for (const int number : {408, 425, 429, 500, 502, 503, 504})
    EXPECT_EQ(code(number, "", false), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code(401, "RepoNotFound", false), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code(401, "RepoNotFound", true), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(401, "", true), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code(401, "GatedRepo", false), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(code(403, "GatedRepo", true), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code(404, "EntryNotFound", false), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(416, "", false), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(400, "", false), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(http::parse_retry_after("3"), absl::Seconds(3));
  EXPECT_EQ(http::parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), absl::ZeroDuration());
  EXPECT_EQ(http::parse_retry_after("soon"), std::nullopt);
  EXPECT_EQ(http::parse_retry_after("-5"), absl::ZeroDuration());
}

// Attempts that received bytes do not count, and the wait that a server requests is limited.
TEST(RetryTest, CountsAttemptsWithoutNewBytes) {
  http::RetryPolicy policy{.attempts = 3, .first_wait = absl::ZeroDuration(), .max_retry_after = absl::ZeroDuration()};
  const std::stop_source stop;
  int calls = 0;
  int64_t brought = 0;
  const auto fail = [&] {
    ++calls;
    if (calls <= 5) ++brought;
    return http::Outcome{absl::UnavailableError("down"), absl::Hours(1)};
  };
  const absl::Status status = http::with_retries(policy, stop.get_token(), fail, [&] { return brought; });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("tried 3 times"));
  EXPECT_EQ(calls, 7);  // The fifth call is the first of three that brought no more bytes.
  calls = 0;
  const auto refuse = [&] {
    ++calls;
    return http::Outcome{absl::NotFoundError("no"), std::nullopt};
  };
  EXPECT_EQ(http::with_retries(policy, stop.get_token(), refuse, [] { return 0; }).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(calls, 1);
}

TEST(RetryTest, StopEndsAWait) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(http::wait_for(absl::Hours(1), stop.get_token()));
}

class SettingsTest : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text, mode_t mode) {
    std::string path = ::testing::TempDir() + "titan_hub_" + name;
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    paths_.push_back(path);
    return path;
  }
  void TearDown() override {
    for (const std::string& path : paths_) std::remove(path.c_str());
  }
  std::vector<std::string> warnings_;
  std::vector<std::string> paths_;
};

TEST_F(SettingsTest, TokensAndEndpoints) {
  const std::string own = file("own", "hf_own\n", 0600), open = file("open", "hf_open", 0644),
                    two = file("two", "a\nb", 0600);
  const auto token = [&](const http::Environment& environment, const std::string& path) {
    const auto settings = settings_from(environment, "", path, warnings_);
    return settings.ok() ? settings->token : std::string(absl::StatusCodeToString(settings.status().code()));
  };
  EXPECT_EQ(token({}, ""), "");
  EXPECT_EQ(token({{"HF_TOKEN", " hf_x\n"}, {"HF_TOKEN_PATH", own}}, ""), "hf_x");
  EXPECT_EQ(token({{"HF_TOKEN", "hf_x"}}, own), "hf_own");
  EXPECT_EQ(token({{"HF_TOKEN_PATH", own}}, ""), "hf_own");
  EXPECT_EQ(token({{"HF_TOKEN_PATH", own + "not"}}, ""), "");
  EXPECT_EQ(token({}, own + "not"), "NOT_FOUND");
  EXPECT_EQ(token({}, open), "PERMISSION_DENIED");
  EXPECT_EQ(token({}, two), "INVALID_ARGUMENT");  // A line break would end the header.
  EXPECT_EQ(token({{"HF_TOKEN", "a\r\nX: y"}}, ""), "INVALID_ARGUMENT");
  EXPECT_TRUE(warnings_.empty());
  EXPECT_EQ(token({{"HF_TOKEN_PATH", open}}, ""), "hf_open");
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("chmod 600")));
  EXPECT_EQ(token({{"HF_HUB_OFFLINE", "1"}}, ""), "FAILED_PRECONDITION");
  EXPECT_EQ(home_folder({{"HF_HOME", "~/x"}, {"HOME", "/h"}}), "/h/x");
  EXPECT_EQ(home_folder({{"XDG_CACHE_HOME", "/c"}, {"HOME", "/h"}}), "/c/huggingface");
  EXPECT_EQ(home_folder({{"HOME", "/h"}}), "/h/.cache/huggingface");

  EXPECT_EQ(settings_from({{"HF_ENDPOINT", "https://m/"}}, "", "", warnings_)->endpoint, "https://m");
  EXPECT_EQ(settings_from({{"HF_ENDPOINT", "https://m/"}}, "http://n:1/hub", "", warnings_)->endpoint,
            "http://n:1/hub");
  const auto bad = settings_from({}, "https://user:secret@m", "", warnings_).status();
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(bad.message(), ::testing::Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace titan::hub
