#include "common/base/host/random_hex.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/escaping.h"

namespace titan::host {

std::string random_hex(size_t bytes) {
  std::string random(bytes, '\0');
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = ::getrandom(random.data() + done, bytes - done, 0);
    if (got < 0 && errno != EINTR) std::abort();
    if (got > 0) done += static_cast<size_t>(got);
  }
  return absl::BytesToHexString(random);
}

}  // namespace titan::host
