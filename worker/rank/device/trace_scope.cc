#include "worker/rank/device/trace_scope.h"

#include <algorithm>
#include <unordered_map>

#include "absl/strings/str_split.h"

namespace titan::device {
namespace {

// A custom model may create an unlimited number of names; stacks beyond this limit share the last number.
constexpr size_t kMaxStacks = 50'000;
constexpr char kMore[] = "more scopes than can be distinguished";

// Scopes of one thread, the outermost first. The names belong to LibTorch's records, which live as long as the scopes.
struct Scopes {
  std::vector<const char*> names;
  size_t borrowed = 0;  // Number of them that belong to another thread.
};

// Lets autograd's threads find the thread that waits for them.
class Threads {
 public:
  void add(uint64_t id, const Scopes* scopes) {
    sync::Lock lock(mutex_);
    scopes_[id] = scopes;
  }
  void remove(uint64_t id) {
    sync::Lock lock(mutex_);
    scopes_.erase(id);
  }
  // Returns the scopes of a thread that waits and so does not change them meanwhile.
  std::vector<const char*> names_of(uint64_t id) {
    sync::Lock lock(mutex_);
    const auto found = scopes_.find(id);
    return found == scopes_.end() ? std::vector<const char*>() : found->second->names;
  }

 private:
  sync::Mutex mutex_;
  std::unordered_map<uint64_t, const Scopes*> scopes_ TITAN_GUARDED_BY(mutex_);
};

Threads& threads() {
  static Threads* instance = new Threads;
  return *instance;
}

Scopes& scopes_here() {
  thread_local Scopes scopes;
  return scopes;
}

// The record of a collective is ignored: it ends on another thread, when the collective ends.
std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& record) {
  if (record.isAsync()) return nullptr;
  Scopes& here = scopes_here();
  if (here.names.empty() && record.scope() == at::RecordScope::BACKWARD_FUNCTION && record.forwardThreadId() != 0) {
    here.names = threads().names_of(record.forwardThreadId());
    here.borrowed = here.names.size();
  }
  here.names.push_back(record.name());
  return nullptr;
}

void leave(const at::RecordFunction& record, at::ObserverContext*) {
  Scopes& here = scopes_here();
  if (record.isAsync() || here.names.empty()) return;
  here.names.pop_back();
  if (here.names.size() != here.borrowed) return;
  here.names.clear();
  here.borrowed = 0;
}

bool is_step(std::string_view name) { return name.starts_with("ProfilerStep#"); }

}  // namespace

ScopeNames::ScopeNames()
    : callback_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&enter, &leave)
              .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}))) {
  threads().add(at::RecordFunction::currentThreadId(), &scopes_here());
}

ScopeNames::~ScopeNames() {
  at::removeCallback(callback_);
  threads().remove(at::RecordFunction::currentThreadId());
  scopes_here() = {};
}

int32_t ScopeTable::now() {
  std::string key;
  for (const char* name : scopes_here().names) {
    if (!is_step(name)) key.append(name).push_back('\n');
  }
  if (key.empty()) return 0;
  sync::Lock lock(mutex_);
  const auto found = numbers_.find(key);
  if (found != numbers_.end()) return found->second;
  if (stacks_.size() > kMaxStacks) return static_cast<int32_t>(kMaxStacks);
  std::vector<std::string> stack = {kMore};
  if (stacks_.size() < kMaxStacks) {
    key.pop_back();
    stack = absl::StrSplit(key, '\n');
    std::reverse(stack.begin(), stack.end());
    key.push_back('\n');
  }
  const auto number = static_cast<int32_t>(stacks_.size());
  stacks_.push_back(std::move(stack));
  numbers_.emplace(std::move(key), number);
  return number;
}

std::vector<std::vector<std::string>> ScopeTable::stacks() const {
  sync::Lock lock(mutex_);
  return stacks_;
}

}  // namespace titan::device
