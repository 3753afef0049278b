#include "worker/node/daemon/rank_environment.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace titan::daemon {
namespace {

constexpr absl::string_view kPassed[] = {
    // Programs and their output.
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "TERM", "NO_COLOR",
    "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "MALLOC_*", "GLIBC_TUNABLES", "ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS",
    "UBSAN_OPTIONS",
    // LibTorch, devices, threads and networks.
    "TORCH_*", "PYTORCH_*", "CUDA_*", "CUBLAS_*", "CUDNN_*", "NVIDIA_*", "NCCL_*", "OMP_*", "GOMP_*", "KMP_*", "MKL_*",
    "DNNL_*", "ONEDNN_*", "OPENBLAS_*", "GLOO_*", "FI_*", "UCX_*", "IBV_*", "MLX5_*", "HF_*",
    // Location and profile of an object store. Credentials themselves need --pass-env.
    "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE", "AWS_CA_BUNDLE",
    // Titan's ranks. TITAN_TEST_*: identifies processes that tests started.
    "TITAN_RANK_*", "TITAN_ASSETS", "TITAN_TEST_*"};

constexpr absl::string_view kNever[] = {"NOTIFY_SOCKET",    "WATCHDOG_*",       "LISTEN_*",
                                        "INVOCATION_ID",    "JOURNAL_STREAM",   "CREDENTIALS_DIRECTORY",
                                        "MANAGERPID",       "SYSTEMD_EXEC_PID", "MEMORY_PRESSURE_*",
                                        "TITAN_TOKEN_FILE", "TITAN_TLS_*",      "TITAN_FAILPOINT"};

// Last words of secrets' names: HF_TOKEN, NVIDIA_API_KEY. NCCL_IB_PKEY is a number, not a secret.
constexpr absl::string_view kSecrets[] = {"TOKEN", "KEY", "APIKEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS"};

bool is_secret(absl::string_view name) {
  const std::string upper = absl::AsciiStrToUpper(name);
  absl::string_view rest = upper;
  absl::ConsumeSuffix(&rest, "_FILE");
  const size_t last = rest.rfind('_');
  const absl::string_view word = last == absl::string_view::npos ? rest : rest.substr(last + 1);
  return std::find(std::begin(kSecrets), std::end(kSecrets), word) != std::end(kSecrets);
}

bool fits(absl::string_view name, absl::string_view pattern) {
  return absl::ConsumeSuffix(&pattern, "*") ? absl::StartsWith(name, pattern) : name == pattern;
}

template <typename Patterns>
bool fits_any(absl::string_view name, const Patterns& patterns) {
  return std::any_of(std::begin(patterns), std::end(patterns),
                     [name](absl::string_view pattern) { return fits(name, pattern); });
}

// Returns whether the name is given in full, or "*" is given, which means everything.
bool is_named(absl::string_view name, const std::vector<std::string>& more) {
  return std::find(std::begin(kPassed), std::end(kPassed), name) != std::end(kPassed) ||
         std::any_of(more.begin(), more.end(), [name](const std::string& one) { return one == "*" || one == name; });
}

}  // namespace

std::vector<std::string> rank_environment(const char* const* own, const std::vector<std::string>& more) {
  std::vector<std::string> passed;
  for (; *own != nullptr; ++own) {
    const absl::string_view entry = *own;
    const absl::string_view name = entry.substr(0, entry.find('='));
    if (fits_any(name, kNever)) continue;
    if (is_secret(name) ? is_named(name, more) : fits_any(name, kPassed) || fits_any(name, more))
      passed.emplace_back(entry);
  }
  return passed;
}

std::string check_pass_env(const std::string& name) {
  absl::string_view rest = name;
  absl::ConsumeSuffix(&rest, "*");
  if (name.empty() || rest.find_first_of("=* ") != absl::string_view::npos)
    return "'" + name + "' is not a variable name: use NAME, or PREFIX* for all names with that prefix";
  if (fits_any(name, kNever)) return name + " belongs to titan-worker and is never passed to ranks";
  return "";
}

}  // namespace titan::daemon
