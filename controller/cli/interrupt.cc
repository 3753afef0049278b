#include "controller/cli/interrupt.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "common/base/host/signals.h"

namespace titan::cli {
namespace {

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  for (const int number : host::kWarningSignals) sigaddset(&set, number);
  return set;
}

}  // namespace

void Interrupt::block_signals() {
  const sigset_t set = ending_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void Interrupt::unblock_signals() {
  const sigset_t set = ending_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

Interrupt::Interrupt(std::function<void(int)> on_signal)
    : on_signal_(std::move(on_signal)), wake_(eventfd(0, EFD_CLOEXEC)), thread_([this] { watch(); }) {}

Interrupt::~Interrupt() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
  thread_.join();
  close(wake_);
}

void Interrupt::take(int number) {
  if (count_ == 0 || number == SIGINT) on_signal_(++count_);
}

void Interrupt::watch() {
  const sigset_t set = ending_signals();
  const int signals = signalfd(-1, &set, SFD_CLOEXEC);
  pollfd waiting[] = {{signals, POLLIN, 0}, {wake_, POLLIN, 0}};
  while (poll(waiting, 2, -1) >= 0 || errno == EINTR) {
    if ((waiting[1].revents & POLLIN) != 0) break;
    signalfd_siginfo info;
    if ((waiting[0].revents & POLLIN) != 0 && read(signals, &info, sizeof info) == sizeof info)
      take(static_cast<int>(info.ssi_signo));
  }
  close(signals);
}

}  // namespace titan::cli
