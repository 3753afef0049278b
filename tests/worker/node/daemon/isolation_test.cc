// Ranks of another user under a root worker: who they run as, what they can access, and what they cannot do to it.

#include <pwd.h>
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/node/daemon/daemon_case.h"
#include "worker/node/daemon/rank_user.h"

namespace titan::daemon {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using shim::alive;
using shim::eventually;
using ::testing::HasSubstr;
using ::testing::Not;
constexpr char kUser[] = "nobody";
constexpr char kPrecious[] = "root's own\n";

std::string text_of_file(const std::string& path) { return host::read_file(path).value_or(""); }

// Returns a field's value in a status file of /proc.
std::string field(const std::string& status, const std::string& name) {
  const size_t at = status.find(absl::StrCat("\n", name, ":"));
  if (at == std::string::npos) return "";
  const size_t begin = status.find_first_not_of(" \t", at + name.size() + 2);
  return status.substr(begin, status.find('\n', begin) - begin);
}

class IsolationTest : public DaemonTest {
 protected:
  void SetUp() override {
    const passwd* const user = ::getpwnam(kUser);
    if (::geteuid() != 0 || user == nullptr) GTEST_SKIP() << "needs root, and a user nobody";
    uid_ = user->pw_uid;
    gid_ = user->pw_gid;
    if (!reaches(shim::fake_rank_binary())) GTEST_SKIP() << "user nobody cannot reach the built programs";
    run_as_ = kUser;
    ::chmod(dump_.path().c_str(), 0711);
    create_owned_folder(dump_.file("out"));
    std::ofstream(precious_) << kPrecious;
    ::chmod(precious_.c_str(), 0600);
  }

  bool reaches(const std::string& program) const {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(::setgid(gid_) == 0 && ::setuid(uid_) == 0 && ::access(program.c_str(), X_OK) == 0 ? 0 : 1);
    int status = 0;
    return ::waitpid(child, &status, 0) == child && status == 0;
  }
  void create_owned_folder(const std::string& folder) const {
    fs::create_directories(folder);
    ASSERT_EQ(::chown(folder.c_str(), uid_, gid_), 0);
  }
  // Returns the output of a rank's command, once it has run.
  static std::string ran(const Worker& worker, int attempt = 1) {
    const std::string log = worker.run_folder(attempt) + "/rank-0.log";
    EXPECT_TRUE(eventually([&] { return text_of_file(log).find("ran: ") != std::string::npos; }));
    return text_of_file(log);
  }
  bool beats_continue() {
    const int beats = controller_.received("n1").beats;
    return controller_.wait([&] { return controller_.of("n1").beats > beats + 1; });
  }
  // A worker with a state folder that other users may traverse.
  struct Node : Worker {
    explicit Node(FakeController& controller, std::vector<std::string> flags = {})
        : Worker(controller, "n1", std::move(flags)) {
      ::chmod(folder().path().c_str(), 0711);
    }
    std::string rank_folder(int attempt = 1) const { return absl::StrCat(state(), "/ranks/u1-", attempt); }
  };

