#pragma once

// Runs a real etcd of one member on free ports, in a temporary folder.

#include <sys/types.h>

#include <string>
#include <vector>

namespace titan::store {

class EtcdProcess {
 public:
  // Starts etcd with additional flags and waits until it answers.
  explicit EtcdProcess(std::vector<std::string> flags = {});
  ~EtcdProcess();

  // HOST:PORT for clients.
  const std::string& address() const { return address_; }
  // Sends SIGKILL: everything that etcd had not written to disk is lost.
  void kill();
  // Starts etcd again on the same ports and folder, and waits until it answers.
  void start();

 private:
  void wait_until_it_answers() const;

  const std::vector<std::string> flags_;
  std::string folder_, address_, peer_;
  pid_t pid_ = -1;
};

bool has_etcd();

#define TITAN_SKIP_WITHOUT_ETCD()                                                            \
  if (!has_etcd())                                                                           \
  GTEST_SKIP() << "no etcd in PATH: not tested here; deploy/bootstrap.sh installs Debian's " \
                  "etcd-server"

// One etcd for all tests of this program; each test uses a separate prefix.
EtcdProcess& shared_etcd();

}  // namespace titan::store
