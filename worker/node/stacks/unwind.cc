#include "worker/node/stacks/unwind.h"

#include <sys/uio.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::stacks {

// This program's data of a libdwfl module.
struct Unwinder::Module {
  pid_t pid = 0;
  Mapping mapping;
  ElfFile* file = nullptr;
};

namespace {

int find_file(Dwfl_Module* module, void** user, const char* name, Dwarf_Addr base, char** file_name, Elf** elf) {
  const auto* const known = static_cast<Unwinder::Module*>(*user);
  if (known == nullptr) return -1;
  if (known->mapping.inode != 0) {
    *elf = known->file->open(known->pid, known->mapping);
  } else if (dwfl_linux_proc_find_elf(module, user, name, base, file_name, elf) < 0 && *elf != nullptr) {
    known->file->adopt(*elf);
  }
  return -1;  // A descriptor is not needed; *elf contains everything.
}

int find_no_debug_file(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word, char**) {
  return -1;
}

const Dwfl_Callbacks kFiles = {
    .find_elf = find_file,
    .find_debuginfo = find_no_debug_file,
    .section_address = dwfl_offline_section_address,
    .debuginfo_path = nullptr,
};

const Mapping* mapping_at(const std::vector<Mapping>& mappings, uint64_t address) {
  for (const Mapping& mapping : mappings) {
    if (mapping.begin <= address && address < mapping.end) return &mapping;
  }
  return nullptr;
}

}  // namespace

Unwinder::Unwinder(pid_t pid, ElfFiles& files) : pid_(pid), dwfl_(dwfl_begin(&kFiles)) {
  static const Dwfl_Thread_Callbacks kThreads = {
      .next_thread = next_thread,
      .get_thread = get_thread,
      .memory_read = read_memory,
      .set_initial_registers = set_registers,
      .detach = nullptr,
      .thread_detach = nullptr,
  };
  const std::vector<Mapping> mappings = mappings_of(pid);
  if (mappings.empty() || dwfl_linux_proc_report(dwfl_, pid) != 0 || dwfl_report_end(dwfl_, nullptr, nullptr) != 0) {
    problem_ = "its memory mappings cannot be read";
    return;
  }
  name_modules(mappings, files);
  if (!dwfl_attach_state(dwfl_, nullptr, pid, &kThreads, this)) {
    problem_ = absl::StrCat("its files cannot be read: ", dwfl_errmsg(-1));
  }
}

void Unwinder::name_modules(const std::vector<Mapping>& mappings, ElfFiles& files) {
  struct To {
    const std::vector<Mapping>& mappings;
    ElfFiles& files;
    Unwinder& self;
  } all{mappings, files, *this};
  const auto name_one = [](Dwfl_Module*, void** user, const char* name, Dwarf_Addr base, void* arguments) {
    const To& to = *static_cast<To*>(arguments);
    const Mapping* const mapping = mapping_at(to.mappings, base);
    if (mapping == nullptr) return static_cast<int>(DWARF_CB_OK);
    const bool is_clock = absl::StartsWith(name, "[vdso");  // "[vdso: PID]"
    ElfFile& file =
        mapping->inode != 0 ? to.files.of(*mapping) : to.files.nameless(is_clock ? "[vdso]" : printable(name));
    to.self.modules_.push_back(std::make_unique<Module>(Module{to.self.pid_, *mapping, &file}));
    *user = to.self.modules_.back().get();
    return static_cast<int>(DWARF_CB_OK);
  };
  dwfl_getmodules(dwfl_, name_one, &all, 0);
}

Unwinder::~Unwinder() { dwfl_end(dwfl_); }

Stack Unwinder::follow(const Capture& capture, size_t max_frames) {
  Stack stack;
  capture_ = &capture;
  stack_ = &stack;
  max_frames_ = max_frames;
  dwfl_getthread_frames(dwfl_, capture.facts.tid, take_frame, this);  // On an error the frames so far are kept.
  if (stack.frames.empty()) stack.frames.push_back(frame_at(capture.registers.program_counter));
  return stack;
}

int Unwinder::take_frame(Dwfl_Frame* frame, void* self) {
  auto& unwinder = *static_cast<Unwinder*>(self);
  Dwarf_Addr program_counter = 0;
  bool is_activation = false;
  if (!dwfl_frame_pc(frame, &program_counter, &is_activation)) return DWARF_CB_ABORT;
  if (program_counter == 0) return DWARF_CB_ABORT;
  if (unwinder.stack_->frames.size() == unwinder.max_frames_) {
    unwinder.stack_->more = true;
    return DWARF_CB_ABORT;
  }
  Frame to = unwinder.frame_at(is_activation ? program_counter : program_counter - 1);
  if (!is_activation) ++to.address;
  to.is_return = !is_activation;
  unwinder.stack_->frames.push_back(to);
  return DWARF_CB_OK;
}

Frame Unwinder::frame_at(uint64_t program_counter) const {
  Dwfl_Module* const module = dwfl_addrmodule(dwfl_, program_counter);
  if (module == nullptr) return {nullptr, program_counter};
  void** user = nullptr;
  Dwarf_Addr begin = 0;
  dwfl_module_info(module, &user, &begin, nullptr, nullptr, nullptr, nullptr, nullptr);
  if (user == nullptr || *user == nullptr) return {nullptr, program_counter};
  ElfFile* const file = static_cast<Module*>(*user)->file;
  GElf_Addr bias = 0;
  if (dwfl_module_getelf(module, &bias) == nullptr) bias = begin;
  return {file, program_counter - bias};
}

bool Unwinder::get_thread(Dwfl*, pid_t, void* self, void** thread) {
  *thread = self;
  return true;
}

pid_t Unwinder::next_thread(Dwfl*, void*, void**) { return 0; }  // Threads are requested one by one.

bool Unwinder::set_registers(Dwfl_Thread* thread, void* self) {
  const Registers& registers = static_cast<Unwinder*>(self)->capture_->registers;
  dwfl_thread_state_register_pc(thread, registers.program_counter);
  return dwfl_thread_state_registers(thread, 0, static_cast<unsigned>(registers.by_number.size()),
                                     registers.by_number.data());
}

bool Unwinder::read_memory(Dwfl*, Dwarf_Addr address, Dwarf_Word* word, void* self) {
  const auto& unwinder = *static_cast<Unwinder*>(self);
  const uint64_t begin = unwinder.capture_->registers.stack_pointer;
  const std::vector<std::byte>& stack = unwinder.capture_->stack;
  if (address >= begin && address - begin + sizeof(*word) <= stack.size()) {
    std::memcpy(word, stack.data() + (address - begin), sizeof(*word));
    return true;
  }
  iovec to{word, sizeof(*word)};
  iovec from{reinterpret_cast<void*>(address), sizeof(*word)};  // NOLINT: an address of another process.
  return ::process_vm_readv(unwinder.pid_, &to, 1, &from, 1, 0) == sizeof(*word);
}

}  // namespace titan::stacks
