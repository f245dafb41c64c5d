/*
 * ptrace(2) for User-Mode Linux on a processor that is newer than its kernel.
 *
 * Linux takes the registers of a traced process (NT_X86_XSTATE) whole or not at all. User-Mode Linux before 6.11
 * reads and writes as much of them as processors with AVX-512 have, and dies on one with AMX ("ptrace set fp regs
 * failed"). Here what it writes goes over the first part of what there is. scripts/nfs-packages.sh builds this, and
 * guests are started with it in LD_PRELOAD.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char registers[1 << 16]; /* AMX makes them 11 KiB; stacks of User-Mode Linux are small */

static long transfer(enum __ptrace_request request, pid_t pid, struct iovec *known)
{
    struct iovec all = {registers, sizeof registers};

    if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, &all) != 0)
        return -1;
    if (known->iov_len > all.iov_len)
        known->iov_len = all.iov_len;
    if (request == PTRACE_GETREGSET) {
        memcpy(known->iov_base, registers, known->iov_len);
        return 0;
    }
    memcpy(registers, known->iov_base, known->iov_len);
    return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, NT_X86_XSTATE, &all);
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list rest;
    va_start(rest, request);
    pid_t pid = va_arg(rest, pid_t);
    void *address = va_arg(rest, void *);
    void *data = va_arg(rest, void *);
    va_end(rest);

    if ((request == PTRACE_GETREGSET || request == PTRACE_SETREGSET) && address == (void *)NT_X86_XSTATE)
        return transfer(request, pid, data);
    if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
        long word; /* the system call stores it, the library's function returns it */
        if (syscall(SYS_ptrace, request, pid, address, &word) != 0)
            return -1;
        errno = 0;
        return word;
    }
    return syscall(SYS_ptrace, request, pid, address, data);
}
