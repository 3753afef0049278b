// Tests which calls each kind of caller of the API may make.

#include <sys/stat.h>

#include <set>

#include "common/base/sync/sync.h"
#include "controller/api/convert.h"
#include "tests/controller/api/service_case.h"

namespace titan::api {
namespace {

using ::testing::HasSubstr;

class AccessTest : public ServiceCase {
 protected:
  void SetUp() override {
    gate_.owner = [this](const auth::LocalConnection& connection) -> absl::StatusOr<uid_t> {
      port_ = connection.server_port;
      const sync::Lock lock(mutex_);
      server_ends_.insert(connection.server);
      if (owner_ < 0) return absl::NotFoundError("no open socket");
      return static_cast<uid_t>(owner_);
    };
    ServiceCase::SetUp();
  }

  const int64_t own_ = geteuid();
  std::atomic<int64_t> owner_ = own_;  // Owner of every connection; -1 if unknown.
  std::atomic<int> port_ = 0;
  sync::Mutex mutex_;
  std::set<std::string> server_ends_;  // Server ends of the connections whose owner was looked up.
};

// The controller's own user and root need no configuration.
TEST_F(AccessTest, ControllersUserAndRootAreAdmins) {
  v1::Job made;
  ASSERT_TRUE(create(job("a"), &made).ok());
  EXPECT_EQ(made.owner(), absl::StrCat("local:", own_));
  EXPECT_EQ(port_, server_->port());
  owner_ = 0;
  ASSERT_TRUE(create(job("b"), &made).ok());
  EXPECT_EQ(made.owner(), "local:0");
  const auto record = reconciler_->published().find_by_name(made.name())->record;
  EXPECT_EQ(record->run_as, "root") << "the user that its ranks run as";
  EXPECT_TRUE(record->run_as_local);
}

// Jobs run as the worker's user: another user who could submit would act as that user.
TEST_F(AccessTest, AnotherUserOfTheMachineIsRefused) {
  owner_ = own_ + 1;
  v1::Job made;
  const absl::Status status = create(job("a"), &made);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(rpc::reason(status), "ANOTHER_USER");
  EXPECT_THAT(std::string(status.message()), HasSubstr("--token-file"));
  EXPECT_EQ(get("a").status().code(), absl::StatusCode::kPermissionDenied);
  owner_ = own_;
  EXPECT_EQ(get("a").status().code(), absl::StatusCode::kNotFound);
}

// The owner is looked up for each call: on the same connection, the kernel's new answer replaces the old one.
TEST_F(AccessTest, OwnerIsLookedUpForEachCall) {
  v1::Job made;
  ASSERT_TRUE(create(job("a"), &made).ok());
  owner_ = -1;
  const absl::Status status = get("a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(rpc::reason(status), "WHO_ARE_YOU");
}

// From one port of this machine several users can have connections to several of its addresses. For a controller that
// listens on all addresses, the kernel could return the owner of another connection.
TEST_F(AccessTest, NobodyIsLocalWhenListeningOnAllAddresses) {
  for (const char* every : {"0.0.0.0:0", "[::]:0"}) {
    stop();
    gate_.insecure = false;
    start(every);
    v1::Job made;
    const absl::Status status = create(job("a"), &made);
    EXPECT_EQ(rpc::reason(status), "WHO_ARE_YOU") << every << ": " << status;
    stop();
    gate_.insecure = true;
    start(every);
    ASSERT_TRUE(create(job(absl::StrCat("b", every[0] == '0')), &made).ok());
    EXPECT_FALSE(reconciler_->published().find_by_name(made.name())->record->run_as_local) << every;
  }
  EXPECT_TRUE(server_ends_.empty()) << "the kernel is not queried";
  stop();
  gate_.insecure = false;
  start("localhost:0");
  v1::Job made;
  EXPECT_TRUE(create(job("c"), &made).ok());
  EXPECT_THAT(server_ends_, ::testing::ElementsAre("127.0.0.1")) << "otherwise with both ends of the connection";
}

TEST_F(AccessTest, InsecureSkipsTheOwnerLookup) {
  stop();
  gate_.insecure = true;
  start("127.0.0.1:0");
  owner_ = own_ + 1;
  v1::Job made;
  ASSERT_TRUE(create(job("a"), &made).ok());
  EXPECT_EQ(made.owner(), "peer:127.0.0.1");
  EXPECT_NE(reconciler_->published().find_by_name(made.name())->record->run_as, "root");
}

// A caller who can open the socket is an admin, and only its owner can.
TEST_F(AccessTest, UnixSocketCallersActAsItsOwner) {
  stop();
  const std::string path = folder_ + "/socket";
  start("unix:" + path);
  struct stat file {};
  ASSERT_EQ(stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0700U);
  owner_ = own_ + 1;
  jobs_ = v1::JobService::NewStub(rpc::make_channel("unix:" + path));
  v1::Job made;
  ASSERT_TRUE(create(job("a"), &made).ok());
  EXPECT_EQ(made.owner(), absl::StrCat("local:", own_));
}

}  // namespace
}  // namespace titan::api
