#pragma once

// A real etcd of one member on free ports, in a folder of its own.

#include <sys/types.h>

#include <string>
#include <vector>

namespace titan::store {

class EtcdProcess {
 public:
  // Starts it, with more flags, and waits until it answers.
  explicit EtcdProcess(std::vector<std::string> flags = {});
  ~EtcdProcess();

  // For clients: HOST:PORT.
  const std::string& address() const { return address_; }
  // SIGKILL: everything that it had not on disk is gone.
  void kill();
  // Again on the same ports and folder; waits until it answers.
  void start();

 private:
  void wait_until_it_answers() const;

  const std::vector<std::string> flags_;
  std::string folder_, address_, peer_;
  pid_t pid_ = -1;
};

bool etcd_is_there();

#define TITAN_SKIP_WITHOUT_ETCD() \
  if (!etcd_is_there())           \
  GTEST_SKIP() << "no etcd in PATH: not tested here; deploy/bootstrap.sh installs Debian's etcd-server"

// One for all tests of this program, which take a prefix each.
EtcdProcess& shared_etcd();

}  // namespace titan::store