  uid_t uid_ = 0;
  gid_t gid_ = 0;
  const std::string precious_ = dump_.file("precious");
};

TEST_F(IsolationTest, RanksRunAsTheSubmittingUser) {
  Node worker(controller_);
  ASSERT_TRUE(launch(1, 1, {})) << last(1).error_message();
  const auto pid = static_cast<pid_t>(beat_ranks()[0].pid());
  const std::string status = text_of_file(absl::StrCat("/proc/", pid, "/status"));
  EXPECT_EQ(field(status, "Uid"), absl::StrCat(uid_, "\t", uid_, "\t", uid_, "\t", uid_));
  EXPECT_EQ(field(status, "Gid"), absl::StrCat(gid_, "\t", gid_, "\t", gid_, "\t", gid_));
  EXPECT_THAT(field(status, "Groups"), ::testing::AnyOf(absl::StrCat(gid_, " "), absl::StrCat(gid_)));
  EXPECT_EQ(field(status, "NoNewPrivs"), "1");
  EXPECT_EQ(field(status, "CapEff"), "0000000000000000");
  const std::string environment = text_of_file(absl::StrCat("/proc/", pid, "/environ"));
  EXPECT_THAT(environment, HasSubstr("USER=nobody"));
  EXPECT_THAT(environment, HasSubstr("HOME=/nonexistent"));
  EXPECT_THAT(environment, Not(HasSubstr("HOME=/root")));
  struct stat token {};
  ASSERT_EQ(::stat(dump_.file("out/.titan-token-u1-1").c_str(), &token), 0);
  EXPECT_EQ(token.st_uid, uid_) << "the user owns the token that the worker writes";
  ASSERT_TRUE(events_reach(0, 5)) << "their events arrive";
  EXPECT_THAT(diagnose(1, /*stacks=*/true).at(0).rank().stacks(), HasSubstr("fake_rank")) << "and so are their stacks";

  const json state = json::parse(text_of_file(worker.run_folder(1) + "/shim.json"));
  const int64_t ticks = shim::start_ticks(pid);
  ::kill(state["pid"].get<pid_t>(), SIGKILL);
  EXPECT_TRUE(eventually([&] { return !alive(pid, ticks); })) << "they die with their shim";
  ASSERT_TRUE(reported(1, Report::ENDED));
  EXPECT_EQ(last(1).error_reason(), "SHIM_LOST");
}

// Saving, stopping and a new daemon work although ranks have another user.
TEST_F(IsolationTest, StopsAndRestartsWorkAcrossUsers) {
  Node worker(controller_);
  ASSERT_TRUE(launch(1, 2, {})) << last(1).error_message();
  const auto before = beat_ranks();
  worker.kill(SIGKILL);
  worker.start();
  ASSERT_TRUE(controller_.wait([&] { return controller_.of("n1").registers.size() >= 2; }));
  ASSERT_TRUE(beats_continue());
  EXPECT_EQ(beat_ranks()[0].pid(), before.at(0).pid());
  controller_.send("n1", stop(1, true, 20'000));
  ASSERT_TRUE(reported(1, Report::ENDED));
  const Report ended = last(1);
  for (const v1::RankExitReport& exit : ended.exits()) EXPECT_EQ(exit.signal(), 0) << "saved and exited";
  expect_complete(0);
}

// Each row tries something in the state folder, where only the attempt's own folder is accessible.
TEST_F(IsolationTest, RanksReachOnlyTheirOwnFolder) {
  Node worker(controller_);
  const std::string script = absl::StrCat(
      "S=", worker.state(),
      "; for d in $TITAN_RUN_FOLDER $S $S/jobs $S/trash $S/ranks; do ls $d && echo LISTED $d; touch $d/x && echo MADE "
      "$d; "
      "mv $d $d.x && echo MOVED $d; done; "
      "for f in attempt.json spec.json shim.json shim.lock shim.log exits.jsonl launch.json rank-0.log; do "
      "cat $TITAN_RUN_FOLDER/$f && echo READ $f; echo x >> $TITAN_RUN_FOLDER/$f && echo WROTE $f; "
      "rm -f $TITAN_RUN_FOLDER/$f && [ ! -e $TITAN_RUN_FOLDER/$f ] && [ -x $TITAN_RUN_FOLDER ] && echo REMOVED $f; "
      "done; "
      "for f in daemon.lock; do cat $S/$f && echo READ $f; done; "
      "for f in instance cluster leader_epoch daemon.lock; do echo x >> $S/$f && echo WROTE $f; done; "
      "ls . && touch mine && echo OWN; kill -9 $(cat /proc/$PPID/stat | cut -d' ' -f4) && echo KILLED");
  ASSERT_TRUE(launch(1, 1, {{"run", "{ " + script + "; } 2>/dev/null"}}));
  const std::string printed = ran(worker);
  for (const char* done : {"LISTED", "MADE", "MOVED", "READ", "WROTE", "REMOVED", "KILLED"})
    EXPECT_THAT(printed, Not(HasSubstr(done)));
  EXPECT_THAT(printed, HasSubstr("OWN")) << "except their own folder";
  EXPECT_TRUE(fs::exists(worker.rank_folder() + "/mine"));
  EXPECT_EQ(fs::status(worker.rank_folder()).permissions(), fs::perms::owner_all);
  EXPECT_TRUE(beats_continue());
}

// Whatever replaces a rank's files, the daemon neither follows it nor blocks or crashes on it.
TEST_F(IsolationTest, LinksInTheRankFolderAreNotFollowed) {
  Node worker(controller_);
  const std::string link = absl::StrCat("for f in rank-0.beacon rank-0.events.jsonl rank-0.flight; do rm -f $f; ln -s ",
                                        precious_, " $f; done");
  const std::string odd =
      "rm -f rank-1.beacon rank-1.events.jsonl; mkfifo rank-1.beacon; truncate -s 1T rank-1.events.jsonl; "
      "printf '{\"seq\":1,' | dd of=rank-1.events.jsonl conv=notrunc";
  const std::string shared = "rm -f rank-2.beacon; ln rank-2.events.jsonl rank-2.beacon";
  const json ranks = {{"0", {{"run", link}}}, {"1", {{"run", odd}}}, {"2", {{"run", shared}}}};
  ASSERT_TRUE(launch(1, 3, {{"ignore_stop", true}, {"ranks", ranks}}));
  ran(worker);
  const pid_t daemon = worker.pid();
  const int64_t ticks = shim::start_ticks(daemon);
  ASSERT_TRUE(beats_continue());
  controller_.send("n1", stop(1, true, 300));
  ASSERT_TRUE(reported(1, Report::ENDED)) << "the shim wrote to no file that is not a beacon";
  const Report ended = last(1);
  EXPECT_EQ(ended.exits_size(), 3);
  for (const v1::RankExitReport& exit : ended.exits()) EXPECT_THAT(exit.last_words(), Not(HasSubstr("root's")));
  EXPECT_TRUE(alive(daemon, ticks));
  EXPECT_EQ(text_of_file(precious_), kPrecious);
}

// The same holds in the dump folder, where the worker writes a token and an id.
TEST_F(IsolationTest, LinksInTheDumpFolderAreNotFollowed) {
  Node worker(controller_);
  ASSERT_TRUE(connected());
  const std::string out = dump_.file("out");
  int attempt = 0;
  for (const std::string name : {"/.titan-token-u1-1", "/.titan-token-u1-2.new", "/.titan-folder.new", "/.titan-folder",
                                 "/.fence.lock", "/fence.json"}) {
    fs::remove_all(out);
    create_owned_folder(out);
    fs::create_symlink(precious_, out + name);
    controller_.send("n1", prepare(++attempt, 1, {}));
    ASSERT_TRUE(controller_.wait([&] { return controller_.last_report("n1", attempt) != nullptr; })) << name;
    EXPECT_EQ(text_of_file(precious_), kPrecious) << name;
  }
  // Replaces their folder by a link to root's.
  fs::create_directories(dump_.file("roots"));
  fs::remove_all(out);
  fs::create_directory_symlink(dump_.file("roots"), out);
  controller_.send("n1", prepare(++attempt, 1, {}));
  ASSERT_TRUE(reported(attempt, Report::REFUSED));
  EXPECT_EQ(last(attempt).error_reason(), "DUMP_FOLDER_UNUSABLE");
  EXPECT_THAT(last(attempt).error_message(), HasSubstr("as user nobody"));
  EXPECT_TRUE(fs::is_empty(dump_.file("roots")));
}

// A remote user named root is refused, and the refusal for an unknown user says what to do.
TEST_F(IsolationTest, OnlyAKnownUserMayRun) {
  Node worker(controller_);
  ASSERT_TRUE(connected());
  const auto refused = [&](int attempt, const std::string& user, bool local) {
    v1::ControllerMessage message = prepare(attempt, 1, {});
    message.mutable_prepare()->set_run_as(user);
    message.mutable_prepare()->set_run_as_local(local);
    controller_.send("n1", message);
    EXPECT_TRUE(reported(attempt, Report::REFUSED));
    return absl::StrCat(last(attempt).error_reason(), ": ", last(attempt).error_message());
  };
  EXPECT_THAT(refused(1, "root", false), HasSubstr("ROOT_NOT_ALLOWED"));
  EXPECT_THAT(refused(2, "no-such-user", true), HasSubstr("NO_SUCH_USER"));
  EXPECT_THAT(refused(3, "no-such-user", false), HasSubstr("--rank-user"));
  EXPECT_THAT(refused(4, "", false), HasSubstr("NO_SUCH_USER"));
}

TEST_F(IsolationTest, RankUserFlagRunsAllJobs) {
  Node worker(controller_, {"--rank-user", kUser});
  run_as_ = "";
  ASSERT_TRUE(launch(1, 1, {})) << last(1).error_message();
  EXPECT_THAT(field(text_of_file(absl::StrCat("/proc/", beat_ranks()[0].pid(), "/status")), "Uid"),
              HasSubstr(absl::StrCat(uid_)));
}

TEST(RanksAsTest, UnprivilegedWorkerRunsJobsAsItself) {
  node::AttemptRecord record;
  record.run_as = "no-such-user";
  const RanksAs as = ranks_as(record, "", 1000);
  EXPECT_FALSE(as.refusal);
  EXPECT_FALSE(as.user.has_value());
}

}  // namespace
}  // namespace titan::daemon
