// OpenMP threads that spin for long while waiting make ranks many times slower if other processes share the cores. The
// daemon sets GNU OpenMP's limit in a rank's environment. A rank that is started by hand sets it here.

#include <unistd.h>

#include <cstring>

namespace {

constexpr char kSetting[] = "GOMP_SPINCOUNT=1000";
constexpr int kMaxVariables = 4096;

bool sets(const char* variable, const char* name) { return std::strncmp(variable, name, std::strlen(name)) == 0; }

// The library reads its environment when it is loaded, so the program executes itself again before the libraries are
// initialised (10 ms). If that fails, it continues and is slower.
void limit_spinning(int /*argc*/, char** words, char** environment) {
  static char* with_setting[kMaxVariables + 2];
  int count = 0;
  for (; environment[count] != nullptr; ++count) {
    const char* variable = environment[count];
    if (count == kMaxVariables || sets(variable, "GOMP_SPINCOUNT=") || sets(variable, "OMP_WAIT_POLICY=")) return;
    with_setting[count] = environment[count];
  }
  with_setting[count] = const_cast<char*>(kSetting);
  static char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
  if (length > 0) execve(program, words, with_setting);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // Their runtimes are not initialised yet.
[[gnu::section(".preinit_array"), gnu::used]] void (*const run_first)(int, char**, char**) = limit_spinning;
#endif

}  // namespace
