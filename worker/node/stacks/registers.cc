#include "worker/node/stacks/registers.h"

#include <elf.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>

namespace titan::stacks {
namespace {

#if defined(__x86_64__)
using MachineRegisters = user_regs_struct;

Registers numbered(const MachineRegisters& from) {
  return {from.rip,
          from.rsp,
          {from.rax, from.rdx, from.rcx, from.rbx, from.rsi, from.rdi, from.rbp, from.rsp, from.r8, from.r9, from.r10,
           from.r11, from.r12, from.r13, from.r14, from.r15, from.rip}};
}
#elif defined(__aarch64__)
using MachineRegisters = user_regs_struct;

Registers numbered(const MachineRegisters& from) {
  Registers to{from.pc, from.sp, {from.regs, from.regs + 31}};
  to.by_number.push_back(from.sp);
  return to;
}
#else
struct MachineRegisters {};

Registers numbered(const MachineRegisters&) { return {}; }
#endif

}  // namespace

std::optional<Registers> read_registers(pid_t tid) {
  MachineRegisters registers;
  iovec place{&registers, sizeof(registers)};
  if (::ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &place) != 0 || place.iov_len != sizeof(registers)) return {};
  Registers numbers = numbered(registers);
  if (numbers.by_number.empty()) return {};
  return numbers;
}

}  // namespace titan::stacks
