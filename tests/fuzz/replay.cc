// Runs every target over its corpus and over mutations of it, chosen by a seed: fuzz_replay CORPUS [--rounds N]
// [TARGET...]. Without coverage guidance it finds little that is new, but earlier findings and everything that the
// corpora reach stay covered.

#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"

namespace titan::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kSeed = 7;
constexpr size_t kMaxLength = 16 << 10;
// Limit of CPU seconds for one input; a longer run counts as endless. Neither a busy machine nor a sanitizer that
// serializes calls uses up CPU time. The test's time limit ends an input that waits forever.
constexpr time_t kTimeout = 60;

// The running target, which a signal handler prints after a crash.
const Target* running = nullptr;
std::string input;

void report_and_exit(int signal) {
  char name[96];
  const int length =
      std::snprintf(name, sizeof name, "fuzz_replay: %s ended by signal %d; its input is in /tmp/fuzz-%s\n",
                    running->name, signal, running->name);
  (void)!::write(STDERR_FILENO, name, static_cast<size_t>(length));
  std::snprintf(name, sizeof name, "/tmp/fuzz-%s", running->name);
  if (FILE* const file = std::fopen(name, "wb"); file != nullptr) {
    std::fwrite(input.data(), 1, input.size(), file);
    std::fclose(file);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void watch_signals() {
  // A separate stack, because an overflowing stack has no space for a handler.
  static char stack[64 << 10];
  stack_t other{};
  other.ss_sp = stack;
  other.ss_size = sizeof stack;
  ::sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_handler = report_and_exit;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGPROF}) ::sigaction(signal, &action, nullptr);
}

std::vector<std::string> read_corpus(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code none;
  for (const auto& item : fs::directory_iterator(folder, none)) paths.push_back(item.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> texts;
  for (const fs::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& corpus) : corpus_(corpus), random_(kSeed) {}

  std::string next() {
    std::string text = corpus_[draw(corpus_.size())];
    for (size_t left = 1 + draw(4); left > 0; --left) change(text);
    if (text.size() > kMaxLength) text.resize(kMaxLength);
    return text;
  }

 private:
  size_t draw(size_t below) { return below == 0 ? 0 : random_() % below; }

  void change(std::string& text) {
    const size_t at = draw(text.size() + 1);
    switch (draw(8)) {
      case 0:  // Cut short.
        return text.resize(at);
      case 1:  // Any byte.
        if (at < text.size()) text[at] = static_cast<char>(random_());
        return;
      case 2:  // One bit flipped.
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ 1 << draw(8));
        return;
      case 3:  // Some bytes left out.
        text.erase(at, 1 + draw(8));
        return;
      case 4: {  // Some bytes doubled.
        const std::string part = text.substr(at, 1 + draw(64));
        text.insert(at, part);
        return;
      }
      case 5: {  // A part of another input.
        const std::string& other = corpus_[draw(corpus_.size())];
        text.insert(at, other.substr(draw(other.size() + 1), 1 + draw(64)));
        return;
      }
      case 6: {  // Text on which readers often fail.
        static constexpr const char* kTrickyTexts[] = {"-1",         "0",        "1e999", "9223372036854775808",
                                                       "4294967296", "null",     "{}",    "[]",
                                                       "\"",         "[[[[[[[[", "true",  "\xff",
                                                       "\\u0000",    "\n",       "-0.0",  "1e18"};
        text.insert(at, kTrickyTexts[draw(std::size(kTrickyTexts))]);
        return;
      }
      default: {  // Another number.
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit == text.npos) return;
        const size_t end = text.find_first_not_of("0123456789", digit);
        text.replace(digit, end == text.npos ? text.npos : end - digit, std::to_string(random_() >> draw(64)));
        return;
      }
    }
  }

  const std::vector<std::string>& corpus_;
  std::mt19937_64 random_;
};

void allow_seconds(time_t seconds) {  // 0 means no limit.
  const itimerval timer{{0, 0}, {seconds, 0}};
  ::setitimer(ITIMER_PROF, &timer, nullptr);
}

void run(const Target& target, const std::string& text) {
  running = &target;
  input = text;
  allow_seconds(kTimeout);
  target.run(text);
  allow_seconds(0);
}

// No input may use up the machine's memory. Sanitizers reserve more than this limit.
void limit_memory() {
#ifndef TITAN_SANITIZED
  const rlimit limit{rlim_t{4} << 30, rlim_t{4} << 30};
  ::setrlimit(RLIMIT_AS, &limit);
#endif
}

int replay(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: fuzz_replay CORPUS [--rounds N] [TARGET...]\n");
    return 2;
  }
  int rounds = 1;
  std::vector<std::string> wanted;
  for (int i = 2; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::atoi(argv[++i]);
    } else {
      wanted.emplace_back(argv[i]);
    }
  }
  watch_signals();
  limit_memory();
  int ran = 0;
  for (const Target& target : targets()) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), target.name) == wanted.end()) continue;
    const std::vector<std::string> corpus = read_corpus(fs::path(argv[1]) / target.name);
    if (corpus.empty()) {
      std::fprintf(stderr, "fuzz_replay: there is no corpus %s/%s\n", argv[1], target.name);
      return 1;
    }
    const auto start = std::chrono::steady_clock::now();
    for (const std::string& text : corpus) run(target, text);
    Mutator mutator(corpus);
    const int mutations = target.mutations * rounds;
    for (int i = 0; i < mutations; ++i) run(target, mutator.next());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%-16s %3zu files %6d mutations %5.2f s\n", target.name, corpus.size(), mutations, took.count());
    std::fflush(stdout);
    ++ran;
  }
  if (ran > 0) return 0;
  std::fprintf(stderr, "fuzz_replay: no target of that name\n");
  return 2;
}

}  // namespace
}  // namespace titan::fuzz

int main(int argc, char** argv) { return titan::fuzz::replay(argc, argv); }
