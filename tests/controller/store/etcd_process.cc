#include "tests/controller/store/etcd_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "controller/store/etcd/client.h"
#include "controller/store/etcd/layout.h"
#include "gtest/gtest.h"

namespace titan::store {
namespace {

// Returns a free port. etcd cannot choose a free port and report it.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

}  // namespace

EtcdProcess::EtcdProcess(std::vector<std::string> flags) : flags_(std::move(flags)) {
  std::string pattern = ::testing::TempDir() + "titan-etcd-XXXXXX";
  folder_ = mkdtemp(pattern.data());
  address_ = "127.0.0.1:" + std::to_string(free_port());
  peer_ = "http://127.0.0.1:" + std::to_string(free_port());
  start();
}

EtcdProcess::~EtcdProcess() {
  kill();
  std::filesystem::remove_all(folder_);
}

void EtcdProcess::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void EtcdProcess::start() {
  const std::string client = "http://" + address_, data = folder_ + "/data", log = folder_ + "/log";
  const std::string cluster = "default=" + peer_;
  std::vector<const char*> arguments = {"etcd",          "--data-dir",
                                        data.c_str(),    "--listen-client-urls",
                                        client.c_str(),  "--advertise-client-urls",
                                        client.c_str(),  "--listen-peer-urls",
                                        peer_.c_str(),   "--initial-advertise-peer-urls",
                                        peer_.c_str(),   "--initial-cluster",
                                        cluster.c_str(), "--logger",
                                        "zap",           "--log-outputs",
                                        log.c_str()};
  for (const std::string& flag : flags_) arguments.push_back(flag.c_str());
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  ASSERT_GE(pid_, 0);
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) _exit(1);
    const int null = ::open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
    ::execvp("etcd", const_cast<char* const*>(arguments.data()));
    _exit(127);
  }
  wait_until_it_answers();
}

void EtcdProcess::wait_until_it_answers() const {
  EtcdClient client({{address_}});
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  absl::Status status;
  do {
    status = client.range(read_of("any")).status();
    ASSERT_EQ(::waitpid(pid_, nullptr, WNOHANG), 0) << "etcd ended: is etcd-server installed (deploy/bootstrap.sh)?";
    if (!status.ok()) absl::SleepFor(absl::Milliseconds(20));
  } while (!status.ok() && absl::Now() < deadline);
  ASSERT_TRUE(status.ok()) << status;
}

bool has_etcd() {
  const char* path = getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    if (::access(absl::StrCat(folder, "/etcd").c_str(), X_OK) == 0) return true;
  }
  return false;
}

EtcdProcess& shared_etcd() {
  static EtcdProcess process;
  return process;
}

}  // namespace titan::store
